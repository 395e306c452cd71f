"""Trials as lines: a candidate with the names of its axes, and its result.

If a line has no room for both, the result is below the candidate. A log's have room.
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
"""Characters beside a candidate for the state of its probe."""
_STYLES = {Verdict.OK: "green", Verdict.PRUNED: "dim", Verdict.SKIPPED: "dim"}


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Trials of `space` on `console`, in its present width."""

    space: Space
    budget_s: float
    console: Console
    of_log: bool
    objective: Objective = "flops"
    has_no_tokens: bool = False
    """Whether a script's samples were seen to count as one token each."""

    def header(self) -> list[Text]:
        """Names of the columns in the lines of a trial."""
        result = f"result {self._rate:>5} {'model FLOP/s':>12} {'peak':>9}"
        candidate = ["candidate".ljust(self._words_width if self._is_wide else 0)]
        lines = self._lines(self._start("time", "no", "kind"), candidate, Text(result))
        for line in lines:
            line.stylize("dim")
        return lines

    def trial(self, record: Record, elapsed_s: float) -> list[Text]:
        """A trial that ended `elapsed_s` after the study began, with its result."""
        verdict, measured = record.outcome.verdict, record.outcome.measurement
        number = "" if record.number is None else str(record.number)
        start = self._start(minutes(elapsed_s), number, record.purpose)
        candidate = self._named(record.candidate, aligned=self._is_wide)
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
        of_samples = self._rate == "samples/s"
        value = measured.samples_per_s if of_samples else measured.tokens_per_s
        return f"{si(value):>5} {self._rate}"

    def rates(self, measured: Measurement, *, named: bool = False) -> str:
        """Speed and peak, in columns."""
        peak_bytes = measured.peaks.device_bytes
        rate = self.rate(measured)
        if not named:
            rate = f"{rate.removesuffix(self._rate).rstrip():>{len(self._rate)}}"
        return (
            f"{rate} {si(measured.model_flops_per_s, 'FLOP/s'):>12}"
            f" {gib(peak_bytes):>9} {peak_bytes / self.space.limits.capacity_bytes:>4.0%}"
        )

    def beside(self, candidate: Candidate, text: Text, indent: int) -> Text:
        """`candidate` and `text`, up to `_BESIDE` characters of it, in one line or two."""
        width = self.console.width - indent
        if self._words_width + 2 + max(_BESIDE, text.cell_len) <= width:
            return Text.assemble("  ".join(self._named(candidate, aligned=True)), "  ", text)
        return Text("\n").join([*map(Text, wrapped(self._named(candidate), width)), text])

    def _start(self, time: str, number: str, purpose: str) -> str:
        """The text before the candidate, with one width for the whole study."""
        time_width = max(5, len(minutes(self.budget_s)))
        return f"{time:>{time_width}} {number:>3} {purpose:<6} "

    @cached_property
    def _indent(self) -> str:
        """Spaces as wide as that text."""
        return " " * len(self._start("", "", ""))

    def _lines(self, start: str, candidate: list[str], result: Text) -> list[Text]:
        """`result` beside the parts of a `candidate`, or below them."""
        if self._is_wide:
            return [Text.assemble((start, "dim"), "  ".join(candidate), " ", result)]
        first, *others = wrapped(candidate, self.console.width - len(self._indent))
        return [
            Text.assemble((start, "dim"), first),
            *(Text(self._indent + line) for line in others),
            Text.assemble(self._indent, result),
        ]

    def _named(self, candidate: Candidate, *, aligned: bool = False) -> list[str]:
        """Each value with its axis's name; if `aligned`, all values of an axis have one width."""
        return [
            _label(axis)
            + printable(str(getattr(candidate, axis)), self.console).ljust(wide * aligned)
            for axis, wide in self._widest.items()
        ]

    @property
    def _rate(self) -> str:
        """Name of the rate that is shown first."""
        lengths, recipe = self.space.axes["seq_len"], self.space.workload.recipe
        family = self.space.workload.model.partition(":")[0]
        # A sample is one token.
        alone = tuple(lengths) == (1,) and (family == "factory" or "token" in recipe)
        alone |= self.has_no_tokens
        return "samples/s" if alone or self.objective == "samples_per_s" else "tok/s"

    @property
    def _is_wide(self) -> bool:
        """Whether a line has room for a candidate and its result."""
        result_width = 1 + _VERDICT_WIDTH + 1 + 28 + len(self._rate)
        wide = len(self._indent) + self._words_width + result_width
        return self.of_log or wide <= self.console.width

    @cached_property
    def _widest(self) -> dict[str, int]:
        """The axes with several values, and the width of the widest value of each."""
        return {
            axis.name: max(len(str(value)) for value in self.space.axes[axis.name])
            for axis in shown_axes(self.space.axes, of_script=self.space.workload.of_script)
        }

    @cached_property
    def _words_width(self) -> int:
        named = [len(_label(axis)) + wide for axis, wide in self._widest.items()]
        return sum(named) + 2 * (len(named) - 1)


def _label(axis: str) -> str:
    """The text before a value. Values of the user's own axes have their names in them."""
    return "" if axis == "own" else f"{AXES[axis].label} "
