"""NVML without a driver: the calls that `autotune.device.cuda` makes, and pynvml's errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")
GIB = 2**30


@dataclass
class FakeProcess:
    """A process as NVML lists it; a size of None is one that the driver does not tell."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - NVML's name


@dataclass(kw_only=True)
class FakeGpu:
    """A GPU or a MIG instance, and NVML's handle of it.

    `mig` lists the instances by slot: None where the GPU knows no MIG, empty where MIG is off.
    """

    uuid: str
    name: str = "NVIDIA H200"
    total: int = 140 * GIB
    used: int = 0
    driver: int = 0
    """What the driver keeps for itself: the first version of NVML's answer counts it as used."""
    old_driver: bool = False
    closed: bool = False
    """NVML refuses to open it."""
    capability: tuple[int, int] = (9, 0)
    compute: list[FakeProcess] = field(default_factory=list)
    graphics: list[FakeProcess] = field(default_factory=list)
    mig: list[FakeGpu | None] | None = None
    ecc: bool | None = True
    busy: int | None = 97
    """Percent of the time; None where it is not told."""
    energy_mj: int | None = 0
    """Since the driver was loaded; None where there is no counter."""
    clock_mhz: int | None = 1980
    power_mw: int | None = 650_000
    temperature_c: int | None = 61
    reasons: int | None = 0
    """Bits of what slows it down. All four are None where there is no such sensor."""


class FakeNvml:
    """Stands in for the module pynvml. `error` is raised by nvmlInit."""

    def __init__(self, *gpus: FakeGpu, error: int | None = None) -> None:
        self.gpus = gpus
        self.error = error
        self.cuda_version = 13000

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVMLError", "NVMLLibrary", "NVML_", "nvmlClocksThrottleReason")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.error is not None:
            raise pynvml.NVMLError(self.error)

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        if self.gpus[index].closed:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:  # noqa: N802
        return self._supported(gpu.energy_mj)

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:  # noqa: N802
        assert kind == pynvml.NVML_CLOCK_SM
        return self._supported(gpu.clock_mhz)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:  # noqa: N802
        return self._supported(gpu.power_mw)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:  # noqa: N802
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._supported(gpu.temperature_c)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:  # noqa: N802
        return self._supported(gpu.reasons)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        if gpu.busy is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=gpu.busy, memory=0)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return self.cuda_version

    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

    def nvmlDeviceGetMemoryInfo(  # noqa: N802
        self, gpu: FakeGpu, version: int | None = None
    ) -> SimpleNamespace:
        if version is not None and gpu.old_driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        used = gpu.used + (gpu.driver if version is None else 0)
        return SimpleNamespace(total=gpu.total, used=used, free=gpu.total - used)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return gpu.capability

    def nvmlDeviceGetEccMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        return [int(self._supported(gpu.ecc))] * 2

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[FakeProcess]:  # noqa: N802
        return gpu.compute

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[FakeProcess]:  # noqa: N802
        return gpu.graphics

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        return [int(bool(self._supported(gpu.mig)))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return len(self._supported(gpu.mig))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        instance = self._supported(gpu.mig)[index]
        if instance is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return instance

    @staticmethod
    def _supported(value: T | None) -> T:
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value
