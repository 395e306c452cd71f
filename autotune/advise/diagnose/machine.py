"""This machine without a log: holders of memory, the bottleneck, the next command.

It ends no process, and opens nothing on a device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from autotune.advise.diagnose.loads import MARGINAL, DeviceLoad, scarce
from autotune.advise.diagnose.show import VERSION, clean
from autotune.device.cpu import CGROUPS, host_memory_bytes
from autotune.device.cuda import CudaDevice, NoCuda, open_cuda
from autotune.units import gib

SAFE = 0.85
"""A smaller used share of a device's memory is safe; above `loads.MARGINAL` it is dangerous."""
EVERY_S = 2.0
VARIABLES = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds memory of a device."""

    pid: int
    device: int
    held_bytes: int
    """0 if the driver does not tell."""
    command: str
    orphan: bool
    """Whether its parent process is gone: mostly a leftover rank."""


@dataclass(frozen=True, kw_only=True)
class SeenGpu:
    """The present state of a device."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    utilisation_percent: int | None

    @property
    def share(self) -> float:
        return self.used_bytes / self.total_bytes

    @property
    def level(self) -> str:
        return "safe" if self.share < SAFE else "marginal" if self.share < MARGINAL else "danger"


@dataclass(frozen=True, kw_only=True)
class Host:
    """Main memory, in bytes, within the limit of the cgroup."""

    total_bytes: int
    used_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    shm_total_bytes: int | None
    shm_used_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class SeenMachine:
    gpus: tuple[SeenGpu, ...]
    no_gpu: str | None
    holders: tuple[Holder, ...]
    host: Host
    driver: str | None
    packages: Mapping[str, str]
    environment: Mapping[str, str]


def look() -> SeenMachine:
    """The present state of this machine."""
    device = open_cuda()
    gpus: tuple[SeenGpu, ...] = ()
    holders: tuple[Holder, ...] = ()
    driver, no_gpu = None, None
    if isinstance(device, NoCuda):
        no_gpu = device.reason
    else:
        gpus, holders = _gpus(device), _holders(device)
        driver = str(device.fingerprint()["driver"])
    return SeenMachine(
        gpus=gpus,
        no_gpu=no_gpu,
        holders=holders,
        host=_host(),
        driver=driver,
        packages={name: found for name in PACKAGES if (found := _version(name))},
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def bottleneck(machine: SeenMachine) -> str | None:
    """The present bottleneck in one sentence; None without one."""
    host = machine.host
    found = scarce(
        [DeviceLoad(gpu.index, gpu.share, gpu.utilisation_percent) for gpu in machine.gpus],
        host=host.used_bytes / host.total_bytes,
        swap=host.swap_used_bytes / max(1, host.swap_total_bytes),
        shm=(host.shm_used_bytes or 0) / host.shm_total_bytes if host.shm_total_bytes else None,
    )
    return f"{found.name}: {found.sentence}" if found else None


def next_command(machine: SeenMachine) -> str:
    free = [gpu.index for gpu in machine.gpus if gpu.share < 0.05]
    if machine.gpus and not free:
        return "python -m autotune diagnose --watch"
    if len(free) < len(machine.gpus):
        return f"python -m autotune --budget 30m --device cuda:{','.join(map(str, free))}"
    return "python -m autotune --budget 30m"


def lines(machine: SeenMachine) -> list[str]:
    """Lines for a terminal."""
    scarce = bottleneck(machine)
    said = [f"Bottleneck: {scarce}" if scarce else "No bottleneck to see now", ""]
    if machine.no_gpu:
        said.append(f"no device: {machine.no_gpu}")
    for gpu in machine.gpus:
        busy = "" if gpu.utilisation_percent is None else f", computes {gpu.utilisation_percent} %"
        said.append(
            f"device {gpu.index} ({gpu.name}): {gib(gpu.used_bytes)} of {gib(gpu.total_bytes)},"
            f" {gpu.share:.0%}: {gpu.level}{busy}"
        )
        for each in machine.holders:
            if each.device == gpu.index:
                held = gib(each.held_bytes) if each.held_bytes else "unknown"
                left = ", left over: its parent process is gone" if each.orphan else ""
                said.append(f"    {held}: process {each.pid} ({each.command}){left}")
                said.append(f"      to end it: kill {each.pid}")
    host = machine.host
    said.append(
        f"host memory: {gib(host.used_bytes)} of {gib(host.total_bytes)},"
        f" {host.used_bytes / host.total_bytes:.0%}; swap {gib(host.swap_used_bytes)} of"
        f" {gib(host.swap_total_bytes)}"
    )
    if host.shm_total_bytes is not None and host.shm_used_bytes is not None:
        said.append(f"/dev/shm: {gib(host.shm_used_bytes)} of {gib(host.shm_total_bytes)}")
    software = [f"driver {machine.driver}"] if machine.driver else []
    software += [f"{name} {found}" for name, found in machine.packages.items()]
    said.append(", ".join(software) or "torch is not installed")
    said += [f"{name}={value}" for name, value in machine.environment.items()]
    if machine.gpus and not any("ALLOC_CONF" in name for name in machine.environment):
        said.append("PYTORCH_CUDA_ALLOC_CONF is not set: the allocator's defaults")
    said += ["", f"Next: {next_command(machine)}"]
    return [clean(each) for each in said]


def body(machine: SeenMachine) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "version": VERSION,
        **asdict(machine),
        "gpus": [asdict(gpu) | {"share": gpu.share, "level": gpu.level} for gpu in machine.gpus],
        "bottleneck": bottleneck(machine),
        "next": next_command(machine),
    }


def watch() -> None:
    """Shows the machine again and again, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    try:
        if not console.is_terminal:
            while True:
                print("\n".join(lines(look())), end="\n\n", flush=True)
                time.sleep(EVERY_S)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(Text("\n".join(lines(look()))), refresh=True)
                time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return


def _gpus(device: CudaDevice) -> tuple[SeenGpu, ...]:
    rows = zip(device.infos, device.in_use_bytes(), device.utilisation(), strict=True)
    return tuple(
        SeenGpu(
            index=info.index,
            name=info.name,
            total_bytes=info.capacity_bytes,
            used_bytes=used,
            utilisation_percent=percent,
        )
        for info, used, percent in rows
    )


def _holders(device: CudaDevice) -> tuple[Holder, ...]:
    found = []
    for process in device.other_processes():
        command, parent = process.name, None
        try:
            known = psutil.Process(process.pid)
            command, parent = " ".join(known.cmdline()) or process.name, known.ppid()
        except psutil.Error:
            pass  # of another user, or outside this container
        found.append(
            Holder(
                pid=process.pid,
                device=process.device_index,
                held_bytes=process.used_bytes,
                command=clean(command)[:80],
                orphan=parent == 1 and os.getppid() != 1,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.device, -each.held_bytes)))


def _host() -> Host:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    total, used = host_memory_bytes(), memory.total - memory.available
    if total < memory.total:
        used = _cgroup_used() or used
    shm = None
    if os.path.isdir("/dev/shm"):  # noqa: PTH112 - one question
        shm = psutil.disk_usage("/dev/shm")
    return Host(
        total_bytes=total,
        used_bytes=min(used, total),
        swap_total_bytes=swap.total,
        swap_used_bytes=swap.used,
        shm_total_bytes=shm.total if shm else None,
        shm_used_bytes=shm.used if shm else None,
    )


def _cgroup_used() -> int | None:
    """Memory of the container's cgroup, without the file cache, which can be freed."""
    for current, stat in (("memory.current", "memory.stat"),
                          ("memory/memory.usage_in_bytes", "memory/memory.stat")):  # fmt: skip
        try:
            held = int((CGROUPS / current).read_text())
            rows = dict(line.split() for line in (CGROUPS / stat).read_text().splitlines())
        except (OSError, ValueError):
            continue
        cache = rows.get("inactive_file", rows.get("total_inactive_file", "0"))
        return max(0, held - int(cache))
    return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
