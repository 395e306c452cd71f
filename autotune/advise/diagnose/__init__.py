"""Finds the error in a log, its cause and remedies; or looks at a machine without a log.

The modules, in the order of their work:

- `reading` finds lines.
- `events` makes errors of them: out of memory by the grammar of `memory`, others by the table
  `wordings`. `talk` tells errors from advice.
- `context` reads the rest: settings (`flags`) and listings of a machine (`listing`).
- `causes` explains an event. `advice` has remedies for a `case`. `show` prints the report.
- `machine` needs no log. `loads` finds the bottleneck in it or in a listing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from autotune.advise.diagnose.advice import Again, advice, again, command
from autotune.advise.diagnose.case import Advice, Case
from autotune.advise.diagnose.causes import causes
from autotune.advise.diagnose.context import Context
from autotune.advise.diagnose.events import Event, event_of, merged, trace_of
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.listing import Listing
from autotune.advise.diagnose.loads import Cause
from autotune.advise.diagnose.memory import DEVICE, ran_out
from autotune.advise.diagnose.reading import BEHIND, BLOCK, Hit, Scanner, decoded, pieces
from autotune.advise.diagnose.wordings import LAST, Wording
from autotune.errors import UsageError
from autotune.result.folder.folder import Folder

_WHOLE = 2**18
"""Bytes of a log's beginning that are read for its context; of the rest, a part of each block."""
_SAMPLE = 2**11
_MOST_EVENTS = 500
"""The most events of one wording in one log. More say nothing new."""
_CHANGING = re.compile(rb"\b(?!(?:0|2|4|7|9|12|15|28|122|137|1455)\b)\d+(?:\.\d+)?")
"""Numbers that change from line to line, unlike exit codes, signals and 0."""
_MOST_SHAPES = 10_000
_LOGS = ("*.log", "*/*.log", "*.out", "*.err", "*.txt")
LISTING = Wording(
    name="listing", kind=Kind.LISTING, says=(),
    source="nvidia-smi, rocm-smi, gpustat, nvitop, nvtop, htop, top, free, df",
)  # fmt: skip
"""The wording of a log with only a listing, without an error."""
ENDED = next(each for each in LAST if each.kind is Kind.ENDED)
_CUT = ("Traceback (most recent call last)", "Exception during training:", '  File "')
"""The last lines of a traceback that is cut off."""
_AFTER = (Kind.ENDED, Kind.SCHEDULED, Kind.WARNING)
"""Kinds that follow a failure."""
_QUIET = (Kind.OTHER, *_AFTER)
"""Kinds that explain nothing beside others."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of reading logs."""

    logs: tuple[str, ...]
    bytes_read: int
    interrupted: bool
    """Whether a part was not read."""
    event: Event | None
    """The first event, which explains the rest."""
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]
    command: str | None
    again: Again | None
    later: tuple[Event, ...]
    """Other events: consequences, and errors that the program survived."""
    context: Context
    cut: bool = False
    """Whether nothing was found, and a log ends within a traceback."""


def diagnose(logs: Sequence[str]) -> Diagnosis:
    """Reads `logs`: files, "-" for the standard input, or a study's folder. Ctrl-C ends it. Raises
    UsageError if a log is missing, empty, a folder without logs, or no text."""
    found: list[Event] = []
    context, count, interrupted, cut = Context(), 0, False, False
    logs = [log for name in logs for log in _named(name)]
    try:
        for name in logs:
            reader = LogReader("standard input" if name == "-" else name, context)
            try:
                with _opened(name) as stream:
                    reader.read(stream)
            finally:
                found += reader.finish()
                count += reader.scanner.bytes_read
                cut |= reader.cut
    except KeyboardInterrupt:
        interrupted = True
    if context.not_for_memory:
        found = [replace(e, wording=ENDED) if e.kind is Kind.KILLED else e for e in found]
    # What others remember says less than the post.
    found = [each for each in found if not (each.weak and context.by_another(each.line))]
    if context.is_manual:
        found = []
    if context.is_article:
        found = [
            e for e in found
            if e.is_instance or not (e.kind.is_oom or context.is_change)
            or (context.is_wish and e.is_own)
        ]  # fmt: skip
    first, later = _first(_in_time(_last_run(found, context)))
    if first is not None and first.kind is Kind.MEMORY and context.hints == {Kind.DEVICE}:
        first = replace(first, wording=DEVICE)
    if first is not None and first.backend is None and len(context.backends) == 1:
        first = replace(first, backend=min(context.backends))
    context.until = None if first is None else (first.log, first.line)
    reasons = () if first is None else tuple(causes(first, context))
    if first is None and context.listing.text():
        first, reasons = _listed(context.listing)
    case = None if first is None else Case(first, reasons, context)
    measures = () if case is None else tuple(advice(case))
    return Diagnosis(
        logs=tuple(logs),
        bytes_read=count,
        interrupted=interrupted,
        event=first,
        causes=() if case is None else case.causes,
        advice=measures,
        command=None if case is None else command(case),
        again=None if case is None else again(case, measures),
        later=tuple(later),
        context=context,
        cut=cut and first is None,
    )


class LogReader:
    """Reads one log. Its findings are valid whenever reading ends."""

    def __init__(self, name: str, context: Context) -> None:
        self.scanner = Scanner()
        self._name = name
        self._context = context
        self._events: list[Event] = []
        self._counts: dict[str, int] = {}
        self.cut = False
        """Whether its last lines are part of a traceback."""
        self._nothing: set[bytes] = set()
        """Lines, without their changing numbers, that say nothing new."""

    def read(self, stream: BinaryIO) -> None:
        sampled, line = 0, 1
        self._context.log = self._name
        for piece in pieces(stream, self._name):
            before = self.scanner.bytes_read
            if before < _WHOLE:
                self._context.look(_lines(piece[:_WHOLE]), line)
            elif before - sampled >= BLOCK:
                sampled = before
                self._context.look(_lines(piece[:_SAMPLE]), line)
            line += piece.count(b"\n")
            self._take(self.scanner.feed(piece))

    def finish(self) -> list[Event]:
        self._take(self.scanner.finish())
        last = self.scanner.tail()[-9:]
        self.cut = any(cut in line for line in last[-3:] for cut in _CUT) or any(
            map(re.compile(r"^-+> \d+ ").match, last)
        )
        if self.scanner.bytes_read > _WHOLE:
            tail = self.scanner.tail()
            self._context.look(tail, self.scanner.line - len(tail))
        found = [replace(event, recovered=self._recovered(event)) for event in self._events]
        # What was told above a traceback without its end is mostly its end.
        if self.cut and not any(each.trace for each in found):
            trace, step = trace_of(self.scanner.tail()), self._context.last_step
            found = [replace(e, trace=trace, step=step) if e.kind.is_oom else e for e in found]
        return found

    def _recovered(self, event: Event) -> bool:
        """Whether training went on after `event`: the message says so, or later steps show it."""
        last, step = self._context.last_step, event.step
        if event.recovered:
            return bool(last is not None and last - (step or 0))
        later = last is not None and step is not None and last - step
        return event.kind.is_oom and not event.trace and later >= 2

    def _take(self, hits: Iterable[Hit]) -> None:
        for hit in hits:
            shape = _CHANGING.sub(b"", hit.bytes)
            if shape in self._nothing:
                continue
            self._context.hear(hit.line)
            event = event_of(hit, self._name)
            if event is None:
                # The lines around may show that it is no error.
                if len(self._nothing) < _MOST_SHAPES and not ran_out(hit.line):
                    self._nothing.add(shape)
                continue
            if self._events and event.goes_on_from(self._events[-1]):
                continue
            name = event.wording.name
            self._counts[name] = self._counts.get(name, 0) + 1
            if self._counts[name] > _MOST_EVENTS:
                if event.kind is not Kind.OTHER:
                    self._nothing.add(shape)
                    continue
                # Only the last of these counts.
                self._events.remove(next(e for e in self._events if e.wording.name == name))
            self._context.ranks.update(event.ranks)
            self._context.devices.update(event.devices)
            if event.kind.is_oom and self.scanner.bytes_read > _WHOLE and self._counts[name] < 10:
                before = hit.before(BEHIND)
                self._context.look(before, hit.number - len(before))
            self._events.append(event)


def _listed(listing: Listing) -> tuple[Event, tuple[Cause, ...]]:
    """The event and causes of a listing, if nothing failed."""
    event = Event(wording=LISTING, log=listing.log, line=listing.line, text=listing.text())
    return event, (found,) if (found := listing.bottleneck()) else ()


def _lines(piece: bytes) -> list[str]:
    return decoded(piece).replace("\r\n", "\n").split("\n")


def _named(name: str) -> list[str]:
    """`name`, or the logs of the study whose folder it is."""
    if name == "-":
        return [name]
    path = Path(name)
    with _refused(name):
        path.stat()
    if not path.is_dir():
        return [name]
    if logs := [str(log) for log in sorted(Folder(path).logs.glob("*.log")) if log.stat().st_size]:
        return logs
    pattern = next((each for each in _LOGS if next(path.glob(each), None)), None)
    if pattern is None:
        raise UsageError(f"{name}: is a folder without logs; name a file")
    raise UsageError(f"{name}: is a folder; name the logs in it, e.g. {path / pattern}")


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    with _refused(name):
        return Path(name).open("rb")


@contextmanager
def _refused(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name}: {why}") from error


def _last_run(events: list[Event], context: Context) -> list[Event]:
    """`events` without those of earlier runs, where a log shows the command of the failed one."""
    failed = [
        e for e in events if not e.titled and e.kind not in _AFTER and "Interr" not in e.text
    ]
    if not failed:
        return events
    last = failed[-1]
    rows = context.said["launch"]
    begun = max((n for log, n, _ in rows if log == last.log and n <= last.line), default=0)
    return [event for event in events if event.log != last.log or event.line >= begun]


def _in_time(events: list[Event]) -> list[Event]:
    """By the clock where all of them tell it, and else as they were read."""
    timed = all(event.time is not None for event in events)
    return sorted(events, key=lambda event: event.time or "") if timed else events


def _telling(event: Event) -> tuple[int, bool]:
    """A key by which events with more details are larger."""
    return event.amounts.count, bool(event.trace) or event.step is not None


def _first(events: list[Event]) -> tuple[Event | None, list[Event]]:
    """The main one of `events`, which are in the order of time, and the others; both merged."""
    every, strong = events, [e for e in events if not e.titled]
    if any(e.kind not in (Kind.ENDED, Kind.WARNING) for e in strong):
        events = strong
    scheduled = [e for e in events if e.kind is Kind.SCHEDULED]
    fatal = [
        e for e in events
        if (e.kind not in _QUIET or (e.kind is Kind.SCHEDULED and e.groups)) and not e.recovered
    ]  # fmt: skip
    first = fatal[0] if fatal else None
    if first is not None and first.kind is Kind.KILLED:
        # Launchers kill, too: earlier errors, and those with a reason, count more.
        said = [e for e in events[: events.index(first)] if e.kind is Kind.OTHER]
        why = [e for e in fatal if e.kind is Kind.HOST]
        ended = [e for e in scheduled if events.index(e) < events.index(first)]
        first = (why or said[-1:] or ended or [first])[0]
    if first is not None and (
        first.kind in (Kind.DEVICE, Kind.LIBRARY) or first.wording.name == "host"
    ):
        # An allocator says more than a library without memory, or a class.
        kind = Kind.HOST if first.kind is Kind.HOST else Kind.DEVICE
        sized = [e for e in fatal if e.kind is kind and e.amounts.asked is not None]
        first = first if first in sized else next(iter(sized), first)
    if first is not None and first.kind is Kind.MEMORY:  # one that names the memory says more
        known = [e for e in every if e.kind.ran_out and e.kind is not Kind.MEMORY]
        if any(e in fatal for e in known):
            first = next(e for e in known if e in fatal)
        elif known:  # a title, or a remark
            told = replace(first, wording=known[0].wording)
            events, first = [told if e is first else e for e in events], told
    if first is None:
        loud = [e for e in events if e.kind is Kind.OTHER] or scheduled
        loud = loud or [e for e in events if e.recovered]
        if not events:
            return None, []
        first = (loud or events)[-1]
    if first.kind.is_oom:
        # Kernels, ray and torch print it twice; a post quotes it before the log.
        alike = [
            e for e in events if e.wording is first.wording and e.recovered == first.recovered
        ]
        sizes = (e.amounts.asked for e in (first, *alike) if e.amounts.asked is not None)
        asked = next(sizes, None)
        told = max((e for e in alike if e.amounts.asked == asked), key=_telling)
        first = replace(first, amounts=told.amounts) if first.trace else told
    together = merged(events)
    mine = next(
        e for e in together if e.wording is first.wording and e.recovered == first.recovered
    )
    explained = replace(first, ranks=mine.ranks, devices=mine.devices, times=mine.times)
    return explained, [event for event in together if event is not mine]
