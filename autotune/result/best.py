"""best.json: the document that says which candidate won, as a dataclass that reads and writes it.

Its names are a contract: scripts and exports rely on them. A new field needs a default; none
changes its name or meaning. What is written and what is read is checked against the types here.
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
from autotune.space.axes import AXES, ZERO_STAGES, Batching, Shape
from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES
from autotune.space.mix import Batches, LengthMix
from autotune.space.models.defaults import Lora
from autotune.space.outcome import Objective, Verdict
from autotune.space.workload import SCRIPTS, GlobalBatch, Workload
from autotune.wire.settings import Axis, Settings

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Held = Annotated[str, Meta(pattern="^(fp32|bf16|fp16|8 bit)$")]
Ceiling = Annotated[float, Meta(gt=0, le=1)]

Phase = Literal["train", "rollout", "evaluate", "save"]
PHASES: tuple[Phase, ...] = ("train", "rollout", "evaluate", "save")
"""What a script does in a run."""

MOST_BYTES = 16 * 2**20
UNKNOWN = "unknown"
FINALS = "finals"
"""Key of `Best.trials` that is no verdict: the number of final rounds that ran."""


@dataclass(frozen=True, kw_only=True)
class Config(Batching, Settings, Shape):
    """A configuration that was measured: values on all axes, and what is the same in a study.

    Of a script, `optimizer` has the classes that were seen to step, or `UNKNOWN`.
    """

    model: Annotated[str, Meta(min_length=1)]
    width: Positive | None = None
    vocab_size: Positive | None = None
    dtype: Annotated[str, Meta(pattern="^(fp32|bf16|fp16)$")]
    engine: str
    """One of `ENGINES`."""
    world_size: Positive
    nodes: Positive = 1
    """Number of machines."""
    data_parallel: Positive | None = None
    """Number of replicas, each with data of its own. Fewer than ranks where ranks of a script
    split the model or its sequences. None, in older files, means all ranks."""
    degrees: dict[str, Positive] | None = None
    """Degrees of parallelism that a script was seen to have: dp, tp, pp or cp, where above 1."""
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
    def has_samples_alone(self) -> bool:
        """Whether it is of a user's function, and a sample is one token."""
        return self.model.startswith("factory:") and self.seq_len == 1

    @property
    def replicas(self) -> int:
        """Number of ranks, or groups of ranks, with data of their own."""
        return self.data_parallel or self.world_size

    @property
    def splits(self) -> dict[str, int] | None:
        """Degrees of tp, pp and cp: those that were seen, or else asked for; None where ranks
        share a model in a way that neither explains."""
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
        """What was asked of every candidate, as this one had it.

        Raises:
            ValueError: best.json was written by a version that did not keep the vocabulary.
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
    """Median of the seconds that a step takes, and its 95 % interval."""

    median: Rate
    low: Rate
    high: Rate
    steps: Positive


class PeakBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest over ranks; `host` is the sum over a host's ranks."""

    device: Count
    reserved: Count
    allocated: Count
    host: Count


@dataclass(frozen=True, kw_only=True)
class PhaseTook:
    """The peaks of a phase of a script, and how long it took."""

    peak_bytes: PeakBytes
    seconds: float | None = None
    """Of all times together; None of training."""
    count: Count | None = None
    """How often it was seen; None of training."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates over all ranks, and peaks."""

    tokens_per_s: Rate
    samples_per_s: Rate
    model_flops_per_s: Rate
    step_s: StepTime
    """One optimizer step of the real schedule, the slowest rank's."""
    peak_bytes: PeakBytes
    share_of_capacity: Share
    headroom_bytes: Count | None = None
    """Bytes between the peak and the ceiling."""
    disturbed_share: float | None = None
    kernels: str | None = None
    """That computed attention."""
    compile_s: float | None = None
    """What compiling took before the first step; None where nothing was compiled."""
    compilations: int | None = None
    """How often something was compiled in that time."""
    spread_s: float | None = None
    """Of each step, that compiling all shapes of a mix takes, spread over its `run_steps`. Rates
    have it, and `step_s` has not."""
    tokens: Literal["seen", "claimed"] | None = None
    """Where the number of tokens is from: of a script, the batches that were seen, or what it was
    asked for."""
    waiting_share: Share | None = None
    """Of a script's step, that waits for data."""
    rows: Positive | None = None
    """That a script's model gets of each sample; None where it is one."""
    joules_per_token: Rate | None = None
    """Of all devices, in the timed steps; on the CPU the host's processors, whoever used them."""
    real_share: Ceiling | None = None
    """Of the tokens of a batch, that are no padding; None where all samples have one length. Steps
    and rates, which count no padding, are those of the mix of lengths: expected ones where the
    longest alone was measured, as in a cell that is not confirmed."""
    bucket_lengths: tuple[Positive, ...] | None = None
    """That batches are padded to the next of, with `buckets`."""
    phases: dict[Phase, PhaseTook] | None = None
    """Peaks in each phase, where a script was seen to do more than train. `peak_bytes` has the
    largest of all."""


@dataclass(frozen=True, kw_only=True)
class BestLimits:
    """What a configuration may use, per device and on the host."""

    capacity_bytes: Positive
    ceiling: Ceiling
    limit_bytes: Positive
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
    """Probability that it is."""
    within_1_percent: Share
    """Probability that it is, or is within 1 % of it."""
    next: Config | None = None
    """What is most likely to be the fastest if it is not."""
    next_best: Share | None = None
    """Probability that `next` is; None without one."""


@dataclass(frozen=True)
class PeakErrors:
    """How far measured peaks were from what was predicted just before, as shares of them."""

    peak_median_error: float | None
    trials: int


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a longer run of the winner came to."""

    passed: bool
    """Whether it was as fast, within 3 % (5 % on the CPU), and stayed under the ceiling."""
    steps: Count
    """Of the run, or before it ran out of memory."""
    tokens_per_s: Rate | None
    """At the median of its steps; None where it ran out of memory."""
    share_of_measured: Rate | None
    """Of the tokens/s that the study measured."""
    quarters: list[float]
    """Tokens/s of each quarter of the steps."""
    peak_bytes: Count | None
    """None where it ran out of memory, as nobody knows what it needs."""
    limit_bytes: Count
    alloc_retries: Count
    growth_bytes_per_100_steps: float | None
    """Of what is held between steps; None of a script, in which nobody looks at that."""
    cannot_tell: str | None = None
    """Why it was slower, where that may have been the machine's noise alone; None else."""
    ran_out: str | None = None
    """Where it ran out of memory; None else."""
    other_hardware: str | None = None
    """How the devices differ from those of the study."""
    faster: bool = False
    """Whether every quarter was faster than the noise of the study's measurements explains."""
    peak_in: Phase | None = None
    """The phase of a script whose peak was above training's."""
    unseen: tuple[Phase, ...] | None = None
    """As in the result, of this run."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The content of best.json, its fields in their order."""

    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1
    device: Literal["emulated"] | None = None
    """Set where nothing was timed: memory was weighed on emulated GPUs, and time is modelled."""
    confirmed: bool
    """Whether it was measured again in fresh groups, was ok each time, and its speeds agreed."""
    config: Config
    measured: Measured
    limits: BestLimits
    objective: Objective
    dtypes: dict[str, Held] | None = None
    """What the engine holds, computes and sends between ranks in which dtype; of a script's own
    engine nothing is known."""
    sure: Sure | None = None
    repeats: Repeats | None = None
    unconfirmed: Unconfirmed | None = None
    """Why it is not confirmed."""
    cells: Annotated[tuple[Cell, ...], Meta(min_length=1)]
    ties: tuple[Tie, ...]
    pareto: tuple[Tie, ...] = ()
    """Nothing else that fits is both faster and takes less energy; the fastest first."""
    same_batch: tuple[Cell, ...] = ()
    """The best of every micro_batch at the depth, length and global batch of `config`."""
    update_share: Share | None = None
    """Of a step, what the optimizer's update takes, which a larger batch would share out; None
    where no two accumulations of `config` were measured."""
    trials: dict[str, Count]
    """Trials of the search by verdict, and the number of `FINALS`."""
    candidates: Positive | None = None
    """All candidates of the search, whether it tried them or not."""
    prediction: PeakErrors | None = None
    verified: Verified | None = None
    unseen: tuple[Phase, ...] | None = None
    """What a script was not seen to do in the runs of `config`; None of models, which only
    train, and of recordings."""
    length_mix: LengthMix | None = None
    """Lengths of the samples that it was measured on; None where all are of config.seq_len."""
    exports: dict[str, dict[str, Any]]
    """Name of a tool to its configuration, exactly as it was probed."""
    fingerprint: dict[str, Any]
    environment: dict[str, Any]
    provenance: dict[str, Any]
    command: list[str] | None = None
    """Words that start a user's own script with this configuration."""

    @property
    def untried(self) -> int | None:
        """Candidates without a trial; None where a result does not say how many there were."""
        tried = sum(count for name, count in self.trials.items() if name != FINALS)
        return None if self.candidates is None else max(0, self.candidates - tried)

    @property
    def device_kind(self) -> str:
        """cpu or cuda."""
        return str(self.fingerprint["kind"])

    def deepspeed(self) -> dict[str, Any]:
        """DeepSpeed's config as it was probed.

        Raises:
            UsageError: DeepSpeed was not the engine.
        """
        if "deepspeed" not in self.exports:
            raise UsageError(f"best.json: {self.config.engine} was the engine, and not deepspeed")
        return copy.deepcopy(self.exports["deepspeed"])

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a step without padding; of a script, those that were seen."""
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
    def known(self) -> set[str] | None:
        """Fields of `config` that a script was told, or was seen to have; None of other models, of
        which all are known."""
        if self.command is None:
            return None
        options = self.provenance.get("options")
        asked = options if isinstance(options, dict) else {}
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
        """Whether the user said how the script evaluates and saves soon."""
        options = self.provenance.get("options")
        return isinstance(options, dict) and bool(options.get("phase_args"))

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
        """The adapters that were trained; None where the whole model was."""
        options = self.provenance.get("options")
        given = options.get("lora") if isinstance(options, dict) else None
        return msgspec.convert(given, Lora) if isinstance(given, dict) else None

    @property
    def stopped_in(self) -> str | None:
        """The part that the user ended early: search or finals; None if it was not stopped."""
        part: str | None = self.provenance.get("stopped_in")
        return part

    def to_json(self) -> dict[str, Any]:
        """What `write` writes, as JSON types."""
        document: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(self)))
        return document

    def write(self, path: Path) -> None:
        """Write it to `path` whole or not at all: a reader never sees a part of it.

        Raises:
            ValueError: a field has another type or value than declared, or holds a number that
                JSON has no word for; the message names its path.
        """
        document = self.to_json()
        _checked(document)
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Best:
        """What `write` wrote to `path`; fields that this version does not know are passed over.

        Raises:
            UsageError: it cannot be read, or a field has another type or value than declared.
        """
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{path}: not a best.json: it has over {MOST_BYTES >> 20} MiB")
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found = _checked(document)
            _check_sums(found)
            return found
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
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
    """Whether every configuration has to say it; others are plain where they are missing."""
    return AXES[axis].always or axis == "optimizer"


def _checked(document: Any) -> Best:
    """`document` as declared. Raises ValueError, which names the path of a wrong field."""
    # msgspec says it of declared fields alone.
    for where in _not_finite(document, "$"):
        raise ValueError(f"best.json: {where} is not a finite number")
    found = msgspec.convert(document, Best)
    if "schema_version" not in document:
        raise ValueError("$: missing required field `schema_version`")
    for where, config in _configs(document, "$"):
        _check_config(where, config)
    if found.trials.keys() - {FINALS} != set(Verdict):
        raise ValueError("$.trials: has to count each verdict, finals, and nothing else")
    if found.fingerprint.get("kind") not in ("cpu", "cuda"):
        raise ValueError("$.fingerprint.kind: is neither cpu nor cuda")
    for name, value in found.exports.get("env", {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(value, str):
            raise ValueError(f"$.exports.env: {name!r:.80} is no variable with a text")
    return found


def _configs(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All configurations of a document of the declared types, with their paths."""
    for name in ("cells", "ties", "pareto", "same_batch"):
        for place, part in enumerate(value.get(name, ())):
            yield f"{where}.{name}[{place}].config", part["config"]
    yield f"{where}.config", value["config"]
    if following := (value.get("sure") or {}).get("next"):
        yield f"{where}.sure.next", following


def _check_config(where: str, config: dict[str, Any]) -> None:
    """Raises ValueError where an axis has none of its values, or the engine is unknown."""
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
    """Raises ValueError where numbers that say the same differ: somebody changed one of them."""
    config = best.config
    samples = config.micro_batch * config.grad_accum * config.replicas
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
    for name, (said, is_so) in pairs.items():
        if said != is_so:
            raise ValueError(
                f"{name} is {said}, and {config.micro_batch} x {config.grad_accum} x"
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
