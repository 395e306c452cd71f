"""Prefixes of launchers, loggers and schedulers before a message, and the rank in them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime

_TIME = (
    r"\[?(?P<time>\d{4}[-/]\d\d[-/]\d\d[T _-]\d\d:\d\d(?::\d\d)?)(?:[.,:]\d+){0,2}"
    r"(?:Z|[+-]\d\d:?\d\d)?(?: (?:UTC|GMT|[CEMP][DES]?T)\b)?\]?[:,]?"
)
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"[^|]{0,60}\d{1,3}%\|[^|]{0,200}\| ?\d+/\d+ \[[^\]]{0,300}\]",  # a bar without an end
        r"[EWIF]\d{4} \d\d:\d\d:\d+\.\d+ +(?:\d+ )?\S+:\d+\] ",  # torch 2.3+
        r"\[[EWI] \w+\.cpp:\d+\] ",  # torch up to 2.2
        r"\[rank:? ?(?P<rank>\d+)\](?:\[[^\]]*\])?:?",  # torch 2.2+, Lightning
        r"\[default(?P<rank>\d+)\]:",  # torchrun --tee
        r"\[(?:[\w/-]+ ?\| ?)?Rank (?P<rank>\d+)\]:?",
        r"[Rr]ank[ :_]?(?P<rank>\d+)\]?(?::|,| \||(?= -))",
        r"\[\d+,(?P<rank>\d+)\](?:<std(?:out|err)>)?:",  # mpirun --tag-output
        r"(?P<rank>\d{1,5}): (?=\D|\d{4}-)",  # srun --label
        r"\([\w.:() -]*?(?:rank=(?P<rank>\d+)[, ]*)?pid=(?P<pid>\d+)[^)]*\)",  # Ray, vLLM
        r"\(raylet[^)]{0,60}\)",
        r"\[PID: (?P<pid>\d+)\]",  # CANN
        r"\[[\w.-]*:\d+ ?:? ?\d*\] ?\[?(?P<rank>\d+)\]? NCCL",
        # The host and a rank on it, but no line of a file.
        r"\[(?![\w.-]*\.(?:py|pyx|cpp|cc|cu|c|h|hpp|rs|go):)(?=[^A-Za-z\s:]*[A-Za-z])"
        r"[\w.-]++:(?P<rank>\d{1,3})\]:",
        r"\d{1,7}:(?=\[)",  # grep -n
        r"(?!>>> )> ?",  # quoted, as in mails
        r"(?:`{1,3}|\*\*)(?=[\w\[#])",  # Markdown
        r"(?:ERROR|INFO|WARNING|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+:\d+\]",  # vLLM
        _TIME,
        r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?= )",
        r"\[(?:\d\d[-/]\d\d(?:[-/]\d{4})? )?\d\d:\d\d:\d\d(?: [\w.]+)?\]:?",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ (?:[\w.-]+(?:\[\d+\])?:)?",  # syslog
        r"\[ *\d+\.\d{6}\]",  # the kernel's
        r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|[EWI]\d{3,4})\]?[:|]?"
        r"(?:[\w.]+:(?=\s|\S*Error))?(?=[\s\[|-]|$)",
        r"\[[\w./-]+\.(?:py|cpp|cc):\d+(?::\w+)?\]",
        r"(?=[^a-z\s:]*[a-z])[\w.-]++(?<=\d): (?=\S)",  # pdsh: the host
        r"[\w.-]+ +\| ",  # docker compose
        r"(?:stderr|stdout|STDERR):",
        r"[-|│>*•] ",
        r"\[\d+\](?=:| +\[| +\d+%\|)",
        # Another rank's code, or a traceback without ends of lines.
        r"(?:[^\"'`]{0,200}[)\]]|.{0,4000}\^ +)(?=(?:\w+\.)*[A-Z]\w*(?:Error|Exception): )",
    )
)
_COMMENT = re.compile(r"(?:#+|//+)(?: +(?=\S)|(?=>|[A-Z]\w*Error: ))")
_STRING = re.compile(
    r"[\[{]?\s*(?:\"(?P<key>\w{1,20})\":\s*\[?\s*(?=\")|(?=b?[\"'].*\\n))b?[\"']"
    r"(?P<said>.*?)[\"']?\]?,?$"
)
"""A string of JSON or Python that fills a line, as in a notebook's output."""
TEXTS = ("message", "msg", "log", "text", "line", "event", "error", "exception", "exc_info",
          "traceback", "stack", "stack_trace", "textpayload", "textPayload", "body", "evalue",
          "stderr", "output")  # fmt: skip
_RANKS = ("rank", "global_rank", "local_rank", "RANK", "process_index")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line, taken apart."""

    text: str
    rank: int | None = None
    pid: int | None = None
    time: str | None = None
    """ISO 8601 without a zone, to order the lines of several logs."""
    comment: bool = False
    """Whether it is in a comment, or in a string of unknown origin."""


def take_apart(line: str) -> LogLine:
    """A line without its prefixes; the text in a line of JSON."""
    rank, time = None, None
    line = line.strip()
    if line.startswith("{") and line.endswith("}"):
        line, rank = _of_json(line)
    pid, comment = None, False
    if string := _STRING.match(line):
        line = string["said"].replace("\\n", " ").replace('\\"', '"')
        comment = not (string["key"] or "-").lower().endswith(TEXTS)
    for _ in range(8):
        line = line.lstrip()
        if mark := _COMMENT.match(line):
            comment, line = True, line[mark.end() :]
        found = next(filter(None, (each.match(line) for each in _PREFIXES)), None)
        if found is None:
            break
        groups = found.groupdict()
        if rank is None and groups.get("rank") is not None:
            rank = int(groups["rank"])
        if pid is None and groups.get("pid") is not None:
            pid = int(groups["pid"])
        time = time or groups.get("time")
        if not found.end():
            break
        line = line[found.end() :]
    return LogLine(text=line.rstrip("`* \t"), rank=rank, pid=pid, time=_iso(time), comment=comment)


def _iso(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.replace("/", "-").replace("_", "T")).isoformat()
    except ValueError:
        return None


def _of_json(line: str) -> tuple[str, int | None]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return line, None
    texts = _texts(body) or [text for each in body.values() for text in _texts(each)]
    ranks = [body[key] for key in _RANKS if isinstance(body.get(key), int)]
    return (" ".join(" ".join(texts).split()) or line), (ranks[0] if ranks else None)


def _texts(body: object) -> list[str]:
    """The texts in a dictionary; empty for other values."""
    said = [body.get(key) for key in TEXTS] if isinstance(body, dict) else []
    return [each for each in said if isinstance(each, str)]
