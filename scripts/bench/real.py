"""An emulated card's measurements of every candidate that was recorded on a real one.

    .venv-cuda/bin/python scripts/bench/real.py results/grids/h100-1-rank.csv
    .venv-cuda/bin/python scripts/bench/real.py GRID.csv -- --model gemma-3-1b

After `--` come options of the recording beside its axes. `record_grid.py` probes its candidates on
an emulated card of the same name. A table has both. Use the torch of the recording: another
version may need other memory. Needs torch's CUDA build, and no GPU.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # autotune need not be installed

from cyclopts import Parameter
from shared import ROOT, card_of, machine, run, say, table, tau, versions

from autotune.device.emulated.emulation import Emulation, emulate
from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.replay.grid import Grid, GridRow
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate
from autotune.wire.reports import Report

GIB = 1 << 30
HEAD = "candidate | peak GiB | weighed | off | step ms | modelled | off"


def flags(recorded: Grid) -> list[str]:
    """The options of its space."""
    axes = recorded.header["space"]["axes"]
    return [
        word
        for name, values in axes.items()
        for word in (AXES[name].flag, ",".join(map(str, values)))
    ]


def weighed(recorded: Grid, study: Sequence[str], cards: Emulation) -> Grid:
    """The recording of the same space on the emulated cards."""
    with tempfile.TemporaryDirectory(prefix="autotune-real-") as folder:
        path = Path(folder) / "grid.csv"
        program = [sys.executable, str(ROOT / "scripts" / "bench" / "record_grid.py"), str(path)]
        options = [
            "--repeats",
            "1",
            "--limit",
            "0.4s",
            "--",
            "--device",
            "cuda",
            *study,
            *flags(recorded),
        ]
        subprocess.run(
            [*program, *options], env=cards.environment, check=True, stdout=subprocess.DEVNULL
        )
        return grid.read(path)


def step_s(report: Report) -> float:
    return statistics.median(report.step_s)


def off(found: float, real: float) -> str:
    return f"{found / real - 1:+.1%}"


def middle(errors: Sequence[float]) -> str:
    """The median and the 90th percentile of absolute errors, and the signed median."""
    sizes = sorted(map(abs, errors))
    most = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    signed = statistics.median(errors)
    return f"{statistics.median(sizes):.1%} ({most:.1%}; {signed:+.1%})"


def compared(real: Sequence[GridRow], found: Mapping[Candidate, GridRow]) -> list[str]:
    """Lines of Markdown."""
    rows: list[list[str]] = []
    peaks: dict[str, list[float]] = {"allocated": [], "reserved": [], "device": []}
    speeds: list[tuple[float, float]] = []
    agreed = 0
    for row in real:
        other = found[row.candidate]
        agreed += row.verdict == other.verdict
        cells = [row.candidate.key]
        if row.report is None or other.report is None:
            rows.append([*cells, str(row.verdict), str(other.verdict), "", "", "", ""])
            continue
        ours, theirs = other.report.peaks, row.report.peaks
        for name, errors in peaks.items():
            here, there = (getattr(peak, f"{name}_bytes") for peak in (ours, theirs))
            errors.append(here / there - 1)
        measured_s, modelled_s = step_s(row.report), step_s(other.report)
        samples = row.candidate.micro_batch * row.candidate.seq_len
        speeds.append((samples / measured_s, samples / modelled_s))
        rows.append([
            *cells, f"{theirs.device_bytes / GIB:.2f}", f"{ours.device_bytes / GIB:.2f}",
            off(ours.device_bytes, theirs.device_bytes), f"{measured_s * 1e3:.1f}",
            f"{modelled_s * 1e3:.1f}", off(modelled_s, measured_s),
        ])  # fmt: skip
    times = [there / here - 1 for there, here in speeds]
    return [
        f"- Verdicts: {agreed} of {len(rows)} the same.",
        *(f"- Peak, {name}: off by {middle(errors)}." for name, errors in peaks.items()),
        f"- Step: off by {middle(times)}; Kendall's tau of the speeds {tau(speeds):.2f}.",
        "- Medians; in brackets the 90th percentile, and the median with its sign.",
        "",
        table(HEAD, rows),
    ]


def main(path: Path, *study: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    try:
        recorded = grid.read(path)
        with closing(emulate(f"1x{card_of(recorded.device, path)}")) as cards:
            found = {row.candidate: row for row in weighed(recorded, study, cards).rows}
    except UsageError as error:
        say(f"real: {error}")
        return 2
    software = recorded.header["fingerprint"]["software"]
    print(f"### {path.stem}: one {recorded.device}\n")
    print(f"Recorded with torch {software['torch']}; emulated on {machine()} with", end=" ")
    print(f"{versions('torch')}.\n")
    print("\n".join(compared(recorded.rows, found)))
    return 0


if __name__ == "__main__":
    run(main)
