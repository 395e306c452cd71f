"""The file that all processes of one emulation share, as `csrc/state.h` declares it."""

from __future__ import annotations

import ctypes

MOST_UNITS = 64
MOST_PROCESSES = 512


class UnitRow(ctypes.Structure):
    """One device for CUDA. `csrc/state.h` explains the fields; sizes are in bytes."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 64),
        *((name, ctypes.c_uint64) for name in (
            "total", "reserved", "context", "nccl",
        )),
        *((name, ctypes.c_double) for name in (
            "half_rate", "fp32_rate", "attention_rate", "attention_backward_rate", "memory_rate",
            "link_rate", "host_rate", "net_rate",
        )),
        *((name, ctypes.c_int32) for name in (
            "gpu", "mig", "unified", "major", "minor", "sms", "shared_per_block", "shared_per_sm",
            "threads_per_sm", "opening", "memory", "memory_v2", "processes", "utilization",
            "energy", "throttle",
        )),
    )  # fmt: skip


class ProcessRow(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("busy", ctypes.c_int32),
        ("used", ctypes.c_uint64 * MOST_UNITS),
    )


class SharedState(ctypes.Structure):
    _fields_ = (
        ("lock", ctypes.c_int32),
        ("units", ctypes.c_int32),
        ("cuda", ctypes.c_int32),
        ("opening", ctypes.c_int32),
        ("machine", ctypes.c_int32),
        ("driver", ctypes.c_char * 32),
        ("unit", UnitRow * MOST_UNITS),
        ("process", ProcessRow * MOST_PROCESSES),
    )
