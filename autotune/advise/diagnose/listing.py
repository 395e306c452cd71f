"""Listings of a machine in a log, of nvidia-smi, top, df and the like. The last one counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.advise.diagnose.amounts import parse
from autotune.advise.diagnose.loads import MARGINAL, Cause, DeviceLoad, scarce
from autotune.units import gib

_MAY_BE = re.compile(
    r"MiB|Gi?B|[Mm]em|MEM|Sw[ap]|SW[AP]|VRAM|\[\d+\]|GPU|/dev/shm|RAM|[Hh]ost|Device|total +used"
)
_NUMBER = r"(?<!\d)(?<!\d[.,])\d{1,15}(?:[.,]\d{1,9})?(?![.,]?\d)"
"""A number with a decimal point or comma, but no part of a version."""
_SIZE = rf"({_NUMBER}) ?([KMGT]i?B?)"
_QUOTED = re.compile(r"\s*\"(.*?)(?:\\n)?\",?\s*$|(?:> ?)+(.*)$")
"""A line in a notebook, or quoted in a post."""
_NAME = re.compile(r"^[|│] +(\d{1,3}) +[A-Z].*[|│] +[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
_TABLE = re.compile(rf"[|│] *{_SIZE} */ *{_SIZE} *[|│](?: *(\d{{1,3}}) ?%)?")
_GPUSTAT = re.compile(r"^(?:\S+ +)?\[(\d{1,3})\] [^|]*\|([^|]*)\| *(\d+) */ *(\d+) *M")
_PROCESS = re.compile(
    r"^[|│] *(\d{1,3})(?: +(?:N/A|\d+)){0,2} +(\d{1,9}) +(?:[CGM+]{1,4} +)?"
    r"(\S.{0,200}?) +(\d{1,9}) ?MiB *[|│]"
)
_HELD_BY = re.compile(r"([\w.:/-]{1,60})\((\d{1,9})M\)")
"""A user and the memory in gpustat's rows, with the output of its flags."""
MUCH = 0.1
"""Holders of a smaller share of a device are not named."""
_PERCENT = re.compile(r"(\d{1,3}) ?%")
_NVTOP = re.compile(rf"GPU\[[|│ ]*(\d{{1,3}})%\] *MEM\[[|│ ]*{_SIZE}/{_SIZE}\]")
_DEVICE_LINE = re.compile(r"^ ?Device (\d{1,3}) \[")
_ROCM = re.compile(r"^ *(\d{1,3})\s.*\s(\d{1,3})% +(\d{1,3})% *$")
_ROCM_LINE = re.compile(r"GPU\[(\d{1,3})\]\s*: ([^:]+): (\d+)")
_CSV_ROW = re.compile(r"^[^\d|]*\d[^,|]*,[^\d|]*\d[^|]*$")
_HTOP = re.compile(rf"\b(Mem|Swp) *\[[^\]\d]*(?:{_SIZE}/{_SIZE}|({_NUMBER})%) *\]")
_TOP = re.compile(rf"^(?:([KMG]i?B) )?(Mem|Swap) ?: *({_NUMBER})([kmgKMG]?\+?) *total,(.*)")
_TOP_PART = re.compile(rf"({_NUMBER})([kmgKMG]?\+?) *(used|free|buff\S*|avail Mem|cached)")
_FREE_HEAD = re.compile(r"^\s+total\s+used\s+free\b.*")
_FREE = re.compile(rf"^(Mem|Swap):((?:\s+{_NUMBER}[KMGTi]*B?){{3,6}})\s*$")
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable|SwapTotal|SwapFree): +(\d+) kB")
_MAIN = r"(?:RAM|(?:[Hh]ost|[Ss]ystem|CPU|[Mm]ain) (?:memory|RAM|mem))"
_PERCENTS = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        ("Mem", rf"\bMEM: [^\d%]*({_NUMBER})%.*USED:"),
        ("Swap", rf"\bSWP: [^\d%]*({_NUMBER})%"),
        ("Mem", rf"(?:^|\s)MEM +[-–]? *({_NUMBER})%"),
        ("Swap", rf"(?:^|\s)SWAP +[-–]? *({_NUMBER})%"),
        ("Mem", rf"\b(?:{_MAIN}|[Hh]ost)\b[^%\n\d]{{0,30}}({_NUMBER}) ?%(?!\|)"),
        ("Mem", rf"\b(?<!exceeds )({_NUMBER}) ?%[^%\n\d]{{0,12}}\b{_MAIN}\b"),
    )
)
"""Forms of nvitop, of glances, and of people."""
_SHM = re.compile(r"^\S+ +\S+ +\S+ +\S+ +(\d{1,3})% +/dev/shm$")


@dataclass(kw_only=True)
class Listing:
    """Learns line by line. Shares are from 0 to 1; None if unknown."""

    devices: dict[int, DeviceLoad] = field(default_factory=dict)
    host: float | None = None
    swap: float | None = None
    shm: float | None = None
    line: int = 0
    """Number of its first line."""
    log: str = ""
    _index: int = -1
    """Index of the present rows' device."""
    _columns: tuple[str, ...] = ()
    _rows: int = 0
    _total: float = 0.0
    _free_columns: tuple[str, ...] = ()
    _held: dict[int, dict[str, int]] = field(default_factory=dict)
    """By device: holders of memory, and their bytes."""
    _totals: dict[int, float] = field(default_factory=dict)
    """Sizes of those devices, in bytes."""
    _known: dict[str, int] = field(default_factory=dict)
    """Values of lines with one number each."""

    def look(self, line: str, number: int, log: str) -> None:
        """Learn from `line`."""
        if not (_MAY_BE.search(line) or self._columns):
            return
        if quoted := _QUOTED.match(line):
            line = quoted[1] or quoted[2] or ""
        before = (dict(self.devices), self.host, self.swap, self.shm)
        if process := _PROCESS.search(line):
            self._holds(int(process[1]), f"process {process[2]} ({process[3]})", process[4])
        elif not self._of_devices(line):
            self._of_host(line)
        if not self.line and before != (self.devices, self.host, self.swap, self.shm):
            self.line, self.log = number, log

    def text(self) -> str:
        """The listing in one line."""
        said = [
            f"device {each.index}: {each.share:.0%} full"
            + (f", computes {each.percent} %" if each.percent is not None else "")
            for _, each in sorted(self.devices.items())
        ]
        for name, share in (
            ("host memory", self.host),
            ("swap", self.swap),
            ("/dev/shm", self.shm),
        ):
            said += [f"{name}: {share:.0%} in use"] if share is not None else []
        return "; ".join(said)

    def bottleneck(self) -> Cause | None:
        devices = [each for _, each in sorted(self.devices.items())]
        found = scarce(devices, host=self.host, swap=self.swap, shm=self.shm)
        full = [each.index for each in devices if each.share >= MARGINAL]
        if found is not None and found.name == "device memory" and (who := self.holders(full)):
            return replace(found, sentence=f"{found.sentence}; {who}")
        return found

    def holders(self, devices: Iterable[int]) -> str:
        """Holders of much memory on one of `devices`, or on any, the largest first."""
        rows = sorted(
            ((size, who, index)
             for index in devices or self._held for who, size in self._held.get(index, {}).items()
             if size >= MUCH * self._totals.get(index, 10 * 2**30)), reverse=True,
        )  # fmt: skip
        return ", ".join(f"{who} holds {gib(size)} of device {at}" for size, who, at in rows[:4])

    def _holds(self, index: int, who: str, mib: str) -> None:
        self._held.setdefault(index, {})[who] = int(mib) * 2**20

    def _device(self, index: int, used: float, total: float, percent: str | int | None) -> bool:
        if not total or used > total:
            return False
        self.devices[index] = DeviceLoad(
            index, used / total, None if percent is None else int(percent)
        )
        return True

    def _of_devices(self, line: str) -> bool:
        found: re.Match[str] | None
        if name := _NAME.search(line) or _DEVICE_LINE.search(line):
            self._index = int(name[1])
        elif (found := _TABLE.search(line)) and (sizes := _sizes(*found.groups()[:4])):
            index = self._index if self._index >= 0 else len(self.devices)
            self._index = -1
            self._totals[index] = sizes[1]
            self._held.pop(index, None)
            return self._device(index, *sizes, found[5])
        elif found := _GPUSTAT.search(line):
            percent = _PERCENT.search(found[2])
            self._totals[int(found[1])] = float(found[4]) * 2**20
            for who, size in _HELD_BY.findall(line[found.end() :]):
                self._holds(int(found[1]), who, size)
            return self._device(
                int(found[1]), float(found[3]), float(found[4]), percent and percent[1]
            )
        elif (found := _NVTOP.search(line)) and (sizes := _sizes(*found.groups()[1:])):
            return self._device(max(0, self._index), *sizes, found[1])
        elif "VRAM%" in line:
            self._columns = ("VRAM%", "GPU%" if "GPU%" in line else "")
        elif self._columns[:1] == ("VRAM%",) and (found := _ROCM.search(line)):
            return self._device(int(found[1]), float(found[2]), 100, found[3])
        elif found := _ROCM_LINE.search(line):
            return self._rocm(int(found[1]), found[2], int(found[3]))
        elif "memory.used" in line or "memory.total" in line:
            if "--query" not in line:
                self._columns = tuple(part.split("[")[0].strip() for part in line.split(","))
                self._rows = 0
        elif _CSV_ROW.search(line) and (self._columns or line.count(" MiB") == 2):
            return self._csv(line)
        else:
            return False
        return True

    def _rocm(self, index: int, what: str, value: int) -> bool:
        name = f"{'used' if 'Used' in what else 'total' if 'Total' in what else what} {index}"
        if "VRAM" in what or "GPU use" in what:
            self._known["use " + str(index) if "GPU use" in what else name] = value
        else:
            return False
        used, total = self._known.get(f"used {index}"), self._known.get(f"total {index}", 0)
        return used is None or self._device(index, used, total, self._known.get(f"use {index}"))

    def _csv(self, line: str) -> bool:
        parts = [part.strip() for part in line.split(",")]
        if self._columns:
            row = dict(zip(self._columns, parts, strict=False))
            if len(parts) != len(self._columns):
                return False
        else:  # without a header: usually memory.used, memory.total
            sizes = [part for part in parts if part.endswith("MiB")]
            row = dict(zip(("memory.used", "memory.total"), sizes, strict=False))
            row["utilization.gpu"] = next((part for part in parts if part.endswith("%")), "")
            row["index"] = parts[0]
        numbers = {
            name: int(found[0]) for name, value in row.items()
            if (found := re.match(r"\d{1,9}", value)) is not None
        }  # fmt: skip
        total, used = numbers.get("memory.total", 0), numbers.get("memory.used")
        if used is None and "memory.free" in numbers:
            used = total - numbers["memory.free"]
        index = numbers.get("index", self._rows)
        self._rows += 1
        return used is not None and self._device(
            index, used, total, numbers.get("utilization.gpu")
        )

    def _of_host(self, line: str) -> None:
        found: re.Match[str] | None
        for found in _HTOP.finditer(line):
            sizes = _sizes(*found.groups()[1:5])
            self._share(found[1], *(sizes or (_plain(found[6] or "0"), 100.0)))
        if found := _TOP.match(line.strip()):
            self._top(found)
        elif _FREE_HEAD.match(line):
            self._free_columns = tuple(line.split())
        elif found := _FREE.match(line.strip()):
            self._free(found[1], found[2].split())
        elif found := _MEMINFO.match(line.strip()):
            self._meminfo(found[1], int(found[2]))
        elif found := _SHM.match(line.strip()):
            self.shm = int(found[1]) / 100
        else:
            for what, pattern in _PERCENTS:
                if found := pattern.search(line):
                    self._share(what, _plain(found[1]), 100)

    def _meminfo(self, name: str, size: int) -> None:
        self._known[name] = size
        for whole, rest, what in (("MemTotal", "MemAvailable", "Mem"),
                                  ("SwapTotal", "SwapFree", "Swap")):  # fmt: skip
            if {whole, rest} <= self._known.keys():
                self._share(what, self._known[whole] - self._known[rest], self._known[whole])

    def _share(self, what: str, used: float, total: float) -> None:
        if total and 0 <= used <= total:
            if what == "Mem":
                self.host, self._total = used / total, total
            else:
                self.swap = used / total

    def _top(self, found: re.Match[str]) -> None:
        total = _plain(found[3], found[4])
        parts = {name: _plain(size, unit) for size, unit, name in _TOP_PART.findall(found[5])}
        if found[2] == "Swap" and "avail Mem" in parts and self._total:
            self._share("Mem", self._total - parts["avail Mem"], self._total)
            host = self.host, self._total
            self._share("Swap", parts.get("used", 0), total)
            self.host, self._total = host
        else:
            self._share(found[2], parts.get("used", 0), total)

    def _free(self, what: str, values: list[str]) -> None:
        sizes = [
            _plain(found[1], found[2])
            for value in values if (found := re.match(rf"({_NUMBER})([KMGT]?)", value))
        ]  # fmt: skip
        row = dict(zip(self._free_columns, sizes, strict=False))
        used, total = sizes[1], sizes[0]
        if what == "Mem" and "available" in row:
            used = total - row["available"]
        elif what == "Mem":
            used -= row.get("buffers", 0) + row.get("cached", 0)
        self._share(what, used, total)


def _plain(size: str, unit: str = "") -> float:
    """A size in the common units of a listing. top cuts digits off and prints "+"."""
    if unit.endswith("+"):
        return 10 * _plain(size, unit[:-1])
    return float(size.replace(",", ".")) * 1024.0 ** " KMGT".index(unit.upper() or " ")


def _sizes(
    used: str | None, unit: str | None, total: str | None, whole: str | None
) -> tuple[float, float] | None:
    if used is None or total is None:
        return None
    first, second = (parse(f"{_plain(size)} {of}") for size, of in ((used, unit), (total, whole)))
    return None if first is None or not second else (first, second)
