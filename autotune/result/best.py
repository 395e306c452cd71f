"""best.json: the document with the winner, as a dataclass that reads and writes it.

Its names are a contract: scripts and exports rely on them. A new field needs a default; none
changes its name or meaning. Types are checked on writing and on reading.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from autotune.errors import UsageError
from autotune.result.choice import Repeats, Unconfirmed
from autotune.result.files import write_whole
from autotune.space.axes import AXES, ZERO_STAGES, ByRank, Shape
from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES
from autotune.space.mix import Batches, LengthMix
from autotune.space.models.defaults import Lora
from autotune.space.models.tasks import Task
from autotune.space.outcome import Objective, Verdict
from autotune.space.workload import NO_PHASES, SCRIPTS, GlobalBatch, Workload
from autotune.wire.settings import Axis, Settings

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Held = Annotated[str, Meta(pattern="^(fp32|bf16|fp16|8 bit)$")]
Ceiling = Annotated[float, Meta(gt=0, le=1)]

Phase = Literal["train", "rollout", "evaluate", "save", "load", "hot"]
"""The phases of a run. "hot" is a model's training with a hot expert."""
Routed = Literal["balanced", "hot", "balanced,hot", "as initialised", "the script's own"]

MOST_BYTES = 16 * 2**20
UNKNOWN = "unknown"
FINALS = "finals"
"""Key of `Best.trials` that is no verdict: the number of final rounds that ran."""


@dataclass(frozen=True, kw_only=True)
class Config(ByRank, Settings, Shape):
    """A measured configuration: values on all axes, and the study's common settings. A script's
    `optimizer` has the classes that were seen to step, or `UNKNOWN`."""

    model: Annotated[str, Meta(min_length=1)]
    width: Positive | None = None
    vocab_size: Positive | None = None
    task: Task | None = None
    """What a model of transformers is trained for; None for others, and in older files."""
    token: str | None = None
    """What counts as a token, in words; None for one of text."""
    dtype: Annotated[str, Meta(pattern="^(fp32|bf16|fp16)$")]
    engine: str
    """One of `ENGINES`."""
    world_size: Positive
    nodes: Positive = 1
    """Number of machines."""
    data_parallel: Positive | None = None
    """Number of replicas, each with data of its own. Fewer than ranks if ranks of a script split
    the model or its sequences. None, in older files, means all ranks."""
    degrees: dict[str, Positive] | None = None
    """Degrees of parallelism that were seen of a script: dp, tp, pp or cp, if above 1."""
    grad_accum: Positive
    global_batch_samples: Positive
    global_batch_tokens: Positive

    @property
    def ranks_on_a_node(self) -> int:
        """The most ranks on one machine."""
        return -(-self.world_size // self.nodes)

    @property
    def on_nodes(self) -> str:
        """Words after the number of ranks; empty on one machine."""
        return f" on {self.nodes} nodes" if self.nodes > 1 else ""

    @property
    def replicas(self) -> int:
        """Number of ranks, or groups of ranks, with data of their own."""
        return self.data_parallel or self.world_size

    @property
    def splits(self) -> dict[str, int] | None:
        """Degrees of tp, pp and cp: seen, else requested ones; None if neither fit the ranks."""
        seen = {name: (self.degrees or {}).get(name, 1) for name in ("tp", "pp", "cp")}
        for found in (seen, {name: getattr(self, name) for name in seen}):
            if self.replicas * math.prod(found.values()) == self.world_size:
                return found
        return None

    @property
    def sharded(self) -> tuple[int, int]:
        """Copies of the weights, and the replicas that share each."""
        shard = self.replicas if self.dp_shard == "auto" else int(self.dp_shard)
        return max(1, self.replicas // shard), shard

    @property
    def ranks(self) -> str:
        """The number of ranks in words, and how they share the work unless each has data."""
        if self.world_size == 1:
            return "1 rank"
        split = self.replicas < self.world_size
        seen = {"dp": self.replicas} | (self.degrees or {})
        how = " x ".join(f"{name} {size}" for name, size in seen.items()) if split else ""
        return f"{self.world_size} ranks{self.on_nodes}" + (f": {how}" if how else "")

    @property
    def candidate(self) -> Candidate:
        """The requested candidate. A script that was not told an optimizer has its own."""
        axis, asked = AXES["optimizer"], {axis: getattr(self, axis) for axis in AXES}
        own = self.optimizer not in axis.words
        return Candidate(**asked | ({"optimizer": axis.plain} if own else {}))

    @property
    def workload(self) -> Workload:
        """The study's workload, as this configuration had it.

        Raises:
            ValueError: an older version wrote best.json, without the vocabulary.
        """
        if self.vocab_size is None:
            raise ValueError("best.json does not say vocab_size")
        return Workload(
            model=self.model,
            width=self.width,
            vocab_size=self.vocab_size,
            dtype=self.dtype,
            engine=self.engine,
            world_size=self.world_size,
            global_batch=GlobalBatch(self.global_batch_samples, "samples"),
            nodes=self.nodes,
        )


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Median seconds of a step, and its 95 % interval."""

    median: Rate
    low: Rate
    high: Rate
    steps: Positive


class PeakBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest peaks over ranks; `host` is the sum over a host's ranks."""

    device: Count
    reserved: Count
    allocated: Count
    host: Count


@dataclass(frozen=True, kw_only=True)
class PhaseTook:
    """The peaks of a phase, and how long it took."""

    peak_bytes: PeakBytes
    seconds: float | None = None
    """Sum over all occurrences; None for training."""
    count: Count | None = None
    """Number of occurrences; None for training."""
    tokens_per_s: Rate | None = None
    """With a hot expert, of one step; None where lengths differ, and of what trains nothing."""
    written_bytes: int | None = None
    """Size of a model's checkpoint over all ranks, whose `seconds` include the disk's; None if
    nothing was written."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates over all ranks, and peaks."""

    tokens_per_s: Rate
    samples_per_s: Rate
    model_flops_per_s: Rate
    step_s: StepTime
    """An optimizer step of the real schedule, on the slowest rank."""
    peak_bytes: PeakBytes
    share_of_capacity: Share
    headroom_bytes: Count | None = None
    """Bytes between the peak and the ceiling."""
    rank_peak_bytes: tuple[Count, ...] | None = None
    """Peak of each rank's device, where capacities differ. `peak_bytes.device` is then the same
    share of the smallest device, of the rank that fills its own most."""
    disturbed_share: float | None = None
    kernels: str | None = None
    """The kernels that computed attention."""
    compile_s: float | None = None
    """Seconds of compiling before the first step; None if nothing was compiled."""
    compilations: int | None = None
    """Number of compilations in that time."""
    spread_s: float | None = None
    """Seconds a step for compiling all shapes of a mix, spread over its `run_steps`. Rates
    include it, `step_s` does not."""
    tokens: Literal["seen", "claimed"] | None = None
    """Source of a script's number of tokens: seen batches, or the request."""
    waiting_share: Share | None = None
    """Share of a script's step that waits for data."""
    rows: Positive | None = None
    """Rows of each sample that a script's model gets; None for one."""
    joules_per_token: Rate | None = None
    """Energy of all devices in the timed steps; on the CPU the host's, with all programs."""
    real_share: Ceiling | None = None
    """Share of a batch's tokens that are no padding; None if all samples have one length. Steps
    and rates are those of the mix of lengths, and count no padding. They are expected values if
    only the longest samples were measured, as in a cell that is not confirmed."""
    bucket_lengths: tuple[Positive, ...] | None = None
    """With `buckets`, the lengths to which batches are padded."""
    phases: dict[Phase, PhaseTook] | None = None
    """Peaks by phase, if a script did more than train, or a model was also trained with a hot
    expert. `peak_bytes` has the largest of all; rates are those of "train"."""


@dataclass(frozen=True, kw_only=True)
class BestLimits:
    """Memory limits of a configuration, per device and on the host."""

    capacity_bytes: Positive
    ceiling: Ceiling
    limit_bytes: Positive
    rank_capacities: tuple[Positive, ...] | None = None
    """Capacity of each rank's device, where they differ; `capacity_bytes` is the least."""
    host_capacity_bytes: Positive | None = None
    host_ceiling: Ceiling | None = None
    host_limit_bytes: Positive


@dataclass(frozen=True)
class Tie:
    """A configuration within the noise of the fastest; it needs no less memory."""

    config: Config
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The best of one depth and sequence length."""

    depth: Positive
    seq_len: Positive
    config: Config
    measured: Measured
    verdict: Annotated[str, Meta(pattern="^(ok|pruned)$")] | None = None
    confirmed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Sure:
    """How sure it is that the configuration is the fastest of those that fitted."""

    best: Share
    """Probability that it is the fastest."""
    within_1_percent: Share
    """Probability that it is at most 1 % slower than the fastest."""
    next: Config | None = None
    """The likeliest fastest one beside it."""
    next_best: Share | None = None
    """Probability that `next` is the fastest; None without `next`."""


@dataclass(frozen=True)
class PeakErrors:
    """Errors of predictions just before measurements, as shares of the measured peaks."""

    peak_median_error: float | None
    trials: int


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of a longer run of the winner."""

    passed: bool
    """Whether it was as fast, within 3 % (5 % on the CPU), and stayed under the ceiling."""
    steps: Count
    """Steps of the run, or before it ran out of memory."""
    tokens_per_s: Rate | None
    """Tokens/s at the median step; None if it ran out of memory."""
    share_of_measured: Rate | None
    """`tokens_per_s` as a share of the study's."""
    quarters: list[float]
    """Tokens/s of each quarter of the steps."""
    peak_bytes: Count | None
    """None if it ran out of memory, since its peak is then unknown."""
    limit_bytes: Count
    alloc_retries: Count
    growth_bytes_per_100_steps: float | None
    """Growth of the memory that is held between steps; None for a script."""
    cannot_tell: str | None = None
    """Why the machine's noise may explain a slower run; else None."""
    ran_out: str | None = None
    """Where it ran out of memory; else None."""
    other_hardware: str | None = None
    """How the devices differ from those of the study."""
    faster: bool = False
    """Whether every quarter was faster than the noise of the study's measurements explains."""
    peak_in: Phase | None = None
    """The phase of a script with a peak above training's."""
    unseen: tuple[Phase, ...] | None = None
    """As `Best.unseen`, of this run."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The content of best.json, its fields in their order."""

    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1
    device: Literal["emulated"] | None = None
    """Set if memory was weighed on emulated GPUs, and time is modelled."""
    confirmed: bool
    """Whether its finals in fresh groups were ok each time, and their speeds agreed."""
    config: Config
    measured: Measured
    limits: BestLimits
    objective: Objective
    dtypes: dict[str, Held] | None = None
    """Dtypes in which the engine holds, computes and sends; unknown for a script's own."""
    sure: Sure | None = None
    repeats: Repeats | None = None
    unconfirmed: Unconfirmed | None = None
    """Why it is not confirmed."""
    cells: Annotated[tuple[Cell, ...], Meta(min_length=1)]
    ties: tuple[Tie, ...]
    pareto: tuple[Tie, ...] = ()
    """The Pareto front of speed and energy among configurations that fit; the fastest first."""
    same_batch: tuple[Cell, ...] = ()
    """The best of every micro_batch at the depth, length and global batch of `config`."""
    update_share: Share | None = None
    """Share of the update in a step. None unless two accumulations of `config` were measured."""
    trials: dict[str, Count]
    """Trials of the search by verdict, and the number of `FINALS`."""
    candidates: Positive | None = None
    """Number of candidates of the search, tried or not."""
    prediction: PeakErrors | None = None
    verified: Verified | None = None
    unseen: tuple[Phase, ...] | None = None
    """Evaluation and saving, if not seen in the runs of `config`; None for recordings."""
    routing: Routed | None = None
    """How tokens were spread over experts: in the timed steps, then in those after them, whose
    peak counts, too. None of a model without experts, and of scripts that may have none."""
    length_mix: LengthMix | None = None
    """Lengths of the measured samples; None if all have config.seq_len."""
    exports: dict[str, dict[str, Any]]
    """Name of a tool to its configuration, exactly as it was probed."""
    fingerprint: dict[str, Any]
    environment: dict[str, Any]
    provenance: dict[str, Any]
    command: list[str] | None = None
    """Words that start a user's own script with this configuration."""

    @property
    def untried(self) -> int | None:
        """Number of candidates without a trial; None if `candidates` is unknown."""
        tried = sum(count for name, count in self.trials.items() if name != FINALS)
        return None if self.candidates is None else max(0, self.candidates - tried)

    @property
    def device_kind(self) -> str:
        """cpu or cuda."""
        return str(self.fingerprint["kind"])

    def deepspeed(self) -> dict[str, Any]:
        """DeepSpeed's config as it was probed. Raises UsageError if DeepSpeed was not the
        engine."""
        if "deepspeed" not in self.exports:
            raise UsageError(f"best.json: {self.config.engine} was the engine, and not deepspeed")
        return copy.deepcopy(self.exports["deepspeed"])

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a step without padding; for a script, the tokens that were seen."""
        if self.command is not None:
            return self.measured.tokens_per_s * self.measured.step_s.median
        rows = self.config.global_batch_samples
        if (batches := self._batches) is None:
            return rows * self.config.seq_len
        return rows * batches.tokens / self.config.micro_batch

    @property
    def cycle_steps(self) -> int:
        """Number of steps after which lengths repeat; 1 if all are equal."""
        batches = self._batches
        return 1 if batches is None else batches.cycle_steps(self.config.grad_accum)

    @property
    def _batches(self) -> Batches | None:
        mix, config = self.length_mix, self.config
        return None if mix is None else mix.batches(config.candidate, config.replicas)

    @property
    def asked(self) -> dict[str, Any]:
        """The options of its study as JSON types; none if the file has none."""
        options = self.provenance.get("options")
        return options if isinstance(options, dict) else {}

    @property
    def known(self) -> set[str] | None:
        """Fields of `config` that a script was told or seen to have; None: all are known."""
        if self.command is None:
            return None
        asked = self.asked
        words = str(asked.get("script"))
        told = {
            name for name, axis in AXES.items()
            if asked.get(axis.option) is not None or f"{{{name}}}" in words
            or (name == "zero_stage" and "{zero}" in words)
            or (name == "dp_shard" and "{dp_replicate}" in words)
        }  # fmt: skip
        return told | {"micro_batch", "grad_accum", "world_size", "nodes", "seq_len", "dtype"}

    def knows(self, name: str) -> bool:
        """Whether that field of `config` is `known`."""
        return self.known is None or name in self.known

    @property
    def phase_args(self) -> bool:
        """Whether the user said how it evaluates or saves."""
        said = (self.asked.get(name) for name in ("phase_args", "eval_batch", "save"))
        return any(said) and self.asked.get("phase_args") != NO_PHASES

    @property
    def may_have_phases(self) -> bool:
        """Whether it is a script that may evaluate and save by itself."""
        return self.command is not None and not self.asked.get("phase_args")

    @property
    def started_in(self) -> str | None:
        """The folder of the user's own script or function; None for other models."""
        folder: str | None = self.provenance.get("started_in")
        return folder

    @property
    def expected(self) -> str | None:
        """The expectation of a plan, in words; None after a measurement."""
        said: str | None = self.provenance.get("expected")
        return said

    @property
    def lora(self) -> Lora | None:
        """The adapters that were trained; None for a whole model."""
        given = self.asked.get("lora")
        return msgspec.convert(given, Lora) if isinstance(given, dict) else None

    @property
    def stopped_in(self) -> str | None:
        """The part that the user ended early: search or finals; None if it was not stopped."""
        part: str | None = self.provenance.get("stopped_in")
        return part

    def to_json(self) -> dict[str, Any]:
        """The content as JSON types."""
        document: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(self)))
        return document

    def write(self, path: Path) -> None:
        """Write it to `path` whole or not at all: a reader never sees a part of it.

        Raises:
            ValueError: a field has another type or value than declared, or is not finite; the
                message names its path.
        """
        document = self.to_json()
        _checked(document)
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Best:
        """The content of `path`; unknown fields are ignored. Raises UsageError if the file cannot
        be read, or a field has another type or value than declared."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{path}: not a best.json: it has over {MOST_BYTES >> 20} MiB")
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found = _checked(document)
            _check_sums(found)
            return found
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        except json.JSONDecodeError as error:
            line = f"cut off or damaged in line {error.lineno}" if error.pos else "empty"
            raise UsageError(
                f"{path}: {line}; autotune --resume with its study's folder writes it again"
            ) from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not a best.json: {error!s:.200}") from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of best.json."""
    schema = msgspec.json.schema(Best)
    config = schema["$defs"]["Config"]
    for name, axis in AXES.items():
        config["properties"][name] = _values(name, axis)
        if _is_required(name):
            config["required"] = sorted({*config["required"], name})
    config["properties"]["optimizer"] = {"type": "string", "minLength": 1}
    config["properties"]["engine"] = {"enum": list(ENGINES)}
    schema["$defs"]["Best"]["required"].append("schema_version")
    return schema


def _values(name: str, axis: Axis) -> dict[str, Any]:
    """The schema of the values of an axis."""
    if not axis.words:
        stages = {"enum": list(ZERO_STAGES)}
        return stages if name == "zero_stage" else {"type": "integer", "minimum": axis.least}
    words = {"enum": list(axis.words)}
    pattern = {"type": "string", "pattern": f"^({axis.pattern})$"}
    return words if axis.pattern is None else {"anyOf": [words, pattern]}


def _is_required(axis: str) -> bool:
    """Whether every configuration must have it; other axes are plain if they are missing."""
    return AXES[axis].always or axis == "optimizer"


def _checked(document: Any) -> Best:
    """`document` as declared. Raises ValueError, which names the path of a wrong field."""
    # msgspec checks this only for declared fields.
    for where in _not_finite(document, "$"):
        raise ValueError(f"best.json: {where} is not a finite number")
    found = msgspec.convert(document, Best)
    if "schema_version" not in document:
        raise ValueError("$: missing required field `schema_version`")
    for where, config in _configs(document):
        _check_config(where, config)
    if found.trials.keys() - {FINALS} != set(Verdict):
        raise ValueError("$.trials: has to count each verdict, finals, and nothing else")
    if found.fingerprint.get("kind") not in ("cpu", "cuda"):
        raise ValueError("$.fingerprint.kind: is neither cpu nor cuda")
    for name, value in found.exports.get("env", {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(value, str):
            raise ValueError(f"$.exports.env: {name!r:.80} is no variable with a text")
    return found


def _configs(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All configurations of a document of the declared types, with their paths."""
    for name in ("cells", "ties", "pareto", "same_batch"):
        for place, part in enumerate(value.get(name, ())):
            yield f"$.{name}[{place}].config", part["config"]
    yield "$.config", value["config"]
    if following := (value.get("sure") or {}).get("next"):
        yield "$.sure.next", following


def _check_config(where: str, config: dict[str, Any]) -> None:
    """Raises ValueError if an axis has an impossible value, or the engine is unknown."""
    if config["engine"] not in ENGINES:
        raise ValueError(f"{where}.engine: {config['engine']!r:.80} is none of {[*ENGINES]}")
    for name, axis in AXES.items():
        if name not in config:
            if _is_required(name):
                raise ValueError(f"{where}: missing required field `{name}`")
            continue
        value = config[name]
        known = axis.takes(value) if axis.words else value >= axis.least
        if name == "zero_stage":
            known = value in ZERO_STAGES
        elif name == "optimizer" and config["model"].startswith(SCRIPTS):
            known = bool(value)
        if not known:
            raise ValueError(f"{where}.{name}: {value!r:.80} is none of its values")


def _check_sums(best: Best) -> None:
    """Raises ValueError if numbers contradict each other: somebody changed one of them."""
    config = best.config
    samples = config.candidate.samples_of(config.replicas) * config.grad_accum
    pairs: dict[str, tuple[Any, int]] = {
        "global_batch_samples": (config.global_batch_samples, samples),
        "global_batch_tokens": (config.global_batch_tokens, samples * config.seq_len),
    }
    if config.nodes > config.world_size:
        raise ValueError(
            f"config.nodes is {config.nodes} of {config.world_size} ranks: it was changed by hand"
        )
    if config.replicas > config.world_size:
        raise ValueError(
            f"config.data_parallel is {config.replicas} of {config.world_size} ranks: it was"
            " changed by hand"
        )
    if (lora := best.lora) is not None and lora.rank < 1:
        raise ValueError(f"provenance.options.lora has rank {lora.rank}: it was changed by hand")
    if (mix := best.length_mix) is not None and sum(mix.counts) != mix.samples:
        raise ValueError(f"length_mix.samples is {mix.samples}: it was changed by hand")
    if (config.engine == "deepspeed") != ("deepspeed" in best.exports):
        raise ValueError(f"exports does not go with engine {config.engine}: changed by hand")
    if (probed := best.exports.get("deepspeed")) is not None:
        zero = probed.get("zero_optimization")
        stage = zero.get("stage") if isinstance(zero, dict) else None
        brought = probed.get("zero_allow_untested_optimizer") is True
        if stage != config.zero_stage or not (
            brought or isinstance(probed.get("optimizer"), dict)
        ):
            raise ValueError("exports.deepspeed is of another stage: it was changed by hand")
        name = "train_micro_batch_size_per_gpu"
        pairs[f"exports.deepspeed.{name}"] = (probed.get(name), config.micro_batch)
        name = "train_batch_size"
        pairs[f"exports.deepspeed.{name}"] = (probed.get(name), samples)
    each = f"{config.micro_batch}"
    if vector := config.candidate.vector:
        each = config.micro_batch_per_rank
        pairs["world_size"] = (config.world_size, len(vector))
    for name, (said, is_so) in pairs.items():
        if said != is_so:
            raise ValueError(
                f"{name} is {said}, and {each} x {config.grad_accum} x"
                f" {config.replicas} replicas make {is_so}: it was changed by hand"
            )


def _not_finite(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield where
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{where}[{index}]")
