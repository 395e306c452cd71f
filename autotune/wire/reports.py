"""A measurement as ranks report it: step times, memory, the state of the machine, energy."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak memory of a rank, warm-up included."""

    device_bytes: int
    """Device memory that this rank used; on the CPU the process's VmHWM."""
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    host_bytes: int
    """Resident memory of this process."""
    alloc_retries: int
    """Allocator retries in timed steps: more than 0 marks the candidate unstable."""

    @classmethod
    def same(cls, size_bytes: int) -> Peaks:
        """All sizes equal and no retries, for a process on the CPU."""
        sizes = {field.name: size_bytes for field in fields(cls)}
        return cls(**sizes | {"alloc_retries": 0})

    @classmethod
    def largest(cls, peaks: Sequence[Peaks]) -> Peaks:
        """The largest value of each field."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: max(getattr(each, name) for each in peaks) for name in names})


def on_smallest(peaks: Peaks, capacities: Sequence[int], rank: int) -> Peaks:
    """`peaks` of `rank` as the same share of the smallest of `capacities`, if they differ."""
    share = min(capacities) / capacities[rank] if capacities else 1
    return replace(peaks, device_bytes=round(peaks.device_bytes * share))


TRAIN, ROLLOUT, EVALUATE, SAVE, LOAD = "train", "rollout", "evaluate", "save", "load"
HOT = "hot"
"""Names of the phases of a run. The last is of training, after the first, with a hot expert."""
DURING = {
    TRAIN: "in training", ROLLOUT: "in rollouts", EVALUATE: "in evaluation",
    SAVE: "while saving", LOAD: "while loading", HOT: "with a hot expert",
}  # fmt: skip
"""The phases in words."""


@dataclass(frozen=True, kw_only=True)
class InPhase:
    """Peaks and time of a phase of a run."""

    peaks: Peaks
    seconds: float
    """Sum over all occurrences; 0 for training."""
    count: int
    """Number of occurrences; 0 for training."""
    written_bytes: int = 0
    """Size of a model's checkpoint, over all ranks; 0 if none was written."""

    @classmethod
    def largest(cls, several: Sequence[Mapping[str, InPhase]]) -> dict[str, InPhase]:
        """The largest peaks of each phase."""
        names = dict.fromkeys(name for each in several for name in each)
        of = {name: [each[name] for each in several if name in each] for name in names}
        return {
            name: cls(
                peaks=Peaks.largest([each.peaks for each in found]),
                seconds=max(each.seconds for each in found),
                count=max(each.count for each in found),
                written_bytes=max(each.written_bytes for each in found),
            )
            for name, found in of.items()
        }


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The worst readings of device sensors: lowest clock, highest power and temperature, and all
    reasons for throttling. None without such a sensor."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None
    """NVML's bits."""
    thermally_throttled: bool = False
    others_share: float | None = None
    """Mean share of the device's time in which others computed. The worst is the largest."""

    @staticmethod
    def worst(several: Sequence[Readings]) -> Readings:
        reasons = [r.throttle_reasons for r in several if r.throttle_reasons is not None]
        return Readings(
            sm_clock_mhz=min(
                (r.sm_clock_mhz for r in several if r.sm_clock_mhz is not None), default=None
            ),
            power_w=max((r.power_w for r in several if r.power_w is not None), default=None),
            temperature_c=max(
                (r.temperature_c for r in several if r.temperature_c is not None), default=None
            ),
            throttle_reasons=functools.reduce(operator.or_, reasons) if reasons else None,
            thermally_throttled=any(r.thermally_throttled for r in several),
            others_share=max(
                (r.others_share for r in several if r.others_share is not None), default=None
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Conditions(Readings):
    """State of the machine during the timed steps, as this rank saw it.

    CPU fields are seconds of processor time summed over the cores this rank may use.
    """

    interval_cpu_s: float
    busy_cpu_s: float
    steal_cpu_s: float
    own_cpu_s: float
    foreign_bytes: int = 0
    """Change of the device memory of others during timed steps."""

    def at_worst(self, several: Sequence[Readings]) -> Conditions:
        """A copy with the worst readings of `several`."""
        return replace(self, **asdict(Readings.worst(several)))


@dataclass(frozen=True)
class Energy:
    """Energy of the timed steps, scaled to the real schedule."""

    joules: float
    covers: str
    """The counted hardware: a device's UUID, or a host's name for all its processors."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Steps of a user's own script, all ranks together."""

    samples: float
    """Per optimizer step."""
    tokens: float
    seq_len: int
    """Usual tokens of the longest sample in a batch; 1 if unknown."""
    micro_steps: int
    seen: bool
    """Whether samples and tokens were observed; else they are the requested ones."""
    waiting_share: float
    """Share of a step spent waiting for the DataLoader; on a GPU an upper bound."""
    trainable: int
    """Parameters that the loss reaches."""
    frozen: int = 0
    """Untrained parameters of models with trained ones."""
    dtype: str = ""
    """Data type of most matrix products: fp32, bf16 or fp16; empty if unknown."""
    rows: int = 1
    """Rows that the model gets for each sample."""
    optimizer: str = ""
    """As in `Seen`."""
    data_parallel: int | None = None
    """Number of replicas. None from older versions, which counted each rank as one."""
    degrees: dict[str, int] = field(default_factory=dict)
    """Degrees of parallelism that were seen, by name: dp, tp, pp, cp; without those of 1."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rank to study: the result of one probe. Times are those of the slowest rank, scaled to the
    real schedule. With drawn lengths each is the mean over a cycle of steps."""

    number: int
    step_s: list[float]
    warmup_step_s: list[float]
    warmup_s: float
    """Wall time of the warm-up phase."""
    timed_s: float
    """Wall time of the timed phase."""
    stopped_early: bool
    loss: float
    peaks: Peaks
    state_bytes: int
    """Device memory between steps, minus that before the build."""
    conditions: Conditions
    attention: str = ""
    """Kernels of scaled dot product attention in the group's first step."""
    compile_s: float = 0.0
    """Seconds of compiling before the warm-up."""
    compilations: int = 0
    """Number of compilations in that time."""
    shape_compile_s: float = 0.0
    """Seconds of compiling for each shape of the group, or in all if one is for all shapes."""
    ran: Ran | None = None
    """Only for a user's script."""
    energy: Energy | None = None
    """None if it was not counted, or the time was too short."""
    rank_bytes: list[int] = field(default_factory=list)
    """Peak of each rank's device, where their capacities differ."""
    phases: dict[str, InPhase] = field(default_factory=dict)
    """Peaks by phase, if a script was seen to do more than train, or experts were hot."""
