"""Whether CUDA devices are emulated (`device/emulated/`), on either side of the wire."""

from __future__ import annotations

import os
import re

VARIABLE = "AUTOTUNE_EMULATED"
"""The variable with the path of the file that all processes of one emulation share."""

ALONE = "AUTOTUNE_EMULATED_ALONE"
"""Set if one rank stands for its whole group: NCCL's stand-in then waits for no other rank."""


def emulating() -> bool:
    """Whether CUDA devices are emulated, so computed values mean nothing."""
    return VARIABLE in os.environ


_LIBRARY = re.compile(r"\b(cudnn|cusolver|cufft|cusparse|curand|nvjpeg)", re.IGNORECASE)
_OWN_DRIVER = re.compile(r"\b(cupy|numba)(?:_backends)?/(?:.*/)?cuda")
"""Of a file's path: libraries that call the driver themselves."""
_MISSING = re.compile(r"^emulated GPUs: (\w+) has no stand-in$", re.MULTILINE)


def why(error: str, trace: str = "", log: str = "") -> str:
    """A text to append to an `error` of a program, if emulation explains it; else empty."""
    if not emulating():
        return ""
    file = trace.rpartition('File "')[2].partition('"')[0]
    found = _LIBRARY.search(error) or _OWN_DRIVER.search(file)
    if found is None and re.search("CUDA|SIG", error):
        found = _MISSING.search(log)
    return f" (emulated GPUs have no {found[1]})" if found else ""
