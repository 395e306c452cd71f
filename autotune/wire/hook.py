"""Messages from the processes of a user's own script (probes/hook) to the study."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.wire.reports import InPhase, Peaks


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step."""

    step_s: float
    """Seconds from the end of the step before to its end."""
    micro_steps: int
    waited_s: float
    """Seconds spent waiting for the next batch of a DataLoader."""
    tokens: int | None
    """Tokens that the script reported itself."""
    samples: int | None = None
    """Samples that it reported."""
    shapes: list[list[list[int]]]
    """Shapes of observed batches by [micro-step][tensor]: (samples, tokens), (samples,), or
    none."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a rank of several shows of how they share the work, in the steps after its first."""

    batches: list[int]
    """A digest for each of these steps, of what the outermost modules got; none where nothing
    could be read."""
    fed: bool
    """Whether they got nothing but what other ranks computed: a later stage of a pipeline."""
    averages: list[list[int]]
    """Ranks of each group over which this one's gradients are reduced."""
    shares: list[list[int]]
    """Ranks of each group that exchanges activations, or has parts of parameters."""
    degrees: dict[str, list[int]]
    """Size and this rank's place on dp, tp, pp or cp, where the script's library names them."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Progress of one process, a few times a second."""

    backwards: int
    """Backward passes so far."""
    ended: int
    """Optimizer steps so far."""
    world_size: int
    """Size of torch's process group; 1 without one."""
    rank: int
    trainable: int
    """Parameters that the loss reaches."""
    frozen: int
    """Untrained parameters of models with trained ones."""
    dtype: str
    """Data type of most matrix products: fp32, bf16 or fp16; empty if unknown."""
    steps: list[Step]
    """Those since the last message, without the first of all."""
    cpu_s: float
    """Processor time of the process."""
    peaks: Peaks | None
    used_bytes: int
    """Device memory outside this process's allocator, of all processes."""
    ooms: int
    """Failed allocations, caught ones included."""
    place: Place | None = None
    """Of one rank of several, once it was looked at."""
    optimizer: str = ""
    """Optimizer classes that stepped, e.g. "adafactor" or "adamw+muon"; empty if none."""
    phases: dict[str, InPhase] = field(default_factory=dict)
    """Peaks by phase; empty where there was nothing but training."""
    phase: str = ""
    """The phase that it is in; empty in training."""
    cycle: int = 1
    """Steps from one rollout to the next; 1 without any, 0 while that is not known."""
    oom_in: str = ""
    """The phase in which an allocation failed last; empty in training."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """The last message of a process: its uncaught error. Without one, all fields are empty."""

    error: str
    """Type and message, one line."""
    kinds: list[str]
    """Class names of the error and of its causes."""
    traceback: str
    phase: str = ""
    """The phase that it ended; empty in training."""
