"""Other processes that work on the same study."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.result.folder.journal import Journal
from autotune.result.folder.past import News
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.study.ledger import Ledger

LOOK_S = 0.5


class Others:
    """What they told is learned, and what they probe is closed."""

    def __init__(self, journal: Journal, ledger: Ledger, reporter: Reporter) -> None:
        self._journal = journal
        self._ledger = ledger
        self._reporter = reporter
        self.running: tuple[Candidate, ...] = ()
        self.finals: tuple[Candidate, ...] = ()
        """What they measure again."""

    def learn(self, news: News) -> bool:
        """Whether there was anything that may change what is to be done here."""
        ledger = self._ledger
        skipped = ledger.take(news.records)
        self._journal.append([*news.records, *skipped])
        for record in news.records:
            self._reporter.told(record, ledger.incumbent)
        freed = set(self.running).difference(news.running, ledger.tried)
        for candidate in freed:
            ledger.opened.reopen(candidate)
        for candidate in news.running:
            ledger.opened.close(candidate)
        self.running, self.finals = news.running, news.finals
        return bool(news.records or freed)

    def wait(self, go_on: Callable[[], bool]) -> bool:
        """Wait until they tell something; False where none of them will, or `go_on` says so."""
        changed = False

        def idle(news: News) -> bool:
            nonlocal changed
            changed = self.learn(news) or changed
            return not changed

        while self._journal.shared and go_on():
            news = self._journal.look(idle)
            if changed or not news.at_work:
                return changed
            time.sleep(LOOK_S)
        return False
