"""Traces against torch's own tracker and a real process, and the helper that makes them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from autotune.measure.runner import local
from autotune.measure.runner.channel import Peer
from autotune.measure.runner.helper import Helper
from autotune.space.candidate import Candidate
from autotune.space.trace import Trace, request
from autotune.wire.helpers import Describe, Described, Traced
from autotune.wire.ranks import ModelSpec
from probes import describe
from probes.engines.ddp import DdpEngine
from probes.models import family
from probes.world import World
from tests.support import defaults, records
from tests.support.choice import campaign
from tests.support.jobs import train
from tests.support.models import uncounted
from tests.support.pools import ranks
from tests.support.programs import FAULTY_RANK

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
GPT = family("gpt")
SMALL = ModelSpec(name="gpt", depth=1, width=64, vocab_size=256, checkpointing="none")


def ask(*models: ModelSpec, **fields: Any) -> Describe:
    asked = Describe(
        models=list(models),
        seq_lens=[64],
        micro_batches=[4],
        dtype="fp32",
        optimizer="adamw",
        device_kind="cpu",
        gradients_stay=False,
    )
    return replace(asked, **fields)


def traced(asked: Describe) -> Traced:
    """The one model of `asked`."""
    (found,) = describe.describe(asked).models
    return found


def gpt(depth: int, checkpointing: str = "none") -> ModelSpec:
    return ModelSpec(
        name="gpt", depth=depth, width=128, vocab_size=512, checkpointing=checkpointing
    )


# Traces.


def tracked_peak(spec: ModelSpec, seq_len: int, micro_batch: int) -> int:
    """The peak of the second step, as torch's MemTracker has it."""
    from torch.distributed._tools.mem_tracker import MemTracker  # with all of torch's compiler

    start = defaults.start(capacity_bytes=0, model=spec)
    with FakeTensorMode(), MemTracker() as tracker:
        engine = DdpEngine(start, World(0, 1, torch.device("cpu")))
        for _ in range(2):
            tracker.reset_mod_stats()
            batch = family("gpt").batch(spec, micro_batch, seq_len, None)
            engine.forward_backward(batch, last=True)
            engine.update()
            del batch
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_peak_is_the_one_that_torchs_own_tracker_finds(checkpointing: str) -> None:
    spec = gpt(2, checkpointing)
    assert traced(ask(spec)).peak_bytes[0][0] == tracked_peak(spec, 64, 4)


@pytest.mark.parametrize("dtype", ["bf16", *campaign("fp32")])
@pytest.mark.parametrize(
    ("checkpointing", "depth"),
    [("none", 4), ("full", 4), ("1/2", 9), *campaign(("1/2", 8), ("1/3", 11))],
)
def test_shallow_models_give_the_peak_of_a_deep_one(
    dtype: str, checkpointing: str, depth: int
) -> None:
    space = records.space(depth=(depth,), micro_batch=(1, 8))
    workload = replace(space.workload, width=128, vocab_size=512, dtype=dtype)
    one = Candidate(depth=depth, seq_len=256, micro_batch=1, checkpointing=checkpointing)
    axes = {**space.axes, "seq_len": (256,)}
    space = replace(
        space, workload=workload, axes=axes, candidates=(one, replace(one, micro_batch=8))
    )
    asked = request(space)
    assert max(model.depth for model in asked.models) < depth
    extended = Trace(asked, describe.describe(asked))
    whole = traced(ask(
        gpt(depth, checkpointing), seq_lens=[256], micro_batches=[1, 8], dtype=dtype
    ))  # fmt: skip
    # With few samples a deep one may peak at another moment.
    assert extended.peaks(space) == pytest.approx(whole.peak_bytes[0], rel=0.015)
    assert extended.peaks(space)[1] == whole.peak_bytes[0][1]
    assert extended.held(space) == pytest.approx([whole.held_bytes] * 2, rel=1e-9)


def test_blocks_of_two_kinds_give_the_peak_of_all_of_them() -> None:
    """Shallow ones peak where the embedding's gradient comes, which does not grow with depth."""
    pytest.importorskip("transformers")
    workload = replace(uncounted("gemma-3-1b-tiny"), world_size=2)
    shallow, whole = workload.shallow(), workload.spec(14)
    found = describe.describe(ask(*shallow, whole, micro_batches=[1, 8])).models
    for name in ("early_bytes", "late_bytes"):
        *few, all_of_them = np.array([getattr(each, name) for each in found], dtype=float)
        mixed = np.tensordot(workload.shares(14), np.array(few), 1)
        assert mixed == pytest.approx(all_of_them, rel=1e-3)


def test_sizes_between_the_ends_have_the_peaks_of_their_own_traces() -> None:
    sizes = [1, 2, 3, 5, 16]
    asked = ask(gpt(2, "full"), seq_lens=[16], micro_batches=sizes)
    together = traced(asked).peak_bytes[0]
    alone = [traced(replace(asked, micro_batches=[size])).peak_bytes[0][0] for size in sizes]
    assert together == alone
    grown = np.diff(alone) / np.diff(sizes)
    assert max(grown) > 1.5 * min(grown)  # there is a hinge among them


def test_lengths_between_have_peaks_like_their_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ask(gpt(2, "full"), seq_lens=[16, 24, 40, 64], micro_batches=[1, 2, 16])
    steps: list[object] = []
    step = describe.StorageLedger.step

    def seen(*of: Any) -> Any:
        steps.append(of)
        return step(*of)

    monkeypatch.setattr(describe.StorageLedger, "step", seen)
    together = traced(asked)
    assert len(steps) == 6  # at both ends and one between, for one sample and for more
    alone = [traced(replace(asked, seq_lens=[n])) for n in asked.seq_lens]
    assert together.early_bytes == [each.early_bytes[0] for each in alone]
    assert together.late_bytes == [each.late_bytes[0] for each in alone]


def test_where_lengths_between_differ_each_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = GPT.loss

    def padded(model: nn.Module, batch: Any) -> Tensor:
        """Keeps a MiB, and two where samples are no power of two long."""
        length = batch["ids_bt"].shape[1]
        kept = torch.empty(2**20 * (1 + (length & (length - 1) != 0)), dtype=torch.uint8)
        mean = loss(model, batch)
        mean.register_hook(lambda _: kept.shape and None)  # type: ignore[no-untyped-call]
        return mean

    monkeypatch.setattr(GPT, "loss", padded)
    asked = ask(SMALL, seq_lens=[16, 24, 64])
    together = traced(asked).early_bytes
    alone = [traced(replace(asked, seq_lens=[n])) for n in asked.seq_lens]
    assert together == [each.early_bytes[0] for each in alone]
    assert together[1][0] - together[0][0] > 2**20


def test_the_growth_with_micro_batch_is_that_of_a_real_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the heap keeps freed pieces resident, a third of the growth and more.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    sizes = [16, 128]
    real = [
        train(
            tmp_path / str(size), world_size=1, micro_batch=size, global_batch=size, steps=3,
            depth=4, width=128, vocab_size=512, kept=False,
        ).peak_bytes
        for size in sizes
    ]  # fmt: skip
    peaks = traced(ask(gpt(4), seq_lens=[32], micro_batches=sizes)).peak_bytes[0]
    assert peaks[1] - peaks[0] == pytest.approx(real[1] - real[0], rel=0.05)


def test_checkpointing_lowers_what_a_sample_adds() -> None:
    none, full = describe.describe(ask(gpt(2), gpt(2, "full"), micro_batches=[8, 16])).models
    assert np.diff(full.peak_bytes[0]) < 0.8 * np.diff(none.peak_bytes[0])


@pytest.mark.parametrize(("optimizer", "states"), [("adamw", 2), ("muon", 1)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_weights_and_state_are_held_in_fp32(optimizer: str, states: int, dtype: str) -> None:
    found = traced(ask(gpt(2), optimizer=optimizer, dtype=dtype))
    blocks, held = 2 * 12 * 128**2, found.held_bytes
    assert held == pytest.approx(4 * (3 * found.parameters - (2 - states) * blocks), rel=1e-3)
    assert found.update_bytes >= held + 4 * found.parameters


def test_gradients_that_stay_are_held_and_add_to_activations() -> None:
    dropped, stay = (
        traced(ask(gpt(2), micro_batches=[32], gradients_stay=stay)) for stay in (False, True)
    )
    gradients = 4 * dropped.parameters
    assert stay.held_bytes - dropped.held_bytes == gradients
    grown = stay.peak_bytes[0][0] - dropped.peak_bytes[0][0]
    assert 0.5 * gradients < grown <= gradients


class Looking(nn.Module):
    """Branches on a value, of which a trace has none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, ids_bt: Tensor, targets_bt: Tensor) -> Tensor:
        return self.weight.sum() * 2 if ids_bt.sum() > 0 else self.weight.sum()


def test_frozen_experts_keep_no_rows_and_get_no_gradient() -> None:
    kept: list[torch.Size] = []
    rows, experts = torch.zeros(4, 2, requires_grad=True), torch.zeros(3, 2, 5)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = describe._grouped(rows, experts)
        assert kept == [experts.shape]
        describe._grouped(rows, experts.requires_grad_())
    assert sorted(kept[1:]) == [experts.shape, rows.shape]
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert (rows.grad is not None, experts.grad) == (True, None)


def test_an_older_torch_without_grouped_products_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = traced(ask(gpt(2))).peak_bytes
    monkeypatch.delattr(functional, "grouped_mm", raising=False)
    assert traced(ask(gpt(2))).peak_bytes == whole != [[-1]]
    assert not hasattr(functional, "grouped_mm")


def test_an_untraceable_model_does_not_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GPT.make
    monkeypatch.setattr(GPT, "make", lambda spec: Looking() if spec.width == 192 else real(spec))
    odd = replace(gpt(1), width=192)
    asked = ask(odd, gpt(1), micro_batches=[1, 2])
    failed, sound = describe.describe(asked).models
    assert failed == Traced.failed(asked)
    assert failed.peak_bytes == [[-1, -1]]
    assert min(sound.peak_bytes[0]) > sound.held_bytes > 0


class Splitting(nn.Module):
    """Runs another operation for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024))

    def forward(self, ids_bt: Tensor, targets_bt: Tensor) -> Tensor:
        return torch.stack([(self.weight * row.sum()).sum() for row in ids_bt]).sum()


def test_other_operations_at_a_size_are_traced_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPT, "make", lambda spec: Splitting())
    together = traced(ask(gpt(1), micro_batches=[1, 3, 4])).peak_bytes[0]
    alone = [traced(ask(gpt(1), micro_batches=[size])).peak_bytes[0][0] for size in (1, 3, 4)]
    assert together == alone


# The helper.


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()  # describe froze what this process had


Start_ = Callable[..., Helper]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start_]:
    started: list[Helper] = []

    def one(asked: Describe | None = None) -> Helper:
        made = Helper(
            asked or ask(SMALL), local.start_rank, logs=tmp_path, limit_s=LIMIT_S,
            environment={"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )  # fmt: skip
        started.append(made)
        return started[-1]

    yield one
    for each in started:
        each.close()


def until(helper: Helper, done: Callable[[], object]) -> Described | None:
    """Poll until `done` or the helper has an answer or failed; its answer."""
    deadline = time.monotonic() + 120
    while helper.works and not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
        helper.poll()
    assert helper.found is None or isinstance(helper.found, Described)
    return helper.found


def never() -> bool:
    return False


def test_the_helper_answers_as_a_trace_here_does_and_is_gone(start: Start_) -> None:
    asked = ask(SMALL, replace(SMALL, depth=2), micro_batches=[1, 4])
    helper = start(asked)
    answer = until(helper, never)
    assert answer is not None
    assert replace(answer, base_bytes=0) == replace(describe.describe(asked), base_bytes=0)
    assert 50 * 2**20 < answer.base_bytes < 2**30
    assert not helper.why
    assert not ranks()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("error@import:0", "ZeroDivisionError: a bug in the user's model"),
        ("killed@import:0", "ended without an answer"),
        ("garbage@import:0", "invalid message"),
        ("", "ended without an answer"),  # it never dials
    ],
)
def test_a_helper_that_misbehaves_has_failed_and_leaves_no_process(
    start: Start_, monkeypatch: pytest.MonkeyPatch, what: str, why: str
) -> None:
    silent = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(local, "WORKER", FAULTY_RANK if what else silent)
    monkeypatch.setenv("FAULT", what)
    helper = start()
    assert until(helper, never) is None
    assert why in helper.why
    assert not ranks()


def test_last_words_of_a_new_helper_count(start: Start_, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_word = Peer.wait_for_word

    def late(peer: Peer) -> None:
        wait_for_word(peer)
        while helper._process.exit_code() is None:
            time.sleep(0.01)
        time.sleep(0.5)

    monkeypatch.setattr(Peer, "wait_for_word", late)
    monkeypatch.setattr(local, "WORKER", FAULTY_RANK)
    monkeypatch.setenv("FAULT", "error@import:0")
    helper = start()
    assert until(helper, never) is None
    assert "ZeroDivisionError: a bug in the user's model" in helper.why


@pytest.mark.parametrize("what", ["hang", "stop"])
def test_a_helper_that_takes_too_long_has_failed_and_leaves_no_process(
    start: Start_, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(local, "WORKER", FAULTY_RANK)
    monkeypatch.setenv("FAULT", f"{what}@import:0")
    helper = start()
    until(helper, lambda: helper._peer is not None)
    monkeypatch.setattr(helper, "_deadline", time.monotonic())
    assert until(helper, never) is None
    assert f"no answer in {LIMIT_S:.0f} s" in helper.why
    assert not ranks()


def test_a_helper_for_which_no_time_is_left_says_no_negative_time(
    start: Start_, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = start()
    monkeypatch.setattr(helper, "_limit_s", -3.0)
    monkeypatch.setattr(helper, "_deadline", time.monotonic() - 3.0)
    assert until(helper, never) is None
    assert helper.why == "the budget left the helper no time"


@pytest.mark.parametrize("moment", ["at once", "dialled", "tracing", "answered"])
def test_closing_at_any_moment_leaves_no_process(start: Start_, moment: str) -> None:
    helper = start(ask(*[replace(SMALL, depth=8)] * 20))
    moments: dict[str, Callable[[], object]] = {
        "at once": lambda: True,
        "dialled": lambda: helper._peer is not None,
        "tracing": lambda: any(each.memory_info().rss > 150 * 2**20 for each in ranks()),
        "answered": never,
    }
    if moment == "answered":
        helper.close()
        helper = start()
    until(helper, moments[moment])
    helper.close()
    helper.close()
    assert not ranks()
    assert not helper.why


UNLIKE = {
    "model_type": "minicpm3", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}  # fmt: skip
"""Keys are wider than values."""


@pytest.mark.parametrize(("model", "config"), [("t5-small-tiny", {}), ("llama-3-8b-tiny", UNLIKE)])
def test_attention_of_a_gpu_keeps_no_scores(model: str, config: dict[str, Any]) -> None:
    """Neither for a trained bias nor where values and keys differ in width."""
    of = uncounted(model)
    of.recipe["config"] = config or of.recipe["config"]
    cpu, gpu = (
        traced(ask(of.spec(2), seq_lens=[256], device_kind=kind)).peak_bytes[0][0]
        for kind in ("cpu", "cuda")
    )
    assert cpu - gpu > 4 * 4 * 4 * 256**2  # of fp32, 4 samples, 4 heads
