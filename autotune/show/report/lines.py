"""Trials as lines: a candidate, by names or in columns, and what came of it.

| a line has room for | a trial is |
|---|---|
| the names of its axes | one line, with the names in it |
| its values | one line, in columns with the names above |
| less | its candidate and, below, its result; no value is cut, however long it is |

A log's lines have room for any value.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.text import Text

from autotune.show.report.text import minutes, printable, shown_axes, si, wrapped
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate
from autotune.space.outcome import Measurement, Objective, Record, Verdict
from autotune.space.space import Space
from autotune.units import gib

_VERDICT_WIDTH = 6
_BESIDE = 45
"""Characters kept beside a candidate, for what its probe is doing."""
_STYLES = {Verdict.OK: "green", Verdict.PRUNED: "dim", Verdict.SKIPPED: "dim"}


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Trials of `space` on `console`, as wide as that is at the moment."""

    space: Space
    budget_s: float
    console: Console
    of_log: bool
    objective: Objective = "flops"

    def header(self) -> list[Text]:
        """Names of what is in the lines of a trial."""
        candidate = "candidate"
        if self._has_names:
            candidate = candidate.ljust(self._words_width)
        elif self._has_columns:
            candidate = " ".join(f"{AXES[axis].label:>{w}}" for axis, w in self._columns.items())
        result = f"result {self._rate:>5} {'model FLOP/s':>12} {'peak':>9}"
        start = self._start("time", "no", "kind")
        return self._lines(start, [candidate], Text(result, "dim"), "dim")

    def trial(self, record: Record, elapsed_s: float) -> list[Text]:
        """One trial that ended `elapsed_s` after the study began, and what came of it."""
        verdict, measured = record.outcome.verdict, record.outcome.measurement
        number = "" if record.number is None else str(record.number)
        start = self._start(minutes(elapsed_s), number, record.purpose)
        candidate = self._candidate(record.candidate)
        result = Text.assemble((verdict.value, _STYLES.get(verdict, "red")))
        if verdict.fits and measured is not None:
            result.append(" " * (_VERDICT_WIDTH + 1 - len(verdict.value)) + self.rates(measured))
            return self._lines(start, candidate, result)
        reason = printable(" ".join(record.outcome.reason.split()), self.console)
        if not reason:
            return self._lines(start, candidate, result)
        *above, last = self._lines(start, candidate, result.append(": ", ""))
        width = sys.maxsize if self.of_log else self.console.width
        first, *others = textwrap.wrap(
            reason, width, initial_indent=" " * last.cell_len, subsequent_indent=self._indent,
            break_on_hyphens=False,
        )  # fmt: skip
        return [*above, last.append(first.lstrip(), ""), *map(Text, others)]

    def rate(self, measured: Measurement) -> str:
        """The rate that is shown first, with its name."""
        of_samples = self.objective == "samples_per_s"
        value = measured.samples_per_s if of_samples else measured.tokens_per_s
        return f"{si(value):>5} {self._rate}"

    def rates(self, measured: Measurement, *, named: bool = False) -> str:
        """Speed and peak, in columns."""
        peak_bytes = measured.peaks.device_bytes
        rate = self.rate(measured)
        if not named:
            rate = f"{rate.removesuffix(self._rate).rstrip():>{len(self._rate)}}"
        return (
            f"{rate}"
            f" {si(measured.model_flops_per_s, 'FLOP/s'):>12}"
            f" {gib(peak_bytes):>9} {peak_bytes / self.space.limits.capacity_bytes:>4.0%}"
        )

    def beside(self, candidate: Candidate, text: Text, indent: int) -> Text:
        """`candidate` and `text`, after `indent` characters: in one line, or below each other. As
        `text` grows up to what is kept for it, nothing moves."""
        width = self.console.width - indent
        if self._words_width + 2 + max(_BESIDE, text.cell_len) <= width:
            return Text.assemble("  ".join(self._named(candidate, self._widest)), "  ", text)
        return Text("\n").join([*map(Text, wrapped(self._named(candidate), width)), text])

    def _start(self, time: str, number: str, purpose: str) -> str:
        """What stands before the candidate, as wide in the whole study."""
        time_width = max(5, len(minutes(self.budget_s)))
        return f"{time:>{time_width}} {number:>3} {purpose:<6} "

    @cached_property
    def _indent(self) -> str:
        """Where that is not repeated."""
        return " " * len(self._start("", "", ""))

    def _lines(
        self, start: str, candidate: list[str], result: Text, style: str = ""
    ) -> list[Text]:
        """`result` beside the `candidate`, or below it."""
        starts = [start, *[self._indent] * (len(candidate) - 1)]
        lines = [
            Text.assemble((lead, "dim"), (line, style))
            for lead, line in zip(starts, candidate, strict=True)
        ]
        if self._apart:
            return [*lines, Text.assemble(self._indent, result)]
        return [*lines[:-1], Text.assemble(lines[-1], " ", result)]

    def _candidate(self, candidate: Candidate) -> list[str]:
        if self._has_names:
            return ["  ".join(self._named(candidate, self._widest))]
        if self._has_columns:
            values = self._values(candidate)
            return [" ".join(f"{values[axis]:>{w}}" for axis, w in self._columns.items())]
        return wrapped(self._named(candidate), self.console.width - len(self._indent))

    def _named(self, candidate: Candidate, widths: dict[str, int] | None = None) -> list[str]:
        """Each value with the name of its axis; all of one axis are as wide, with `widths`."""
        return [
            f"{AXES[axis].label} {value:<{(widths or {}).get(axis, 0)}}"
            for axis, value in self._values(candidate).items()
        ]

    def _values(self, candidate: Candidate) -> dict[str, str]:
        return {
            axis: printable(str(getattr(candidate, axis)), self.console) for axis in self._widest
        }

    @property
    def _rate(self) -> str:
        """Name of the rate that is shown first."""
        return "samples/s" if self.objective == "samples_per_s" else "tok/s"

    @property
    def _result_width(self) -> int:
        """Characters of a trial's line after the candidate."""
        return 1 + _VERDICT_WIDTH + 1 + 28 + len(self._rate)

    @property
    def _has_names(self) -> bool:
        return len(self._indent) + self._words_width + self._result_width <= self.console.width

    @property
    def _has_columns(self) -> bool:
        return self.of_log or len(self._indent) + self._columns_width <= self.console.width

    @property
    def _apart(self) -> bool:
        """Whether a trial's result stands below its candidate."""
        wide = len(self._indent) + self._columns_width + self._result_width
        return not (self.of_log or self._has_names or wide <= self.console.width)

    @cached_property
    def _widest(self) -> dict[str, int]:
        """The axes that tell candidates apart, and the characters of the widest value of each."""
        return {
            axis.name: max(len(str(value)) for value in self.space.axes[axis.name])
            for axis in shown_axes(self.space.axes, of_script=self.space.workload.of_script)
        }

    @cached_property
    def _columns(self) -> dict[str, int]:
        """Widths of one column per shown axis, its name above it."""
        return {axis: max(wide, len(AXES[axis].label)) for axis, wide in self._widest.items()}

    @cached_property
    def _columns_width(self) -> int:
        return sum(self._columns.values()) + len(self._columns) - 1

    @cached_property
    def _words_width(self) -> int:
        named = [len(AXES[axis].label) + 1 + wide for axis, wide in self._widest.items()]
        return sum(named) + 2 * (len(named) - 1)
