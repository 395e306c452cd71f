"""Event files of TensorBoard: one for each run. Its hparams tab compares them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.result.loggers.runs import CURVE, LoggedRun

FOLDER = "tensorboard"


def write(runs: Sequence[LoggedRun], folder: Path) -> None:
    """Raises OSError."""
    tensorboard_x = _library()
    for run in runs:
        place = folder / re.sub(r"[^\w.=+-]", "_", run.name)
        with tensorboard_x.SummaryWriter(str(place)) as writer:
            said = {**run.axes, "verdict": run.verdict}
            for summary in tensorboard_x.summary.hparams(said, run.figures):
                writer.file_writer.add_summary(summary)
            for name, value in run.figures.items():
                writer.add_scalar(name, value, 0)
            for number, step_s in run.step_times.items():
                writer.add_scalar(CURVE, step_s, number)
            if run.reason:
                writer.add_text("reason", run.reason)


def _library() -> Any:
    """tensorboardX, kept from importing torch for its type of tensors."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tensorboardX.summary

        return tensorboardX
    finally:
        if hidden:
            del sys.modules["torch"]
