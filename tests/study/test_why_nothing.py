"""What is said of a study that found nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.result.folder.past import Ending
from autotune.space.outcome import Outcome, Record, Verdict
from autotune.study.ledger import Ledger
from autotune.study.predict.predictor import Predictor
from autotune.study.why_nothing import why_nothing
from autotune.units import parse_duration_s
from autotune.wire.reports import Peaks
from tests.support.launches import space_of
from tests.support.records import record, space


def test_what_was_seen_meanwhile_is_said() -> None:
    reason = "the budget ended during this probe; it imported torch, and made no backward pass"
    outcome = Outcome(verdict=Verdict.SKIPPED, started_s=0.0, reason=reason)
    records = [Record(0, "search", space().candidates[0], outcome)]
    ended = why_nothing(records, space(), None, 60.0)
    assert ended.message.endswith("--budget 2m (it imported torch, and made no backward pass)")


@pytest.mark.parametrize(
    ("needs_s", "log", "advice"),
    [
        (30.0, "launch1.log", "a launch needs 30 s, and a search ten or more: --budget 5m"),
        (3.0, "launch1.log", "a launch needs 3 s, and a search ten or more: --budget 2m"),
        (None, "launch1.log", "logs/launch1.log may say why; if it only started, try --budget 2m"),
        (None, "", "try --budget 2m"),
    ],
)
def test_what_to_do_follows_from_what_took_the_budget(
    needs_s: float | None, log: str, advice: str
) -> None:
    outcome = Outcome(
        verdict=Verdict.SKIPPED, reason="the budget ended; it did this", needs_s=needs_s, log=log
    )
    records = [Record(0, "search", space().candidates[0], outcome)]
    ended = why_nothing(records, space(), None, 60.0)
    assert ended.message.endswith(f"; {advice} (it did this)")


def test_a_model_that_is_too_large_is_no_matter_of_the_budget() -> None:
    outcome = Outcome(verdict=Verdict.SKIPPED, log="rank0.log", predicted_peak_bytes=2**40)
    records = [Record(0, "search", space().candidates[0], outcome)]
    ended = why_nothing(records, space(), None, 60.0)
    assert "is expected to need 1024.00 GiB; the limit is " in ended.message
    assert "--budget" not in ended.message


def test_what_ran_out_in_a_phase_is_said_with_its_log() -> None:
    reason = "process 7 ran out of memory in evaluation after 7 steps; see launch006.log"
    trained = record(space().candidates[0])
    outcome = Outcome(verdict=Verdict.OOM, reason=reason, peaks=Peaks.same(2**30))
    records = [trained, Record(1, "phases", trained.candidate, outcome)]
    ended = why_nothing(records, space(), None, 60.0)
    assert f" 1.00 GiB when it ran out: {reason}; " in ended.message


SPACE = space()
SMALL = [c for c in SPACE.candidates if (c.depth, c.seq_len, c.micro_batch) == (2, 64, 1)]
"""Without checkpointing and with: one of them is no larger than each candidate."""
OPEN = len(SPACE.candidates) // 2
"""Candidates that the first of them says nothing of."""


def test_where_all_is_known_not_to_fit_nothing_fits() -> None:
    ended = why_nothing([record(c, Verdict.OOM) for c in SMALL], SPACE, None, 60.0)
    assert ended.code is Ending.NOTHING_FITS
    assert ended.message.startswith("nothing fits under 3.20 GiB")
    assert "not tried" not in ended.message


@pytest.mark.parametrize(
    ("trials", "end"), [(None, "the budget ended"), (9, "the budget ended"), (1, "--trials 1")]
)
def test_what_was_not_tried_is_said_and_why(trials: int | None, end: str) -> None:
    records = [record(SMALL[0], Verdict.OVER_CEILING, peak_mib=4000)]
    ended = why_nothing(records, SPACE, None, 60.0, trials=trials)
    assert ended.code is Ending.NOTHING_FITS
    assert ended.message.startswith("nothing that was tried fits under 3.20 GiB")
    assert f"; {OPEN} candidates were not tried before {end}" in ended.message


def test_finals_are_no_trials() -> None:
    records = [
        record(SMALL[1]),
        record(SMALL[1], Verdict.OVER_CEILING, purpose="final", peak_mib=4000),
    ]
    ended = why_nothing(records, SPACE, None, 60.0, trials=2)
    assert "were not tried before the budget ended" in ended.message


def test_what_is_unsupported_is_not_said_to_be_untried() -> None:
    lacks = record(SMALL[1], Verdict.UNSUPPORTED, reason="no such op")
    lacks = replace(lacks, outcome=replace(lacks.outcome, unsupported=("checkpointing",)))
    ended = why_nothing([record(SMALL[0], Verdict.OOM), lacks], SPACE, None, 60.0)
    assert ended.code is Ending.NOTHING_FITS
    assert ended.message.startswith("nothing fits under")


def test_nodes_that_were_lost_are_no_budget_that_ended() -> None:
    records = [record(SMALL[0], Verdict.OOM)]
    ended = why_nothing(records, SPACE, None, 60.0, lost="node n1 is gone")
    assert ended.code is Ending.NO_MEASUREMENT
    assert ended.message.endswith(f"; {OPEN} candidates were not tried before node n1 is gone")


def test_a_final_that_broke_is_what_is_said_of_what_fitted_before() -> None:
    records = [
        record(SMALL[0], Verdict.OOM),
        record(SMALL[1]),
        record(SMALL[1], Verdict.CRASHED, purpose="final", reason="no torch"),
    ]
    ended = why_nothing(records, SPACE, None, 60.0)
    assert ended.code is Ending.NO_MEASUREMENT
    assert f"; 1 ended otherwise: one, {SMALL[1].key} was crashed: no torch" in ended.message
    assert f"; {OPEN - 1} candidates were not tried" in ended.message


def test_where_probes_broke_it_is_not_said_that_nothing_fits() -> None:
    records = [
        record(SMALL[0], Verdict.OOM),
        *(
            record(c, Verdict.CRASHED, reason="no torch")
            for c in SPACE.candidates
            if c.checkpointing == SMALL[1].checkpointing
        ),
    ]
    ended = why_nothing(records, SPACE, None, 60.0)
    assert ended.code is Ending.NO_MEASUREMENT
    assert f"; {OPEN} ended otherwise: one, {SMALL[1].key} was crashed: no torch" in ended.message
    assert "not tried" not in ended.message


@pytest.mark.parametrize(
    ("budget_s", "advice"), [(20, "2m"), (60, "2m"), (61, "3m"), (180, "6m"), (7200, "240m")]
)
def test_a_study_that_measured_nothing_is_told_of_a_budget_that_is_larger_than_its_own(
    budget_s: float, advice: str
) -> None:
    ended = why_nothing([], space(), None, budget_s)
    assert ended.code is Ending.NO_MEASUREMENT
    assert ended.message.endswith(f"try --budget {advice}")
    assert parse_duration_s(advice, "--budget") >= 2 * budget_s


def test_a_script_is_named_by_what_it_is_told_and_its_heedlessness_is_the_cause() -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="15,16", seq_len="")
    small, large = among.candidates
    refused = Outcome(verdict=Verdict.UNSUPPORTED, reason="asked for 16, the model got 4")
    ignored = replace(refused, reason="the script ignores {micro_batch}", only={"micro_batch": 4})
    records = [Record(0, "search", large, refused), Record(1, "search", small, ignored)]
    assert why_nothing(records[:1], among, None, 60.0).message == (
        "nothing could be measured; first, micro_batch 16 was unsupported: asked for 16, the"
        " model got 4"
    )
    assert why_nothing(records, among, None, 60.0).message == (
        "nothing could be measured; micro_batch 15 was unsupported: the script ignores"
        " {micro_batch}"
    )


def test_after_a_crash_a_new_folder_is_named() -> None:
    crashed = record(space().candidates[0], Verdict.CRASHED)
    ended = why_nothing([crashed], space(), None, 60.0)
    assert ended.message.endswith("start with a new --out: --resume repeats nothing")


def test_what_a_script_s_candidate_settles_is_told_by_what_it_is_told() -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="1,2", seq_len="")
    ledger = Ledger(among, "tokens_per_s", Predictor(among, "cpu"))
    lost = record(among.candidates[0], Verdict.OOM)
    ledger.add(lost)
    skipped = ledger.settle(lost)[-1]
    assert skipped.outcome.reason == "needs no less than micro_batch 1, which was oom"
    assert skipped.outcome.witness == among.candidates[0].key


def test_no_size_is_told_of_a_script_that_was_never_measured() -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="1,2", seq_len="")
    outcome = Outcome(verdict=Verdict.SKIPPED, log="launch1.log", predicted_peak_bytes=2**60)
    ended = why_nothing([Record(0, "search", among.candidates[0], outcome)], among, None, 60.0)
    assert "expected" not in ended.message
    assert "try --budget 2m" in ended.message
