"""Messages between the study and its ranks: frozen dataclasses to and from JSON. Stdlib only.

One message is one `send_bytes` of `{"v": VERSION, "type": <class name>, "body": {...}}`. Both
sides import this module; the ranks' side imports nothing else of `autotune`. Anything that does
not decode to exactly the declared fields and types is a `WireError`, never a guess.

`Rule` also holds what its numbers mean: a replayed probe has to stop exactly as a rank would.
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

VERSION = 1
MAX_MESSAGE_BYTES = 4 * 2**20
HOPELESS_MARGIN = 1.25
"""Before an interval exists: the fastest step so far is this much too slow for the incumbent."""

# Of the step that is probed, whatever the engine; DeepSpeed reads them in the config it is sent.
CLIP_NORM = 1.0
LEARNING_RATE = 3e-4
MUON_LEARNING_RATE = 2e-3


class WireError(ValueError):
    """Bytes that are no message of this version."""


class Phase(StrEnum):
    """Where a rank is. Each phase has its own deadline (runner/pool.py)."""

    IMPORT = "import"
    BUILD = "build"
    ENGINE = "engine"
    WARMUP = "warmup"
    TIMED = "timed"
    DONE = "done"


@dataclass(frozen=True)
class Dial:
    """How a rank reaches its study; the first line on the rank's stdin. The key is hex."""

    host: str
    port: int
    key: str
    rank: int
    child: bool
    """The rank is a child process of the study and shall not outlive it."""


@dataclass(frozen=True)
class ModelSpec:
    """The model to build: `depth` blocks of `width` channels."""

    name: str
    depth: int
    width: int
    vocab_size: int
    checkpointing: str


@dataclass(frozen=True)
class Start:
    """Study to rank, once: everything that a build needs."""

    world_size: int
    device: Literal["cpu", "cuda"]
    device_uuid: str
    capacity_bytes: int
    store_host: str
    """Where rank 0's rendezvous store listens; empty for rank 0, which opens it."""
    store_port: int
    model: ModelSpec
    engine: str
    zero_stage: int
    offload: str
    dtype: str
    optimizer: str
    deepspeed: dict[str, Any]
    """DeepSpeed's config, from `autotune.export.deepspeed`; empty for the other engines."""
    seed: int


@dataclass(frozen=True)
class Rule:
    """When warm-up and timing stop. The numbers are chosen in one place, `autotune.study`."""

    warmup_steps: int
    """Full optimizer steps before timing, at least."""
    warmup_tolerance: float
    """Warm-up ends when the last two steps differ by at most this share."""
    warmup_limit_s: float
    """Warm-up ends after the step that passes this, stable or not."""
    timed_steps: int
    """Timed steps, at least."""
    half_width: float
    """Timing ends when half the 95 % interval of the median is within this share of it."""
    timed_limit_s: float
    """Timing ends after the step that passes this, and at least `timed_steps`."""

    def warmed(self, warmup: Series) -> bool:
        """Whether warm-up may end: enough full steps, and the last two agree or time is up."""
        if len(warmup.step_s) < self.warmup_steps:
            return False
        *_, before, last = warmup.step_s
        agree = abs(last - before) <= self.warmup_tolerance * last
        return agree or warmup.wall_s >= self.warmup_limit_s

    def settled(self, timed: Series) -> bool:
        """Whether timing may end: enough steps, and the median is known or time is up."""
        if len(timed.step_s) < self.timed_steps:
            return False
        if timed.wall_s >= self.timed_limit_s:
            return True
        return timed.due and interval(timed.step_s).half_width <= self.half_width

    def hopeless(self, needed_step_s: float | None, warmup: Series, timed: Series) -> bool:
        """Whether steps of at most `needed_step_s`, the incumbent's, are out of reach.

        Never before the warm-up's full steps are through: the memory peak stands only then.
        """
        if needed_step_s is None or len(warmup.step_s) < self.warmup_steps:
            return False
        if len(timed.step_s) >= self.timed_steps:
            return timed.due and interval(timed.step_s).low > needed_step_s
        return min(warmup.step_s[1:] + timed.step_s) > HOPELESS_MARGIN * needed_step_s


@dataclass
class Series:
    """Steps so far: what each takes in the real schedule, and how long they ran here in all."""

    step_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, step_s: float, wall_s: float) -> None:
        self.step_s.append(step_s)
        self.wall_s += wall_s

    @property
    def due(self) -> bool:
        """Whether to look at the interval now: after every step, later after every 20th part."""
        return len(self.step_s) % max(1, len(self.step_s) // 20) == 0


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Describe:
    """Study to a helper process, once: which models to trace, at which shapes."""

    models: list[ModelSpec]
    seq_lens: list[int]
    micro_batches: list[int]
    dtype: str
    optimizer: str
    gradients_stay: bool
    """Gradients live through all of a step, as DDP's buckets and accumulation have it."""


@dataclass(frozen=True)
class Stop:
    """Study to rank: leave."""


@dataclass(frozen=True)
class Hello:
    """Rank to study, first."""

    rank: int
    pid: int
    host: str


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    def largest(cls, peaks: Sequence[Peaks]) -> Peaks:
        """Each field's largest in any of `peaks`."""
        return cls(*(max(getattr(each, field.name) for each in peaks) for field in fields(cls)))


@dataclass(frozen=True)
class Conditions:
    """What the machine did during the timed steps, as this rank saw it.

    CPU fields are seconds of processor time summed over the cores this rank may use; clock, power
    and temperature are the largest (clock: smallest) readings. None where the device has none.
    """

    interval_cpu_s: float
    busy_cpu_s: float
    steal_cpu_s: float
    own_cpu_s: float
    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_reasons: int | None
    thermally_throttled: bool


@dataclass(frozen=True)
class Interval:
    """Median of step times and its distribution-free 95 % interval, in seconds."""

    median: float
    low: float
    high: float
    steps: int

    @property
    def half_width(self) -> float:
        """Half the interval's length as a share of the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Report:
    """Rank to study: one probe, done. Times are of the real schedule, the slowest rank's."""

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


@dataclass(frozen=True)
class Fault:
    """Rank to study: what ended it. Nothing is recovered in the rank: it leaves after this."""

    kind: Literal["oom", "host_oom", "unsupported", "crashed"]
    phase: Phase
    error: str
    """Type and message, one line."""
    traceback: str
    requested_bytes: int | None
    """What the failed allocation asked for, where the error says it."""
    peaks: Peaks | None


Message = (
    Start | Probe | Describe | Stop
    | Hello | Described | Store | Entered | Ready | Progress | Report | Fault
)  # fmt: skip
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}


def interval(step_s: list[float]) -> Interval:
    """Median and 95 % interval of `step_s` from order statistics; no shape is assumed.

    The interval spans the k-th smallest to the k-th largest value, k the largest for which a
    binomial(n, 1/2) puts at least 95 % between them. Below 6 values no such k exists and the
    interval is the whole range. Source: David & Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered = sorted(step_s)
    n = len(ordered)
    if not n:
        raise ValueError("no step times")
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    k = _order(n)
    return Interval(middle, ordered[k - 1], ordered[n - k], n)


@cache
def _order(n: int) -> int:
    k, ways, below, allowed = 0, 1, 0, 2**n // 40  # 2.5 % of the cases, on each side
    while k < (n + 1) // 2:
        below += ways  # for k or fewer of n values to lie under the median
        if below > allowed:
            break
        k += 1
        ways = ways * (n - k + 1) // k
    return max(1, k)


def encode(message: Message | Dial) -> bytes:
    """The bytes of one message."""
    body = {"v": VERSION, "type": type(message).__name__, "body": asdict(message)}
    return json.dumps(body, separators=(",", ":"), allow_nan=True).encode()


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
        outer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(outer, dict) or outer.keys() != {"v", "type", "body"}:
        raise WireError("not an autotune message")
    if outer["v"] != VERSION or isinstance(outer["v"], bool):
        raise WireError(f"message of version {outer['v']!r}, this side speaks {VERSION}")
    cls = known.get(outer["type"]) if isinstance(outer["type"], str) else None
    if cls is None:
        raise WireError(f"unknown message type {outer['type']!r}")
    return build(cls, outer["body"])


def build(cls: type, body: Any) -> Any:
    """The dataclass that `asdict` made the JSON `body` of. Raises `WireError` if it is none."""
    if not isinstance(body, dict):
        raise WireError(f"{cls.__name__}: body is not an object")
    hints = _hints(cls)
    if body.keys() != hints.keys():
        odd = ", ".join(map(ascii, sorted(body.keys() ^ hints.keys())))
        raise WireError(f"{cls.__name__}: missing or unknown fields {odd:.200}")
    return cls(**{name: _value(cls, name, hints[name], body[name]) for name in hints})


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _value(cls: type[Any], name: str, hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value  # JSON already
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (hint,) = [arg for arg in args if arg is not type(None)]
        return _value(cls, name, hint, value)
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value)
    if origin is list and isinstance(value, list):
        return [_value(cls, name, args[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _value(cls, name, args[1], item) for key, item in value.items()}
    return _scalar(cls, name, hint, value)


def _scalar(cls: type[Any], name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        if isinstance(value, str) and value in get_args(hint):
            return value
    elif issubclass(hint, StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
    elif hint is float and type(value) is int and abs(value) < 2**1023:  # float() cannot overflow
        return float(value)
    elif type(value) is hint:
        return value
    raise WireError(f"{cls.__name__}.{name}: {value!r:.80} is not a {hint}")
