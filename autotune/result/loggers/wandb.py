"""Offline runs of Weights & Biases: `wandb sync` sends them to a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import wandb

from autotune.result.loggers.runs import CURVE, LoggedRun

FOLDER = "wandb"


def write(runs: Sequence[LoggedRun], folder: Path) -> None:
    """Raises OSError."""
    with TemporaryDirectory(prefix="autotune-wandb-") as own, _kept_to(own):
        try:
            for run in runs:
                _write(run, folder.absolute().parent)
        except wandb.Error as error:
            raise OSError(str(error)) from error
        finally:
            wandb.teardown()


def _write(run: LoggedRun, study: Path) -> None:
    settings = wandb.Settings(  # a run changes it
        mode="offline", root_dir=str(study), console="off", silent=True, disable_git=True,
        save_code=False, x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
    )  # fmt: skip
    with wandb.init(
        project="autotune", group=study.name, name=run.name, config=dict(run.axes),
        tags=[run.verdict], notes=run.reason, settings=settings,
    ) as tracked:  # fmt: skip
        for number, step_s in run.step_times.items():
            tracked.log({CURVE: step_s}, step=number)
        tracked.summary.update({"verdict": run.verdict, **run.figures})


@contextmanager
def _kept_to(own: str) -> Iterator[None]:
    """Has wandb write to `own` instead of the home directory, and report nothing."""
    said = {
        "WANDB_CACHE_DIR": own, "WANDB_CONFIG_DIR": own, "WANDB_DATA_DIR": own,
        "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
