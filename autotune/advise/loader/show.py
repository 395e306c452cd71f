"""A loader's settings on a terminal, and as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import psutil
from rich.console import Console
from rich.text import Text

from autotune.advise.loader.asked import MARGIN, LoaderProbe, Setting
from autotune.advise.loader.choice import AS_FAST, LoaderChoice
from autotune.advise.loader.measured import Rate, SettingRow
from autotune.advise.loader.measuring import ROUNDS, MeasuredSettings
from autotune.show.report.text import columns, printable, si
from autotune.units import gib

SHM = "/dev/shm"
SHM_SHARE = 0.8
"""If loaders use a larger share of /dev/shm, it is called small."""
DIFFERS = 0.2
"""Rounds differ if their medians are further apart than this share."""


def print_table(
    console: Console, measured: MeasuredSettings, choice: LoaderChoice | None, asked: LoaderProbe
) -> None:
    """Print one row for each tried setting; the recommended one in bold."""
    unit = _unit(measured.rows)
    heads = ["workers", "prefetch", "pin", "batches/s", f"{unit}/s", "95 %", "first batch",
             "worker", "loader", SHM, "host"]  # fmt: skip
    if choice is not None and choice.needed is not None:
        heads.insert(6, "of need")
    table = columns(heads, ())
    for row in measured.rows:
        taken = choice is not None and choice.row is row
        table.add_row(*_cells(row, choice), style="bold" if taken else "")
    ranks = f", {asked.ranks} ranks side by side" if asked.ranks > 1 else ""
    shape = next((" x ".join(map(str, r.shape)) for r in measured.rows if r.rounds), "none")
    console.print(Text(f"{asked.name}: batches of {shape}{ranks}", style="bold"))
    console.print(table)


def sentence(choice: LoaderChoice, asked: LoaderProbe) -> str:
    """The answer in one line."""
    row = choice.row
    if row is None:
        return (
            f"None stays under the host ceiling of {gib(asked.limit_bytes)}; allow more by"
            " --host-ceiling, or load less in a worker"
        )
    rate = row.rate(row.unit)
    gives = (
        f"{row.setting} gives {si(rate.median)} {row.unit}/s ({si(rate.low)} to {si(rate.high)})"
    )
    if choice.needed is None:
        return f"Smallest within {1 - AS_FAST:.0%} of the fastest: {gives}"
    times = f"{rate.low / choice.needed:.3g} times the {si(choice.needed)} that are needed"
    if choice.enough:
        return f"Smallest that is no bottleneck: {gives}, at least {times}"
    if not choice.lost_share:
        return (
            f"None is surely enough: the fastest, {gives}, {times} at the low end, where {MARGIN}"
            " would be sure"
        )
    return (
        f"A bottleneck: the fastest, {gives} of the {si(choice.needed)} that are needed; the"
        f" device would wait {choice.lost_share:.0%} of its time"
    )


def notes(measured: MeasuredSettings, asked: LoaderProbe, cores: int) -> list[str]:
    """Notes, a line each."""
    rows = [row for row in measured.rows if row.rounds]
    said = [f"{_settings(of)}: failed: {why}" for why, of in _by_reason(
        (row.failed, row.setting) for row in measured.rows if row.failed).items()]  # fmt: skip
    said += [f"{_settings(of)}: not tried: {why}" for why, of in _by_reason(
        (why, setting) for setting, why in measured.left_out.items()).items()]  # fmt: skip
    said += _of_machine(measured.rows, asked, cores)
    if not rows:
        return said
    first = rows[0]
    if not first.has_tokens:
        said.append("no integer tensor of the shape (B, T) in the batches: samples are compared")
    said += _of_shape(first, asked)
    if epochs := max((row.epochs for row in rows), key=len):
        said.append(
            f"an epoch has only {max(epochs)} batches: it was iterated up to {len(epochs) + 1}"
            " times, and its starts, workers' included, are part of the rates"
        )
    if slow := [row.setting for row in rows if not row.left]:
        said.append(f"{_settings(slow)}: workers did not leave when told to, and were killed")
    if once := [row.setting for row in rows if len(row.rounds) < ROUNDS]:
        said.append(f"{_settings(once)}: measured once, the budget or the user ended it")
    if apart := [row.setting for row in rows if row.differs > DIFFERS]:
        said.append(
            f"{_settings(apart)}: rounds differ by more than {DIFFERS:.0%}: other programs, or"
            " data that came from the disk the first time"
        )
    return said


def as_json(
    measured: MeasuredSettings,
    choice: LoaderChoice | None,
    asked: LoaderProbe,
    said: Sequence[str],
) -> str:
    """The answer as JSON: sizes in bytes, times in seconds."""
    body = {
        "loader": asked.name,
        "ranks": asked.ranks,
        "unit": _unit(measured.rows),
        "needed_per_s": choice and choice.needed,
        "enough": choice is not None and choice.enough,
        "lost_share": choice and choice.lost_share,
        "chosen": choice and choice.row and asdict(choice.row.setting),
        "host_limit_bytes": asked.limit_bytes,
        "training_bytes": asked.training_bytes,
        "rows": [_record(row) for row in measured.rows],
        "notes": list(said),
    }
    return json.dumps(body, indent=2)


def _record(row: SettingRow) -> dict[str, Any]:
    body: dict[str, Any] = {**asdict(row.setting), "failed": row.failed or None}
    if not row.rounds:
        return body
    tokens = asdict(row.rate("tokens")) if row.has_tokens else None
    return body | {
        "rounds": len(row.rounds),
        "batches_per_s": asdict(row.rate("batches")),
        "samples_per_s": asdict(row.rate("samples")),
        "tokens_per_s": tokens,
        "shape": row.shape,
        "first_batch_s": row.first_batch_s,
        "worker_bytes": row.worker_bytes,
        "loader_bytes": row.loader_bytes,
        "shm_bytes": row.shm_bytes,
        "host_bytes": row.host_bytes,
        "epochs": row.epochs,
    }


def _cells(row: SettingRow, choice: LoaderChoice | None) -> list[str]:
    s = row.setting
    cells = [str(s.workers), "" if s.prefetch is None else str(s.prefetch)]
    cells.append("on" if s.pin_memory else "off")
    if row.failed:
        return [*cells, "failed"]
    rate: Rate = row.rate(row.unit)
    cells += [si(row.rate("batches").median), si(rate.median), f"{si(rate.low)}-{si(rate.high)}"]
    if choice is not None and choice.needed is not None:
        cells.append(f"{rate.median / choice.needed:.0%}")
    sizes = (row.loader_bytes, row.shm_bytes, row.host_bytes)
    worker = gib(row.worker_bytes) if s.workers else ""
    return [*cells, f"{row.first_batch_s:.2f} s", worker, *map(gib, sizes)]


def _of_machine(rows: Sequence[SettingRow], asked: LoaderProbe, cores: int) -> list[str]:
    said = []
    many = max((row.setting.workers for row in rows), default=0) * asked.ranks
    if many > cores:
        said.append(f"{many} workers in all, more than the cores that they may use ({cores})")
    shm = psutil.disk_usage(SHM).total
    held = max((row.shm_bytes for row in rows if row.rounds), default=0)
    if held > SHM_SHARE * shm or any(SHM in row.failed for row in rows):
        said.append(
            f"{SHM} has {gib(shm)}, of which loaders held up to {gib(held)}: Docker gives more by"
            " --shm-size=16g or --ipc=host"
        )
    return said


def _of_shape(row: SettingRow, asked: LoaderProbe) -> list[str]:
    """A note if batches differ from those that training was measured with."""
    wanted = [asked.micro_batch, asked.seq_len][: len(row.shape)]
    if all(size in (None, found) for size, found in zip(wanted, row.shape, strict=True)):
        return []
    shapes = (" x ".join("?" if size is None else str(size) for size in shape)
              for shape in (row.shape, wanted))  # fmt: skip
    return ["batches are {}, and {} was asked for".format(*shapes)]


def _by_reason(found: Iterable[tuple[str, Setting]]) -> dict[str, list[Setting]]:
    by_reason = defaultdict(list)
    for why, setting in found:
        by_reason[why].append(setting)
    return by_reason


def _settings(settings: Sequence[Setting]) -> str:
    """The first of `settings`, and the number of others."""
    more = len(settings) - 1
    return str(settings[0]) + (f" and {more} more" if more else "")


def _unit(rows: Sequence[SettingRow]) -> str:
    return next((row.unit for row in rows if row.rounds), "samples")


def lines(console: Console, said: Sequence[str]) -> None:
    """Print notes and the answer without cutting lines."""
    for line in said:
        console.print(Text(printable(line, console)), soft_wrap=True)
