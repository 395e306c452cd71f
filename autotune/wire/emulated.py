"""Whether CUDA devices are emulated (`device/emulated/`), on either side of the wire."""

from __future__ import annotations

import os
import re

VARIABLE = "AUTOTUNE_EMULATED"
"""Names the file that all processes of one emulation share."""

ALONE = "AUTOTUNE_EMULATED_ALONE"
"""Set where one rank stands for all of its group: NCCL's stand-in then meets nobody."""


def emulating() -> bool:
    """Whether values that a CUDA device computed mean nothing, so that none can be compared."""
    return VARIABLE in os.environ


_LIBRARY = re.compile(r"\b(cudnn|cusolver|cufft|cusparse|curand|nvjpeg)", re.IGNORECASE)


def why(error: str) -> str:
    """How emulation explains the `error` of a program, to be put behind it; "" if it does not."""
    found = _LIBRARY.search(error) if emulating() else None
    return f" (emulated GPUs have no {found[1]})" if found else ""
