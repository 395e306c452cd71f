"""CUDA devices through NVML, which neither creates a CUDA context nor needs torch.

CUDA_VISIBLE_DEVICES decides the devices and their order. Its integers are in PCI order, that of
NVML and nvidia-smi. CUDA itself counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
Ranks get UUIDs, which mean the same device in either order.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import psutil
import pynvml as nvml

from autotune.device.cpu import cores
from autotune.device.device import BusyProcess, Device, DeviceInfo, EnergyCounters
from autotune.device.torch_build import torch_build, unfit
from autotune.wire.emulated import emulating
from autotune.wire.energy import of_board
from autotune.wire.sensors import Sensors

_UNIFIED = (
    "the GPU shares the host's memory: that is its capacity, and other programs' memory counts"
)


@dataclass(frozen=True)
class NoCuda:
    """Why there is no usable device, and a value for --device instead."""

    reason: str
    instead: str = "cpu"


@dataclass(frozen=True, eq=False)
class Unit:
    """One device for CUDA: a GPU, or an instance of a GPU in MIG mode."""

    uuid: str
    handle: Any
    """NVML's handle of the GPU or the instance."""
    gpu: Any
    """NVML's handle of the whole GPU."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that NVML sees. In MIG mode its units are its instances, maybe none."""

    uuid: str
    units: tuple[Unit, ...]


class CudaDevice:
    """The chosen CUDA devices; local rank r gets the r-th.

    Raises:
        NVMLError: the driver fails; from every method.
    """

    kind: Literal["cpu", "cuda"] = "cuda"
    infos: tuple[DeviceInfo, ...]

    def __init__(
        self, units: Sequence[Unit], why: str = "--device", groups: int = 1, remark: str = ""
    ) -> None:
        """`groups` share the cores."""
        self.why = why
        self.remark = remark
        self._groups = groups
        self._units = tuple(units)
        self.infos = tuple(_info(index, unit) for index, unit in enumerate(units))
        if any(_memory(unit) is None for unit in units):
            self.remark = f"{remark}{'; ' if remark else ''}{_UNIFIED}"

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory of processes, without the driver's own if NVML tells it apart (version 2)."""
        return tuple(_used_bytes(unit) for unit in self._units)

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """Processes with a compute or graphics context, each once a device; 0 bytes if unknown."""
        return tuple(
            BusyProcess(pid, _process_name(pid), used_bytes, index)
            for index, unit in enumerate(self._units)
            for pid, used_bytes in _used_bytes_by_pid(unit).items()
        )

    def utilisation(self) -> tuple[int | None, ...]:
        """Percent of the last moments in which a kernel ran; None if NVML does not tell."""
        rates = [_ask(nvml.nvmlDeviceGetUtilizationRates, unit.handle) for unit in self._units]
        return tuple(None if each is None else int(each.gpu) for each in rates)

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """The devices of all ranks in rank order, and an even share of the cores.

        A process can use only the first MIG instance in CUDA_VISIBLE_DEVICES, so further ranks
        need one of their own.
        """
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(unit.uuid for unit in self._units[:world_size]),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "DS_ACCELERATOR": self.kind,
            "OMP_NUM_THREADS": str(max(1, cores() // (world_size * self._groups))),
        }

    def shares(self, groups: int, ranks: int) -> Sequence[CudaDevice]:
        """The first `ranks` devices, the next ones, and so on."""
        parts = (self._units[n * ranks : (n + 1) * ranks] for n in range(groups))
        return (
            [CudaDevice(part, self.why, groups, self.remark) for part in parts]
            if groups > 1
            else [self]
        )

    def energy(self) -> EnergyCounters:
        """NVML's counters of the boards. Instances of a GPU in MIG mode share one."""
        for info, unit in zip(self.infos, self._units, strict=True):
            if unit.handle is not unit.gpu:
                return EnergyCounters(lack="MIG instances share the energy counter of their GPU")
            if _ask(nvml.nvmlDeviceGetTotalEnergyConsumption, unit.gpu) is None:
                return EnergyCounters(lack=f"NVML has no energy counter of {info.name}")
        each = (
            of_board(
                info.uuid,
                partial(nvml.nvmlDeviceGetTotalEnergyConsumption, unit.gpu),
                nvml.NVMLError,
            )
            for info, unit in zip(self.infos, self._units, strict=True)
        )
        return EnergyCounters("nvml", counters=tuple(each))

    def fingerprint(self) -> dict[str, Any]:
        """Driver and devices. `ecc` is None if the device has none."""
        version = _ask(nvml.nvmlSystemGetCudaDriverVersion)  # 12080 is 12.8
        return ({"emulated": True} if emulating() else {}) | {
            "kind": self.kind,
            "driver": _ask(nvml.nvmlSystemGetDriverVersion) or "",
            "cuda_driver": None
            if version is None
            else f"{version // 1000}.{version % 1000 // 10}",
            "devices": [
                {
                    "name": info.name,
                    "uuid": info.uuid,
                    "capacity_bytes": info.capacity_bytes,
                    "ecc": _ecc(unit),
                    "mig": unit.handle is not unit.gpu,
                }
                for info, unit in zip(self.infos, self._units, strict=True)
            ],
        }


def open_cuda(
    positions: Sequence[int] | None = None,
    why: str = "--device",
    *,
    mixed: bool = False,
) -> CudaDevice | NoCuda:
    """CUDA devices; `NoCuda` says why not. They are those at `positions` among the visible ones,
    else those in CUDA_VISIBLE_DEVICES, else the largest set of one kind. `mixed` takes all."""
    try:
        nvml.nvmlInit()
        atexit.register(nvml.nvmlShutdown)  # NVML counts its starts, so each gets its own
        gpus, lost = _gpus()
        visible = _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if isinstance(visible, NoCuda):
            return visible
        if positions is None and "CUDA_VISIBLE_DEVICES" not in os.environ and not mixed:
            alike, remark = _alike(visible)
            return CudaDevice(alike, why, remark="; ".join(filter(None, (lost, remark))))
        chosen = visible if positions is None else _at(positions, visible)
        return chosen if isinstance(chosen, NoCuda) else CudaDevice(chosen, why)
    except nvml.NVMLError as error:
        return NoCuda(f"NVML is not available: {str(error).rstrip('.')}")


def sensors_of(device: Device, ranks: int, own: Callable[[], Collection[int]]) -> list[Sensors]:
    """Sensors of the first `ranks` devices, from now on; none on the CPU. `own` returns the ids of
    processes that use them. Raises NVMLError."""
    cards = device.infos[:ranks] if device.kind == "cuda" else ()
    return [Sensors(nvml, card.uuid, own) for card in cards]


def unfit_torch() -> str:
    """Why this interpreter's torch cannot use NVIDIA's GPUs here; empty if it can. NVML is on."""
    driver = _ask(nvml.nvmlSystemGetDriverVersion) or "?"
    return unfit(torch_build(), driver, _ask(nvml.nvmlSystemGetCudaDriverVersion) or 99000)


def _alike(units: Sequence[Unit]) -> tuple[list[Unit], str]:
    """The largest set of one kind, and a remark on the others. Of equal sets, the one with more
    memory counts. One old or small card would set limits and precision of all."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for position, unit in enumerate(units):
        info = _info(position, unit)
        kinds.setdefault((info.name, info.capacity_bytes >> 30), []).append(position)
    best = max(kinds, key=lambda kind: (len(kinds[kind]), kind[1]))
    if len(kinds) == 1:
        return list(units), ""
    others = ", ".join(f"{len(of)} {name}" for (name, _), of in kinds.items() if (name, _) != best)
    remark = (
        f"the GPUs are not alike: {len(kinds[best])} {best[0]} used, not {others}; name the ones"
        f" to use, e.g. --device {_spec(kinds[best])}"
    )
    return [units[position] for position in kinds[best]], remark


def _at(positions: Sequence[int], visible: Sequence[Unit]) -> list[Unit] | NoCuda:
    unique = list(dict.fromkeys(positions))
    if len(unique) < len(positions):
        return NoCuda("a device is named twice", _spec(unique))
    beyond = [position for position in positions if position >= len(visible)]
    if beyond:
        return NoCuda(
            f"there is no device {beyond[0]} among the visible ({len(visible)})",
            _spec(range(len(visible))),
        )
    return [visible[position] for position in positions]


def _spec(positions: Iterable[int]) -> str:
    return "cuda:" + ",".join(map(str, positions))


def _gpus() -> tuple[list[Gpu], str]:
    """All GPUs that NVML lets us open, in PCI order, and a remark on the others. Raises NVMLError
    if there are GPUs, but none can be opened."""
    found: list[Gpu] = []
    refused: list[nvml.NVMLError] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(nvml.nvmlDeviceGetUUID(handle), _units(handle))
            for unit in gpu.units:
                _info(0, unit)  # a unit without an answer cannot be used
            found.append(gpu)
        except nvml.NVMLError as error:  # no permission, or fallen off the bus
            refused.append(error)
    if refused and not found:
        raise refused[0]
    why = f": {str(refused[0]).rstrip('.')}" if refused else ""
    return found, f"GPUs left out, for they cannot be read ({len(refused)}){why}" if why else ""


def _units(gpu: Any) -> tuple[Unit, ...]:
    mode = _ask(nvml.nvmlDeviceGetMigMode, gpu)  # [current, pending]
    if mode is None or not mode[0]:
        return (Unit(nvml.nvmlDeviceGetUUID(gpu), gpu, gpu),)
    slots = range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
    handles = [_ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, slot) for slot in slots]
    return tuple(
        Unit(nvml.nvmlDeviceGetUUID(handle), handle, gpu)
        for handle in handles
        if handle is not None
    )


def _visible(gpus: list[Gpu], variable: str | None) -> list[Unit] | NoCuda:
    """The units that a CUDA_VISIBLE_DEVICES of `variable` leaves, in its order.

    CUDA's rules: the first entry decides between integers, GPU- and MIG- UUIDs; a unique prefix of
    a UUID is enough. The first entry that names no device ends the list. A device named twice
    hides all. An integer or GPU- entry for a GPU in MIG mode means all its instances here.
    Sources: CUDA programming guide, "CUDA Environment Variables"; torch.cuda's
    _parse_visible_devices, by which the ranks count.
    """
    every = [unit for gpu in gpus for unit in gpu.units]
    if not every:
        why = "only GPUs in MIG mode without an instance" if gpus else "no device"
        return NoCuda(f"NVML sees {why}")
    if variable is None:
        return every
    entries = [entry.strip() for entry in variable.split(",")]
    chosen: list[Unit] = []
    for entry in entries:
        units = _named(entry, gpus) if _prefix(entry) == _prefix(entries[0]) else ()
        if not units:
            break
        if any(unit in chosen for unit in units):
            return NoCuda(f"CUDA_VISIBLE_DEVICES={variable!r} names {entry} twice: CUDA sees none")
        chosen += units
    hidden = f"CUDA_VISIBLE_DEVICES={variable!r} hides all that NVML sees ({len(every)})"
    return chosen or NoCuda(hidden)


def _prefix(entry: str) -> str:
    return entry[:4] if entry[:4] in ("GPU-", "MIG-") else ""


def _named(entry: str, gpus: list[Gpu]) -> tuple[Unit, ...]:
    """The units of an entry of CUDA_VISIBLE_DEVICES; none unless it means exactly one device."""
    found: list[tuple[Unit, ...]]
    if _prefix(entry) == "MIG-":
        found = [(u,) for gpu in gpus for u in gpu.units if u.uuid.startswith(entry)]
    elif _prefix(entry) == "GPU-":
        found = [gpu.units for gpu in gpus if gpu.uuid.startswith(entry)]
    else:
        number = re.match(r"\+?\d+", entry)  # as strtoul reads it: "1gpu" is 1
        found = [gpu.units for gpu in gpus[int(number[0]) :][:1]] if number else []
    return found[0] if len(found) == 1 else ()


def _info(index: int, unit: Unit) -> DeviceInfo:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(unit.gpu)
    return DeviceInfo(
        index=index,
        uuid=unit.uuid,
        name=nvml.nvmlDeviceGetName(unit.handle),
        capacity_bytes=_memory(unit) or psutil.virtual_memory().total,
        bf16=major >= 8,  # Ampere: CUDA programming guide, "Compute Capabilities"
        fp8=(major, minor) >= (8, 9),  # Ada and later, as torch's products need
    )


def _memory(unit: Unit) -> int | None:
    """Bytes of its own memory; None if it shares the host's: NVML then says NOT_SUPPORTED."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(unit.handle).total)
    except nvml.NVMLError_NotSupported:
        return None


def _ecc(unit: Unit) -> bool | None:
    mode = _ask(nvml.nvmlDeviceGetEccMode, unit.gpu)  # [current, pending]
    return None if mode is None else bool(mode[0])


def _used_bytes(unit: Unit) -> int:
    if _memory(unit) is None:
        host = psutil.virtual_memory()
        return int(host.total - host.available)
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(unit.handle, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError:  # the driver only knows the first version
        return int(nvml.nvmlDeviceGetMemoryInfo(unit.handle).used)


def _used_bytes_by_pid(unit: Unit) -> dict[int, int]:
    used: dict[int, int] = {}
    for ask in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in _ask(ask, unit.handle) or ():
            # A process with contexts of both kinds is in both lists, with all its memory in each.
            used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory or 0)
    return used


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "?"


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer; None if this driver or device has none."""
    try:
        return function(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_NotFound,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_Unknown,  # from WSL2 for unknown functions
        nvml.NVMLLibraryMismatchError,  # from drivers before R510 for functions with a version
    ):
        return None
