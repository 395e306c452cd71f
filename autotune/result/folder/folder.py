"""The study folder: what is in it, and where.

- manifest.json   the options, devices and software (manifest.py)
- optuna.log      Optuna's journal, the record of record: each trial with its outcome
- trials.csv      the same trials for people, one row as each ends
- logs/           stdout and stderr of every rank
- best.json       the result
- report.html     a page with all of it (show/view/)
- exports/        the result as other tools' configurations
- lock            the process that writes here now (files.py)
"""

from __future__ import annotations

import shutil
from pathlib import Path


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.optuna_log = path / "optuna.log"
        self.trials = path / "trials.csv"
        self.best = path / "best.json"
        self.report = path / "report.html"
        self.exports = path / "exports"
        self.logs = path / "logs"

    def prepare(self) -> None:
        """Make the folders, and remove temporary files of killed ranks. Raises OSError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for left in self.logs.glob("*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
