"""autotune finds the fastest training configuration that fits, by running real steps.

`tune` runs a study, as the command line does. `load_best` and `load_trials` read its results.
`step` reports a step of your own script to a study. `emulate` gives this process emulated GPUs.
None of them imports torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from autotune.installed import VERSION

if TYPE_CHECKING:
    from autotune.commands.running import NothingFoundError, tune
    from autotune.device.emulated.emulation import emulate
    from autotune.result.folder.table import load_trials
    from autotune.result.loading import OtherHardwareError, load_best

__version__ = VERSION
__all__ = [
    "NothingFoundError", "OtherHardwareError", "__version__", "emulate", "load_best",
    "load_trials", "step", "tune",
]  # fmt: skip
_PLACES = {
    "NothingFoundError": "commands.running", "OtherHardwareError": "result.loading",
    "emulate": "device.emulated.emulation", "load_best": "result.loading",
    "load_trials": "result.folder.table",
    "tune": "commands.running",
}  # fmt: skip


def step(tokens: int | None = None, samples: int | None = None) -> None:
    """Report an optimizer step of this process, with its tokens and samples.

    It is for scripts under `--script` whose optimizer is none of torch's, or whose batches hide
    their number of tokens. Both numbers are of this rank alone. The study adds up the tokens of
    ranks, and counts ranks with the same data once. It adds up the `samples` of all ranks: of
    those with the same data, all but one report 0. From the first call on, only calls count as
    steps. Does nothing in any other process.
    """
    hook = sys.modules.get("_autotune_hook")
    if hook is not None:
        hook.step(tokens, samples)


def __getattr__(name: str) -> Any:
    """Import names of the API at their first use: `--help` needs none of them."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
