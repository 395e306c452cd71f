"""Messages from the processes of a user's own script (probes/hook) to the study."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.wire.reports import Peaks


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A process of the user's own script to study, a few times a second (probes/hook)."""

    backwards: int
    """Backward passes so far."""
    ended: int
    """Optimizer steps so far."""
    world_size: int
    """Of torch's process group; 1 where there is none."""
    rank: int
    trainable: int
    """Parameters that the loss reaches."""
    frozen: int
    """Parameters that are not trained, of models of which others are."""
    dtype: str
    """Of most products of matrices: fp32, bf16 or fp16; empty where nothing shows it."""
    step_s: list[float]
    """From the end of one optimizer step to the end of the next: of those since the last message.
    The other lists have an entry for each of these."""
    micro_steps: list[int]
    waited_s: list[float]
    """For the next batch of a DataLoader."""
    tokens: list[int | None]
    """What the script itself said."""
    shapes: list[list[list[list[int]]]]
    """Of the batches that were looked at, by [step][micro-step][tensor]: (samples, tokens),
    (samples,), or none."""
    cpu_s: float
    """Processor time of the process."""
    peaks: Peaks | None
    used_bytes: int
    """Of the device, beyond this process's allocator, by anybody."""
    ooms: int
    """Allocations that failed, whoever caught that."""
    optimizer: str = ""
    """Classes that stepped, such as "adafactor" or "adamw+muon"; empty where none was seen."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A process of the user's own script to study, last: nobody caught this error, or there was
    none and all three are empty."""

    error: str
    """Type and message, one line."""
    kinds: list[str]
    """Names of the classes of it and of its causes."""
    traceback: str
