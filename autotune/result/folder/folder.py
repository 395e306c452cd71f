"""The study folder: what is in it, and where.

manifest.json   what was asked, on what (manifest.py)
optuna.log      Optuna's journal, the record of record: each trial with its outcome
trials.csv      the same trials for people, one row as each ends
logs/           stdout and stderr of every rank
best.json       the result
report.html     all of it, to look at (show/view/)
exports/        the same in other tools' words
lock            who is writing here now (files.py)
"""

from __future__ import annotations

import shutil
from pathlib import Path


class Folder:
    """The folder of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.optuna_log = path / "optuna.log"
        self.trials = path / "trials.csv"
        self.best = path / "best.json"
        self.report = path / "report.html"
        self.exports = path / "exports"
        self.logs = path / "logs"

    def prepare(self) -> None:
        """Make what has to be there, and remove what ranks left whose study was killed.

        Raises OSError.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for left in self.logs.glob("*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
