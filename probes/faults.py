"""Exception -> Fault: whether memory ran out, which memory, and the size of the request.

Types decide first, message patterns second. Any other error is `crashed`, never out of memory: a
candidate that does not fit is not tried again.
"""

from __future__ import annotations

import errno
import linecache
import re
import traceback
from contextlib import suppress
from typing import Literal

import torch

from autotune.wire.emulated import why
from autotune.wire.faults import DEVICE_MEMORY, HOST_MEMORY, PINNING
from autotune.wire.ranks import Fault
from autotune.wire.reports import Peaks
from autotune.wire.settings import Level, Settings, rows
from autotune.wire.stopping import Phase

Cause = Literal["oom", "host_oom", "unsupported", "crashed"]

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

_HANDLE_BYTES = 256 * 2**20
"""With less free device memory, the first use of a library may fail."""
_UNSUPPORTED = re.compile(
    r"not implemented for '\w+'"
    # DDP waits for gradients of parameters that the loss does not use.
    r"|Expected to have finished reduction in the prior iteration"
)


_BUILT = tuple(name for name, row in rows(Settings).items() if row.level is Level.BUILD)
"""Axes that change the compiled code."""
_SELECTED = re.compile(r"encountered during backward but not found in storage")
"""Selective checkpointing fails if the backward pass runs other operations than the forward pass,
e.g. ZeRO-3's gathering."""


class UnsupportedError(Exception):
    """A library does not support this combination, for the reason in the message."""

    def __init__(self, reason: str, *axes: str) -> None:
        """`axes` are the axes whose values together are the cause, if known."""
        super().__init__(reason)
        self.axes = axes


def fault(error: BaseException, phase: Phase, device_kind: str, peaks: Peaks | None) -> Fault:
    """The fault for `error` on a rank of `device_kind` ("cpu" or "cuda")."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:2000]
    return Fault(
        cause=_cause(error, device_kind),
        phase=phase,
        error=text + why(text),
        traceback="".join(traceback.format_exception(error))[-20_000:],
        requested_bytes=_requested_bytes(str(error)),
        peaks=peaks,
        axes=list(_axes(error)),
    )


def _cause(error: BaseException, device_kind: str) -> Cause:
    # On the CPU the process is the device: no host memory means no device memory.
    host: Cause = "oom" if device_kind == "cpu" else "host_oom"
    if isinstance(error, torch.OutOfMemoryError):
        return "oom"  # raised by the device's allocator
    if isinstance(error, MemoryError):
        return host
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return host
    if isinstance(error, UnsupportedError | NotImplementedError):
        return "unsupported"
    if _is_of_compiler(error):
        inner = getattr(error, "inner_exception", None) or error.__cause__
        cause = _cause(inner, device_kind) if inner else "crashed"
        return cause if cause in ("oom", "host_oom") else "unsupported"
    if isinstance(error, RuntimeError):
        if DEVICE_MEMORY.search(str(error)):
            return host if _was_pinning(error) else "oom"
        if HOST_MEMORY.search(str(error)):
            return host
        if "CUBLAS_STATUS_NOT_INITIALIZED" in str(error) and _device_is_full():
            return "oom"
        if _UNSUPPORTED.search(str(error)) or _SELECTED.search(str(error)):
            return "unsupported"
    if error.__cause__ is not None:
        return _cause(error.__cause__, device_kind)
    return "crashed"


def _axes(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, UnsupportedError):
        return error.axes
    if _SELECTED.search(str(error)):
        return ("checkpointing", "zero_stage", "offload")
    if _is_of_compiler(error):
        return _BUILT
    return () if error.__cause__ is None else _axes(error.__cause__)


def _is_of_compiler(error: BaseException) -> bool:
    """Whether torch.compile failed."""
    # By name, since the import of these modules takes a second.
    packages = ("torch._dynamo.exc", "torch._inductor.exc", "torch._inductor.cpp_builder")
    return any(cls.__module__ in packages for cls in type(error).__mro__)


def _device_is_full() -> bool:
    """Whether a library that failed to initialize did so for lack of memory."""
    with suppress(Exception):
        return torch.cuda.mem_get_info()[0] < _HANDLE_BYTES
    return False


def _was_pinning(error: BaseException) -> bool:
    """Whether `error` came from page-locking host memory."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    last = frames[-1]
    first = last.lineno or 0
    lines = range(first, (last.end_lineno or first) + 1)
    said = [last.name, *(linecache.getline(last.filename, number) for number in lines)]
    return any(PINNING.search(text) for text in said)


def _requested_bytes(text: str) -> int | None:
    match = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)", text)
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
