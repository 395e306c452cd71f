"""Recorded grids: real measurements of every candidate of a space, as one CSV file.

The first line is `# ` and a JSON object: the space, the fingerprint of the machine and of its
software, and the settings of the recording. Then come one line of column names and one row per
measurement; every candidate has several. `scripts/bench/record_grid.py` writes such files, and
`measure/replay/runner.py` reads them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, structs

from autotune.errors import UsageError
from autotune.space import engines
from autotune.space.axes import ASKED_AXES, AXES, MEMORY_AXES, ZERO_STAGES
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict, others_share
from autotune.space.space import Limits
from autotune.space.trace import Trace
from autotune.space.workload import Dtype, Natural, Workload
from autotune.units import LONGEST_S
from autotune.wire.reports import Conditions, Energy, Peaks, Report

T = TypeVar("T")

SCHEMA_VERSION = 1
COVERS = "recorded"
"""The energy in a recording is that of all devices together."""

DeviceKind = Literal["cpu", "cuda"]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
StepSeconds = Annotated[float, Meta(ge=1e-6, le=LONGEST_S)]
"""Nothing trains a step in less than a microsecond."""


class _Ended(Struct):
    """Columns of every measurement, after those of its candidate."""

    repeat: int
    verdict: Verdict
    group_start_s: Seconds


class _Measured(Struct, kw_only=True):
    """Columns of a candidate that ran to the end; they are empty for others.

    They have the names of the fields of `Report` and `Conditions` and, after `peak_`, of `Peaks`.
    """

    warmup_s: Seconds
    timed_s: Seconds
    peak_device_bytes: Count
    peak_reserved_bytes: Count
    peak_allocated_bytes: Count
    peak_active_bytes: Count
    peak_host_bytes: Count
    alloc_retries: Count
    state_bytes: Count
    disturbed_share: Annotated[float, Meta(ge=0, le=1)]
    own_share: Annotated[float, Meta(ge=0, le=1e15)]
    """Huge if the interval is too short for the kernel's counters."""
    interval_cpu_s: Seconds
    sm_clock_mhz: int | None = None
    power_w: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    joules: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None
    thermally_throttled: bool
    last_loss: float
    compile_s: Seconds
    warmup_step_s: list[StepSeconds] = msgspec.field(default_factory=list)
    step_s: list[StepSeconds]


_AXES = tuple(name for name, axis in AXES.items() if not axis.of_script)
COLUMNS = (*_AXES, *_Ended.__struct_fields__, *_Measured.__struct_fields__, "reason")


class _Device(Struct):
    name: str


class _Devices(Struct):
    name: str = ""
    devices: list[_Device] = msgspec.field(default_factory=list)


class _Fingerprint(Struct):
    kind: DeviceKind
    devices: _Devices


class _Space(Struct):
    workload: dict[str, Any]
    limits: Limits


class _Header(Struct):
    """The fields of the first line that a replay reads."""

    kind: DeviceKind
    fingerprint: _Fingerprint
    space: _Space
    trace: Trace | None = None

    @property
    def device(self) -> str:
        devices = self.fingerprint.devices
        return devices.name if self.kind == "cpu" else devices.devices[0].name


@dataclass(frozen=True, kw_only=True)
class GridRow:
    candidate: Candidate
    repeat: int
    verdict: Verdict
    group_start_s: float
    """Wall time of starting the group, if this was its first probe; else 0."""
    report: Report | None
    """None if the candidate did not run to the end."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    path: Path
    header: dict[str, Any]
    """The first line; the fields below are read from it."""
    device_kind: DeviceKind
    device: str
    workload: Workload
    limits: Limits
    trace: Trace | None
    """A trace of its models' memory, if the recording has one."""
    rows: tuple[GridRow, ...]
    knows_capacity: bool = True
    """Whether the devices' capacity is told; a foreign table may not."""

    @property
    def has_ceiling(self) -> bool:
        """Whether peaks can be held against a ceiling."""
        return self.knows_capacity and any(
            row.report is not None and row.report.peaks.device_bytes for row in self.rows
        )


def line(cells: list[object]) -> str:
    """One line of the file, with its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def head(header: dict[str, Any]) -> str:
    """The first two lines of a file."""
    return f"# {json.dumps(header, separators=(',', ':'))}\n{line(list(COLUMNS))}"


def row_line(row: GridRow) -> str:
    known: dict[str, object] = {
        **asdict(row.candidate),
        "repeat": row.repeat,
        "verdict": row.verdict.value,
        "group_start_s": f"{row.group_start_s:.4f}",
        "reason": " ".join(row.reason.split()),
        **({} if row.report is None else _report_cells(row.report)),
    }
    return line([known.get(name, "") for name in COLUMNS])


def _report_cells(report: Report) -> dict[str, str]:
    seen = report.conditions
    values: dict[str, Any] = {
        **{f"peak_{name}": value for name, value in asdict(report.peaks).items()},
        **asdict(seen),
        **asdict(report),
        "alloc_retries": report.peaks.alloc_retries,
        "disturbed_share": others_share(seen),
        "own_share": seen.own_cpu_s / max(seen.interval_cpu_s, 1e-9),
        "joules": None if report.energy is None else report.energy.joules,
        "last_loss": report.loss,
    }
    return {name: _text(name, values[name]) for name in _Measured.__struct_fields__}


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(f"{each:.5g}" for each in value)
    if isinstance(value, float):
        return f"{value:.5g}" if name in ("joules", "last_loss") else f"{value:.4f}"
    return str(int(value))


def whole_lines(data: bytes) -> bytes:
    """`data` without a torn last line."""
    return data[: data.rfind(b"\n") + 1]


def read(path: Path) -> Grid:
    """The recorded grid in `path`; a torn last line is left out.

    Raises:
        UsageError: no such file, or no recorded grid; one line names the place and the error.
    """
    text = whole_lines(text_of(path).encode()).decode()
    first, _, rest = text.partition("\n")
    header = _header(path, first)
    try:
        workload, known = _parsed(header)
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise UsageError(f"{path}: line 1: not a recorded grid: {error!s:.200}") from error
    try:
        return Grid(
            path=path, header=header, device_kind=known.kind, device=known.device,
            workload=workload, limits=known.space.limits, trace=known.trace,
            rows=tuple(_rows(path, rest)),
        )  # fmt: skip
    except csv.Error as error:
        raise UsageError(f"{path}: not a recorded grid: {error}") from error


def text_of(path: Path) -> str:
    """The text of `path`. Raises `UsageError` if it is no text."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a recorded grid: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: {reason}; name a recorded grid") from error


def _header(path: Path, first: str) -> dict[str, Any]:
    try:
        header = msgspec.json.decode(first.removeprefix("# "))  # refuses NaN, as for best.json
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a recorded grid: its first line is not JSON") from error
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{path}: not a recorded grid of version {SCHEMA_VERSION}")
    return header


def _parsed(header: dict[str, Any]) -> tuple[Workload, _Header]:
    known = msgspec.convert(header, _Header)
    workload = Workload.from_json(known.space.workload)
    if known.fingerprint.kind != known.kind:
        raise ValueError(f"kind {known.kind} of device")
    name = known.device
    if not name or not name.isprintable():
        raise ValueError(f"name {name!r} of a device")
    if workload.dtype not in get_args(Dtype):
        raise ValueError(f"dtype {workload.dtype}")
    if workload.engine not in engines.NAMES:
        raise ValueError(f"engine {workload.engine}")
    if not workload.shapes and workload.model != "gpt":
        raise ValueError(f"model {workload.model}")
    return workload, known


def _rows(path: Path, text: str) -> Iterator[GridRow]:
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or []
    missing = set(COLUMNS) - set(names) - set(ASKED_AXES)  # an axis may be younger than the file
    if missing or names != [name for name in COLUMNS if name in names]:
        raise UsageError(f"{path}: line 2: the columns of a recorded grid are not these")
    for cells in reader:
        try:
            yield _row(cells)
        except (TypeError, ValueError, OverflowError) as error:
            where = f"{path}: line {reader.line_num + 1}"
            raise UsageError(f"{where}: no measurement: {error!s:.200}") from error


def _row(cells: dict[str, str]) -> GridRow:
    if None in cells or None in cells.values():
        raise ValueError("not as many cells as columns")
    ended = _read(cells, _Ended)
    report = _report(_read(cells, _Measured)) if cells["step_s"] else None
    if ended.verdict.fits != (report is not None):
        raise ValueError(f"{ended.verdict} contradicts its step times")
    return GridRow(
        candidate=candidate_of({n: value_of(n, cells[n]) for n in AXES.keys() & cells.keys()}),
        repeat=ended.repeat,
        verdict=ended.verdict,
        group_start_s=ended.group_start_s,
        report=report,
        reason=cells["reason"],
    )


def value_of(name: str, text: str) -> Any:
    """The value of an axis in a cell. Raises ValueError for an impossible one."""
    axis = AXES[name]
    if axis.words and not axis.takes(text):
        raise ValueError(f"{text} is none of {', '.join(axis.known)}")
    number = Natural if name in MEMORY_AXES else int
    return text if axis.words else msgspec.convert(text, number, strict=False)


def candidate_of(values: dict[str, Any]) -> Candidate:
    """The candidate with these values. Raises ValueError if there is none."""
    candidate = Candidate(**values)
    if candidate.zero_stage not in ZERO_STAGES or not candidate.exists:
        raise ValueError(f"no stage {candidate.zero_stage} with offload {candidate.offload}")
    return candidate


def _read(cells: dict[str, str], columns: type[T]) -> T:
    """The `columns` of a line; empty cells have their defaults. Raises ValueError."""
    known: dict[str, object] = {name: text for name, text in cells.items() if text}
    lists = {name: cells[name].split() for name in ("warmup_step_s", "step_s")}
    return msgspec.convert(known | lists, columns, strict=False)


def _report(cells: _Measured) -> Report:
    known = structs.asdict(cells)
    peaks = {name.removeprefix("peak_"): value for name, value in known.items()}
    own_s = cells.own_share * cells.interval_cpu_s
    return Report(
        **_of(Report, known),
        number=0,
        stopped_early=False,
        loss=cells.last_loss,
        peaks=Peaks(**_of(Peaks, peaks)),
        conditions=Conditions(
            **_of(Conditions, known),
            busy_cpu_s=own_s + cells.disturbed_share * cells.interval_cpu_s,
            steal_cpu_s=0.0,
            own_cpu_s=own_s,
        ),
        energy=None if cells.joules is None else Energy(cells.joules, COVERS),
    )


def _of(cls: type[Report | Peaks | Conditions], known: dict[str, Any]) -> dict[str, Any]:
    return {each.name: known[each.name] for each in fields(cls) if each.name in known}
