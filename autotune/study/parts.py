"""What search and finals work with."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autotune.measure.runner import StopRequestedError
from autotune.result.folder.journal import Journal
from autotune.show.report import Reporter
from autotune.space.space import Space
from autotune.study.ledger import Ledger
from autotune.study.neighbours import Neighbours
from autotune.study.others import Others
from autotune.study.pace import Pace
from autotune.study.slots import Slots
from autotune.wire.budget import Clock, StopFlag


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
    neighbours: Neighbours | None

    def go_on(self) -> None:
        """Raises `StopRequestedError` where the user wants to end the study."""
        if self.stop:
            raise StopRequestedError

    @property
    def in_turns(self) -> bool:
        """Whether groups that share a machine wait for each other to make steps."""
        return self.neighbours is not None and self.neighbours.in_turns

    @property
    def timed_at_once(self) -> int:
        """Groups that make steps at the same time."""
        beside = self.neighbours.beside if self.neighbours is not None and self.in_turns else 1
        return math.ceil(len(self.slots) / beside)

    def queue_s(self, each_s: float) -> float:
        """What another group waits for its turn, where steps of those that run take `each_s`."""
        turns = math.ceil((len(self.slots.running) + 1) / self.timed_at_once)
        return (turns - 1) * each_s

    def typical_probe_s(self) -> float:
        """Warm-up and timed steps of a candidate that was measured to the end."""
        whole = [self.pace.probe_s(record) for record in self.ledger.fitting]
        return statistics.median(whole) if whole else self.pace.rule.timed_limit_s
