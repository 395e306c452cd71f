"""What a process learns of the others in its study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from autotune.result.folder.journal import Journal
from autotune.result.folder.past import News
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.study.ledger import Ledger
from autotune.study.predict.predictor import Predictor
from autotune.study.records import Records
from tests.support.records import space

SPACE = space()
SMALL = Candidate(depth=2, seq_len=64, micro_batch=2)


class Shared:
    """The journal of a study whose other processes have no news."""

    shared = True

    def append(self, records: object) -> None:
        pass

    def look(self, idle: Callable[[News], bool]) -> News:
        idle(News())
        return News()


@pytest.mark.parametrize("searched", [False, True])
def test_what_a_dead_process_probed_is_searched_though_finals_learned_of_it(
    searched: bool,
) -> None:
    ledger = Ledger(SPACE, "flops", Predictor(SPACE, "cpu"))
    records = Records(ledger, cast(Journal, Shared()), Reporter(), lambda of: None)
    records.learn(News(running=(SMALL,), at_work=True))
    assert SMALL not in ledger.opened
    records.learn(News())  # in finals: it died
    assert SMALL in ledger.opened
    if searched:  # the search had its turn since
        records.unsearched = False
    assert records.wait(lambda: True) is not searched


def test_nobody_waits_in_a_study_of_one_process() -> None:
    alone: Any = Journal.in_memory(SPACE, "flops")
    ledger = Ledger(SPACE, "flops", Predictor(SPACE, "cpu"))
    assert not Records(ledger, alone, Reporter(), lambda of: None).wait(lambda: True)
