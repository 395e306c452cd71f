"""Worker groups on GPUs: memory that runs out in each phase, and what is left of ranks that end.

These also run on real cards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.device import open_device
from autotune.device.device import Device
from autotune.measure.runner import Result, forks
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from tests.support import pools
from tests.support.pools import MIB, Kept, Make, Started
from tests.support.programs import FAULTY_RANK

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SMALL = Candidate(depth=2, seq_len=128, micro_batch=1)
LARGE = replace(SMALL, micro_batch=4096)
GIB = 1024 * MIB
GONE_S = 20.0


@pytest.fixture(scope="module")
def cards() -> Iterator[Kept]:
    """Fork servers for all tests of this file."""
    node = Kept(open_device("cuda"))
    yield node
    node.end()


@pytest.fixture
def started(start: Make, cards: Kept, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes worker groups on the cards; the device has its memory back after the test."""
    monkeypatch.setattr(forks, "SERVER", FAULTY_RANK)

    def make(world_size: int = 1, **how: object) -> Started:
        device = device_of(world_size)
        how |= {"node": cards.of(device), "world_size": world_size, "dtype": "bf16"}
        return start(device=lambda: device, **how)

    return make


def device_of(ranks: int) -> Device:
    return open_device("cuda:" + ",".join(map(str, range(ranks))))


def nothing_is_held(ranks: int = 1) -> bool:
    """Whether the memory of dead ranks has gone back, as NVML sees it."""
    device, until = device_of(ranks), time.monotonic() + GONE_S
    while any(each > 16 * MIB for each in device.in_use_bytes()):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def device_bytes(result: Result) -> int:
    assert result.report is not None, result.reason
    return result.report.peaks.device_bytes


@pytest.mark.parametrize(
    ("phase", "fresh"),
    [(Phase.BUILD, False), (Phase.WARMUP, False), (Phase.TIMED, False), (Phase.TIMED, True)],
)
def test_memory_that_runs_out_in_a_phase_is_oom_and_the_next_candidate_is_measured(
    started: Make, monkeypatch: pytest.MonkeyPatch, phase: Phase, fresh: bool
) -> None:
    """Also in a final, which has a fresh group."""
    group = started(capacity_bytes=80 * GIB)
    before = device_bytes(group.run(SMALL))
    monkeypatch.setenv("FAULT", f"oom@{phase}:0")
    failed = group.run(replace(SMALL, checkpointing="full"), fresh=fresh)
    assert (failed.verdict, failed.of_host) == (Verdict.OOM, False), failed.reason
    assert failed.reason.startswith(f"rank 0 ran out of memory in phase {phase}")
    monkeypatch.setenv("FAULT", "")
    after = group.run(SMALL)
    assert device_bytes(after) == pytest.approx(before, rel=0.01)
    group.pool.close()
    assert nothing_is_held()


def test_a_pretended_smaller_card_runs_out_at_its_size(started: Make) -> None:
    group = started(capacity_bytes=4 * GIB, width=1024)
    for candidate, phase in (LARGE, "warmup"), (replace(SMALL, depth=256), "engine"):
        result = group.run(candidate)
        assert (result.verdict, result.of_host) == (Verdict.OOM, False)
        assert re.search(f"out of memory in phase {phase}, asking for", result.reason)
        assert group.run(SMALL).verdict is Verdict.OK
    group.pool.close()
    assert nothing_is_held()


@pytest.mark.parametrize("stage", [0, 3])
def test_peaks_of_a_warm_group_are_those_of_a_fresh_one(started: Make, stage: int) -> None:
    group = started(world_size=2, capacity_bytes=80 * GIB)
    small = replace(SMALL, zero_stage=stage)
    fresh = group.run(small)
    large = group.run(replace(LARGE, zero_stage=stage))
    warm = group.run(small)
    assert (fresh.warm, large.warm, warm.warm) == (False, True, True)
    assert device_bytes(large) > 1.1 * device_bytes(fresh)
    assert device_bytes(warm) == pytest.approx(device_bytes(fresh), rel=0.01)


@pytest.mark.parametrize(
    ("engine", "stage", "compiled"),
    [("ddp", 0, "on"), ("fsdp", 3, "off"), ("deepspeed", 2, "off")],
)
def test_the_first_step_in_a_warm_group_makes_what_it_makes_in_a_fresh_one(
    started: Make, engine: str, stage: int, compiled: str
) -> None:
    """The optimizer's state and cuBLAS's workspace keep large segments, here of the head, from
    being used whole: a fifth more is reserved."""
    group = started(capacity_bytes=80 * GIB, engine=engine, width=256, vocab_size=50304)
    of_build = replace(SMALL, seq_len=512, zero_stage=stage, compile=compiled)
    large = replace(of_build, micro_batch=16)
    group.run(of_build)
    warm, fresh = group.run(large), group.run(large, fresh=True)
    assert (warm.warm, fresh.warm) == (True, False)
    assert device_bytes(warm) == pytest.approx(device_bytes(fresh), rel=0.01)


@pytest.mark.parametrize(("what", "phase"), [("leave", Phase.BUILD), ("killed", Phase.TIMED)])
def test_a_rank_that_dies_takes_no_peer_with_it_for_long_and_keeps_no_memory(
    started: Make, monkeypatch: pytest.MonkeyPatch, what: str, phase: Phase
) -> None:
    group = started(world_size=2, capacity_bytes=80 * GIB)
    monkeypatch.setenv("FAULT", f"{what}@{phase}:1")
    began = time.monotonic()
    result = group.run(replace(SMALL, zero_stage=2))
    assert result.verdict is Verdict.CRASHED, result.reason
    assert f"phase {phase}" in result.reason
    assert time.monotonic() - began < 100  # no timeout of NCCL
    assert pools.ranks() == []
    assert nothing_is_held(2)
    monkeypatch.setenv("FAULT", "")
    assert group.run(replace(SMALL, zero_stage=2)).verdict is Verdict.OK
