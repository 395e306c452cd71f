"""The result of a study for training scripts and notebooks: `autotune.load_best`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.result.best import Best


class OtherHardwareError(UsageError):
    """A result was measured on other hardware than this machine's."""


def load_best(path: str | Path, *, anywhere: bool = False) -> Best:
    """The result in `path`, a best.json or the folder of a study. Imports no torch.

    A training run takes over `best.config.micro_batch` and its neighbours.

    Warns if the result is not confirmed.

    Raises:
        UsageError: there is no result that this version can read.
        OtherHardwareError: this machine has other devices, or another number of them than the
            result has ranks on a node. Never raised with `anywhere`.
    """
    from autotune.result.best import Best
    from autotune.result.choice import UNCONFIRMED
    from autotune.result.hardware import other_hardware

    path = Path(path)
    file = path / "best.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        results = sorted(path.glob("*/best.json"), key=lambda each: each.stat().st_mtime)
        named = f", e.g. {results[-1].parent}" if results else ""
        raise UsageError(f"{path}: has no best.json; name a study folder with a result{named}")
    try:
        best = Best.read(file)
    except UsageError as error:
        raise UsageError(str(error)) from None
    if not best.confirmed:
        why = UNCONFIRMED[best.unconfirmed or "no finals"]
        warnings.warn(f"{path}: the result is not confirmed: {why}", stacklevel=2)
    if not anywhere and (differs := other_hardware(best)):
        raise OtherHardwareError(f"{path}: {differs}; measure again, or pass anywhere=True")
    return best
