"""Messages between the study and a helper process, which counts, traces or loads."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.wire.ranks import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Count:
    """Study to a helper process, once: models without a closed form, to be counted."""

    models: list[ModelSpec]
    shallow: list[ModelSpec]
    """Models of few blocks. The FLOPs of `models` follow from theirs."""
    seq_lens: list[int]
    shares: list[list[float]] = field(default_factory=list)
    """Weight of each shallow model in a model's FLOPs, by [model][shallow]; empty: count all."""


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Study to a helper process, once: models to trace, and at which shapes."""

    models: list[ModelSpec]
    """With `param_dtype` bf16 if blocks compute with bf16 weights; else auto."""
    seq_lens: list[int]
    micro_batches: list[int]
    dtype: str
    optimizer: str
    device_kind: str
    """Device of the real steps. The trace uses tensors of the CPU."""
    gradients_stay: bool
    """Whether gradients live through the whole step, as with DDP's buckets or accumulation."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Study to a helper process, once: the user's data loader and its setting."""

    folder: str
    """Folder on the import path of the module."""
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
    """Study to a helper process: measure now. All ranks' loaders have given a batch."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Bytes of one model's plain training steps, without sharding or offload.

    Lists are by [seq_len][micro_batch]. A model that cannot be traced has -1 everywhere.
    """

    parameters: int
    held_bytes: int
    """Held between steps: weights, optimizer state, and gradients that stay."""
    update_bytes: int
    """Peak of gradient clipping and the optimizer step; equal for all shapes."""
    early_bytes: list[list[int]]
    """Peak before the backward pass reaches the first block: all activations exist."""
    late_bytes: list[list[int]]
    """Peak from there to its end. Each of the two grows linearly with depth."""

    @classmethod
    def failed(cls, asked: Describe) -> Traced:
        """The answer for a model that cannot be traced."""
        shapes = [[-1] * len(asked.micro_batches) for _ in asked.seq_lens]
        return cls(
            parameters=-1, held_bytes=-1, update_bytes=-1, early_bytes=shapes, late_bytes=shapes
        )

    @property
    def peak_bytes(self) -> list[list[int]]:
        """Peak of a whole step with its optimizer."""
        pairs = zip(self.early_bytes, self.late_bytes, strict=True)
        return [
            [-1 if early < 0 else max(early, late, self.update_bytes)
             for early, late in zip(*pair, strict=True)]
            for pair in pairs
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Described:
    """Helper process to study: the traces of `Describe.models`, in their order."""

    base_bytes: int
    """Resident memory of a CPU rank before it builds anything."""
    models: list[Traced]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of one model, by kind."""

    width: int
    """Channels between blocks."""
    vocab_size: int
    """Entries of the output; 1 without a vocabulary."""
    parameters: int
    trainable: int
    """Parameters that the optimizer steps."""
    block_matrices: int
    """Parameters in matrices of blocks, which Muon trains."""
    largest_block: int
    """Parameters in the matrices of the largest block."""
    own_optimizer: bool = False
    """Whether the model brings its own optimizer instead of AdamW."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Helper process to study: the counts. Lists are in the order of those in `Count`."""

    parameters: list[Parameters]
    flops_per_sample: list[list[float]]
    """Forward and backward, without checkpointing, by [model][seq_len]."""
    uncounted: str
    """Why FLOPs could not be counted, and are 6 per parameter and token; or empty."""
    unread: list[str] = field(default_factory=list)
    """Settings that the user's function reads for none of the models."""
    blocks: int = 0
    """Number of parts of the last model that are sharded on their own."""


@dataclass(frozen=True)
class Slice:
    """A part of a timing with equally many batches from each worker."""

    wall_s: float
    batches: int
    samples: int
    tokens: int
    """0 if batches have no integer tensor of shape (B, T)."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Helper process to study: a loader's output, whose batches were dropped at once."""

    slices: list[Slice] = field(default_factory=list)
    first_batch_s: float = 0.0
    """Seconds from making the iterator, which starts workers, to the first batch."""
    shape: list[int] = field(default_factory=list)
    """(B, T) of the last batch's tokens, or (B,)."""
    loader_bytes: int = 0
    """Memory of the loader's process, without shared pages and /dev/shm."""
    worker_bytes: list[int] = field(default_factory=list)
    shm_bytes: int = 0
    """Bytes in /dev/shm of all processes while workers have loaded ahead."""
    epochs: list[int] = field(default_factory=list)
    """Batches of each epoch that ended during the timing."""
    left: bool = True
    """Whether workers exited when told to."""
    failed: str = ""
    """Why this setting gives no batches, and nothing was measured; else empty."""
