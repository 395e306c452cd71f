"""Messages from the processes of a user's own script (probes/hook) to the study."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.wire.reports import InPhase, Peaks


@dataclass(frozen=True, kw_only=True)
class Step:
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
    """Shapes of batches by [micro-step][tensor]: (samples, tokens), (samples,), or none."""
    size: int = 0
    """Values of the inputs of its losses, which grow with its batches; 0 if unknown."""
    calls: int = 1
    """Calls of the model before each backward pass; each has one of the shapes."""
    sure: bool = True
    """Whether the shapes are surely those of batches: values without ids or labels may be cut."""
    steppers: list[int] = field(default_factory=list)
    """Numbers of the optimizers that stepped in the step before; none if there is only one."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Evidence of how ranks share the work, from one rank in the steps after its first."""

    batches: list[int]
    """A digest of the outermost modules' input for each of these steps; none if unreadable."""
    fed: bool
    """Whether all input came from other ranks, as in a later stage of a pipeline."""
    averages: list[list[int]]
    """Ranks of each group over which this one's gradients are reduced."""
    shares: list[list[int]]
    """Ranks of each group that exchanges activations, or has parts of parameters."""
    swaps: list[list[int]]
    """The same, of exchanges of all with all: of parts of sequences, or of tokens for experts."""
    degrees: dict[str, list[int]]
    """Size and this rank's place on dp, tp, pp or cp, if the script's library names them."""
    features: list[list[int]] = field(default_factory=list)
    """Ranks of groups that exchange one row a sample, as for a contrastive loss."""
    parts: list[list[int]] = field(default_factory=list)
    """Trained parameters of each shape: their number of values, and a digest of these. Without
    DTensors and FSDP's, whose whole is counted anyway."""


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
    """Steps since the last message, without the very first."""
    cpu_s: float
    """Processor time of the process."""
    peaks: Peaks | None
    used_bytes: int
    """Device memory outside this process's allocator, of all processes."""
    ooms: int
    """Failed allocations, caught ones included."""
    place: Place | None = None
    """For a rank of several, once it is known."""
    optimizer: str = ""
    """Optimizer classes that stepped, e.g. "adafactor" or "adamw+muon"; empty if none."""
    phases: dict[str, InPhase] = field(default_factory=dict)
    """Peaks by phase; empty if there was only training."""
    phase: str = ""
    """Its present phase, or one that no step has followed; empty in training."""
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
