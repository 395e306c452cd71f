"""Results of probes, here and in other processes of the same study."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.result.folder.journal import Journal
from autotune.result.folder.past import News
from autotune.result.folder.sampler import Asked
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from autotune.study.ledger import Ledger

LOOK_S = 0.5
SUSPICIOUS_LOSSES = 2
"""A candidate whose probe lost so many nodes comes last. One more loss, and it is given up."""


class Records:
    """Tells ledger, journal and reporter together, and `publish` at each new incumbent."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        reporter: Reporter,
        publish: Callable[[Ledger], object],
    ) -> None:
        self.ledger = ledger
        self.journal = journal
        self.reporter = reporter
        self.running: tuple[Candidate, ...] = ()
        """Candidates that other processes probe."""
        self.finals: tuple[Candidate, ...] = ()
        """Candidates that other processes measure again, in finals."""
        self.unsearched = False
        """Whether something was learned since the search had its turn."""
        self._publish = publish

    def add_trial(self, asked: Asked, record: Record) -> None:
        """Record a probe of the search."""
        ledger = self.ledger
        self.journal.tell(asked.trial, record)
        before = ledger.incumbent
        ledger.add(record)
        if ledger.incumbent is not before:
            self._publish(ledger)
        self.reporter.told(record, ledger.incumbent)
        if skipped := ledger.settle(record):
            self.journal.append(skipped)
            self.reporter.note(f"skipped {len(skipped)}: {skipped[0].outcome.reason}")

    def add_final(self, record: Record) -> None:
        self.ledger.add(record)
        self.journal.add_final(record)
        self.reporter.told(record, self.ledger.incumbent)

    def learn(self, news: News) -> bool:
        """Learn the results of other processes, and close what they probe. True if any matters."""
        ledger = self.ledger
        skipped = ledger.take(news.records)
        self.journal.append([*news.records, *skipped])
        for record in news.records:
            self.reporter.told(record, ledger.incumbent)
        freed = set(self.running).difference(news.running, ledger.tried)
        for candidate in freed:
            ledger.opened.reopen(candidate)
        for candidate in news.running:
            ledger.opened.close(candidate)
        self.running, self.finals = news.running, news.finals
        changed = bool(news.records or freed)
        self.unsearched |= changed
        return changed

    def wait(self, go_on: Callable[[], bool]) -> bool:
        """Wait for a result of another process, also an earlier one. False if none will come."""
        changed = self.unsearched

        def idle(news: News) -> bool:
            nonlocal changed
            changed = self.learn(news) or changed
            return not changed

        while self.journal.shared and go_on():
            news = self.journal.look(idle)
            if changed or not news.at_work:
                return changed
            time.sleep(LOOK_S)
        return False
