"""Files of experiment trackers: one module and one row of `choices.LOGGERS` each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from autotune.result.loggers.runs import runs_of
from autotune.space.choices import LOGGERS
from autotune.space.outcome import Record
from autotune.space.space import Limits


def write(name: str, records: Sequence[Record], limits: Limits, folder: Path) -> Path:
    """Write `records` of the study in `folder` anew with the logger `name`; returns the place.
    Raises OSError if the files cannot be written."""
    logger = LOGGERS[name].load()
    place: Path = folder / logger.FOLDER
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    logger.write(runs_of(records, limits), place)
    return place
