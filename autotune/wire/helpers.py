"""Messages between the study and a helper process, which counts, traces or loads."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.wire.ranks import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Count:
    """Study to a helper process, once: what to count of models that have no closed form."""

    models: list[ModelSpec]
    shallow: list[ModelSpec]
    """The FLOPs of `models` follow from theirs."""
    seq_lens: list[int]
    shares: list[list[float]] = field(default_factory=list)
    """Of the FLOPs of each `shallow` model, by [model][shallow]; empty to count all."""


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Study to a helper process, once: which models to trace, at which shapes."""

    models: list[ModelSpec]
    weights: list[str]
    """What each of them computes with, fp32 or bf16."""
    seq_lens: list[int]
    micro_batches: list[int]
    dtype: str
    optimizer: str
    device_kind: str
    """Where the steps would run; they are traced on tensors of the CPU."""
    gradients_stay: bool
    """Gradients live through all of a step, as DDP's buckets and accumulation have it."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Study to a helper process, once: a data loader of the user's, and in which setting."""

    folder: str
    """That the module is importable from."""
    module: str
    function: str
    workers: int
    prefetch: int | None
    """Batches that each worker loads ahead; None without workers."""
    pin_memory: bool
    micro_batch: int | None
    seq_len: int | None
    timed_s: float


@dataclass(frozen=True)
class Begin:
    """Study to a helper process: the loaders of all ranks have given a batch; measure."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """Helper process to study: bytes of plain training steps, nothing sharded or offloaded.

    Lists follow `Describe.models`; a model that cannot be traced has -1 everywhere.
    """

    base_bytes: int
    """Resident memory of a CPU rank before it builds anything."""
    parameters: list[int]
    held_bytes: list[int]
    """Between steps: weights, optimizer state, and gradients that stay."""
    update_bytes: list[int]
    """The most while gradients are clipped and the optimizer steps: the same for all shapes."""
    peak_bytes: list[list[list[int]]]
    """The most in a whole step, optimizer included, by [model][seq_len][micro_batch]."""
    early_bytes: list[list[list[int]]] = field(default_factory=list)
    """Until the backward pass comes to the first block: all activations are there."""
    late_bytes: list[list[list[int]]] = field(default_factory=list)
    """From there to its end. Each of the two grows evenly with depth."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many one model has."""

    width: int
    """Channels between its blocks."""
    vocab_size: int
    """Entries of its output; 1 where it has no vocabulary."""
    parameters: int
    trainable: int
    block_matrices: int
    """In matrices of its blocks: what Muon is for."""
    largest_block: int
    own_optimizer: bool = False
    """Whether it brings one, in the place of AdamW."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Helper process to study. Lists follow those of `Count`."""

    parameters: list[Parameters]
    flops_per_sample: list[list[float]]
    """Forward and backward, without checkpointing, by [model][seq_len]."""
    uncounted: str
    """Why the FLOPs could not be counted, and stand at six a parameter and token; or empty."""


@dataclass(frozen=True)
class Slice:
    """A part of a timing, in which each worker gave as many batches."""

    wall_s: float
    batches: int
    samples: int
    tokens: int
    """0 where a batch has no integer tensor of the shape (B, T)."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Helper process to study: what a loader gave whose batches were dropped at once."""

    slices: list[Slice]
    first_batch_s: float
    """From the iterator, which starts the workers, to its first batch."""
    shape: list[int]
    """(B, T) of the last batch's tokens, or (B,)."""
    loader_bytes: int
    """Memory of the loader's process without what it shares with workers, nor /dev/shm."""
    worker_bytes: list[int]
    shm_bytes: int
    """That all of them hold in /dev/shm while the workers have loaded ahead."""
    epochs: list[int]
    """Batches of each epoch that ended meanwhile."""
    left: bool
    """Whether the workers left when they were told to."""
    failed: str = ""
    """Why this setting alone gives no batches; nothing was measured then."""
