"""Whether CUDA devices are emulated (`device/emulated/`), on either side of the wire."""

from __future__ import annotations

import os

VARIABLE = "AUTOTUNE_EMULATED"
"""Names the file that all processes of one emulation share."""


def emulating() -> bool:
    """Whether values that a CUDA device computed mean nothing, so that none can be compared."""
    return VARIABLE in os.environ
