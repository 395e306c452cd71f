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


def why(error: str) -> str:
    """A text to append to a program's `error`, if emulation explains it; else empty."""
    found = _LIBRARY.search(error) if emulating() else None
    return f" (emulated GPUs have no {found[1]})" if found else ""
