"""The result of a study for training scripts and notebooks: `autotune.load_best`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.result.best import Best


class OtherHardwareError(UsageError):
    """A result that was measured on other hardware than what is here."""


def load_best(path: str | Path, *, anywhere: bool = False) -> Best:
    """The result in `path`, a best.json or the folder of a study. Imports no torch.

    `best.config.micro_batch` and its neighbours are what a training run takes over.

    Raises:
        UsageError: there is no result that this version can read.
        OtherHardwareError: it was measured on other devices, or another number of them is here
            than it has ranks on a node; not where it is to be used `anywhere`.
    """
    from autotune.result.best import Best
    from autotune.result.hardware import other_hardware

    path = Path(path)
    best = Best.read(path / "best.json" if path.is_dir() else path)
    if not anywhere and (differs := other_hardware(best)):
        raise OtherHardwareError(f"{path}: {differs}; measure again, or pass anywhere=True")
    return best
