"""best.json: the document that says which candidate won, as a dataclass that reads and writes it.

Its names are a contract: scripts and exports rely on them. A new field needs a default; none
changes its name or meaning. What is written and what is read has to match `best.schema.json`.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from autotune.errors import UsageError
from autotune.result.choice import Certainty, Choice, Repeats
from autotune.result.files import write_whole
from autotune.space.axes import AXES, Shape
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.mix import LengthMix
from autotune.space.models.defaults import Lora
from autotune.space.outcome import Measurement, Objective, Record, Verdict
from autotune.space.space import Limits, Space
from autotune.space.workload import GlobalBatch, Workload
from autotune.wire.reports import Ran
from autotune.wire.settings import Settings
from autotune.wire.stopping import Interval

SCHEMA_VERSION = 1
MOST_BYTES = 16 * 2**20
UNKNOWN = "unknown"
FINALS = "finals"
"""Key of `Best.trials` that is no verdict: the number of final rounds that ran."""


@dataclass(frozen=True, kw_only=True)
class Config(Settings, Shape):
    """A configuration that was measured: values on all axes, and what is the same in a study.

    Of a script, `optimizer` has the classes that were seen to step, or `UNKNOWN`.
    """

    model: str
    width: int | None = None
    vocab_size: int | None = None
    dtype: str
    engine: str
    world_size: int
    nodes: int = 1
    """Machines that the ranks are on."""
    grad_accum: int
    global_batch_samples: int
    global_batch_tokens: int

    @property
    def ranks_on_a_node(self) -> int:
        """The most."""
        return -(-self.world_size // self.nodes)

    @property
    def on_nodes(self) -> str:
        """What follows the number of ranks, for people; nothing where one machine has them all."""
        return f" on {self.nodes} nodes" if self.nodes > 1 else ""

    @property
    def ranks(self) -> str:
        """How many, for people."""
        return "1 rank" if self.world_size == 1 else f"{self.world_size} ranks{self.on_nodes}"

    @property
    def candidate(self) -> Candidate:
        """What was asked for; a script that was not told which optimizer has one of its own."""
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


@dataclass(frozen=True)
class PeakBytes:
    """The largest over ranks; `host` is the sum over a host's ranks."""

    device: int
    reserved: int
    allocated: int
    host: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates over all ranks, and peaks."""

    tokens_per_s: float
    samples_per_s: float
    model_flops_per_s: float
    step_s: Interval
    """One optimizer step of the real schedule, the slowest rank's."""
    peak_bytes: PeakBytes
    share_of_capacity: float
    headroom_bytes: int | None = None
    """Bytes between the peak and the ceiling."""
    disturbed_share: float | None = None
    kernels: str | None = None
    """That computed attention."""
    compile_s: float | None = None
    """What compiling took before the first step; None where nothing was compiled."""
    tokens: Literal["seen", "claimed"] | None = None
    """Where the number of tokens is from: of a script, the batches that were seen, or what it was
    asked for."""
    waiting_share: float | None = None
    """Of a script's step, that waits for data."""
    rows: int | None = None
    """That a script's model gets of each sample; None where it is one."""
    joules_per_token: float | None = None
    """Of all devices, in the timed steps; on the CPU the host's processors, whoever used them."""
    real_share: float | None = None
    """Of the tokens of a batch, that are no padding; None where all samples have one length. Steps
    and rates, which count no padding, are those of the mix of lengths: expected ones where the
    longest alone was measured, as in a cell that is not confirmed."""


@dataclass(frozen=True, kw_only=True)
class BestLimits:
    """What a configuration may use, per device and on the host."""

    capacity_bytes: int
    ceiling: float
    limit_bytes: int
    host_capacity_bytes: int | None = None
    host_ceiling: float | None = None
    host_limit_bytes: int


@dataclass(frozen=True)
class Tie:
    """A configuration within the noise of the fastest; it needs no less memory."""

    config: Config
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The best of one depth and sequence length."""

    depth: int
    seq_len: int
    config: Config
    measured: Measured
    verdict: str | None = None
    confirmed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Sure:
    """How sure it is that the configuration is the fastest of those that fitted."""

    best: float
    """Probability that it is."""
    within_1_percent: float
    """Probability that it is, or is within 1 % of it."""
    next: Config | None = None
    """What is most likely to be the fastest if it is not."""


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
    steps: int
    tokens_per_s: float
    """At the median of its steps."""
    share_of_measured: float
    """Of the tokens/s that the study measured."""
    quarters: list[float]
    """Tokens/s of each quarter of the steps."""
    peak_bytes: int
    limit_bytes: int
    alloc_retries: int
    growth_bytes_per_100_steps: float | None
    """Of what is held between steps; None of a script, in which nobody looks at that."""
    cannot_tell: str | None = None
    """Why it was slower, where that may have been the machine's noise alone; None else."""
    other_hardware: str | None = None
    """How the devices differ from those of the study."""
    faster: bool = False
    """Whether every quarter was faster than the noise of the study's measurements explains."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The content of best.json, its fields in their order."""

    schema_version: int = SCHEMA_VERSION
    confirmed: bool
    """Whether it was measured again in a fresh group, and every time found ok."""
    config: Config
    measured: Measured
    limits: BestLimits
    objective: str
    dtypes: dict[str, str] | None = None
    """What the engine holds, computes and sends between ranks in which dtype; of a script's own
    engine nothing is known."""
    sure: Sure | None = None
    repeats: Repeats | None = None
    unconfirmed: str | None = None
    """Why it is not confirmed: one of `choice.Unconfirmed`."""
    cells: tuple[Cell, ...]
    ties: tuple[Tie, ...]
    pareto: tuple[Tie, ...] = ()
    """Nothing else that fits is both faster and takes less energy; the fastest first."""
    same_batch: tuple[Cell, ...] = ()
    """The best of every micro_batch at the depth, length and global batch of `config`."""
    update_share: float | None = None
    """Of a step, what the optimizer's update takes, which a larger batch would share out; None
    where no two accumulations of `config` were measured."""
    trials: dict[str, int]
    """Trials of the search by verdict, and the number of `FINALS`."""
    prediction: PeakErrors | None = None
    verified: Verified | None = None
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
        """Without padding, in the mean; of a script, as they were seen."""
        if self.command is not None:
            return self.measured.tokens_per_s * self.measured.step_s.median
        seq_len = self.config.seq_len
        length = seq_len if self.length_mix is None else self.length_mix.mean(seq_len)
        return self.config.global_batch_samples * length

    @property
    def cycle_steps(self) -> int:
        """Steps after which lengths come round; 1 where all are the same."""
        config = self.config
        if self.length_mix is None:
            return 1
        return self.length_mix.cycle_steps(
            config.micro_batch, config.world_size, config.grad_accum
        )

    @property
    def started_in(self) -> str | None:
        """The folder that a user's own script or function was found in; None of other models."""
        folder: str | None = self.provenance.get("started_in")
        return folder

    @property
    def expected(self) -> str | None:
        """What a plan expects of it, for people; None where it was measured."""
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
        """What the user ended early: search or finals; None where it was not stopped."""
        part: str | None = self.provenance.get("stopped_in")
        return part

    def to_json(self) -> dict[str, Any]:
        """What `write` writes, as JSON types."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document

    def write(self, path: Path) -> None:
        """Write it to `path` whole or not at all: a reader never sees a part of it.

        Raises:
            ValueError: it does not match the schema, or holds a number that JSON has no word for;
                the message names the path of the field.
        """
        document = self.to_json()
        _validate(document)
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Best:
        """What `write` wrote to `path`; fields that this version does not know are passed over.

        Raises:
            UsageError: it cannot be read, or does not match the schema.
        """
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{path}: not a best.json: it has over {MOST_BYTES >> 20} MiB")
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            _validate(document)
            found = msgspec.convert(document, cls)
            _check_sums(found)
            return found
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not a best.json: {error!s:.200}") from error


def best_of(
    choice: Choice,
    records: Iterable[Record],
    space: Space,
    objective: Objective,
    *,
    fingerprint: dict[str, Any],
    environment: dict[str, Any],
    provenance: dict[str, Any],
    command: list[str] | None = None,
) -> Best:
    """What best.json says of `choice`.

    `records` are all of the study's; `trials` counts the search's by verdict, and its finals.
    """
    records = list(records)
    counts = Counter(r.outcome.verdict for r in records if r.purpose == "search")
    winner = tie_of(choice.record, space.workload, space.limits)
    return Best(
        confirmed=choice.confirmed,
        config=winner.config,
        measured=winner.measured,
        limits=_limits(space.limits),
        objective=objective,
        dtypes=_dtypes(choice.record.candidate, space.workload),
        sure=_sure(choice.certainty, space, winner.config),
        repeats=choice.repeats,
        unconfirmed=choice.unconfirmed,
        cells=tuple(_cell(r, space) for r in choice.cells),
        ties=tuple(tie_of(r, space.workload, space.limits) for r in choice.ties),
        pareto=tuple(tie_of(r, space.workload, space.limits) for r in choice.pareto),
        same_batch=tuple(_cell(r, space) for r in choice.same_batch),
        trials={
            **{verdict.value: counts[verdict] for verdict in Verdict},
            FINALS: sum(
                r.purpose == "final" and r.outcome.verdict != Verdict.SKIPPED for r in records
            ),
        },
        prediction=_prediction(records, of_script=space.workload.of_script),
        length_mix=space.workload.length_mix,
        exports=_exports(
            choice.record.candidate, space.workload, fingerprint["kind"], environment
        ),
        fingerprint=fingerprint,
        environment=environment,
        provenance=provenance,
        command=command,
    )


def unmeasured(candidate: Candidate, space: Space, device_kind: str, **provenance: Any) -> Best:
    """What best.json would say of `candidate` were it the winner, but for all measurements."""
    nothing = Measured(
        tokens_per_s=0.0, samples_per_s=0.0, model_flops_per_s=0.0,
        step_s=Interval(0.0, 0.0, 0.0, 0), peak_bytes=PeakBytes(0, 0, 0, 0), share_of_capacity=0.0,
    )  # fmt: skip
    return Best(
        confirmed=False,
        config=_config(candidate, space.workload),
        measured=nothing,
        limits=_limits(space.limits),
        objective="tokens_per_s",
        dtypes=_dtypes(candidate, space.workload),
        cells=(),
        ties=(),
        trials={},
        exports=_exports(candidate, space.workload, device_kind, {}),
        fingerprint={"kind": device_kind},
        environment={},
        provenance=provenance,
    )


def _exports(
    candidate: Candidate, workload: Workload, device_kind: str, environment: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """What an engine was built from, by its package, and what the ranks' environment said to the
    allocator of CUDA memory: the candidate's settings, or else the user's own."""
    engine, conf = engine_of(workload, candidate), candidate.alloc_conf
    config = engine.config(candidate, workload, device_kind)
    found = {str(engine.package): config} if config else {}
    set_before = environment.get("variables", {}) if device_kind == "cuda" else {}
    own = {name: value for name, value in set_before.items() if name.endswith("_ALLOC_CONF")}
    variables = {"PYTORCH_ALLOC_CONF": conf} if conf else own
    return found | ({"env": variables} if variables else {})


def _prediction(records: Sequence[Record], *, of_script: bool) -> PeakErrors:
    """Of a script, nothing is predicted before anything of it was measured."""
    errors = [
        abs(r.outcome.predicted_peak_bytes / r.outcome.measurement.peaks.device_bytes - 1)
        for r in sorted(records, key=lambda r: r.outcome.started_s)
        if r.purpose == "search"
        and r.outcome.measurement is not None
        and r.outcome.predicted_peak_bytes is not None
    ][of_script:]
    return PeakErrors(statistics.median(errors) if errors else None, len(errors))


def _sure(certainty: Certainty | None, space: Space, winner: Config) -> Sure | None:
    if certainty is None:
        return None
    # What a script is not told is the same in all of them.
    same = {name: getattr(winner, name) for name, each in space.axes.items() if len(each) == 1}
    if _has_own_optimizer(space.workload):
        same["optimizer"] = winner.optimizer
    following = certainty.next
    after = None if following is None else _config(replace(following, **same), space.workload)
    return Sure(best=certainty.best, within_1_percent=certainty.equal, next=after)


def tie_of(record: Record, workload: Workload, limits: Limits) -> Tie:
    """What best.json says of a record that was measured."""
    found = record.measured
    return Tie(_config(record.candidate, workload, found.ran), _measured(found, limits))


def _cell(record: Record, space: Space) -> Cell:
    return Cell(
        depth=record.candidate.depth,
        seq_len=record.candidate.seq_len,
        config=_config(record.candidate, space.workload, record.measured.ran),
        measured=_measured(record.measured, space.limits),
        verdict=record.outcome.verdict.value,
        confirmed=record.purpose == "final",
    )


def _config(candidate: Candidate, workload: Workload, ran: Ran | None = None) -> Config:
    """`candidate` as it is asked for, or as it `ran`: what a script is not told is 1 in it."""
    accum, length, batch = (
        workload.micro_steps(candidate),
        candidate.seq_len,
        candidate.micro_batch,
    )
    if ran is not None:
        accum = ran.micro_steps
        by_tokens = "{tokens_per_batch}" in workload.recipe["command"]
        length = length if length > 1 or by_tokens else ran.seq_len
        each = round(ran.samples / (accum * workload.world_size))
        batch = batch if batch > 1 else max(1, each)
        if _has_own_optimizer(workload):
            candidate = replace(candidate, optimizer=ran.optimizer or UNKNOWN)
    samples = batch * accum * workload.world_size
    known = not workload.of_script
    return Config(
        **asdict(candidate) | {"seq_len": length, "micro_batch": batch},
        model=workload.model,
        width=workload.shape(candidate.depth).width if known else None,
        vocab_size=workload.vocab_size if known else None,
        dtype=(ran and ran.dtype) or workload.dtype,
        engine=engine_of(workload, candidate).name,
        world_size=workload.world_size,
        nodes=workload.nodes,
        grad_accum=accum,
        global_batch_samples=samples,
        global_batch_tokens=samples * length,
    )


def _has_own_optimizer(workload: Workload) -> bool:
    """Whether it is a script's, which is not told which one to take."""
    return workload.of_script and "{optimizer}" not in workload.recipe["command"]


def _dtypes(candidate: Candidate, workload: Workload) -> dict[str, str] | None:
    if workload.of_script:
        return None
    return engine_of(workload, candidate).dtypes(workload.dtype, candidate)


def _measured(found: Measurement, limits: Limits) -> Measured:
    peaks = found.peaks
    return Measured(
        tokens_per_s=found.tokens_per_s,
        samples_per_s=found.samples_per_s,
        model_flops_per_s=found.model_flops_per_s,
        step_s=found.step,
        peak_bytes=PeakBytes(
            peaks.device_bytes, peaks.reserved_bytes, peaks.allocated_bytes, peaks.host_bytes
        ),
        share_of_capacity=peaks.device_bytes / limits.capacity_bytes,
        headroom_bytes=limits.limit_bytes - peaks.device_bytes,
        disturbed_share=found.disturbed_share,
        kernels=found.kernels or None,
        compile_s=found.compile_s or None,
        tokens=None if found.ran is None else "seen" if found.ran.seen else "claimed",
        waiting_share=None if found.ran is None else found.ran.waiting_share,
        rows=None if found.ran is None or found.ran.rows == 1 else found.ran.rows,
        joules_per_token=found.joules_per_token,
        real_share=found.real_share,
    )


def _limits(limits: Limits) -> BestLimits:
    return BestLimits(
        capacity_bytes=limits.capacity_bytes,
        ceiling=limits.ceiling,
        limit_bytes=limits.limit_bytes,
        host_capacity_bytes=limits.host_capacity_bytes,
        host_ceiling=limits.host_ceiling,
        host_limit_bytes=limits.host_limit_bytes,
    )


def load_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of best.json."""
    text = resources.files(__package__).joinpath("best.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _validate(document: dict[str, Any]) -> None:
    # A schema cannot say it: to jsonschema NaN is a number that is below no minimum.
    for where in _not_finite(document, "$"):
        raise ValueError(f"best.json: {where} is not a finite number")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(load_schema()).iter_errors(document))
    if error is not None:
        raise ValueError(f"best.json: {error.json_path}: {error.message}")


def _check_sums(best: Best) -> None:
    """Raises ValueError where numbers that say the same differ: somebody changed one of them."""
    config = best.config
    samples = config.micro_batch * config.grad_accum * config.world_size
    pairs: dict[str, tuple[Any, int]] = {
        "global_batch_samples": (config.global_batch_samples, samples),
        "global_batch_tokens": (config.global_batch_tokens, samples * config.seq_len),
    }
    if config.nodes > config.world_size:
        raise ValueError(
            f"config.nodes is {config.nodes} of {config.world_size} ranks: it was changed by hand"
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
                f" {config.world_size} ranks make {is_so}: it was changed by hand"
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
