"""What the helper does with a user's loader, without its process."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections import UserDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from autotune.wire.helpers import Begin, Load, Loaded
from autotune.wire.messages import Message
from autotune.wire.ranks import Entered
from autotune.wire.stopping import Phase
from probes import held, loader
from probes.faults import UnsupportedError
from tests.support.loaders import WIDTH, Pair
from tests.support.programs import ROOT

REQUEST = Load(
    folder=str(ROOT),
    module="tests.support.loaders",
    function="plain",
    workers=0,
    prefetch=None,
    pin_memory=False,
    micro_batch=None,
    seq_len=None,
    timed_s=0.02,
)
WORKERS = {"workers": 2, "prefetch": 3}


@pytest.fixture(autouse=True)
def _workers_leave() -> Iterator[None]:
    """With the test that started them, which the cycles of an error would outlive."""
    yield
    gc.collect()


def asked(function: str, **changes: Any) -> Load:
    return replace(REQUEST, function=function, **changes)


def measured(request: Load) -> Loaded:
    return loader.load(request, lambda message: None, Begin)


# The loader.


def test_a_loader_is_made_again_with_all_but_its_workers() -> None:
    found = loader.made(asked("drawn", **WORKERS))
    assert (found.num_workers, found.prefetch_factor) == (2, 3)
    assert (found.batch_size, found.drop_last, found.collate_fn) == (5, True, list)
    assert isinstance(found.sampler, RandomSampler)


@pytest.mark.parametrize("function", ["plain", "stream", "unbatched", "own_batches"])
@pytest.mark.parametrize("workers", [{}, WORKERS])
def test_batches_of_a_loader_made_anew_are_its_own(function: str, workers: dict[str, int]) -> None:
    own = loader.made(asked(function))
    found = loader.made(asked(function, **workers))
    assert found.num_workers == workers.get("workers", 0)
    given, again = next(iter(own)), next(iter(found))
    assert loader.shape_of(given) == loader.shape_of(again)
    assert (found.batch_size, found.drop_last) == (own.batch_size, own.drop_last)
    assert type(found.batch_sampler) is type(own.batch_sampler)
    assert isinstance(found.batch_sampler, BatchSampler) == (function in ("plain", "stream"))


def test_a_function_that_takes_the_setting_makes_its_loader_itself() -> None:
    found = loader.made(asked("slow", micro_batch=6, **WORKERS))
    assert (found.num_workers, found.prefetch_factor, found.batch_size) == (2, 3, 6)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asked("none"), "has no attribute 'none'"),
        (asked("number"), "is no function"),
        (asked("no_iterable"), "returned int, which is not iterable"),
        (asked("own_class", **WORKERS), "OwnLoader, which cannot be made again .* num_workers"),
        (asked("generator", **WORKERS), "takes no num_workers, .* or pass --data-workers 0"),
        (asked("sized", seq_len=3), "needs batch_size: pass --micro-batch or --best"),
        (replace(REQUEST, module="nowhere"), "No module named 'nowhere', looked for in"),
    ],
)
def test_what_is_no_loader_is_refused_in_words(request_: Load, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        loader.made(request_)


# Its batches.


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        (torch.zeros((4, 8), dtype=torch.long), [4, 8]),
        ({"x": torch.zeros(4, 99), "ids": torch.zeros((4, 8), dtype=torch.int32)}, [4, 8]),
        (UserDict(a=torch.ones(2, 3).long(), b=torch.ones(2, 5).long()), [2, 5]),
        ((torch.zeros(3, 4, 4), [torch.zeros((3, 9), dtype=torch.uint8)]), [3, 9]),
        (Pair(torch.zeros((6, 2), dtype=torch.long), torch.zeros(6, 3, 8, 8)), [6, 2]),
        ([np.zeros((5, 7), dtype=np.int64)], [5, 7]),
        ({"mask": torch.ones(4, 8, dtype=torch.bool)}, [4]),
        ((torch.zeros(3, 4, 4), torch.zeros(3).long()), [3]),
        (["a", "b", "c"], [3]),
        (7, [1]),
    ],
)
def test_tokens_are_of_the_largest_integer_tensor_of_2_axes(batch: Any, shape: list[int]) -> None:
    assert loader.shape_of(batch) == shape


def test_what_was_loaded_ahead_is_not_timed_and_a_slice_is_a_whole_round() -> None:
    request = asked("plain", **WORKERS)
    given = iter([torch.zeros((4, 8), dtype=torch.long)] * 1_000_000)
    slices, shape = loader.timed(given, request)
    assert shape == [4, 8]
    assert {each.batches % 2 for each in slices} == {0}
    assert all(each.tokens == 8 * each.samples == 32 * each.batches for each in slices)
    few = iter([torch.zeros(4)] * (2 * (1 + 3) + 5))
    slices, _ = loader.timed(few, replace(request, timed_s=1000.0))
    assert [(each.batches, each.tokens) for each in slices] == [(5, 0)]


def test_the_shape_is_that_of_a_whole_batch_whichever_came_last() -> None:
    whole, rest = (torch.zeros((size, 8), dtype=torch.long) for size in (12, 4))
    _, shape = loader.timed(iter([whole, whole, rest]), asked("plain"))
    assert shape == [12, 8]


def test_a_loader_is_timed_after_its_first_batch_and_the_studys_word() -> None:
    said: list[Message] = []

    def begin() -> Message:
        assert said == [Entered(Phase.BUILD), Entered(Phase.WARMUP)]
        return Begin()

    found = loader.load(asked("plain"), said.append, begin)
    assert found.shape == [4, WIDTH]
    assert found.slices
    assert found.loader_bytes > 2**20
    assert (found.worker_bytes, found.epochs, found.left, found.failed) == ([], [], True, "")


def test_a_short_epoch_is_begun_again() -> None:
    found = measured(asked("short", timed_s=1.0))
    assert len(found.epochs) > 1
    assert set(found.epochs) == {3}


@pytest.mark.parametrize(
    ("function", "why"),
    [("empty", "an empty loader"), ("generator", "ended after 50 batches and cannot be iterated")],
)
def test_few_batches_are_refused(function: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "timed", lambda given, request: (list(given) and [], []))
    with pytest.raises(UnsupportedError, match=why):
        measured(asked(function))


# With workers.


def test_workers_are_measured_and_leave() -> None:
    found = measured(asked("plain", **WORKERS))
    assert len(found.worker_bytes) == 2
    assert min(found.worker_bytes) > 2**16
    assert found.shm_bytes > 0
    assert found.left
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("bus_error", "bus error: /dev/shm is too small"),
        ("killed", r"a worker was killed \(SIGKILL\)"),
        ("spawned", "cannot be pickled"),
    ],
)
def test_a_setting_that_fails_alone_says_why(function: str, why: str) -> None:
    found = measured(asked(function, **WORKERS))
    assert found.failed
    assert not found.slices
    assert re.search(why, found.failed)


@pytest.mark.parametrize(
    ("code", "why"),
    [(-9, "a worker was killed (SIGKILL)"), (-7, "a worker ended with a bus error")],
)
def test_workers_that_torch_found_dead_say_how_they_ended(code: int, why: str) -> None:
    """Where it looks before it hears of their end, its error names their numbers alone."""

    def _try_get_data() -> None:
        failed_workers = [SimpleNamespace(exitcode=code)]
        raise RuntimeError(f"DataLoader worker (pid(s) {len(failed_workers)}) exited unexpectedly")

    with pytest.raises(RuntimeError) as caught:
        _try_get_data()
    assert loader._alone(caught.value).startswith(why)


def test_a_loader_that_wants_workers_fails_without_them_alone() -> None:
    assert "makes no loader without workers" in measured(asked("persistent")).failed
    assert not measured(asked("persistent", **WORKERS)).failed


def test_an_error_in_a_worker_is_told_as_it_was_there() -> None:
    with pytest.raises(KeyError) as raised:
        measured(asked("error_in_worker", **WORKERS))
    found = loader.fault(raised.value, Phase.BUILD)
    assert found.cause == "crashed"
    assert found.error == "KeyError: 'y' (in a worker)"
    assert found.traceback.count("Traceback") == 1
    assert "tests/support/loaders.py" in found.traceback


# Memory.


def test_shared_memory_counts_once_open_or_mapped(tmp_path: Path) -> None:
    before = held.shared_bytes(["self"])
    tensor = torch.zeros(2**20, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    assert 2**20 <= held.shared_bytes(["self", "self"]) - before < 2**20 + 2**16
    del tensor


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    assert held.memory_bytes(2**22 + 1) == 0
    assert held.shared_bytes([2**22 + 1]) == 0


def test_memory_does_not_count_what_is_shared() -> None:
    before = held.memory_bytes("self")
    tensor = torch.ones(2**26, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    assert held.memory_bytes("self") - before < 2**25
    del tensor
