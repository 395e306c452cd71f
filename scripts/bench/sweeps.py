"""The quality of the search on published sweeps, beside Optuna's TPE.

    .venv/bin/python scripts/bench/sweeps.py FOLDER [--seeds 10]

FOLDER has tables that `--device replay:` reads: FILE.csv with FILE.toml beside it. `--ultrascale`
first makes such tables there of results/public/ultrascale.csv, one for each model and number of
nodes. `--xlsx` makes them of spreadsheets in FOLDER. These are from "Efficient Parallelization
Layouts for Large-Scale Distributed Model Training" (arXiv 2311.05610). Their place is
github.com/Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-layouts, data/. They are
not here, for their license (CC BY-NC-SA 4.0). It needs openpyxl. Regret is the share by which the
best found candidate is below the best of the table. "lost" is the share of the first 12 probes
that ran out of memory, or broke.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas
from searches.grids import Searched, cores
from searches.samplers import run_study
from shared import run

from autotune.measure.testbed.recording import Recording
from autotune.space.options import Options

PROBES = (6, 12, 20)
LOST_OF = 12
BUDGET_S = 1e6
_GLOBAL_TOKENS = 2**22
_AXES = """[axes]
micro_batch = "micro_batch_size"
seq_len = {length}
tp = "model_parallel_size"
pp = "pipe_parallel_size"
kernel = "kernel"
{more}
[axes.checkpointing]
column = "activation_checkpointing_type"
values = {{ disabled = "none", every_layer = "full" }}

[results]
step_s = "Average Step Time"

[fixed]
devices = {devices}
device = "NVIDIA A100-SXM4-80GB"
capacity = "80GiB"
global_batch = {batch}
"""


_ULTRASCALE = Path(__file__).parents[2] / "results" / "public" / "ultrascale.csv"
_CELL = """[axes]
micro_batch = "micro_batch"
seq_len = 4096
tp = "tp"
pp = "pp"
zero_stage = "zero"

[results]
tokens_per_s_per_device = "tokens_per_s_per_device"
status = "status"

[fixed]
devices = {devices}
device = "NVIDIA H100 80GB HBM3"
capacity = "80GiB"
global_batch = 256
"""


@dataclass(frozen=True)
class Task:
    """One search on one table, or on a part of it."""

    path: Path
    sampler: str
    seed: int
    kernel: str | None = None


@dataclass(frozen=True)
class Found:
    task: Task
    size: int
    ran_out: float
    """Share of the candidates that ran out of memory, or failed."""
    regrets: dict[int, float]
    lost: float


def main(folder: Path, *, seeds: int = 10, xlsx: bool = False, ultrascale: bool = False) -> None:
    if xlsx:
        convert(folder)
    if ultrascale:
        split(folder)
    paths = sorted(folder.glob("*.csv"))
    with cores() as pool:
        for sampler, count in (("frontier", 1), ("tpe", seeds), ("random", seeds)):
            tasks = [
                Task(path, sampler, seed, kernel)
                for path in paths for kernel in (None, *kernels(path)) for seed in range(count)
            ]  # fmt: skip
            found = pool.map(carried_out, tasks, chunksize=4)
            if sampler == "frontier":
                print_each(found)
                print("\n| sampler | tables | after 6 probes | after 12 | after 20 | lost of 12 |")
                print("|---|---|---:|---:|---:|---:|")
            for name, some in (("all", found), ("at most 55 % out of memory", few(found))):
                print(f"| {sampler} | {name}, {len(some)} searches | {summary(some)} |")


def convert(folder: Path) -> None:
    """Make tables from the spreadsheets in `folder`."""
    import openpyxl  # type: ignore[import-untyped]

    for path in sorted(folder.glob("*.xlsx")):
        rows = list(openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True))[1:]
        lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
        (folder / f"{path.stem}.csv").write_text("\n".join(lines) + "\n")
        length = 8192 if "8k" in path.stem else 2048
        more = 'sequence_parallel = "sequence_parallel"\n' if "sequence" in lines[0] else ""
        devices = re.findall(r"(\d+)_GPUs", path.stem)[0]
        batch = _GLOBAL_TOKENS // length
        text = _AXES.format(length=length, more=more, devices=devices, batch=batch)
        (folder / f"{path.stem}.toml").write_text(text)


def split(folder: Path) -> None:
    """Make a table of each model and number of nodes of which a run ended well."""
    runs = pandas.read_csv(_ULTRASCALE)
    ok = runs.tokens_per_s_per_device.notna()
    runs["status"] = ok.map({True: "ok", False: "OOM"})
    for _, cell in runs.groupby(["model", "nodes"]):
        if (cell.status == "ok").any():
            nodes = int(cell.nodes.iloc[0])
            path = folder / f"{cell.model.iloc[0]}_{nodes:02}_nodes.csv"
            cell.drop(columns=["model", "nodes", "dp", "peak_gb"]).to_csv(path, index=False)
            path.with_suffix(".toml").write_text(_CELL.format(devices=8 * nodes))


def kernels(path: Path) -> list[str]:
    """The kernels with several runs in a table; each is a sweep of its own."""
    grid = Recording(path).grid
    ran = [row.candidate.own for row in grid.rows if row.report is not None]
    names = [re.findall(r"kernel=([^;]*)", own) for own in ran]
    found = sorted({name for each in names for name in each if name.startswith("flash")})
    return found if len(found) > 1 else []


def carried_out(task: Task) -> Found:
    rows = {"kernel": task.kernel} if task.kernel else {}
    recording = Recording(task.path, {}, rows)
    options = Options.of(
        device=recording.spec, sampler=task.sampler, seed=task.seed, trials=max(PROBES),
        finals=1, budget_s=BUDGET_S,
    )  # fmt: skip
    space = recording.space(options)
    ran = [(row.candidate, row.report) for row in recording.grid.rows if row.report is not None]
    values = {
        candidate: report.ran.tokens / statistics.median(report.step_s)
        for candidate, report in ran if report.ran is not None
    }  # fmt: skip
    _, watcher = run_study(Searched(recording.grid, space), options)
    course, best = watcher.course, max(values.values())

    def regret(probes: int) -> float:
        found = course[min(probes, len(course)) - 1].found
        return 1.0 if found is None else max(0.0, 1 - values[found] / best)

    first = course[:LOST_OF]
    return Found(
        task, len(space.candidates), 1 - len(values) / len(space.candidates),
        {probes: regret(probes) for probes in PROBES},
        sum(point.lost for point in first) / len(first),
    )  # fmt: skip


def few(found: Sequence[Found]) -> list[Found]:
    """Searches on tables that leave a choice."""
    return [each for each in found if each.ran_out <= 0.55]


def print_each(found: Sequence[Found]) -> None:
    print("| table | kernel | candidates | out of memory | regret after 12 | lost |")
    print("|---|---|---:|---:|---:|---:|")
    for each in found:
        cells = [each.task.path.stem.replace("_bfloat16", ""), each.task.kernel or "all"]
        cells += [str(each.size), f"{each.ran_out:.0%}", f"{each.regrets[12]:.1%}"]
        print("| " + " | ".join([*cells, f"{each.lost:.0%}"]) + " |")


def summary(found: Sequence[Found]) -> str:
    """Median and 90th percentile of regrets, and of lost probes."""
    columns = [[each.regrets[n] for each in found] for n in PROBES]
    columns.append([each.lost for each in found])
    return " | ".join(
        f"{statistics.median(values):.1%} ({sorted(values)[int(0.9 * len(values))]:.1%})"
        for values in columns
    )


if __name__ == "__main__":
    run(main)
