"""Records of a made-up study on a 4 GiB device, for whatever reads finished trials."""

from __future__ import annotations

from dataclasses import replace

from autotune.space.candidate import Candidate
from autotune.space.outcome import Outcome, Purpose, Record, Verdict, measurement
from autotune.space.space import Fixed, Limits, Space
from autotune.space.workload import GlobalBatch, Workload
from autotune.wire.reports import Conditions, Peaks
from autotune.wire.stopping import Interval

MIB = 2**20
WORKLOAD = Workload(
    model="gpt",
    width=None,
    vocab_size=4096,
    dtype="fp32",
    engine="ddp",
    world_size=1,
    global_batch=None,
)


def workload(batch: GlobalBatch | None, world_size: int = 1) -> Workload:
    """`WORKLOAD`, with a global batch or over more ranks."""
    return replace(WORKLOAD, global_batch=batch, world_size=world_size)


LIMITS = Limits(
    capacity_bytes=4096 * MIB, ceiling=0.8, host_capacity_bytes=16384 * MIB, host_ceiling=0.9
)
QUIET = Conditions(
    interval_cpu_s=10.0,
    busy_cpu_s=9.0,
    steal_cpu_s=0.0,
    own_cpu_s=9.0,
)


def space(
    *, depth: tuple[int, ...] = (2, 4), micro_batch: tuple[int, ...] = (1, 2, 4, 8)
) -> Space:
    """Every candidate of two lengths, with and without checkpointing."""
    axes = {
        "depth": depth, "seq_len": (64, 128), "micro_batch": micro_batch, "zero_stage": (0,),
        "offload": ("none",), "checkpointing": ("none", "full"),
    }  # fmt: skip
    candidates = tuple(
        Candidate(depth=d, seq_len=s, micro_batch=b, checkpointing=c)
        for d in depth for s in (64, 128) for b in micro_batch for c in ("none", "full")
    )  # fmt: skip
    fixed = (
        Fixed("model", "gpt", "--model"),
        Fixed("width", "64 x depth", "64 x depth, the gpt family's rule"),
        Fixed("capacity", "4.00 GiB a rank", "--capacity"),
    )
    return Space(workload=WORKLOAD, limits=LIMITS, axes=axes, candidates=candidates, fixed=fixed)


def with_offload(plain: Space) -> Space:
    """`plain`, and all of it once more in stage 2 with the optimizer offloaded."""
    axes = plain.axes | {"zero_stage": (0, 2), "offload": ("none", "optimizer")}
    moved = (replace(c, zero_stage=2, offload="optimizer") for c in plain.candidates)
    workload = replace(plain.workload, engine="auto")
    return replace(plain, workload=workload, axes=axes, candidates=(*plain.candidates, *moved))


def record(
    candidate: Candidate,
    verdict: Verdict = Verdict.OK,
    *,
    number: int = 0,
    purpose: Purpose = "search",
    tokens_per_s: float = 1000.0,
    noise: float = 0.01,
    steps: int = 20,
    peak_mib: int = 1024,
    disturbed_share: float = 0.0,
    conditions: Conditions = QUIET,
    reason: str = "",
    witness: str = "",
    joules_per_token: float | None = None,
    among: Workload = WORKLOAD,
) -> Record:
    """A trial that reached `tokens_per_s`, its interval `noise` of the median to either side.

    Verdicts that come without a measurement get none.
    """
    measured = None
    if verdict in (Verdict.OK, Verdict.PRUNED, Verdict.OVER_CEILING, Verdict.OVER_HOST_CEILING):
        median = among.global_batch_samples(candidate) * candidate.seq_len / tokens_per_s
        step = Interval(median, median * (1 - noise), median * (1 + noise), steps)
        device = peak_mib * MIB
        peaks = Peaks(
            device_bytes=device,
            reserved_bytes=device - 8 * MIB,
            allocated_bytes=device - 16 * MIB,
            active_bytes=device - 24 * MIB,
            host_bytes=device,
            alloc_retries=0,
        )
        measured = measurement(
            candidate, among, step,
            peaks=peaks, disturbed_share=disturbed_share, conditions=conditions,
            mean_power_w=joules_per_token and joules_per_token * tokens_per_s,
        )  # fmt: skip
    outcome = Outcome(
        verdict=verdict, started_s=10.0 * number, group_start_s=1.0, warmup_s=1.0,
        probe_s=0.0 if verdict is Verdict.SKIPPED else 4.0, timed_s=2.0, measurement=measured,
        reason=reason, witness=witness,
    )  # fmt: skip
    return Record(number, purpose, candidate, outcome)
