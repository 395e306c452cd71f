"""A measurement as ranks report it: step times, memory, the state of the machine, energy."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The most bytes this rank held, warm-up included."""

    device_bytes: int
    """What the device lost to this rank; on the CPU the process's VmHWM."""
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    host_bytes: int
    """Resident memory of this process."""
    alloc_retries: int
    """Allocator retries in timed steps: more than 0 marks the candidate unstable."""

    @classmethod
    def same(cls, size_bytes: int) -> Peaks:
        """Where the process is the device: one size is that of all, and nothing is retried."""
        sizes = {field.name: size_bytes for field in fields(cls)}
        return cls(**sizes | {"alloc_retries": 0})

    @classmethod
    def largest(cls, peaks: Sequence[Peaks]) -> Peaks:
        """Each field's largest in any of `peaks`."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: max(getattr(each, name) for each in peaks) for name in names})


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The worst that sensors of devices showed: the lowest clock, the highest power and
    temperature, and all reasons for slowing down. None where a device has no such sensor."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None
    """NVML's bits."""
    thermally_throttled: bool = False

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
        )


@dataclass(frozen=True, kw_only=True)
class Conditions(Readings):
    """What the machine did during the timed steps, as this rank saw it.

    CPU fields are seconds of processor time summed over the cores this rank may use.
    """

    interval_cpu_s: float
    busy_cpu_s: float
    steal_cpu_s: float
    own_cpu_s: float
    foreign_bytes: int = 0
    """How much the device memory changed in timed steps that is not this rank's."""

    def at_worst(self, several: Sequence[Readings]) -> Conditions:
        """These, with the worst readings of `several` in place of their own."""
        return replace(self, **asdict(Readings.worst(several)))


@dataclass(frozen=True)
class Energy:
    """What the timed steps took, those of the real schedule."""

    joules: float
    covers: str
    """What was counted: a device by its UUID, or all of a host's processors by its name."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What the steps of a user's own script were, all ranks together."""

    samples: float
    """Of an optimizer step."""
    tokens: float
    seq_len: int
    """Tokens of the longest sample in a batch, mostly; 1 where nothing shows it."""
    micro_steps: int
    seen: bool
    """Samples and tokens were seen in the batches; else they are what was asked for."""
    waiting_share: float
    """Of a step, that waits for the next batch of a DataLoader. On a GPU, which has work left
    meanwhile, at most that."""
    trainable: int
    """Parameters that the loss reaches."""
    frozen: int = 0
    """Parameters that are not trained, of models of which others are."""
    dtype: str = ""
    """Of most products of matrices: fp32, bf16 or fp16; empty where nothing shows it."""
    rows: int = 1
    """That the model gets of each sample."""
    optimizer: str = ""
    """As `Seen` has it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rank to study: one probe, done. Times are of the real schedule, the slowest rank's; where
    lengths make up several steps, each is the mean of all of these."""

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
    """Device memory held between steps, over what the rank held before it built anything."""
    conditions: Conditions
    attention: str = ""
    """Kernels of scaled dot product attention that the group's first step used."""
    compile_s: float = 0.0
    """Wall time of the step before warm-up, which compiled what is to be compiled."""
    ran: Ran | None = None
    """In a script of the user's own."""
    energy: Energy | None = None
    """None where it was not counted, or too short a time for that."""
