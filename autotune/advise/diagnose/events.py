"""Makes events from lines: the error, its rank, amounts and time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.advise.diagnose.amounts import MOST_BYTES, NOTHING, Amounts, read
from autotune.advise.diagnose.context import PERSON, step_of, validated, validates
from autotune.advise.diagnose.flags import launch_of
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.memory import BACKEND, PINNED, SPEAKERS, backend_in, ran_out, speaker
from autotune.advise.diagnose.prefixes import TEXTS, LogLine, take_apart
from autotune.advise.diagnose.reading import Hit
from autotune.advise.diagnose.talk import is_code, is_quoted, is_talk
from autotune.advise.diagnose.wordings import BATCH_PART, DISK, FIRST, LAST, SHARED, Wording

MOST_TEXT, MOST_LINES = 600, 10
"""The most characters and lines of a message that continues in lines below."""
_MOST_TASKS = 100_000
_NARROWEST = 60
"""The least characters of a line that a terminal breaks."""

_REASONS = re.compile(r"\b(?:reasons|causes|issues|tips|troubleshooting):?\s*$", re.IGNORECASE)
"""The end of a heading of a list of possible causes."""
_NAME = re.compile(r"[a-z](?!B\b)[A-Z]|OOMK|_")
"""Part of the name of an error, but never of a sentence."""
_STANDS = re.compile(r"\W{0,3}(?:$|[.!,:;(])")
"""Follows a name that is no word of a sentence."""
_TENSOR = re.compile(r"tensor \w+ shape ?\[(?P<shape>[\d, ]+)\](?: and type (?P<type>\w+))?")
_TYPE_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "int32": 4, "double": 8, "int64": 8}
_FRAME = re.compile(r"(?:File \"(?P<file>[^\"]+)\", line (?P<line>\d+), in (?P<name>\S+))")
_RICH = re.compile(
    r"(?P<file>[^\s\[(]{1,300}\.py)(?:\]\(\S{1,300}\))?(?::(?P<line>\d+),?)?"
    r" in (?:\w+\.)*(?P<name>\w+)"
)
"""A frame in the form of rich and IPython."""
_SOURCE = re.compile(
    r"[`\s]*(?:(?:return |[\w.]+ = |[\w.]+\((?!\d+\)))(?=.*\()|[\w.]+\.\w+\((?!\d+\)))"
)
"""A line of code, which is the rest of a traceback above a message."""
_TRACE = re.compile(r"Traceback \(most|File \\?\".+, line \d|-> \d+ ")
_RAISES = re.compile(r"[\w.]{1,100}(?:Error|Exception): ")
_NUMBER = re.compile(r"\d\.?\|\d")
_LIST = re.compile(r"\s*\"(\w{1,20})\": \[")
_NEW_ERROR = re.compile(r"rror: |Traceback \(most|^File \"")
_WHOLE = re.compile(
    r"reserved in total by PyTorch|PyTorch but unallocated|cached\)|MiB\)? free\)"
    r"|may cause system failure\)"
)
_ALL_SAID = re.compile(
    r"ried to allocate \d.*\btotal capac|MPS allocated: \d|\d != \d+ \* \d|itCode\": 137"
)
"""Numbers that no source code has; JSON is no code."""
_BEGINNINGS = (BACKEND.search, re.compile("ried to allocate").search)
"""Beginnings of a message; a second one begins the next message."""
_GLUED = re.compile(r"ried to allocate [\d.]+ \w+(?:\. | \()GPU (\d{1,4})\b")
_TABLE = re.compile(r"^rank +: (\d+) \(local_rank: \d+\)")
"""A rank in torchrun's table, some lines above its exit code."""
_RANK = re.compile(
    r"\[(?:[Rr]ank[= ]?)(\d+)\]|local_rank: (\d+)|process rank (\d+)|process (\d+) termin"
)
_SEMAPHORE = re.compile(r"\bSemLock|ctx\.R?Lock\(")
_PID = re.compile(
    r"(?:(?:[Kk]ill(?:ed|ing)?|[Ss]ending) (?:sub)?process|to process|pid:?|by PID) +(\d+)"
    r"|^(\d+) Killed"
)
_TASKS = re.compile(r"\btasks? (\d[\d,-]*): ")
_INSTANCE = re.compile(r"\b(?!(?:0|2|9|128|137)\b)\d+\b")
"""A number that would not be on a page about failures."""
_RECOVERED = re.compile(
    r"(?:[Dd]ecreasing batch size|attempting to recover|retrying|[Ss]kipping (?:this )?batch"
    r"|[Rr]ecovered from|[Tt]rying (?:again )?with (?:a )?(?:smaller )?batch|failed, trying batch)"
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An error in a log. The same error of several ranks is one event."""

    wording: Wording
    log: str
    line: int
    text: str
    amounts: Amounts = NOTHING
    ranks: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    pid: int | None = None
    time: str | None = None
    backend: str | None = None
    trace: tuple[str, ...] = ()
    """Frames and their source, outermost first."""
    step: int | None = None
    validated: bool = False
    """Whether an evaluation was shortly before it."""
    recovered: bool = False
    """Whether training went on."""
    weak: bool = False
    """Whether it counts only without other events: a sentence, or the source of a frame."""
    titled: bool = False
    """Whether it is weak, a class alone, or a title, which another error below may belie."""
    times: int = 1
    groups: tuple[tuple[str, str], ...] = ()
    """Further groups of the wording, by name."""

    @property
    def kind(self) -> Kind:
        return self.wording.kind

    @property
    def is_instance(self) -> bool:
        """Whether it is from a real run: it has numbers, a time, a rank or a trace."""
        known = _INSTANCE.search(self.text) or (self.kind is Kind.KILLED and self.text.isalpha())
        said = bool(self.trace[1:] or self.time or self.ranks or self.amounts.asked)
        return said or bool(not self.weak and known)

    @property
    def is_own(self) -> bool:
        """Whether it has numbers, or the person who tells it met it."""
        return bool(_INSTANCE.search(self.text) or PERSON.search(self.text))

    def goes_on_from(self, last: Event) -> bool:
        """Whether its line continues the message of `last`."""
        mine, whole = self.amounts, last.amounts
        near = 0 < self.line - last.line <= MOST_LINES and self.ranks == last.ranks
        part = mine.count < whole.count and mine.asked in (None, whole.asked)
        same = mine.device in (None, whole.device) and (mine.asked or mine.total)
        return bool(near and part and same and whole.total)

    @property
    def is_end(self) -> bool:
        """Whether it is the end of a named process; each process has one."""
        return self.pid is not None and self.kind in (Kind.ENDED, Kind.KILLED, Kind.BUS)

    @property
    def who(self) -> str:
        """The ranks in words; empty if unknown."""
        if not self.ranks:
            return ""
        return f"rank{'' if len(self.ranks) == 1 else 's'} {spans(self.ranks)}"


def event_of(hit: Hit, log: str) -> Event | None:
    """The event in the line of `hit`; None without one."""
    said = take_apart(hit.line)
    found = None
    for each, joint in _lines(hit, said):
        found = _event_in(each, joint, hit, log) or found
        if found is not None and not (found.kind is Kind.OTHER and said.text.endswith(":")):
            break
    return found


def _lines(hit: Hit, said: LogLine) -> Iterator[tuple[LogLine, int | None]]:
    """`said`, alone and joined with the line before or after it, if a terminal may have broken it.
    A joined line comes with the position of its joint, which a message has to cross."""
    above, below = "".join(hit.before(2**12)[-1:]), "".join(hit.after(2**12)[:1])
    first, second = take_apart(above), take_apart(below)
    ours = said.rank in (None, first.rank) and said.time is None
    if len(above) > _NARROWEST and ours and said.text[:1].islower():
        for gap in ("", " "):
            yield replace(first, text=f"{first.text}{gap}{said.text}"), len(first.text)
    yield said, None
    theirs = second.rank not in (None, said.rank) or second.time is not None
    if len(hit.line) > _NARROWEST and not theirs:
        for gap in ("", " "):
            yield replace(said, text=f"{said.text}{gap}{second.text}"), len(said.text)


def _event_in(said: LogLine, joint: int | None, hit: Hit, log: str) -> Event | None:
    for wording, match in _said(said.text):
        if joint is not None and not _is_torn(wording, match, said.text, joint):
            continue
        text = _whole(said, hit, wording)
        numbers = _amounts(text) if wording.kind.ran_out else NOTHING
        sizes = sum(each is not None for each in (numbers.asked, numbers.total, numbers.free))
        whole = _ALL_SAID.search(text)
        known = whole or sizes or hit.is_title
        if said.comment and not (known or _in_trace(hit) or _in_output(hit)):
            continue
        code = is_code(said.text) and not (whole or hit.is_title)
        raised = code and said.text.lstrip().startswith("raise ") and _below_frame(hit)
        logged = bool(said.time) or said.rank is not None or "gfp_mask" in said.text
        quoted = bool(sizes) or logged or is_quoted(said.text, match, title=hit.is_title)
        prose = (wording in SPEAKERS or wording.weak) and not quoted
        if prose and any(map(_REASONS.search, hit.before(2**11)[-8:])):
            continue
        talk = code or is_talk(said.text, match)
        general = wording.weak or wording.kind is not Kind.OTHER
        if talk and general and not raised and sizes < 2:
            continue
        if wording is BATCH_PART and any("heck batch related" in s for s in hit.before(2**12)):
            continue  # the rest of a line that was joined above
        event = _event(hit, log, replace(said, text=text), wording, wording.match(text) or match)
        named = _NAME.search(match[0]) and _STANDS.match(said.text, match.end())
        weak = wording.weak or raised or (prose and not named)
        bare = wording.kind is Kind.OTHER and said.text.isidentifier()
        titled = weak or bare or (hit.is_title and not sizes and not logged)
        return replace(event, weak=weak, titled=titled)
    return None


def _is_torn(wording: Wording, match: re.Match[str], text: str, joint: int) -> bool:
    """Whether a message crosses the joint. An exception's message begins before it."""
    first = text[:joint]
    whole = ran_out(first) if wording in SPEAKERS else wording.match(first)
    crosses = match.start() < joint or (wording.kind.ran_out and _RAISES.match(first))
    return bool(not wording.weak and whole is None and crosses and joint < match.end())


def _said(text: str) -> Iterator[tuple[Wording, re.Match[str]]]:
    """Possible wordings in `text`, and their places."""
    for each in FIRST:
        if match := each.match(text):
            yield each, match
    if match := ran_out(text):
        yield speaker(text, match), match
    for each in LAST:
        if match := each.match(text):
            yield each, match


def _below_frame(hit: Hit) -> bool:
    """Whether the line is the source of a traceback's frame."""
    return any(_FRAME.search(line) for line in hit.before(2**12)[-1:])


def _in_trace(hit: Hit) -> bool:
    """Whether the lines before are a traceback in comments, too: a quoted log."""
    lines = map(take_apart, hit.before(2**13)[-40:])
    return any(each.comment and _TRACE.search(each.text) for each in lines)


def _in_output(hit: Hit) -> bool:
    """Whether the lines before are a cell's output in a notebook."""
    keys = [match[1] for line in hit.before() if (match := _LIST.match(line))]
    return bool(keys) and keys[-1].lower().endswith(TEXTS)


def _event(hit: Hit, log: str, said: LogLine, wording: Wording, match: re.Match[str]) -> Event:
    memory = wording.kind.is_oom
    text = (
        said.text[said.text.rfind(". ", 0, match.start()) + 1 :].strip() if memory else said.text
    )
    amounts = _amounts(text) if memory else NOTHING
    in_table = wording.kind in (Kind.ENDED, Kind.KILLED, Kind.BUS)
    before = hit.before() if memory or in_table or wording is DISK else []
    rank = said.rank if said.rank is not None else _number(_RANK, said.text)
    if rank is None and in_table:
        table = [_TABLE.search(line.strip()) for line in before[-4:]]
        rank = next((int(match[1]) for match in table if match), None)
    tasks = _TASKS.search(said.text)
    near = [said.text, *(take_apart(line).text for line in hit.after(1000)[:5])] if memory else []
    trace = trace_of(before, said) if memory else ()
    if not trace and "state_dict" in said.text[: match.start()]:
        trace = (said.text[: match.start()][-MOST_TEXT:],)
    if wording is DISK and any(map(_SEMAPHORE.search, [*before[-3:], *hit.after()])):
        wording = SHARED  # a semaphore needs /dev/shm
    if wording.name == "cuda" and any("pin_memory" in each for each in trace):
        wording = PINNED  # CUDA has the same text for host memory
    return Event(
        wording=wording,
        log=log,
        line=hit.number,
        text=" ".join(text.split())[:MOST_TEXT],
        amounts=amounts,
        ranks=_numbers(tasks[1]) if tasks else () if rank is None else (rank,),
        devices=_devices(said.text, amounts.device),
        pid=said.pid if said.pid is not None else _number(_PID, said.text),
        time=said.time or next((t for t in (take_apart(b).time for b in before[-20:]) if t), None),
        backend=backend_in(text) or backend_in(said.text),
        trace=trace,
        step=next(
            (step_of(b) for b in reversed(before) if step_of(b) is not None or validates(b)), None
        ),
        validated=memory and validated(before),
        recovered=any(_RECOVERED.search(line) for line in near),
        groups=tuple((k, v) for k, v in match.groupdict().items() if v is not None),
    )


def _devices(text: str, device: int | None) -> tuple[int, ...]:
    """`device`, and those of other ranks' messages in the same line."""
    glued = {int(number) for number in _GLUED.findall(text)}
    return tuple(sorted(glued | ({device} if device is not None else set())))


def _whole(said: LogLine, hit: Hit, wording: Wording) -> str:
    """The message of `said`, with lines below that continue it."""
    if not wording.goes_on or hit.is_title:
        return said.text
    whole, torn = (_with_rest(said.text, hit, said, words=words) for words in (True, False))
    if wording.kind.ran_out:
        # A terminal breaks lines within words and numbers; all but the last have one length.
        below = "".join(hit.after(4096)[:1])
        within = len(below) == len(hit.line) or _NUMBER.search(f"{hit.line[-2:]}|{below[:1]}")
        more = _amounts(torn).count - _amounts(whole).count
        whole = torn if more > 0 or (within and not more) else whole
        if "ried to allocate" not in whole and _amounts(whole) == _amounts(said.text):
            return said.text
    return whole


def _with_rest(text: str, hit: Hit, first: LogLine, *, words: bool) -> str:
    """`text` and the lines that continue its message. They break between `words`, or anywhere."""
    last = hit.line
    for line in hit.after(4096)[:MOST_LINES]:
        said = take_apart(line.lstrip("#> ") if first.comment else line)
        if said.rank not in (None, first.rank):
            continue
        if said.time is not None and first.time is None:
            break
        if launch_of(said.text) or line.lstrip().startswith("```"):
            break
        again = any(mark(text) and mark(said.text) for mark in _BEGINNINGS)
        if again or _WHOLE.search(text) or _NEW_ERROR.search(said.text) or len(text) > MOST_TEXT:
            break
        blank = words or last.endswith(" ") or line.startswith(" ")
        text, last = f"{text}{' ' * blank}{said.text}", line
    return text


def _amounts(text: str) -> Amounts:
    found = read(text)
    tensor = _TENSOR.search(text)
    if found.asked is None and tensor and (kind := tensor["type"] or "float") in _TYPE_BYTES:
        sizes = map(int, re.findall(r"\d{1,12}", tensor["shape"]))
        size = math.prod(sizes) * _TYPE_BYTES[kind]
        found = replace(found, asked=size if size < MOST_BYTES else None)
    return found


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    """The first number that `pattern` finds."""
    match = pattern.search(text)
    return int(match[match.lastindex or 0]) if match else None


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers in "1-3,5"; only the ends of an impossibly long range."""
    found: list[int] = []
    for low, high in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text):
        first, last = int(low), int(high or low)
        found += range(first, last + 1) if last - first < _MOST_TASKS else (first, last)
    return tuple(found)


def trace_of(before: Sequence[str], said: LogLine | None = None) -> tuple[str, ...]:
    """The last traceback of a rank before `said`; for JSON, the traceback in it."""
    said = said or take_apart(before[-1])
    if "Traceback (most" in said.text:
        inside = said.text[said.text.rindex("Traceback (most") :]
        return tuple(f"{m['file']}:{m['line']} in {m['name']}" for m in _FRAME.finditer(inside))
    lines = [each.text for each in map(take_apart, before) if each.rank == said.rank]
    starts = [i for i, line in enumerate(lines) if "Traceback (most" in line]
    if not starts:  # the poster cut it off: take the lines right above
        starts = [i for i in range(max(0, len(lines) - 80), len(lines)) if _frame(lines[i])]
        starts = [starts[0] - 1] if starts else []
    if not starts:
        return tuple(filter(_SOURCE.match, lines[-1:]))
    kept = []
    for line in lines[starts[-1] + 1 :]:
        frame = _frame(line)
        if frame is None and re.match(r"\s*\d+ ", line):
            continue  # what IPython shows around the line that is meant
        kept.append(f"{frame['file']}:{frame['line'] or ''} in {frame['name']}" if frame else line)
    return tuple(line[:200] for line in kept[-80:])


def _frame(line: str) -> re.Match[str] | None:
    return _FRAME.search(line) or _RICH.search(line)


def merged(events: Sequence[Event]) -> list[Event]:
    """`events`, with the same wording of several ranks merged into one.

    The end of a process counts once, by its last report: torchrun's table has the global rank.
    """
    ends = {(e.wording.name, e.log, e.pid): e for e in events if e.is_end}
    groups: dict[tuple[str, bool], Event] = {}
    for each in events:
        event = each
        if event.is_end:
            told = ends.pop((event.wording.name, event.log, event.pid), None)
            if told is None:
                continue
            event = replace(event, ranks=told.ranks or event.ranks)
        key = (event.wording.name, event.recovered)
        first = groups.get(key)
        groups[key] = event if first is None else replace(
            first,
            ranks=tuple(sorted({*first.ranks, *event.ranks})),
            devices=tuple(sorted({*first.devices, *event.devices})),
            times=first.times + event.times,
        )  # fmt: skip
    return list(groups.values())


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as "0-7" or "0-3, 6"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
