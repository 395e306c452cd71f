"""Messages between the study and a rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.wire.reports import Peaks
from autotune.wire.settings import Depth, Settings
from autotune.wire.stopping import Phase, Rule


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Settings, Depth):
    """The model that ranks build: `depth` blocks of `width` channels, with these settings."""

    name: str
    width: int
    vocab_size: int
    recipe: dict[str, Any] = field(default_factory=dict)
    """Other input of its family, as JSON types. The family chooses the names."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Study to rank, once: the build."""

    world_size: int
    device_kind: Literal["cpu", "cuda"]
    device_uuid: str = ""
    capacity_bytes: int
    store_host: str = ""
    """Host of rank 0's rendezvous store; empty for rank 0, which opens it."""
    store_port: int = 0
    model: ModelSpec
    engine: str
    dtype: str
    engine_config: dict[str, Any] = field(default_factory=dict)
    """From the engine's row in `autotune.space.engines`; empty for engines that take none."""
    seed: int = 0
    energy: str = ""
    """Counter of the device's energy: "nvml", RAPL's folder, or empty for none."""
    local_rank: int = 0
    """Index among the group's ranks on this host, and of its device there."""
    local_ranks: int | None = None
    """Number of the group's ranks on this host; None for all."""
    address: str = "127.0.0.1"
    """Address of its host for the other ranks."""
    rank_capacities: list[int] = field(default_factory=list)
    """Capacity of each rank's device where they differ; `capacity_bytes` is this rank's."""
    alone: bool = False
    """On emulated devices: whether this rank alone stands for all `world_size` ranks."""


BALANCED, HOT = "balanced", "hot"
ROUTINGS = (BALANCED, HOT)
"""How tokens spread over experts: evenly, or with a hot expert, as in trained models."""
SAVES = ("full", "sharded")
"""How a checkpoint is made: by one rank of the whole state, or by each of its own."""
Rows = list[list[int]]
"""Lengths of samples by [row][sample]."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Study to rank: run one candidate in the live engine."""

    number: int
    micro_batch: int
    seq_len: int
    grad_accum: int
    """Micro-steps of the real schedule."""
    micro_steps: int
    """Micro-steps to run. Step times are scaled to the real schedule."""
    rule: Rule
    needed_step_s: float | None
    """Stop early if steps are slower, since they cannot beat the incumbent. None: never."""
    lengths: list[list[Rows]] = field(default_factory=list)
    """By [micro_batch][rank]; steps use them in turn. Empty: all have seq_len tokens."""
    longest: Rows = field(default_factory=list)
    """The first warm-up batch, which shows the peak; empty for none."""
    pad_to_multiple: int = 1
    ends: list[int] = field(default_factory=list)
    """Lengths that batches are padded to, ascending; empty for those of their longest rows."""
    pack: bool = False
    """Whether a row holds several samples, and has seq_len tokens."""
    vector: list[int] = field(default_factory=list)
    """Samples of a micro-step by rank, instead of `micro_batch`; empty if all have that."""
    routing: list[str] = field(default_factory=list)
    """How tokens spread over experts, of `ROUTINGS`: in all steps, and in a few that follow. Empty
    for a model without experts, or whose own routers choose."""
    eval_batch: int = 0
    """Samples of an evaluation batch, after all steps; 0 for none."""
    save: str = ""
    """How to make a checkpoint after all steps, of `SAVES`; empty for none."""
    save_to: str = ""
    """Folder to write it to, for a moment; empty to write nothing."""

    def samples(self, rank: int) -> int:
        """Samples of a micro-step of `rank`."""
        return self.vector[rank] if self.vector else self.micro_batch

    def loss_scale(self, rank: int) -> float:
        """Factor of the loss of `rank`."""
        return loss_scale(self.vector, rank) if self.vector else 1.0

    def padded(self, rows: Rows) -> int:
        """Tokens of each row of a batch."""
        longest = max(map(sum, rows))
        return self.seq_len if self.pack else padded_to(longest, self.pad_to_multiple, self.ends)


def loss_scale(vector: Sequence[int], rank: int) -> float:
    """Factor of the mean loss of `rank` that makes the mean of gradients that of all samples."""
    return vector[rank] * len(vector) / sum(vector)


def padded_to(length: int, multiple: int, ends: Sequence[int] = ()) -> int:
    """The padded length of a batch with this longest `length`: of `ends`, or a multiple."""
    place = bisect_left(ends, length)
    return ends[place] if place < len(ends) else -(-length // multiple) * multiple


@dataclass(frozen=True)
class Stop:
    """Study to rank: exit."""


@dataclass(frozen=True)
class Hello:
    """Rank to study: its first message."""

    rank: int
    pid: int
    host: str
    token: str = ""


@dataclass(frozen=True)
class Store:
    """Rank 0 to study: its rendezvous store is open."""

    host: str
    port: int


@dataclass(frozen=True)
class Entered:
    """Rank to study: it entered this phase."""

    phase: Phase


@dataclass(frozen=True)
class Ready:
    """Rank to study: the engine is built and takes probes."""

    parameters: int
    versions: dict[str, str]


@dataclass(frozen=True)
class Progress:
    """Rank 0 to study, now and then: seconds of each step of this phase so far."""

    number: int
    step_s: list[float]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Rank to study: the error that ended it. The rank then exits."""

    cause: Literal["oom", "host_oom", "unsupported", "crashed"]
    phase: Phase
    error: str
    """Type and message, one line."""
    traceback: str
    requested_bytes: int | None = None
    """Size of the failed allocation, if the error names it."""
    peaks: Peaks | None = None
    foreign_bytes: int = 0
    """Device memory that others took while this rank ran out of memory within its limit."""
    axes: list[str] = field(default_factory=list)
    """Axes whose values are unsupported together, if known."""
