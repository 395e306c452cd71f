"""Messages between the study and a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.wire.reports import Peaks
from autotune.wire.settings import Depth, Settings
from autotune.wire.stopping import Phase, Rule


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Settings, Depth):
    """What ranks build: `depth` blocks of `width` channels, with these settings."""

    name: str
    width: int
    vocab_size: int
    recipe: dict[str, Any] = field(default_factory=dict)
    """What else its family builds it from: JSON types, by names that the family chooses."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Study to rank, once: everything that a build needs."""

    world_size: int
    device_kind: Literal["cpu", "cuda"]
    device_uuid: str
    capacity_bytes: int
    store_host: str
    """Where rank 0's rendezvous store listens; empty for rank 0, which opens it."""
    store_port: int
    model: ModelSpec
    engine: str
    dtype: str
    engine_config: dict[str, Any]
    """From the engine's row in `autotune.space.engines`; empty for engines that take none."""
    seed: int
    energy: str = ""
    """Where the device's energy is counted: "nvml", RAPL's folder, or empty for nowhere."""
    local_rank: int = 0
    """Among the ranks of its group on its host: the place of its device there."""
    local_ranks: int | None = None
    """How many these are; None for all."""
    address: str = "127.0.0.1"
    """Of its host, as the other ranks reach it."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Study to rank: run one candidate in the live engine."""

    number: int
    micro_batch: int
    seq_len: int
    grad_accum: int
    """Micro-steps of the real schedule."""
    micro_steps: int
    """Micro-steps to run; the step time of the real schedule is scaled from these."""
    rule: Rule
    needed_step_s: float | None
    """Slower than this cannot beat the incumbent: stop early. None measures to the end."""
    lengths: list[list[list[int]]] = field(default_factory=list)
    """Of the samples, by [micro_batch][rank][sample]; a batch is padded to its longest. Steps take
    these micro-batches in turn, again and again. Empty: all samples are of seq_len."""
    longest: list[int] = field(default_factory=list)
    """Lengths of a batch that the warm-up begins with, for the peak; empty for none."""
    pad_to_multiple: int = 1


@dataclass(frozen=True)
class Stop:
    """Study to rank: leave."""


@dataclass(frozen=True)
class Hello:
    """Rank to study, first."""

    rank: int
    pid: int
    host: str
    token: str = ""
    """Of its `Dial`."""


@dataclass(frozen=True)
class Store:
    """Rank 0 to study: its rendezvous store is open."""

    host: str
    port: int


@dataclass(frozen=True)
class Entered:
    """Rank to study: the rank is in this phase now."""

    phase: Phase


@dataclass(frozen=True)
class Ready:
    """Rank to study: the engine stands and takes probes."""

    parameters: int
    versions: dict[str, str]


@dataclass(frozen=True)
class Progress:
    """Rank 0 to study, now and then: the steps of this phase so far, in seconds."""

    number: int
    step_s: list[float]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Rank to study: what ended it. Nothing is recovered in the rank: it leaves after this."""

    cause: Literal["oom", "host_oom", "unsupported", "crashed"]
    phase: Phase
    error: str
    """Type and message, one line."""
    traceback: str
    requested_bytes: int | None
    """What the failed allocation asked for, where the error says it."""
    peaks: Peaks | None
    foreign_bytes: int = 0
    """How much others took of the device while this rank ran out of it within its own limit."""
    axes: list[str] = field(default_factory=list)
    """Those whose values, together, are unsupported, where that is known."""
