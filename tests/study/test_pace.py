"""What starts and probes are taken to cost."""

from __future__ import annotations

from dataclasses import replace

from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Outcome, Verdict
from autotune.study.attempts import Probed
from autotune.study.pace import FIRST_COMPILE_S, Pace
from tests.support.records import record, space, with_offload

SPACE = with_offload(space())
PLAIN = Candidate(depth=2, seq_len=64, micro_batch=1)
SHARDED = replace(PLAIN, zero_stage=2, offload="optimizer")


def started(*starts_s: float) -> Probed:
    return Probed(outcome=Outcome(verdict=Verdict.OK), starts_s=starts_s)


def test_starts_are_known_by_engine_before_the_first_and_learned_then() -> None:
    pace = Pace(SPACE.workload, "cpu", Options())
    assert 0 < pace.start_s(PLAIN) < pace.start_s(SHARDED)
    compiled = replace(PLAIN, compile="on")
    assert pace.start_s(compiled) == pace.start_s(PLAIN) + FIRST_COMPILE_S
    before_s = pace.start_s(SHARDED)
    pace.learn(PLAIN, started(9.0))
    assert (pace.start_s(PLAIN), pace.start_s(SHARDED)) == (9.0, before_s)
    pace.learn(PLAIN, started(0.2))  # the first one imported the library
    assert pace.start_s(PLAIN) == 0.2


def test_a_start_that_was_cut_short_is_no_shorter_than_others() -> None:
    pace = Pace(SPACE.workload, "cpu", Options())
    pace.learn(PLAIN, started(26.0))
    for cut_s, known_s in ((18.0, 26.0), (40.0, 40.0)):
        pace.learn(PLAIN, replace(started(cut_s), outcome=Outcome(verdict=Verdict.SKIPPED)))
        assert pace.start_s(PLAIN) == known_s


def test_a_probe_is_never_taken_to_cost_more_than_its_rule_allows() -> None:
    pace = Pace(SPACE.workload, "cpu", Options())
    known = record(PLAIN)
    slow = replace(
        known, outcome=replace(known.outcome, warmup_s=500.0, timed_s=500.0, attempts=1)
    )
    limits_s = pace.rule.warmup_limit_s + pace.rule.timed_limit_s
    assert pace.probe_s(slow) == max(
        limits_s, (pace.rule.warmup_steps + pace.rule.timed_steps) * known.measured.step.low
    )
