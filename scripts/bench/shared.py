"""Common parts of this folder's files: their flags, probes and output."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path

from cyclopts import App

from autotune.device.cards import CARDS
from autotune.device.emulated.emulation import Emulation
from autotune.errors import UsageError
from autotune.measure.runner import Job
from autotune.measure.runner.wiring import Wiring
from autotune.space.candidate import Candidate
from autotune.wire.stopping import Rule

ROOT = Path(__file__).resolve().parents[2]


def run(main: Callable[..., int | None]) -> None:
    """Call `main` with the flags on the command line, and exit with its result."""
    sys.exit(called(main, sys.argv[1:]))


def called(main: Callable[..., int | None], words: Sequence[str]) -> int:
    """The result of `main` for the `words` of a command line. Its parameters are the flags; the
    first line of its file is the help."""
    about = (sys.modules[main.__module__].__doc__ or "").partition("\n")[0]
    app = App(help=about, version_flags=[], result_action="return_value")
    app.default(main)
    return app(words) or 0


def numbers(text: str) -> tuple[int, ...]:
    """Numbers between commas."""
    return tuple(int(part) for part in text.split(","))


def say(text: str) -> None:
    """Print progress to stderr; stdout has the report."""
    print(text, file=sys.stderr)


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; `head` has the names of its columns between bars."""
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|" + "---|" * columns, *map(_line, rows)])


def _line(cells: Iterable[object]) -> str:
    texts = (str(cell).replace("|", "/") for cell in cells)
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


def yes(held: bool) -> str:
    """The word for a promise in a table."""
    return "yes" if held else "no"


def kept(held: bool) -> str:
    """The word for a promise in a sentence."""
    return "held" if held else "missed"


def machine() -> str:
    """This machine in general terms."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else 'unknown processor'}, {cores} core{'s' if cores > 1 else ''}"


def versions(*packages: str) -> str:
    """Versions of packages, missing ones included."""
    return ", ".join(map(_versioned, packages))


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def probing(
    candidate: Candidate,
    rule: Rule,
    *,
    grad_accum: int = 1,
    fresh: bool = False,
) -> Job:
    """A probe of the whole schedule to the end of `rule`."""
    return Job(
        candidate=candidate,
        grad_accum=grad_accum,
        micro_steps=grad_accum,
        rule=rule,
        needed_step_s=None,
        fresh=fresh,
    )


def wiring(logs: Path, budget_s: float = 600.0) -> Wiring:
    """The wiring of runners without a study."""
    logs.mkdir(exist_ok=True)
    return Wiring(logs=logs, budget_s=budget_s, note=say)


def card_of(device: str, path: Path) -> str:
    """The card that emulates what `path` was recorded on. Raises `UsageError` without one."""
    named = [card.name for card in CARDS if card.nvml_name == device]
    if not named:
        raise UsageError(f"{path}: recorded on {device}, which no card emulates")
    return named[0]


def study_on(cards: Emulation, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The ended process of a study on emulated cards, which end with it."""
    how = ("--device", "cuda", "--finals", "1", "--learn-from", "none", "--out", str(out))
    with closing(cards):
        return subprocess.run(
            [sys.executable, "-m", "autotune", *how, *flags], env=cards.environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def searched(out: Path) -> list[dict[str, str]]:
    """The rows of the search in the trials.csv of a study; none if there is no such file."""
    return [row for row in rows_in(out / "trials.csv") if row["kind"] == "search"]


def rows_in(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add_row(path: Path, row: Mapping[str, object]) -> None:
    """Write `row` behind those of a CSV, as far as the disk."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau: the surplus of pairs in the same order, as a share."""
    both = list(combinations(pairs, 2))
    return sum(1 if (a < b) == (c < d) else -1 for (a, c), (b, d) in both) / len(both)
