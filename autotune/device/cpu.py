"""The machine as one device, whose memory the ranks share within the limits of the cgroup.

Every function takes the roots of the file systems it reads. Without /proc (macOS), psutil and `os`
tell the size of the machine, and no limit is known.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

import psutil

from autotune.device.crowding import Crowding
from autotune.device.device import BusyProcess, DeviceInfo, EnergyCounters
from autotune.wire.cores import CORES
from autotune.wire.energy import of_host

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
POWERCAP = Path("/sys/class/powercap")

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is Arm's


class CpuDevice:
    """All of this machine's memory and cores that this process may use."""

    kind: Literal["cpu", "cuda"] = "cpu"
    infos: tuple[DeviceInfo, ...]

    def __init__(
        self,
        why: str = "--device",
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        powercap: Path = POWERCAP,
    ) -> None:
        self.why = why
        self.remark = ""
        self._powercap = powercap
        model, flags = _processor(proc)
        self._cores = cores(proc, cgroups)
        self._crowding = Crowding(self._cores)
        self._pinned: Sequence[int] = ()
        """Numbers of the cores of a share."""
        name = f"{model}, {self._cores} core{'s' if self._cores > 1 else ''}"
        capacity_bytes = host_memory_bytes(proc, cgroups)
        self.infos = (
            DeviceInfo(
                index=0,
                uuid="cpu",
                name=name,
                capacity_bytes=capacity_bytes,
                bf16=bool(flags & _BF16_FLAGS),
            ),
        )

    def in_use_bytes(self) -> tuple[int, ...]:
        """Always 0: on the CPU the device is the rank's process. The kernel frees a process's
        memory before it reports the exit, so there is nothing to wait for."""
        return (0,)

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """None: every machine runs other programs. Their load shows in the timing."""
        return ()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """An even share of the cores, how threads wait, and no CUDA device."""
        threads = max(1, self._cores // world_size)
        return {
            "CUDA_VISIBLE_DEVICES": "",
            "DS_ACCELERATOR": self.kind,
            "OMP_NUM_THREADS": str(threads),
            **self._crowding.variables(),
            **({CORES: ",".join(map(str, self._pinned))} if self._pinned else {}),
        }

    def shares(self, groups: int, ranks: int) -> Sequence[CpuDevice]:
        """Shares with cores of their own, so that groups do not disturb each other."""
        if groups == 1:
            return [self]
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        size = len(usable) // groups
        made = [copy(self) for _ in range(groups)]
        for number, share in enumerate(made):
            share._cores = max(1, self._cores // groups)
            share._pinned = usable[number * size : (number + 1) * size]
        return made

    def energy(self) -> EnergyCounters:
        """RAPL's counters of the processors, for all programs together."""
        if self._pinned:
            return EnergyCounters(lack="groups that run at once share the processors' counters")
        try:
            found = of_host(self._powercap)
        except PermissionError as error:
            file = error.filename
            return EnergyCounters(lack=f"only root may read {file} (chmod a+r {file} allows it)")
        except (OSError, ValueError) as error:
            return EnergyCounters(lack=f"{self._powercap} cannot be read: {error}")
        if not found.counters:
            return EnergyCounters(lack=f"{self._powercap} has no RAPL counter of a processor")
        return EnergyCounters(str(self._powercap), counters=(found,))

    def fingerprint(self) -> dict[str, Any]:
        """Processor, cores and memory."""
        (info,) = self.infos
        return {
            "kind": self.kind,
            "name": info.name,
            "cores": self._cores,
            "capacity_bytes": info.capacity_bytes,
            "bf16": info.bf16,
        }


def host_memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """The memory limit of this process and its children together: the machine's or a cgroup's.
    Limits of cgroups above ours bind us, too, so the least one counts."""
    meminfo = _table(proc / "meminfo")
    total = meminfo["MemTotal:"] * 1024 if meminfo else psutil.virtual_memory().total
    names = ("memory.max", "memory.limit_in_bytes")  # cgroup v2, v1
    texts = [_read(group / name) for group in _groups("memory", proc, cgroups) for name in names]
    return min([total, *(int(text) for text in texts if text.isdigit())])


def cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Cores that this process may keep busy: those it may run on, within the cgroup's CPU quota. A
    quota of 1.5 cores counts as 2: with one less, half a core would be idle."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [
        math.ceil(int(quota) / int(period))
        for group in _groups("cpu", proc, cgroups)
        for quota, period in [_quota_us(group)]
        if quota.isdigit()
    ]
    return max(1, min([usable or 1, *quotas]))


def host_oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Processes that the kernel killed for memory, in our cgroup or, if unknown, on the machine.

    Only differences are meaningful: a count that grew around a SIGKILL is evidence of an OOM.
    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, memory.events.
    """
    for group in _groups("memory", proc, cgroups):
        for name in ("memory.events", "memory.oom_control"):  # cgroup v2, v1
            counts = _table(group / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return _table(proc / "vmstat").get("oom_kill", 0)


def _processor(proc: Path) -> tuple[str, set[str]]:
    """Name of the first processor and the instruction sets it has."""
    fields: dict[str, str] = {}
    for line in _read(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name") or platform.processor() or platform.machine()
    flags = fields.get("flags") or fields.get("Features") or ""  # x86, Arm
    return model, set(flags.split())


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders of our cgroup and those above it, innermost first, in the trees with `controller`.

    /proc/self/cgroup has one line "number:controllers:path" for each tree; number 0 is v2's. In a
    container its folders may be missing: the walk then ends at the mount point.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            unified = cgroups / "unified"  # v2 mounted beside v1
            root = unified if unified.is_dir() else cgroups
        elif controller in controllers.split(","):
            root = cgroups / controller
        else:
            continue
        inner = root / path.lstrip("/")
        yield inner
        if inner != root:
            yield from inner.parents[: len(inner.relative_to(root).parts)]


def _quota_us(group: Path) -> tuple[str, str]:
    """Processor time of a cgroup in each period and that period; no number means no quota."""
    text = _read(group / "cpu.max")  # cgroup v2: "150000 100000" or "max 100000"
    if text:
        quota, period = text.split()
        return quota, period
    return _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")


def _table(path: Path) -> dict[str, int]:
    """Lines of "name number [unit]" as a mapping."""
    rows = [line.split() for line in _read(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: Path) -> str:
    """Text of a file without the space around it; empty if it is missing or not readable."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
