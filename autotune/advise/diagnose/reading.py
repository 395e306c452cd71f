"""Logs as streams: finds the lines that may matter in blocks of bytes.

For speed, a block is searched for a few literal anchors, and text is only decoded around a hit.
The block bounds memory, however long lines are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from autotune.errors import UsageError

BLOCK = 2**20
BEHIND = 2**16
"""Bytes to keep before a hit: a traceback and the step before an error."""
AHEAD = 2**13
"""Bytes to wait for after a hit: messages of several lines."""
MOST_OF_A_LINE = 2**13
MANY = 100
"""So many hits of one anchor in a block are many."""
_FAILURES = (
    b"ut of ", b"ut_of", b"utOf", b"OUT_OF", b"ot enough", b"ufficient", b"xceed", b"xhaust",
    b"ail", b"nable", b"annot", b"an't", b"an not", b"ould n", b"ed to alloc", b"ying to",
    b"ttempting", b" than", b"ow on", b"no more", b"no available", b"No available",
    b"llocation on", b"illed", b"usage >=", b"apac", b"xplo", b"InUse", b"nvalid",
)  # fmt: skip
"""Words of failure beside words of memory."""
ANCHORS = {
    b"emory": _FAILURES, b"lloc": _FAILURES, b"uffer": _FAILURES, b"RAM": _FAILURES,
    b" ram": _FAILURES, b"OUT_OF_": (), b"ut of mem": (), b"ALLOC": (), b"OOM": (),
    b"EXHAUSTED": (), b"hbm": (), b"xceed": (),
    b"oom": (b"oom-kill", b"oom_kill", b" oom"), b"MEMLIMIT": (), b"NRT_RES": (), b"nrt_": (),
    b"tal capac": (),
    b"illed": (), b" kill": (), b"o space left": (), b"mat1 and mat2": (),
    b"xception": (), b"oardInterr": (), b"atchdog": (),
    b"NCCL ": (b"NCCL WARN", b"NCCL op"), b"Assertion `": (), b"Killing ": (),
    b"o_batch_per_gpu": (), b"ccess fault": (), b"tation fault": (), b"launch failure": (),
    b"LLVM ERROR": (),
    b"_STATUS_": (b"NOT_INITIALIZED", b"EXECUTION_F", b"INTERNAL_E"),
    b"rror": (b"Error", b"urmstepd", b"CUDA error", b"os error", b"runtime error", b"rror code",
              b"error encountered"),
    b"SIG": (b"SIGKILL", b"SIGTERM", b"SIGHUP"),
    b"xit": (b"xitcode", b"xitCode", b"xit code", b"xit Code", b"xits with", b"xit status",
             b"xit with"),
}  # fmt: skip
"""Every line that a wording matches has one of these, or of `FOREIGN`. If a block has many of one,
e.g. since a metric's name has "error", its longer forms beside it are searched instead."""
FOREIGN = tuple(word.encode() for word in (
    "不足", "不够", "占满", "用满", "用完", "用光", "跑满", "吃满", "吃光",
    "耗尽", "溢出", "爆显存", "爆内存", "存爆", "부족", "памяти", "已杀死", "被kill", "被 kill",
    "強制終了", "文件太小", "が小さ", "너무 작", "подкачки", "Getötet",
    "Убито", "错误码", "返回码", "退出码", "返回值", "错误代码",
))  # fmt: skip

_NOISE = bytes(byte for byte in range(256) if not chr(byte).isascii() or not chr(byte).isalpha())
"""Most bytes of progress bars and numbers. Without them, a block without anchors is small."""

_COLOURS = re.compile(
    r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])"
    r"|(?:\\(?:u001[bB]|x1[bB]|0?33|e)|\^\[|[\ufffd\x00-\x08\x0e-\x1f])\[[\d;]*m"
    r"|\??\[(?:[01]|22|[39]\d|[014];[\d;]{1,12})m(?!\d+s)"
)
"""Colours, also without the escape character, or with one that JSON or a shell wrote out."""
_TAG = re.compile(r"</?(?:span|pre|code|font|b|p)\b[^<>]{0,200}>")
"""HTML of rich's output in notebooks."""
_JOINT = re.compile(r' *\\n", ?"(?!\w+":)')
"""Between the strings of a list, in JSON on one line."""
_STRAY = re.compile("[\x00-\x08\x0e-\x1f\x7f\u200b\ufeff]")
_LINE_END = re.compile(r"[\r\n]+")
_HOLE = re.compile(rb"\0{4,}")
"""What a writer leaves whose file someone else has truncated."""
_BLANK = re.compile(rb"\r?\n[ \t]*\r?\n")
_MAGIC = {
    b"\x7fELF": "a program", b"\x1f\x8b": "compressed; zcat it into diagnose -",
    b"PK\x03\x04": "a zip archive; unzip -p it into diagnose -",
    b"\x28\xb5\x2f\xfd": "compressed; zstdcat it into diagnose -",
    b"BZh": "compressed; bzcat it into diagnose -",
    b"\xfd7zXZ": "compressed; xzcat it into diagnose -",
    b"\x89PNG": "an image", b"%PDF": "a PDF", b"\x80\x02": "a pickle", b"\x80\x04": "a pickle",
}  # fmt: skip
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Hit:
    """A line with an anchor, and its place. Lines around it are decoded on request."""

    number: int
    """Number of the line, from 1."""
    block: bytes
    start: int
    end: int

    @property
    def bytes(self) -> bytes:
        return self.block[self.start : self.end]

    @property
    def line(self) -> str:
        return decoded(self.bytes)

    @property
    def is_title(self) -> bool:
        """Whether it is at the beginning, above a blank line, as titles of issues are."""
        first = self.number == 1 or (self.number < 7 and self.bytes.startswith(b"# "))
        plain = b"#" not in self.block[: self.start].replace(b" #", b"")
        return first and plain and bool(_BLANK.match(self.block, self.end))

    def before(self, size: int = BEHIND) -> list[str]:
        """Lines before it, the nearest last; the first of them may be cut."""
        return _lines(self.block[max(0, self.start - size) : self.start])

    def after(self, size: int = AHEAD) -> list[str]:
        return _lines(self.block[self.end : self.end + size])


class Scanner:
    """Finds hits in a stream, piece by piece."""

    def __init__(self) -> None:
        self._held = b""
        self._searched = 0
        """Number of held bytes, from the beginning, that were searched already."""
        self.line = 1
        """Line number of the rest."""
        self.bytes_read = 0

    def feed(self, piece: bytes) -> Iterator[Hit]:
        """Hits so far; the last lines are searched later."""
        self.bytes_read += len(piece)
        self._held += piece
        edge = len(self._held) - AHEAD
        if edge <= self._searched:
            return
        cut = max(self._held.rfind(b"\n", self._searched, edge),
                  self._held.rfind(b"\r", self._searched, edge)) + 1  # fmt: skip
        if cut <= self._searched:
            if edge - self._searched < BLOCK:
                return
            cut = edge  # an endless line
        yield from self._search(cut)

    def finish(self) -> Iterator[Hit]:
        """Hits in the rest."""
        yield from self._search(len(self._held))

    def tail(self) -> list[str]:
        """The last lines that were fed."""
        return _lines(self._held[-BEHIND:])

    def _search(self, cut: int) -> Iterator[Hit]:
        block, begin = self._held, self._searched
        ends = -1
        counted, line = begin, self.line
        for position in self._positions(block, begin, cut):
            if position < ends:
                continue
            start = _start_of_line(block, position)
            ends = min(_end_of_line(block, position), start + MOST_OF_A_LINE)
            line += block.count(b"\n", counted, start)
            counted = max(counted, start)
            yield Hit(line, block, start, ends)
        self.line += block.count(b"\n", begin, cut)
        keep = max(0, cut - BEHIND)
        self._held, self._searched = block[keep:], cut - keep

    @staticmethod
    def _positions(block: bytes, begin: int, cut: int) -> list[int]:
        """Positions of anchors, in order: the first of each line and anchor."""

        def of(anchor: bytes, most: int = cut) -> list[int]:
            found: list[int] = []
            at = block.find(anchor, begin, cut)
            while at >= 0 and len(found) < most:
                found.append(at)
                at = block.find(anchor, _end_of_line(block, at), cut)
            return found

        text = block[begin:cut]
        letters = text.translate(None, _NOISE)

        def may_be(anchor: bytes) -> bool:
            return anchor.translate(None, _NOISE) in letters

        positions: list[int] = []
        words = set() if text.isascii() else set(FOREIGN)
        for anchor, finer in ANCHORS.items():
            found = of(anchor, MANY if finer else cut) if may_be(anchor) else []
            if finer and len(found) == MANY:
                words.update(finer)
            else:
                positions += found
        for word in words:
            positions += of(word) if may_be(word) else []
        return sorted(positions)


def pieces(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The content of `stream` as UTF-8, each piece as soon as it is there. Raises UsageError if
    the stream is empty or no text."""
    read = getattr(stream, "read1", stream.read)
    first = read(BLOCK)
    while first and len(first) < 4:
        more = read(BLOCK)
        if not more:
            break
        first += more
    if not first:
        raise UsageError(f"{name}: is empty")
    encoding = _encoding(first, name)
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    piece = first
    while piece:
        yield piece if decoder is None else decoder.decode(piece).encode("utf-8", "replace")
        piece = read(BLOCK)


def _encoding(first: bytes, name: str) -> str | None:
    """The encoding by the first bytes; None for UTF-8 and the like."""
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            raise UsageError(f"{name}: not a log but {what}")
    for bom, encoding in _BOMS.items():
        if first.startswith(bom):
            return encoding
    sample = _HOLE.sub(b"", first)[:4096]
    even, odd = sample[::2], sample[1::2]
    for mostly_zero, other, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(sample) >= 4 and mostly_zero.count(0) > 0.4 * len(odd) and _is_text(other):
            return encoding
    if not (sample and _is_text(sample)):
        raise UsageError(f"{name}: is binary; name a text log")
    return None


def _is_text(sample: bytes) -> bool:
    """Whether it has hardly any bytes that no text has."""
    strange = sum(byte < 32 and byte not in b"\t\n\r\x0b\x0c\x1b\x08" for byte in sample)
    return strange <= 0.03 * len(sample)


def _start_of_line(block: bytes, position: int) -> int:
    """The beginning of the line of `position`, or a near place in a long line."""
    least = max(0, position - MOST_OF_A_LINE // 4)
    newline = block.rfind(b"\n", least, position) + 1 or least
    return max(newline, block.rfind(b"\r", newline, position) + 1)


def _end_of_line(block: bytes, position: int) -> int:
    most = position + MOST_OF_A_LINE
    newline = block.find(b"\n", position, most)
    ends = newline if newline >= 0 else min(most, len(block))
    carriage = block.find(b"\r", position, ends)
    return carriage if carriage >= 0 else ends


def decoded(text: bytes) -> str:
    """`text` decoded, without colours."""
    said = text.decode("utf-8", "replace")
    if "[" in said or "\x1b" in said:
        said = _COLOURS.sub("", said)
    if '\\n",' in said:
        said = _JOINT.sub(" ", said)
    if "</" in said:
        said = _TAG.sub("", said)
    return _STRAY.sub("", said)


def _lines(text: bytes) -> list[str]:
    lines = _LINE_END.split(decoded(text))
    return [line[:MOST_OF_A_LINE] for line in lines if line.strip()]
