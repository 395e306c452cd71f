"""autotune finds the fastest training configuration that fits, by running real steps.

`tune` runs a study, as the command line does. `load_best` and `load_trials` read what one wrote.
None of them imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.loading import OtherHardwareError, load_best, load_trials
    from autotune.running import NothingFoundError, tune

__version__ = "0.1.0"
__all__ = [
    "NothingFoundError", "OtherHardwareError", "__version__", "load_best", "load_trials", "tune",
]  # fmt: skip
_PLACES = {
    "NothingFoundError": "running", "OtherHardwareError": "loading", "load_best": "loading",
    "load_trials": "loading", "tune": "running",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What scripts use is imported when they do: `--help` needs none of it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
