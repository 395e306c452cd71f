"""The energy that a rank's device uses, by the counter that the hardware keeps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pynvml

from autotune.wire.energy import NOTHING, Counters, of_board, of_host


def counters(at: str, device_uuid: str) -> Counters:
    """What `Start.energy` means for this rank."""
    if at == "nvml":
        handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
        read = partial(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return of_board(device_uuid, read, pynvml.NVMLError)
    return of_host(Path(at)) if at else NOTHING
