"""Reports on a terminal or in a log: `LiveReporter` redraws, `PlainReporter` only appends.

Text from outside (reasons, paths) is made printable first. So neither a terminal without UTF-8 nor
an escape sequence in an error message can end or garble a study.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.result.best import Best
from autotune.show.report import Reporter
from autotune.show.report.lines import Lines
from autotune.show.report.objective import has_no_tokens
from autotune.show.report.progress import StudyProgress
from autotune.show.report.result import cautions, print_result
from autotune.show.report.text import bar, counts_text, minutes, paragraph, print_lines, printable
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.outcome import Objective, Record, Verdict
from autotune.space.space import LEFT_OUT, Space
from autotune.units import gib
from autotune.wire.stopping import Phase

SHOW_CURSOR = b"\x1b[?25h\n"

_LABEL = 8
"""Characters of a line's label."""
_FAILED = tuple(v for v in Verdict if not v.fits and v is not Verdict.SKIPPED)


@dataclass(frozen=True)
class _Probe:
    purpose: str
    candidate: Candidate
    until_s: float


class PlainReporter(Reporter):
    """Appends one line per trial, however long its reason."""

    _of_log = True

    def __init__(
        self, console: Console, clock: Callable[[], float], objective: Objective = "flops"
    ) -> None:
        self._console = console
        self._clock = clock
        self._objective = objective
        self._lines: Lines | None = None
        self._header: list[Text] = []

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        self._lines = Lines(
            space=space,
            budget_s=budget_s,
            console=self._console,
            of_log=self._of_log,
            objective=self._objective,
        )
        for label, text in _opening(space, budget_s).items():
            shown = printable(text, self._console)
            self._print(*paragraph(shown, self._console.width, f"{label:<{_LABEL}}", "dim"))
        folder_text = printable(str(folder), self._console)
        self._print(Text.assemble((f"{'folder':<{_LABEL}}", "dim"), folder_text))
        if self._of_log:
            self._print(*self._new_header())

    def told(self, record: Record, incumbent: Record | None) -> None:
        if (found := record.outcome.measurement) is not None:
            alone = self._known.space.workload.of_script and has_no_tokens(found)
            self._lines = replace(self._known, has_no_tokens=alone)
        trial = self._known.trial(record, self._clock())
        self._print(*self._new_header(), *trial)

    def note(self, text: str) -> None:
        self._print(*paragraph(printable(text, self._console), self._console.width))

    def finished(self, best: Best, path: Path) -> None:
        self.close()
        print_result(
            self._console, best, path, cautions(best, self._known.space.axes["micro_batch"])
        )

    @property
    def _known(self) -> Lines:
        if self._lines is None:
            raise RuntimeError("started() comes before this")
        return self._lines

    def _new_header(self) -> list[Text]:
        """The header of trials, unless it is the one that was printed last."""
        before, self._header = self._header, self._known.header()
        return [] if self._header == before else [Text(), *self._header]

    def _print(self, *lines: Text) -> None:
        print_lines(self._console, *lines)


class LiveReporter(PlainReporter):
    """Keeps a few lines up to date; incumbents, failures and what the budget cut short scroll by.
    rich's thread redraws the lines, so attributes are replaced whole, never changed in place."""

    _of_log = False

    def __init__(
        self, console: Console, clock: Callable[[], float], objective: Objective = "flops"
    ) -> None:
        super().__init__(console, clock, objective)
        self._live = Live(
            console=console, get_renderable=self.drawn, refresh_per_second=4, transient=True
        )
        self._counts: Counter[Verdict] = Counter()
        self._rounds = 0
        self._incumbent: Record | None = None
        self._probes: dict[int, _Probe] = {}
        self._recent = 0
        """The slot in which a probe or phase began last."""
        self._of_script = False
        self._progress = {0: StudyProgress(clock)}
        """By slot."""
        self._finals_at_s: float | None = None

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        super().started(space, budget_s, folder)
        self._of_script = space.workload.of_script
        self._progress = {0: self._new_progress()}
        self._live.start()

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        searched = [record for record in records if record.purpose == "search"]
        self._counts = Counter(record.outcome.verdict for record in searched)
        self._rounds = sum(
            record.purpose == "final" and record.outcome.verdict is not Verdict.SKIPPED
            for record in records
        )
        self._incumbent = incumbent

    def probing(self, purpose: str, candidate: Candidate, until_s: float, slot: int = 0) -> None:
        if purpose == "final" and self._finals_at_s is None:
            self._finals_at_s = self._clock()
        progress = self._progress.get(slot) or self._new_progress()
        progress.begin(engine_of(self._known.space.workload, candidate).name)
        self._progress = self._progress | {slot: progress}
        self._probes = self._probes | {slot: _Probe(purpose, candidate, until_s)}
        self._recent = slot

    def phase(self, phase: Phase, steps: int, slot: int = 0) -> None:
        progress = self._progress.get(slot)
        if progress is not None and progress.phase(phase, steps):
            self._recent = slot

    def told(self, record: Record, incumbent: Record | None) -> None:
        verdict = record.outcome.verdict
        if record.purpose == "search":
            self._counts = self._counts + Counter([verdict])
        elif record.purpose == "final" and verdict is not Verdict.SKIPPED:
            self._rounds += 1
        better = _candidate(incumbent) != _candidate(self._incumbent)
        cut = verdict is Verdict.SKIPPED and record.outcome.probe_s > 0
        self._incumbent = incumbent
        if better or cut or verdict in _FAILED:
            super().told(record, incumbent)

    def close(self) -> None:
        self._live.stop()

    def abandon(self) -> None:
        # Not through rich: the interrupted code may hold its locks, or the stream's buffer.
        if self._live.is_started:
            with suppress(OSError):
                os.write(self._console.file.fileno(), SHOW_CURSOR)

    def drawn(self) -> Group:
        """The present state of the redrawn lines."""
        if self._lines is None:
            return Group()
        purpose, doing = self._doing()
        grid = Table.grid()
        grid.add_column(width=_LABEL)
        grid.add_column(overflow="fold")
        for label, text in {
            "budget": self._budget(),
            "finals": Text(self._finals()),
            "trials": Text(counts_text(self._counts)),
            "best": self._best(),
            purpose: doing,
        }.items():
            grid.add_row(Text(label, "dim"), text)
        return Group(Text(), grid)

    def _budget(self) -> Text:
        budget_s, elapsed_s = self._known.budget_s, self._clock()
        whole, left = minutes(budget_s), minutes(max(0.0, budget_s - int(elapsed_s)))
        widest = len(f"{whole} of {whole}, {whole} left")
        text = f"  {f'{minutes(elapsed_s)} of {whole}, {left} left':>{widest}}"
        searched_s = elapsed_s if self._finals_at_s is None else self._finals_at_s
        until_s = self._probe.until_s if self._probe else budget_s
        shares = [seconds / budget_s for seconds in (searched_s, elapsed_s, until_s)]
        wide = self._console.width - _LABEL - len(text)
        return Text.assemble(bar(shares, wide, self._console), text)

    def _finals(self) -> str:
        """The time until the finals, or since they began."""
        probe, finals_at_s = self._probe, self._finals_at_s
        if probe is None:
            return "after the search"
        if probe.purpose == "search" or finals_at_s is None:
            return f"in {minutes(max(0.0, probe.until_s - self._clock()))} at the latest"
        rounds = "1 round" if self._rounds == 1 else f"{self._rounds or 'no'} rounds"
        return f"for {minutes(self._clock() - finals_at_s)}, {rounds} so far"

    def _best(self) -> Text:
        best = self._incumbent
        if best is None or best.outcome.measurement is None:
            return Text("nothing yet", "dim")
        lines, measured = self._known, best.measured
        rates, joules = lines.rates(measured, named=True), measured.joules_per_token
        text = f"{rates}  {joules:.3g} J/token" if joules else rates
        return lines.beside(best.candidate, Text(text), _LABEL)

    def _doing(self) -> tuple[str, Text]:
        """The purpose of the probe, and its phase."""
        slot = self._shown
        probe, text = self._probes.get(slot), self._progress[slot].text
        if (others := len(self._running - {slot})) > 0:
            text += f"; {others} more at once"
        if probe is None:
            return "now", Text(text, "cyan")
        doing = self._known.beside(probe.candidate, Text(text, "cyan"), _LABEL)
        return probe.purpose, doing

    @property
    def _running(self) -> set[int]:
        return {slot for slot in self._probes if not self._progress[slot].done}

    @property
    def _shown(self) -> int:
        """The slot to show: the most recent one with a running probe."""
        running = self._running
        return self._recent if self._recent in running else max(running, default=self._recent)

    @property
    def _probe(self) -> _Probe | None:
        return self._probes.get(self._shown)

    def _new_progress(self) -> StudyProgress:
        return StudyProgress(self._clock, of_script=self._of_script)


def _opening(space: Space, budget_s: float) -> dict[str, str]:
    """The first lines of a study, by label."""
    varying = {name: values for name, values in space.axes.items() if len(values) > 1}
    searched = "; ".join(
        f"{f'{name} ' * (name != 'own')}{_values(values)}" for name, values in varying.items()
    )
    limits = space.limits
    lost = "; ".join(f"{each.value} ({each.why})" for each in space.fixed if each.name == LEFT_OUT)
    return {
        "search": f"{len(space.candidates)} candidates: {searched or 'nothing varies'}",
        **({"without": lost} if lost else {}),
        "fixed": ", ".join(
            f"{each.name} {each.value}" for each in space.fixed if each.name != LEFT_OUT
        ),
        "memory": f"at most {gib(limits.limit_bytes)} a rank"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})"
        if not limits.rank_capacities
        else f"at most {limits.ceiling:.0%} of each rank's device; peaks are told as on the"
        " smallest, by their share",
        "budget": minutes(budget_s),
    }


def _values(values: tuple[Any, ...]) -> str:
    few = len(values) <= 4
    return ", ".join(map(str, values)) if few else f"{values[0]}..{values[-1]} ({len(values)})"


def _candidate(record: Record | None) -> Candidate | None:
    return None if record is None else record.candidate
