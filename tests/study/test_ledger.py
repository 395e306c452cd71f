"""What follows from records."""

from __future__ import annotations

import pytest

from autotune.result.choice import winner
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.study.ledger import FRAGILE_BREAKS, Ledger
from autotune.study.predict.predictor import Predictor
from tests.support.launches import space_of
from tests.support.records import WORKLOAD, record, space

SPACE = space()
SMALL = Candidate(depth=2, seq_len=64, micro_batch=2)
LARGE = Candidate(depth=4, seq_len=128, micro_batch=8)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(SPACE, "flops", Predictor(SPACE, "cpu"))


def test_the_incumbent_is_the_best_that_was_measured_to_the_end(ledger: Ledger) -> None:
    slow = record(SMALL, tokens_per_s=100)
    for one in (slow, record(LARGE, Verdict.PRUNED, tokens_per_s=900)):
        ledger.add(one)
    assert ledger.incumbent is slow


def test_finals_change_no_incumbent(ledger: Ledger) -> None:
    searched = record(SMALL, tokens_per_s=100)
    ledger.add(searched)
    ledger.add(record(SMALL, purpose="final", tokens_per_s=999))
    assert ledger.incumbent is searched
    assert len(ledger.finals_of(SMALL)) == 1


def test_what_was_compared_with_nothing_is_not_called_the_best(ledger: Ledger) -> None:
    ledger.add(record(SMALL, tokens_per_s=100))
    assert ledger.certainty(SMALL) is None
    ledger.add(record(LARGE, tokens_per_s=900))
    found = ledger.certainty(LARGE)
    assert found is not None
    assert found.best > 0.5


def test_what_does_not_fit_settles_all_that_need_no_less(ledger: Ledger) -> None:
    lost = record(SMALL, Verdict.OOM)
    ledger.add(lost)
    settled = ledger.settle(lost)
    assert {r.candidate for r in settled} == {c for c in SPACE.candidates if c.covers(SMALL)}
    assert ledger.witness(LARGE) is lost
    assert ledger.nothing_fits_yet
    assert not any(c.covers(SMALL) for c in ledger.opened)


def test_a_build_that_breaks_too_often_is_avoided(ledger: Ledger) -> None:
    for number in range(FRAGILE_BREAKS):
        assert not ledger.opened.avoids(SMALL)
        broken = record(SMALL, Verdict.CRASHED, number=number)
        ledger.add(broken)
        assert ledger.settle(broken) == []
    assert ledger.opened.avoids(SMALL)
    assert not ledger.opened.avoids(LARGE)


def test_what_may_be_as_good_as_the_incumbent_is_not_too_slow(ledger: Ledger) -> None:
    assert ledger.needed_step_s(SMALL) is None
    found = record(SMALL, tokens_per_s=100, noise=0.1)
    ledger.add(found)
    once_s = ledger.needed_step_s(SMALL)
    assert once_s is not None
    assert once_s > found.measured.step.median
    for number in range(5):  # the surer it is, the less may be slower
        ledger.add(record(SMALL, purpose="final", number=number, tokens_per_s=100, noise=0.1))
    again_s = ledger.needed_step_s(SMALL)
    assert again_s is not None
    assert found.measured.step.median < again_s < once_s


def test_one_lucky_look_makes_no_incumbent(ledger: Ledger) -> None:
    lucky, steady = record(SMALL, tokens_per_s=1000), record(LARGE, tokens_per_s=900)
    for one in (lucky, steady):
        ledger.add(one)
    for number in range(3):
        ledger.add(record(SMALL, purpose="final", number=number, tokens_per_s=200))
        ledger.add(record(LARGE, purpose="final", number=number, tokens_per_s=900))
    assert ledger.incumbent is steady
    assert [r.candidate for r in ledger.contenders] == [LARGE, SMALL]


def test_what_failed_a_final_contends_no_more_but_what_was_stopped_does(ledger: Ledger) -> None:
    for one in (
        record(LARGE, tokens_per_s=900),
        record(SMALL, Verdict.PRUNED, tokens_per_s=100),
        record(LARGE, Verdict.OOM, purpose="final"),
    ):
        ledger.add(one)
    assert ledger.fitting == []
    assert ledger.incumbent is None
    assert [r.candidate for r in ledger.contenders] == [SMALL]
    choice = ledger.choice()
    assert choice is not None
    assert choice.record.candidate == SMALL


@pytest.mark.parametrize(("off", "told"), [(0.03, True), (0.1, False)])
def test_two_are_told_apart_when_the_slower_one_cannot_win_any_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, off: float, told: bool
) -> None:
    believed = {SMALL: 900.0, LARGE: 1000.0}
    measured = {SMALL: 1000.0, LARGE: 900.0}
    for candidate, rate in measured.items():
        for one in (1 - off, 1 + off):
            ledger.add(record(candidate, purpose="final", tokens_per_s=rate * one))
    monkeypatch.setattr(ledger, "believed", believed.__getitem__)
    choice = winner(ledger.all, WORKLOAD, "tokens_per_s", ledger.believed)
    assert choice is not None
    assert (choice.record.candidate == SMALL) == told
    assert (ledger.rounds_to_tell(SMALL, LARGE) <= 2) == told


def test_it_is_surer_of_a_clear_difference_than_of_a_small_one(ledger: Ledger) -> None:
    middle = Candidate(depth=4, seq_len=128, micro_batch=4)
    for candidate, tokens_per_s in ((SMALL, 300), (middle, 980), (LARGE, 1000)):
        for purpose in ("search", "final", "final"):
            ledger.add(record(candidate, purpose=purpose, tokens_per_s=tokens_per_s))
    of_best, of_middle = ledger.certainty(LARGE), ledger.certainty(middle)
    assert of_best is not None
    assert of_middle is not None
    assert 0.5 < of_best.best < 1.0
    assert of_best.equal > of_best.best > of_middle.best
    assert of_best.next == middle
    assert (of_middle.next, of_middle.next_best) == (LARGE, of_best.best)
    assert ledger.certainty(Candidate(depth=2, seq_len=64, micro_batch=1)) is None


def test_equal_looks_at_two_sizes_of_a_script_do_not_tell_them_apart() -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="4,8,16", seq_len="")
    ledger = Ledger(among, "tokens_per_s", Predictor(among, "cpu"))
    small, middle, _ = among.candidates
    for candidate in (small, middle):
        ledger.add(record(candidate, disturbed_share=0.88, among=among.workload))
    sure = ledger.certainty(middle)
    assert sure is not None
    assert 0.5 < sure.best < 0.75


def test_probes_are_those_that_came_to_something(ledger: Ledger) -> None:
    for one in (record(SMALL), record(LARGE, Verdict.SKIPPED), record(SMALL, purpose="final")):
        ledger.add(one)
    assert ledger.probed == 1


def test_a_trial_sharpens_what_is_predicted(ledger: Ledger) -> None:
    ledger.add(record(SMALL, peak_mib=2000))
    assert ledger.predictor.peak(SMALL).bytes == pytest.approx(2000 * 2**20, rel=0.05)
