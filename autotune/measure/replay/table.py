"""Foreign tables of runs as a `Grid`: one CSV row for each run, of any axes.

A TOML file beside the table, or flags, name the columns of axes and results. Usual names of
columns are known. So exports of Weights & Biases and MLflow are read, too. Missing columns count
as nothing: a peak of 0 bytes is unknown.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from autotune.device.cards import MOST_GPUS
from autotune.errors import UsageError
from autotune.measure.replay.grid import Grid, GridRow, Seconds, candidate_of, value_of
from autotune.space.axes import AXES, DEGREES, MEMORY_AXES, meant
from autotune.space.candidate import Candidate
from autotune.space.command import NAME
from autotune.space.models.counted import guessed
from autotune.space.outcome import Verdict
from autotune.space.space import Limits
from autotune.space.workload import Dtype, Natural, Workload
from autotune.units import parse_bytes
from autotune.wire.reports import Conditions, Peaks, Ran, Report

RATES = ("tokens_per_s", "tokens_per_s_per_device", "samples_per_s", "step_s")
PEAKS = {"peak_bytes": 1.0, "peak_mib": 2.0**20, "peak_gib": 2.0**30, "peak_gb": 1e9}
RESULTS = (*RATES, *PEAKS, "status", "run_s", "global_batch")
"""Columns beside those of axes."""
CAPACITY_BYTES = 80 * 2**30
"""Assumed capacity of an unknown device."""
RUN_S = 60.0
"""Assumed seconds of a run without a column for it."""
_OWN = ("own", "dp_shard", *DEGREES)
"""Axes that are taken as the table has them; nothing is derived from them."""
_STEPS = 3
_PARAMETERS = 10**9
_USUAL = {
    "tokens_per_s": ("tokens_per_sec", "tokens_per_second", "tok/s", "tokens/s"),
    "tokens_per_s_per_device": ("tok/s/gpu", "tokens/s/gpu", "tokens_per_sec_per_gpu"),
    "samples_per_s": (
        "samples_per_sec", "samples_per_second", "samples/s", "train_samples_per_second",
    ),
    "step_s": ("step_time", "step_time_s", "iteration_time", "seconds_per_step"),
    "peak_gib": ("peak_memory_gib", "max_memory_gib"),
    "peak_gb": ("peak_memory_gb", "max_memory_gb"),
    "status": ("state",),
    "run_s": ("runtime", "duration", "_runtime"),
    "global_batch": ("gbs", "global_batch_size"),
    "zero_stage": ("zero", "stage"),
    "tp": ("tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pp": ("pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "cp": ("context_parallel", "context_parallel_size"),
    "ep": ("expert_parallel", "expert_parallel_size", "expert_model_parallel_size"),
}  # fmt: skip
_TRACKERS = re.compile(r"^(config|summary|params|metrics|tags)[./]")
"""Prefixes of names in Weights & Biases and MLflow."""
_OOM = re.compile(r"\boom\b|out.?of.?memory", re.IGNORECASE)
_HUNG = re.compile(r"time.?out|hung|hang", re.IGNORECASE)
_GOES_ON = re.compile(r"running|pending|queued|scheduled", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")
_LEAST, _MOST = 1e-9, 1e15
"""Rates, bytes and seconds are between these."""
_NUMBERED = re.compile(r"\s*[0.,]*[1-9]")
_TRUTH = {"true": 1, "yes": 1, "1": 1, "1.0": 1, "false": 0, "no": 0, "0": 0, "0.0": 0, "": 0}


class _Axis(Struct, forbid_unknown_fields=True):
    column: str
    values: dict[str, str] = msgspec.field(default_factory=dict)
    """Words of the table, and their values here."""


class _Fixed(Struct, forbid_unknown_fields=True):
    """Settings that all runs share."""

    devices: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)] = 1
    device: str = "unnamed devices"
    model: str = ""
    capacity: str = ""
    global_batch: Natural | None = None
    """Samples of one optimizer step."""
    parameters: Annotated[int, msgspec.Meta(ge=1, lt=10**15)] | None = None
    dtype: Dtype = "bf16"
    run_s: Seconds = RUN_S


class _Description(Struct, forbid_unknown_fields=True):
    """The TOML file."""

    axes: dict[str, str | int | _Axis] = msgspec.field(default_factory=dict)
    results: dict[str, str] = msgspec.field(default_factory=dict)
    rows: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    fixed: _Fixed = msgspec.field(default_factory=_Fixed)


def read(path: Path, text: str, columns: Mapping[str, str], rows: Mapping[str, str]) -> Grid:
    """The grid of the table `text`, which is in `path`.

    Flags name the `columns`, and values that `rows` must have. They come before the file.

    Raises:
        UsageError: there is no such column, or a cell has no value; one line names it.
    """
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t|", key=head.count))
    names = [name for name in reader.fieldnames or [] if name]
    try:
        cells = [(reader.line_num, each) for each in reader]
    except csv.Error as error:
        raise UsageError(f"{path}: not a table: {error}") from error
    known = _described(path, names, columns, rows)
    for column in known.rows:
        _check(path, column, names)
    table = _Table(path=path, known=known, names=names)
    found = [table.row(line, each) for line, each in cells if _is_one_of(each, known.rows)]
    return table.grid([row for row in found if row is not None])


def _described(
    path: Path, names: Sequence[str], columns: Mapping[str, str], rows: Mapping[str, str]
) -> _Description:
    beside = path.with_suffix(".toml")
    found = _Description()
    if beside.is_file():
        try:
            found = msgspec.convert(tomllib.loads(beside.read_text()), _Description)
        except (OSError, ValueError) as error:
            raise UsageError(f"{beside}: {error!s:.200}") from error
    for name, column in columns.items():
        (found.results if name in RESULTS else found.axes)[name] = column
    found.rows |= rows
    usual = _usual(names)
    found.axes = found.axes or usual.axes
    found.results = found.results or usual.results
    for name in found.results:
        if name not in RESULTS:
            raise UsageError(f"{beside}: results.{name} is unknown; {_or_one_of(name, RESULTS)}")
    for name in found.axes:
        if not NAME.fullmatch(name):
            raise UsageError(f"{beside}: axes.{name}: a name has small letters, digits and _ only")
    for each in (*found.results.values(), *map(_column, found.axes.values())):
        if isinstance(each, str):
            _check(path, each, names)
    if not any(name in RATES for name in found.results):
        raise UsageError(_untold(path, names, "no column has a rate", RATES))
    if not found.axes:
        raise UsageError(_untold(path, names, "no column is an axis", ("micro_batch",)))
    return found


def _usual(names: Sequence[str]) -> _Description:
    """Columns with usual names."""
    found = _Description()
    own = {alias: name for name, aliases in _USUAL.items() for alias in (name, *aliases)}
    for column in names:
        plain = _TRACKERS.sub("", column).lower().replace("-", "_").replace(" ", "_")
        name = own.get(plain) or (plain if plain in AXES or plain in RESULTS else None)
        if name is None and meant(plain, MEMORY_AXES) in MEMORY_AXES and len(plain) > 1:
            name = meant(plain, MEMORY_AXES)
        if name is not None and name not in ("own", "dp_shard"):
            (found.results if name in RESULTS else found.axes).setdefault(name, column)
    return found


def _untold(path: Path, names: Sequence[str], what: str, examples: Sequence[str]) -> str:
    return (
        f"{path}: not a recorded grid, and as a table of runs {what}; say which, e.g."
        f" --column {examples[0]}=NAME or {path.stem}.toml"
        f" beside it (columns: {', '.join(names)})"
    )


def _check(path: Path, column: str, names: Sequence[str]) -> None:
    if column not in names:
        raise UsageError(f"{path}: has no column {column}; {_or_one_of(column, names)}")


def _or_one_of(name: str, known: Sequence[str]) -> str:
    near = meant(name, known)
    return f"did you mean {near}?" if near else f"use any of {', '.join(known)}"


def _column(axis: str | int | _Axis) -> str | int:
    return axis.column if isinstance(axis, _Axis) else axis


def _is_one_of(cells: Mapping[str, str], rows: Mapping[str, Any]) -> bool:
    return all(_plain(cells[column] or "") == _plain(str(value)) for column, value in rows.items())


def _plain(text: str) -> str:
    """A number without a useless decimal point; a truth value in small letters."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    return re.sub(r"\.0+$", "", text) if re.fullmatch(r"-?\d+\.0+", text) else text


def _number(text: str | None) -> float | None:
    """A positive number, maybe with commas; None for any other text."""
    plain = (text or "").strip()
    if "," in plain and not _THOUSANDS.fullmatch(plain):
        plain = plain.replace(".", "").replace(",", ".")
    try:
        value = float(plain.replace(",", ""))
    except ValueError:
        return None
    return value if _LEAST <= value < _MOST else None


def _told(text: str | None, name: str) -> float | None:
    """The number of the result `name`. Raises ValueError for one with other text beside it."""
    found = _number(text)
    if found is None and _NUMBERED.match(text or ""):
        raise ValueError(f"{text} is no {name}; write the number alone")
    return found


def _bytes(text: str | None, name: str) -> int | None:
    """The bytes of the peak `name`, maybe with another unit. Raises UsageError for other text."""
    found = _number(text)
    if found is None and text and _NUMBERED.match(text):
        return parse_bytes(text.replace(",", ""), name)
    return None if found is None else int(found * PEAKS[name])


@dataclass(frozen=True, kw_only=True)
class _Table:
    path: Path
    known: _Description
    names: Sequence[str]

    def row(self, line: int, cells: dict[str, str]) -> GridRow | None:
        """The measurement in a line; None if the run goes on."""
        try:
            if any(cells.get(None, ())):  # type: ignore[call-overload]
                raise ValueError("has more cells than there are names of columns")
            candidate = self._candidate(cells)
            rate = self._tokens_per_s(cells, candidate)
            report = None if rate is None else self._report(cells, candidate, rate)
        except (TypeError, ValueError, UsageError) as error:
            raise UsageError(f"{self.path}: line {line}: {error!s:.200}") from error
        of = self.known.results
        told = [cells[of[name]] or "" for name in ("status", *RATES) if name in of]
        text = " ".join(word.strip() for word in told if word and _number(word) is None)
        run_s = _number(cells[of["run_s"]]) if "run_s" in of else None
        start_s = run_s or self.known.fixed.run_s
        if report is not None and not _OOM.search(text):
            start_s = max(0.0, start_s - report.timed_s)
            return GridRow(
                candidate=candidate, repeat=0, verdict=Verdict.OK, group_start_s=start_s,
                report=report,
            )  # fmt: skip
        if _GOES_ON.search(text):
            return None
        verdict = Verdict.CRASHED
        if _OOM.search(text):
            verdict = Verdict.OOM
        elif _HUNG.search(text):
            verdict = Verdict.HUNG
        return GridRow(candidate=candidate, repeat=0, verdict=verdict, group_start_s=start_s,
                       report=None, reason=text or "no rate")  # fmt: skip

    def _candidate(self, cells: Mapping[str, str]) -> Candidate:
        values: dict[str, Any] = dict.fromkeys(MEMORY_AXES, 1)
        own = []
        for name, axis in self.known.axes.items():
            column, words = _column(axis), axis.values if isinstance(axis, _Axis) else {}
            text = str(column) if isinstance(column, int) else _plain(cells[column] or "")
            text = words.get(text, text)
            if name in AXES and name not in _OWN:
                values[name] = _value(name, text)
            else:
                if name in DEGREES and text and not (text.isdigit() and int(text)):
                    raise ValueError(f"{text} is no {name}")
                own.append(f"{name}={re.sub('[;,]', '_', text)}")
        if own:
            values["own"] = ";".join(own)
        return candidate_of(values)

    def _replicas(self, candidate: Candidate) -> int:
        """Number of ranks with data of their own."""
        ranks = self.known.fixed.devices
        shared = math.prod(n for name, n in degrees(candidate).items() if name != "ep")
        if ranks % shared:
            raise ValueError(
                f"{ranks} devices are not divided by {shared}; write devices = {shared}, or as"
                f" many as there were, under [fixed] in {self.path.stem}.toml"
            )
        return ranks // shared

    def _batch(self, cells: Mapping[str, str], candidate: Candidate) -> int:
        """Samples of one optimizer step."""
        of, fixed = self.known.results, self.known.fixed
        told = _told(cells[of["global_batch"]], "batch") if "global_batch" in of else None
        plain = candidate.micro_batch * self._replicas(candidate)
        return int(told or fixed.global_batch or plain)

    def _tokens_per_s(self, cells: Mapping[str, str], candidate: Candidate) -> float | None:
        """Tokens per second of all devices; samples if their length is unknown."""
        of, length = self.known.results, candidate.seq_len
        name = next(name for name in RATES if name in of)
        told = _told(cells[of[name]], name)
        if told is None:
            return None
        return {
            "tokens_per_s": told,
            "tokens_per_s_per_device": told * self.known.fixed.devices,
            "samples_per_s": told * length,
            "step_s": self._batch(cells, candidate) * length / told,
        }[name]

    @property
    def _by_samples(self) -> bool:
        """Whether rates are of samples whose length is unknown."""
        told = next(name for name in RATES if name in self.known.results)
        return "seq_len" not in self.known.axes and not told.startswith("tokens")

    def _report(self, cells: Mapping[str, str], candidate: Candidate, rate: float) -> Report:
        replicas = self._replicas(candidate)
        samples = candidate.micro_batch * replicas
        step_s = samples * candidate.seq_len / rate
        of = self.known.results
        peaks = [_bytes(cells[of[name]], name) or 0 for name in PEAKS if name in of]
        ran = Ran(
            samples=float(samples), tokens=float(samples * candidate.seq_len),
            seq_len=candidate.seq_len, micro_steps=1, seen=True, waiting_share=0.0,
            trainable=self.known.fixed.parameters or _PARAMETERS, dtype=self.known.fixed.dtype,
            data_parallel=replicas,
            degrees={name: n for name, n in degrees(candidate).items() if n > 1},
        )  # fmt: skip
        return Report(
            number=0, step_s=[step_s] * _STEPS, warmup_step_s=[], warmup_s=0.0,
            timed_s=_STEPS * step_s, stopped_early=False, loss=0.0,
            peaks=Peaks.same(max(peaks, default=0)), state_bytes=0, ran=ran,
            conditions=Conditions(
                interval_cpu_s=0.0, busy_cpu_s=0.0, steal_cpu_s=0.0, own_cpu_s=0.0
            ),
        )  # fmt: skip

    def grid(self, rows: Sequence[GridRow]) -> Grid:
        fixed = self.known.fixed
        if not rows:
            raise UsageError(f"{self.path}: no run is left; check rows and --row")
        measured = [row for row in rows if row.report is not None]
        peak = max((row.report.peaks.device_bytes for row in measured if row.report), default=0)
        capacity = parse_bytes(fixed.capacity, "fixed.capacity") if fixed.capacity else 0
        tokens = sorted(row.candidate.tokens for row in rows)[len(rows) // 2]
        limits = Limits(
            capacity_bytes=max(capacity, peak) or CAPACITY_BYTES,
            ceiling=1.0,
            host_capacity_bytes=2**62,
            host_ceiling=1.0,
        )
        lengths = sorted({row.candidate.seq_len for row in rows})
        return Grid(
            path=self.path,
            header={"fingerprint": {"kind": "cuda", "devices": {
                "devices": [{"name": fixed.device}] * fixed.devices}}},
            device_kind="cuda",
            device=fixed.device,
            workload=Workload(
                model=f"table:{fixed.model or self.path.stem}", width=None, vocab_size=0,
                dtype=fixed.dtype, engine="auto", world_size=fixed.devices, global_batch=None,
                recipe={"command": "", "own": {}, "set": {}}
                | ({"by_samples": True} if self._by_samples else {})
                | ({"global_batch": fixed.global_batch} if fixed.global_batch else {}),
                shapes=[
                    guessed(depth, lengths, tokens, limits.capacity_bytes)
                    for depth in sorted({row.candidate.depth for row in rows})
                ],
            ),
            limits=limits,
            trace=None,
            rows=tuple(_numbered(rows)),
            knows_capacity=bool(fixed.capacity),
        )  # fmt: skip


def _numbered(rows: Sequence[GridRow]) -> Iterator[GridRow]:
    """`rows` with the number of each candidate's measurement."""
    seen: Counter[Candidate] = Counter()
    for row in rows:
        yield replace(row, repeat=seen[row.candidate])
        seen[row.candidate] += 1


def degrees(candidate: Candidate) -> dict[str, int]:
    """The degrees of parallelism of a candidate, by name."""
    own = (each.split("=", 1) for each in candidate.own.split(";") if "=" in each)
    return {name: int(value) for name, value in own if name in DEGREES and value.isdigit()}


def _value(name: str, text: str) -> Any:
    """The value of a known axis. Raises ValueError for an impossible one."""
    axis = AXES[name]
    if axis.words and not axis.takes(text) and text.lower() in _TRUTH:
        return axis.words[_TRUTH[text.lower()]]
    try:
        return value_of(name, text)
    except msgspec.ValidationError as error:
        raise ValueError(f"{text or 'an empty cell'} is no {name}") from error
    except ValueError as error:
        raise ValueError(f"{error}; say what it is in axes.{name}.values") from error
