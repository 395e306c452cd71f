"""The provenance of numbers: devices, software and environment, as JSON types."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.device.device import Device
from autotune.space.engines.software import software
from autotune.space.outcome import Record
from autotune.space.space import Space


def fingerprint(device: Device, space: Space) -> dict[str, Any]:
    """Devices and software, which must be equal to compare two measurements."""
    return {
        "kind": device.kind,
        "devices": device.fingerprint(),
        "host_bytes": space.limits.host_capacity_bytes,
        "software": software(),
    }


def rank_versions(records: Sequence[Record]) -> dict[str, str]:
    """The versions of their software, as ranks reported them."""
    return next((r.outcome.versions for r in records if r.outcome.versions is not None), {})


_TELLING = (
    "PYTORCH_", "TORCH_", "CUDA_", "DS_", "NCCL_", "GLOO_", "OMP_", "GOMP_", "KMP_", "MKL_",
    "MALLOC_", "LD_PRELOAD",
)  # fmt: skip
"""Prefixes of environment variables that change the cost of a step."""


def environment(own: Mapping[str, str]) -> dict[str, Any]:
    """Variables of allocator, threads and communication in ranks that had these of their `own`."""
    ranks = dict(os.environ) | dict(own)
    return {"variables": {k: v for k, v in sorted(ranks.items()) if k.startswith(_TELLING)}}
