"""Messages between the study and its ranks: frozen dataclasses, read from JSON by msgspec.

One message is one `send_bytes` of `{"v": VERSION, "type": <class name>, "body": {...}}`. Anything
that does not decode to exactly the declared fields and types is a `WireError`, never a guess.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

import msgspec

from autotune.wire.agents import AgentMessage
from autotune.wire.dial import Dial
from autotune.wire.settings import Depth, Settings
from autotune.wire.stopping import Phase, Rule

VERSION = 1
MAX_MESSAGE_BYTES = 4 * 2**20


class WireError(ValueError):
    """Bytes that are no message of this version."""


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
class Fork:
    """Study to a fork server: become a rank, which then speaks for itself."""

    dial: Dial
    log: str
    """What the rank prints is appended to this file."""
    environment: dict[str, str]
    """All of its variables."""


@dataclass(frozen=True)
class Forked:
    """Fork server to study: the rank is a child of the study now."""

    pid: int


@dataclass(frozen=True)
class Forkable:
    """Fork server to study: what it imports is imported."""

    but: str
    """Why no rank can be forked all the same; empty where one can."""


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


Message = (
    Start | Probe | Count | Describe | Load | Begin | Fork | Stop
    | Forkable | Forked | Hello | Counted | Described | Loaded | Store
    | Entered | Ready | Progress | Report | Fault | Seen | Left | AgentMessage
)  # fmt: skip
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}


class _Frame(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    type: str
    body: dict[str, Any]


def encode(message: Message | Dial) -> bytes:
    """The bytes of one message."""
    frame = {"v": VERSION, "type": type(message).__name__, "body": asdict(message)}
    # Not msgspec's own JSON, which has no NaN, and no text with parts that are no UTF-8.
    return json.dumps(frame, separators=(",", ":")).encode()


def decode(data: bytes) -> Message:
    """The message in `data`.

    Raises:
        WireError: no JSON, another version, an unknown type, or fields that do not match it.
    """
    message: Message = _decode(data, _TYPES)
    return message


def decode_dial(data: bytes) -> Dial:
    """The `Dial` in `data`. Raises `WireError` as `decode` does."""
    dial: Dial = _decode(data, {"Dial": Dial})
    return dial


def _decode(data: bytes, known: dict[str, type[Any]]) -> Any:
    try:
        frame = msgspec.convert(json.loads(data), _Frame)
        if frame.v != VERSION:
            raise ValueError(f"version {frame.v}, this side speaks {VERSION}")
        if frame.type not in known:
            raise ValueError(f"unknown message type {frame.type!r}")
        message = msgspec.convert(frame.body, known[frame.type])
        again = asdict(message)  # with defaults for what is missing, and without unknown fields
        if again != frame.body:
            odd = sorted(again.keys() ^ frame.body.keys())
            raise ValueError(f"{frame.type}: missing or unknown fields {odd or 'inside'}")
    except (ValueError, RecursionError) as error:
        raise WireError(f"not an autotune message: {str(error)!a:.300}") from error
    return message
