"""autotune finds the fastest training configuration that fits, by running real steps.

`tune` runs a study, as the command line does. `load_best` and `load_trials` read what one wrote.
`step` tells a study what only your own script knows. `emulate` gives this process GPUs that are
not there. None of them imports torch.
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
    """Say that an optimizer step of this process is done, of so many tokens and samples.

    For training scripts that `--script` launches, whose optimizer is none of torch's, or whose
    batches hide how many tokens they have. Both numbers are of this rank alone. The study adds up
    the ranks, but counts ranks once that it sees to train on the same data. With `samples` it
    adds up all ranks: of those that have the same data, all but one say 0. From the first call
    on, only calls count as steps. Does nothing in any other process.
    """
    hook = sys.modules.get("_autotune_hook")
    if hook is not None:
        hook.step(tokens, samples)


def __getattr__(name: str) -> Any:
    """What scripts use is imported when they do: `--help` needs none of it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
