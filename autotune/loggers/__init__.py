"""A study's trials as runs in the files of experiment trackers. One file and one row each."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.loggers.runs import runs_of
from autotune.outcome import Record
from autotune.space.space import Limits


@dataclass(frozen=True)
class Row:
    """One tracker."""

    module: str
    """It has a function `write(runs, folder)`. It is imported when it is asked for."""
    folder: str
    """Of a study: what it writes is all there."""
    package: str
    """What has to be installed for it."""


LOGGERS = {
    "tensorboard": Row("autotune.loggers.tensorboard", "tensorboard", package="tensorboardX"),
    "wandb-offline": Row("autotune.loggers.wandb", "wandb", package="wandb"),
}
"""By the name that `--log` takes."""


def write(name: str, records: Sequence[Record], limits: Limits, folder: Path) -> Path:
    """Write `records` of the study in `folder` with the logger `name`, in the place of what it
    wrote before; returns where that is.

    Raises:
        OSError: it cannot be written.
    """
    row = LOGGERS[name]
    place = folder / row.folder
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    importlib.import_module(row.module).write(runs_of(records, limits), place)
    return place
