"""Reports on a terminal or in a log: `LiveReporter` redraws, `PlainReporter` only appends.

Text from outside (reasons, paths) is made printable first, so that neither a terminal without
UTF-8 nor an escape sequence in an error message can end or garble a study.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.outcome import Measurement, Record, Verdict
from autotune.report.result import cautions, print_result
from autotune.report.text import (
    counts_text,
    minutes,
    paragraph,
    print_lines,
    printable,
    shown_axes,
    si,
)
from autotune.result.best import Best
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.units import gib
from autotune.wire.stopping import Phase

SHOW_CURSOR = b"\x1b[?25h\n"

_INDENT = 17
"""Characters of a trial's line before the candidate: elapsed, number, purpose."""
_VERDICT_WIDTH = 6
_RESULT_WIDTH = 1 + _VERDICT_WIDTH + 1 + 33
"""Characters of a trial's line after the candidate."""
_FAILED = tuple(v for v in Verdict if not v.fits and v is not Verdict.SKIPPED)
_STYLES = {Verdict.OK: "green", Verdict.PRUNED: "dim", Verdict.SKIPPED: "dim"}


@dataclass(frozen=True)
class _Started:
    """What `started` was told."""

    space: Space
    budget_s: float


class PlainReporter:
    """Appends one line per trial, however long its reason."""

    _wraps = False

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._started: _Started | None = None

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        self._started = _Started(space, budget_s)
        for label, text in _opening(space, budget_s).items():
            self._print(*paragraph(text, self._console.width, f"{label:<8}", "dim"))
        folder_text = printable(str(folder), self._console)
        self._print(Text.assemble(("folder  ", "dim"), folder_text))
        self._print(Text(), _header(space, self._console.width))

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        pass

    def probing(self, purpose: str, candidate: Candidate) -> None:
        pass

    def phase(self, phase: Phase, steps: int) -> None:
        pass

    def told(self, record: Record, incumbent: Record | None) -> None:
        self._print(*self._trial(record))

    def note(self, text: str) -> None:
        self._print(*paragraph(printable(text, self._console), self._console.width))

    def finished(self, best: Best, path: Path) -> None:
        self.close()
        print_result(
            self._console, best, path, cautions(best, self._known.space.axes["micro_batch"])
        )

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    @property
    def _known(self) -> _Started:
        if self._started is None:
            raise RuntimeError("started() comes before this")
        return self._started

    @property
    def _elapsed_s(self) -> float:
        return self._clock()

    def _trial(self, record: Record) -> list[Text]:
        head, tail = _trial(record, self._elapsed_s, self._known.space, self._console)
        width = self._console.width if self._wraps else sys.maxsize
        return _fit(head, tail, width, _INDENT)

    def _print(self, *lines: Text) -> None:
        print_lines(self._console, *lines)


class LiveReporter(PlainReporter):
    """Keeps a few lines up to date; incumbents and failures scroll by above them.

    The lines are redrawn from rich's own thread, so every attribute that they are drawn from is
    replaced whole, never changed in place.
    """

    _wraps = True

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        super().__init__(console, clock)
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        self._counts: Counter[Verdict] = Counter()
        self._incumbent: Record | None = None
        self._probe: tuple[str, Candidate] | None = None
        self._phase: tuple[Phase, int] | None = None
        self._phase_since = 0.0
        self._finals_at_s: float | None = None

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        super().started(space, budget_s, folder)
        self._live.start()

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        searched = (record for record in records if record.purpose == "search")
        self._counts = Counter(record.outcome.verdict for record in searched)
        self._incumbent = incumbent

    def probing(self, purpose: str, candidate: Candidate) -> None:
        if purpose == "final" and self._finals_at_s is None:
            self._finals_at_s = self._elapsed_s
        self._phase = None
        self._phase_since = self._clock()
        self._probe = (purpose, candidate)

    def phase(self, phase: Phase, steps: int) -> None:
        if self._phase is None or self._phase[0] is not phase:
            self._phase_since = self._clock()
        self._phase = (phase, steps)

    def told(self, record: Record, incumbent: Record | None) -> None:
        verdict = record.outcome.verdict
        if record.purpose == "search":
            self._counts = self._counts + Counter([verdict])
        better = _candidate(incumbent) != _candidate(self._incumbent)
        self._incumbent = incumbent
        self._probe = None
        if better or verdict in _FAILED:
            self._print(*self._trial(record))

    def close(self) -> None:
        self._live.stop()

    def abandon(self) -> None:
        # Not through rich: what the signal interrupted may hold its locks, or the stream's buffer.
        if self._live.is_started:
            with suppress(OSError):
                os.write(self._console.file.fileno(), SHOW_CURSOR)

    def _render(self) -> Group:
        if self._started is None:
            return Group()
        rows = [("budget", [self._budget_line()]), ("best", self._best_lines())]
        probe = self._probe  # read once: it may be gone by the next line
        if probe is not None:
            rows.append(("now", [self._probe_line(*probe)]))
        rows.append(("trials", [Text(counts_text(self._counts))]))
        grid = Table.grid(padding=(0, 2, 0, 0))
        for label, lines in rows:
            grid.add_row(Text(label, "dim"), Text("\n").join(lines))
        return Group(Text(), grid)

    def _budget_line(self) -> Text:
        budget_s, elapsed_s = self._known.budget_s, self._elapsed_s
        search_s = elapsed_s if self._finals_at_s is None else self._finals_at_s
        text = f"{minutes(elapsed_s)} of {minutes(budget_s)}"
        if self._finals_at_s is not None:
            text += f"  finals {minutes(elapsed_s - search_s)}"
        drawn = bar(search_s / budget_s, elapsed_s / budget_s, self._console)
        return Text.assemble(drawn, "  ", text)

    def _best_lines(self) -> list[Text]:
        best = self._incumbent
        if best is None or best.outcome.measurement is None:
            return [Text("nothing yet", "dim")]
        space = self._known.space
        rates = _rates(best.outcome.measurement, space, " tok/s")
        return _fit(Text(words(best.candidate, space)), rates, self._console.width - 8, 0)

    def _probe_line(self, purpose: str, candidate: Candidate) -> Text:
        phase, steps = self._phase or (None, 0)
        doing = "starting" if phase is None else phase.value
        steps_text = f", {steps} steps" if phase is Phase.TIMED else ""
        seconds = self._clock() - self._phase_since
        name = words(candidate, self._known.space)
        return Text.assemble(
            name, "  ", (f"{purpose}: {doing}{steps_text}, {seconds:.0f} s", "cyan")
        )


def _opening(space: Space, budget_s: float) -> dict[str, str]:
    """What is about to happen, by label."""
    varying = {name: values for name, values in space.axes.items() if len(values) > 1}
    searched = "; ".join(f"{name} {_values(values)}" for name, values in varying.items())
    limits = space.limits
    return {
        "search": f"{len(space.candidates)} candidates: {searched or 'nothing varies'}",
        "fixed": ", ".join(f"{each.name} {each.value}" for each in space.fixed),
        "memory": f"at most {gib(limits.limit_bytes)} a rank"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})",
        "budget": minutes(budget_s),
    }


def _values(values: tuple[Any, ...]) -> str:
    few = len(values) <= 4
    return ", ".join(map(str, values)) if few else f"{values[0]}..{values[-1]} ({len(values)})"


def _header(space: Space, width: int) -> Text:
    """Names of the columns of `_trial`."""
    first = space.candidates[0]
    if _has_room(space, width):
        candidate = "candidate".ljust(len(words(first, space)))
    else:
        candidate = " ".join(f"{AXES[axis].label:>{w}}" for axis, w in _widths(space).items())
    rates = f"{'tok/s':>5} {'model FLOP/s':>12} {'peak':>9}"
    return Text(f" time  no kind   {candidate} result {rates}", "dim")


def _trial(record: Record, elapsed_s: float, space: Space, console: Console) -> tuple[Text, str]:
    """One trial, and what came of it."""
    verdict, measured = record.outcome.verdict, record.outcome.measurement
    if _has_room(space, console.width):
        candidate = words(record.candidate, space)
    else:
        candidate = " ".join(
            f"{getattr(record.candidate, axis):>{w}}" for axis, w in _widths(space).items()
        )
    number = "" if record.number is None else record.number
    head = Text.assemble(
        (
            f"{minutes(elapsed_s):>5} {number:>3} {record.purpose:<6} ",
            "dim",
        ),
        candidate + " ",
        (verdict.value, _STYLES.get(verdict, "red")),
    )
    if verdict.fits and measured is not None:
        head.append(" " * (_VERDICT_WIDTH - len(verdict.value)))
        return head, _rates(measured, space)
    reason = printable(" ".join(record.outcome.reason.split()), console)
    head.append(":" if reason else "")
    return head, reason


def _has_room(space: Space, width: int) -> bool:
    """Whether a trial's line fits with the name of every axis in it."""
    return _INDENT + len(words(space.candidates[0], space)) + _RESULT_WIDTH <= width


def _rates(measured: Measurement, space: Space, unit: str = "") -> str:
    peak_bytes = measured.peaks.device_bytes
    return (
        f"{si(measured.tokens_per_s):>5}{unit} {si(measured.model_flops_per_s, 'FLOP/s'):>12}"
        f" {gib(peak_bytes):>9} {peak_bytes / space.limits.capacity_bytes:>4.0%}"
    )


def _fit(head: Text, tail: str, width: int, indent: int) -> list[Text]:
    """`head` and `tail` in one line, else `tail` wrapped and indented below."""
    if not tail:
        return [head]
    if head.cell_len + 1 + len(tail) <= width:
        return [Text.assemble(head, " ", tail)]
    head.rstrip()
    return [head, *paragraph(tail.strip(), width, " " * indent)]


def bar(search: float, elapsed: float, console: Console) -> Text:
    """A bar of the budget: what the search took of it, what the finals took, what is left."""
    wide = max(10, console.width - 40)
    searched, spent = (min(wide, round(share * wide)) for share in (search, elapsed))
    full, finals, rest = ("=", "#", "-") if console.options.ascii_only else ("█", "▓", "░")
    return Text.assemble(
        (full * searched, "cyan"),
        (finals * (spent - searched), "green"),
        (rest * (wide - spent), "dim"),
    )


def words(candidate: Candidate, space: Space) -> str:
    """`candidate` for people, its values as wide as the widest of their axes."""
    shown = _shown(space)
    return "  ".join(
        f"{AXES[axis].label} {getattr(candidate, axis):<{wide}}" for axis, wide in shown.items()
    )


def _shown(space: Space) -> dict[str, int]:
    """The axes that tell candidates apart, and the characters of the widest value of each."""
    return {
        axis.name: max(len(str(value)) for value in space.axes[axis.name])
        for axis in shown_axes(space.axes, of_script=space.workload.of_script)
    }


def _widths(space: Space) -> dict[str, int]:
    """Widths of one column per shown axis, its name above it."""
    return {axis: max(wide, len(AXES[axis].label)) for axis, wide in _shown(space).items()}


def _candidate(record: Record | None) -> Candidate | None:
    return None if record is None else record.candidate
