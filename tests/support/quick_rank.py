"""A rank without torch: speaks like a real one, and answers from formulas within milliseconds.

QUICK_PACE       wall seconds per second of the formula; 1 if unset
QUICK_FAULTS     how often a probe goes wrong and how: `hang:0.1,killed:0.05`, of `FAULTS`
FAULT            what happens once, and when: see faulty_rank.py
QUICK_SEED       chooses which probes these are, by their numbers

With an engine's name as its argument, it is a fork server of such ranks.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import probes.__main__ as rank_main
from autotune.wire.helpers import Describe, Described, Traced
from autotune.wire.ranks import Entered, Fault, Probe, Progress, Ready, Start, Stop, Store
from autotune.wire.reports import Conditions, Peaks, Report
from autotune.wire.stopping import Phase, Steps
from probes import forkserver
from tests.support import faulty_rank

BASE_BYTES = 200 * 2**20
BYTES_PER_TOKEN_AND_BLOCK = 2**16
LAUNCH_S = 0.001
S_PER_TOKEN_AND_BLOCK = 1e-7
FAULTS = ("hang", "stop", "leave", "killed", "error", "garbage", "huge", "cut_short")
GOLDEN = 0.6180339887498949
PACE = float(os.environ.get("QUICK_PACE", "1"))
QUIET = Conditions(
    interval_cpu_s=10.0,
    busy_cpu_s=9.0,
    steal_cpu_s=0.0,
    own_cpu_s=9.0,
)


def micro_step_s(depth: int, tokens: int, checkpointing: str) -> float:
    """Seconds of one micro-step: less a token the more tokens there are."""
    again = 4 / 3 if checkpointing == "full" else 1.0
    return LAUNCH_S + S_PER_TOKEN_AND_BLOCK * depth * tokens * again


def peak_bytes(depth: int, tokens: int, checkpointing: str) -> int:
    """Affine in depth times tokens; a quarter of the activations with checkpointing."""
    kept = 4 if checkpointing == "full" else 1
    return BASE_BYTES + BYTES_PER_TOKEN_AND_BLOCK * depth * tokens // kept


def serve(rank: rank_main.Rank) -> None:
    """In the place of the function of this name in `probes.__main__`."""
    rank.send(Entered(Phase.IMPORT))
    start = rank.link.receive()
    if isinstance(start, Describe):
        rank.send(nothing(start))
        return
    assert isinstance(start, Start)
    rank.explain = lambda error, phase: explain(error, phase, start)
    rank.send(Entered(Phase.BUILD))
    if rank.number == 0 and start.world_size > 1:
        rank.send(Store("127.0.0.1", 1))
    rank.send(Entered(Phase.ENGINE))
    rank.send(Ready(start.model.depth * start.model.width**2, {"python": "3", "torch": "none"}))
    while not isinstance(probe := rank.link.receive(), Stop):
        assert isinstance(probe, Probe)
        report = run(rank, start, probe)
        rank.send(Entered(Phase.DONE))
        rank.send(report)


def run(rank: rank_main.Rank, start: Start, probe: Probe) -> Report:
    """Raises MemoryError where the candidate's peak is above the capacity."""
    shape = (start.model.depth, probe.micro_batch * probe.seq_len, start.model.checkpointing)
    fault, where = misfortune(rank.number, start, probe)
    rank.send(Entered(Phase.COMPILE))  # as if there were something to compile
    rank.send(Entered(Phase.WARMUP))
    if where == Phase.WARMUP:
        faulty_rank.FAULTS[fault]()
    if peak_bytes(*shape) > start.capacity_bytes:
        raise MemoryError(f"{peak_bytes(*shape)} bytes do not fit")
    one_s = micro_step_s(*shape)
    steps = Steps(probe.rule, probe.needed_step_s)
    for phase in (Phase.WARMUP, Phase.TIMED):
        if phase is Phase.TIMED and not steps.stopped_early:
            rank.send(Entered(phase))
        if phase is Phase.TIMED and where is phase:
            faulty_rank.FAULTS[fault]()
        while steps.wanted(phase):
            time.sleep(PACE * one_s * probe.micro_steps)
            steps.add(phase, one_s * probe.grad_accum, one_s * probe.micro_steps)
            if rank.number == 0:
                rank.send(Progress(probe.number, steps.of(phase).step_s))
    for phase in (Phase.HOT, Phase.EVALUATE, Phase.SAVE):  # as if it had all of them
        rank.send(Entered(phase))
    return Report(
        number=probe.number,
        step_s=steps.step_s,
        warmup_step_s=steps.warmup.step_s,
        warmup_s=steps.warmup.wall_s,
        timed_s=steps.timed.wall_s,
        stopped_early=steps.stopped_early,
        loss=1.0,
        peaks=Peaks.same(peak_bytes(*shape)),
        state_bytes=0,
        conditions=QUIET,
    )


def misfortune(number: int, start: Start, probe: Probe) -> tuple[str, Phase | None]:
    """What goes wrong on this rank, and in which phase; all ranks draw alike.

    Multiples of the golden ratio are spread evenly: of every few probes their share goes wrong.
    """
    chance = (GOLDEN * (probe.number + int(os.environ.get("QUICK_SEED", "0")) / 7)) % 1.0
    unlucky = probe.number % start.world_size
    phase = (Phase.WARMUP, Phase.TIMED)[probe.number // start.world_size % 2]
    for name, share in shares():
        chance -= share
        if chance < 0:
            return name, phase if number == unlucky else None
    return "", None


def shares() -> Iterator[tuple[str, float]]:
    for each in filter(None, os.environ.get("QUICK_FAULTS", "").split(",")):
        name, _, share = each.partition(":")
        assert name in FAULTS, each
        yield name, float(share)


def explain(error: BaseException, phase: Phase, start: Start) -> Fault:
    memory = isinstance(error, MemoryError)
    refused = type(error).__name__ == "UnsupportedError"
    return Fault(
        cause="oom" if memory else "unsupported" if refused else "crashed",
        phase=phase,
        error=f"{type(error).__name__}: {error}",
        traceback=traceback.format_exc(),
        peaks=Peaks.same(start.capacity_bytes) if memory else None,
    )


def nothing(asked: Describe) -> Described:
    """A trace of models that cannot be traced."""
    return Described(base_bytes=BASE_BYTES, models=[Traced.failed(asked)] * len(asked.models))


if __name__ == "__main__":
    rank_main.serve = serve
    rank_main.Rank = faulty_rank.FaultyRank  # type: ignore[misc]
    forkserver.import_libraries = lambda *needs: None
    (forkserver if len(sys.argv) > 1 else rank_main).main()
