"""What search and finals work with."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from autotune.budget import Clock, StopFlag
from autotune.folder.journal import Journal
from autotune.report import Reporter
from autotune.runner import StopRequestedError
from autotune.space.space import Space
from autotune.study.ledger import Ledger
from autotune.study.others import Others
from autotune.study.pace import Pace
from autotune.study.slots import Slots


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of one study."""

    space: Space
    clock: Clock
    stop: StopFlag
    journal: Journal
    reporter: Reporter
    ledger: Ledger
    pace: Pace
    slots: Slots
    others: Others

    def go_on(self) -> None:
        """Raises `StopRequestedError` where the user wants to end the study."""
        if self.stop:
            raise StopRequestedError

    def typical_probe_s(self) -> float:
        """Warm-up and timed steps of a candidate that was measured to the end."""
        whole = [self.pace.probe_s(record) for record in self.ledger.fitting]
        return statistics.median(whole) if whole else self.pace.rule.timed_limit_s
