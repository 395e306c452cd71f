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
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folder:
    """The folder of one study."""

    path: Path

    @property
    def optuna_log(self) -> Path:
        return self.path / "optuna.log"

    @property
    def trials(self) -> Path:
        return self.path / "trials.csv"

    @property
    def best(self) -> Path:
        return self.path / "best.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def prepare(self) -> None:
        """Make what has to be there, and remove what ranks left whose study was killed.

        Raises OSError.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for left in self.logs.glob("*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
