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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from autotune.errors import UsageError
from autotune.space import engines
from autotune.space.axes import AXES, SCRIPT_AXES, ZERO_STAGES
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict, others_share
from autotune.space.space import Limits
from autotune.space.trace import Trace
from autotune.space.workload import Dtype, Workload
from autotune.units import LONGEST_S
from autotune.wire.codec import parse
from autotune.wire.messages import Conditions, Describe, Described, Energy, Peaks, Report

SCHEMA_VERSION = 1
COLUMNS = (
    *(name for name in AXES if name not in SCRIPT_AXES),
    "repeat", "verdict", "group_start_s", "warmup_s", "timed_s",
    "peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "peak_active_bytes",
    "peak_host_bytes", "alloc_retries", "state_bytes", "disturbed_share", "own_share",
    "interval_cpu_s", "sm_clock_mhz", "power_w", "joules", "temperature_c", "throttle_reasons",
    "thermally_throttled", "last_loss", "compile_s", "warmup_step_s", "step_s", "reason",
)  # fmt: skip
COVERS = "recorded"
"""What the energy in a recording is of: all devices together."""
_JOULES = 1e12
"""Nothing that is timed takes more."""
SHORTEST_STEP_S = 1e-6
"""Nothing trains a step in less."""

Setting = tuple[Literal["cpu", "cuda"], str, Workload, Limits, Trace | None]
"""Kind and name of the device, and what all candidates share."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement of one candidate."""

    candidate: Candidate
    repeat: int
    verdict: Verdict
    group_start_s: float
    """Wall time of starting the group, where this was the first probe in it; else 0."""
    report: Report | None
    """None where the candidate did not run to the end."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A whole file."""

    path: Path
    header: dict[str, Any]
    """The first line; what follows is read from it."""
    device_kind: Literal["cpu", "cuda"]
    device: str
    """Name of the device it was recorded on."""
    workload: Workload
    limits: Limits
    trace: Trace | None
    """Of its models' memory, where the recording has one."""
    rows: tuple[Row, ...]


def line(cells: list[object]) -> str:
    """One line of the file, with its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def head(header: dict[str, Any]) -> str:
    """The first two lines of a file."""
    return f"# {json.dumps(header, separators=(',', ':'))}\n{line(list(COLUMNS))}"


def row_line(row: Row) -> str:
    """The line of one measurement."""
    known: dict[str, object] = {
        **asdict(row.candidate),
        "repeat": row.repeat,
        "verdict": row.verdict.value,
        "group_start_s": f"{row.group_start_s:.4f}",
        "reason": " ".join(row.reason.split()),
        **({} if row.report is None else _report_cells(row.report)),
    }
    return line([known.get(name, "") for name in COLUMNS])


def _report_cells(report: Report) -> dict[str, object]:
    peaks, seen = report.peaks, report.conditions
    known: dict[str, object] = {
        "warmup_s": f"{report.warmup_s:.4f}",
        "timed_s": f"{report.timed_s:.4f}",
        "peak_device_bytes": peaks.device_bytes,
        "peak_reserved_bytes": peaks.reserved_bytes,
        "peak_allocated_bytes": peaks.allocated_bytes,
        "peak_active_bytes": peaks.active_bytes,
        "peak_host_bytes": peaks.host_bytes,
        "alloc_retries": peaks.alloc_retries,
        "state_bytes": report.state_bytes,
        "disturbed_share": f"{others_share(seen):.4f}",
        "own_share": f"{seen.own_cpu_s / max(seen.interval_cpu_s, 1e-9):.4f}",
        "interval_cpu_s": f"{seen.interval_cpu_s:.4f}",
        "sm_clock_mhz": seen.sm_clock_mhz,
        "power_w": seen.power_w,
        "joules": None if report.energy is None else f"{report.energy.joules:.5g}",
        "temperature_c": seen.temperature_c,
        "throttle_reasons": seen.throttle_reasons,
        "thermally_throttled": int(seen.thermally_throttled),
        "compile_s": f"{report.compile_s:.4f}",
        "last_loss": f"{report.loss:.5g}",
        "warmup_step_s": _numbers(report.warmup_step_s),
        "step_s": _numbers(report.step_s),
    }
    return {name: "" if value is None else value for name, value in known.items()}


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.5g}" for value in values)


def whole_lines(data: bytes) -> bytes:
    """`data` without a torn last line."""
    return data[: data.rfind(b"\n") + 1]


def read(path: Path) -> Grid:
    """The grid in `path`; a torn last line is left out.

    Raises:
        UsageError: no such file, or no recorded grid; one line says what is wrong where.
    """
    try:
        text = whole_lines(path.read_bytes()).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a recorded grid: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: {reason}; name a recorded grid") from error
    first, _, rest = text.partition("\n")
    header = _header(path, first)
    try:
        device_kind, name, workload, limits, trace = _setting(path, header)
        return Grid(
            path=path, header=header, device_kind=device_kind, device=name, workload=workload,
            limits=limits, trace=trace, rows=tuple(_rows(path, rest)),
        )  # fmt: skip
    except csv.Error as error:
        raise UsageError(f"{path}: not a recorded grid: {error}") from error


def _header(path: Path, first: str) -> dict[str, Any]:
    try:
        header = json.loads(first.removeprefix("# "))
        json.dumps(header, allow_nan=False)  # best.json repeats a part of it
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a recorded grid: its first line is no JSON") from error
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{path}: not a recorded grid of version {SCHEMA_VERSION}")
    return header


def _setting(path: Path, header: dict[str, Any]) -> Setting:
    try:
        return _parsed(header)
    except KeyError as error:
        raise UsageError(f"{path}: line 1: not a recorded grid: lacks {error}") from error
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise UsageError(f"{path}: line 1: not a recorded grid: {error!s:.200}") from error


def _parsed(header: dict[str, Any]) -> Setting:
    device_kind, devices = header["kind"], header["fingerprint"]["devices"]
    if device_kind not in ("cpu", "cuda") or header["fingerprint"]["kind"] != device_kind:
        raise ValueError(f"kind {device_kind} of device")
    name = devices["name"] if device_kind == "cpu" else devices["devices"][0]["name"]
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(f"name {name!r} of a device")
    workload = Workload.from_json(header["space"]["workload"])
    _check_types(workload)
    _among(workload.dtype, Dtype)
    limits = Limits(**header["space"]["limits"])
    _check_types(limits)
    if workload.engine not in engines.NAMES:
        raise ValueError(f"engine {workload.engine}")
    if not workload.shapes and workload.model != "gpt":
        raise ValueError(f"model {workload.model}")
    for size in (workload.vocab_size, workload.world_size, workload.width or 1):
        _natural(size)
    for size in (limits.capacity_bytes, limits.host_capacity_bytes):
        _natural(size, 2**63)
    trace = header.get("trace")
    return device_kind, name, workload, limits, None if trace is None else _trace(trace)


def trace_header(trace: Trace) -> dict[str, Any]:
    """`trace` as the header holds it."""
    return {"asked": asdict(trace.asked), "answer": asdict(trace.answer)}


def _trace(header: dict[str, Any]) -> Trace:
    return Trace(parse(Describe, header["asked"]), parse(Described, header["answer"]))


def _check_types(made: Workload | Limits) -> None:
    for name, hint in get_type_hints(type(made)).items():
        plain = get_origin(hint) if get_origin(hint) in (list, dict) else hint
        if not isinstance(getattr(made, name), plain):
            raise TypeError(f"{name} {getattr(made, name)}")


def _rows(path: Path, text: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UsageError(f"{path}: line 2: the columns of a recorded grid are not these")
    for cells in reader:
        try:
            yield _row(cells)
        except (TypeError, ValueError, OverflowError) as error:
            where = f"{path}: line {reader.line_num + 1}"
            raise UsageError(f"{where}: no measurement: {error!s:.200}") from error


def _row(cells: dict[str, str]) -> Row:
    if None in cells or None in cells.values():
        raise ValueError(f"not {len(COLUMNS)} cells")
    candidate = Candidate(
        depth=_natural(int(cells["depth"])),
        seq_len=_natural(int(cells["seq_len"])),
        micro_batch=_natural(int(cells["micro_batch"])),
        zero_stage=int(cells["zero_stage"]),
        **{
            name: _word(name, cells[name])
            for name, axis in AXES.items()
            if axis.words and name in cells
        },
    )
    if candidate.zero_stage not in ZERO_STAGES or not candidate.exists:
        raise ValueError(f"no stage {candidate.zero_stage} with offload {candidate.offload}")
    report = _report(cells) if cells["step_s"] else None
    verdict = Verdict(cells["verdict"])
    if verdict.fits != (report is not None):
        raise ValueError(f"{verdict} does not go with its step times")
    return Row(
        candidate=candidate,
        repeat=int(cells["repeat"]),
        verdict=verdict,
        group_start_s=_seconds(cells["group_start_s"]),
        report=report,
        reason=cells["reason"],
    )


def _report(cells: dict[str, str]) -> Report:
    interval_s = _seconds(cells["interval_cpu_s"])
    # An interval too short for the kernel's counters leaves a huge share.
    own_s = _number(cells["own_share"], 1e15) * interval_s
    others_s = _number(cells["disturbed_share"], 1.0) * interval_s
    peaks = Peaks(
        device_bytes=_bytes(cells["peak_device_bytes"]),
        reserved_bytes=_bytes(cells["peak_reserved_bytes"]),
        allocated_bytes=_bytes(cells["peak_allocated_bytes"]),
        active_bytes=_bytes(cells["peak_active_bytes"]),
        host_bytes=_bytes(cells["peak_host_bytes"]),
        alloc_retries=_bytes(cells["alloc_retries"]),
    )
    conditions = Conditions(
        interval_cpu_s=interval_s,
        busy_cpu_s=own_s + others_s,
        steal_cpu_s=0.0,
        own_cpu_s=own_s,
        sm_clock_mhz=_optional_int(cells["sm_clock_mhz"]),
        power_w=_number(cells["power_w"], 1e6) if cells["power_w"] else None,
        temperature_c=_optional_int(cells["temperature_c"]),
        throttle_reasons=_optional_int(cells["throttle_reasons"]),
        thermally_throttled=bool(int(cells["thermally_throttled"])),
    )
    return Report(
        number=0,
        step_s=[_step(part) for part in cells["step_s"].split()],
        warmup_step_s=[_step(part) for part in cells["warmup_step_s"].split()],
        warmup_s=_seconds(cells["warmup_s"]),
        timed_s=_seconds(cells["timed_s"]),
        stopped_early=False,
        loss=float(cells["last_loss"]),
        compile_s=_seconds(cells["compile_s"]),
        peaks=peaks,
        state_bytes=_bytes(cells["state_bytes"]),
        conditions=conditions,
        energy=Energy(_number(cells["joules"], _JOULES), COVERS) if cells["joules"] else None,
    )


def _number(text: str, most: float) -> float:
    value = float(text)
    if not 0 <= value <= most:
        raise ValueError(f"{text} is not from 0 to {most:.5g}")
    return value


def _seconds(text: str) -> float:
    return _number(text, LONGEST_S)


def _step(text: str) -> float:
    value = _seconds(text)
    if value < SHORTEST_STEP_S:
        raise ValueError(f"a step of {text} seconds")
    return value


def _bytes(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**63:
        raise ValueError(f"{text} is no size")
    return value


def _natural(value: int, end: int = 10**9) -> int:
    if not 0 < value < end:
        raise ValueError(f"{value} is not from 1 to {end - 1}")
    return value


def _word(axis: str, text: Any) -> str:
    """`text`, a value of that axis."""
    if not isinstance(text, str) or not AXES[axis].takes(text):
        raise ValueError(f"{text} is none of {', '.join(AXES[axis].known)}")
    return text


def _among(text: str, known: object) -> str:
    """`text`, one of the words of the Literal type `known`."""
    if text not in get_args(known):
        raise ValueError(f"{text} is none of {', '.join(get_args(known))}")
    return text


def _optional_int(text: str) -> int | None:
    return int(text) if text else None
