"""Records of a made-up study on a 4 GiB device, for whatever reads finished trials."""

from __future__ import annotations

from typing import Literal

from autotune.outcome import Outcome, Record, Verdict, measurement
from autotune.space.space import Candidate, Fixed, Limits, Space, Workload
from autotune.wire.messages import Conditions, Interval, Peaks

MIB = 2**20
WORKLOAD = Workload("gpt", None, 4096, "fp32", "adamw", "ddp", 1, None)
LIMITS = Limits(4096 * MIB, 0.8, 16384 * MIB, 0.9)
QUIET = Conditions(10.0, 9.0, 0.0, 9.0, None, None, None, None, False)


def space(
    *, depth: tuple[int, ...] = (2, 4), micro_batch: tuple[int, ...] = (1, 2, 4, 8)
) -> Space:
    """Every candidate of two lengths, with and without checkpointing."""
    axes = {
        "depth": depth, "seq_len": (64, 128), "micro_batch": micro_batch, "zero_stage": (0,),
        "offload": ("none",), "checkpointing": ("none", "full"),
    }  # fmt: skip
    candidates = tuple(
        Candidate(d, s, b, checkpointing=c)
        for d in depth for s in (64, 128) for b in micro_batch for c in ("none", "full")
    )  # fmt: skip
    fixed = (
        Fixed("model", "gpt", "--model"),
        Fixed("width", "64 x depth", "64 x depth, the gpt family's rule"),
        Fixed("capacity", "4.00 GiB a rank", "--capacity"),
    )
    return Space(WORKLOAD, LIMITS, axes, candidates, fixed)


def record(
    candidate: Candidate,
    verdict: Verdict = Verdict.OK,
    *,
    number: int = 0,
    kind: Literal["search", "final"] = "search",
    tokens_per_s: float = 1000.0,
    noise: float = 0.01,
    steps: int = 20,
    peak_mib: int = 1024,
    disturbed_share: float = 0.0,
    conditions: Conditions = QUIET,
    reason: str = "",
    witness: str = "",
) -> Record:
    """A trial that reached `tokens_per_s`, its interval `noise` of the median to either side.

    Verdicts that come without a measurement get none.
    """
    measured = None
    if verdict in (Verdict.OK, Verdict.PRUNED, Verdict.OVER_CEILING, Verdict.OVER_HOST_CEILING):
        median = WORKLOAD.global_batch_samples(candidate) * candidate.seq_len / tokens_per_s
        step = Interval(median, median * (1 - noise), median * (1 + noise), steps)
        device = peak_mib * MIB
        peaks = Peaks(device, device - 8 * MIB, device - 16 * MIB, device - 24 * MIB, device, 0)
        measured = measurement(
            candidate, WORKLOAD, step,
            peaks=peaks, disturbed_share=disturbed_share, conditions=conditions,
        )  # fmt: skip
    outcome = Outcome(
        verdict, started_s=10.0 * number, probe_s=4.0, group_start_s=1.0, warmup_s=1.0,
        timed_s=2.0, measurement=measured, reason=reason, witness=witness,
    )  # fmt: skip
    return Record(number, kind, candidate, outcome)
