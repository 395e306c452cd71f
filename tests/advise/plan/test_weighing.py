"""A plan is weighed until its rows stand: what is weighed, and what is said of it then."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autotune.advise.plan import weighing
from autotune.advise.plan.answers import Answer, answer, table
from autotune.advise.plan.expected import Helpers, Plan, PlanRequest, Weighed
from autotune.advise.plan.show import print_answer
from autotune.advise.plan.weighing import weighed
from autotune.device.cards import parse_gpus
from autotune.measure.runner import Job, StopRequestedError
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Outcome, Verdict, judge
from autotune.wire.helpers import Count, Counted
from tests.support.records import record


def no_count(asked: Count) -> Counted:
    raise AssertionError("a gpt has a closed form")


HELPERS = Helpers(no_count, lambda asked: "nobody traces here")


class Scale:
    """Every sample of a micro_batch takes `each_gib`, over 4 GiB. What is checkpointed in the
    `broken` way does not run."""

    def __init__(self, each_gib: float, broken: str = "") -> None:
        self.each_gib, self.broken = each_gib, broken
        self.seen: list[tuple[int, Candidate]] = []
        self.said: list[str] = []
        self.note = self.said.append

    def weigh(self, found: Plan, candidate: Candidate) -> Outcome:
        assert (found.gpus, candidate) not in self.seen
        self.seen.append((found.gpus, candidate))
        if self.broken and candidate.checkpointing == self.broken:
            return Outcome(verdict=Verdict.CRASHED, reason="no such kernel; see rank0.log")
        peak_mib = int((4 + self.each_gib * candidate.micro_batch) * 1024)
        if peak_mib << 20 > found.space.limits.capacity_bytes:
            return Outcome(verdict=Verdict.OOM, reason="memory ran out")
        seen = record(candidate, peak_mib=peak_mib, among=found.space.workload)
        peaks = seen.measured.peaks
        verdict, _ = judge(peaks, found.space.limits)
        return replace(seen.outcome, verdict=verdict, peaks=peaks)


def asked(**texts: str) -> PlanRequest:
    given = {"depth": "24", "seq_len": "2048", "micro_batch": "1:64", "dtype": "bf16"} | texts
    return PlanRequest(
        options=Options.from_texts(given), card=parse_gpus("80GiB").card, host_bytes=None
    )


def ended(scale: Any, request: PlanRequest, counts: tuple[int, ...] = (1,), **how: Any) -> Answer:
    def again(known: Weighed) -> Answer:
        return answer(replace(request, weighed=known), counts, how.get("solve"), HELPERS)

    return weighed(again({}), again, scale, how.get("most", 20), lambda *told: None)


@pytest.mark.parametrize("each_gib", [0.7, 2.0, 4.0, 7.5, 12.0, 30.0, 70.0])
def test_every_row_stands_on_a_peak_at_its_border(each_gib: float) -> None:
    """64 GiB are allowed: whatever was expected, the largest micro_batch that fits is found."""
    scale = Scale(each_gib)
    found = ended(scale, asked())
    fitting = [n for n in range(1, 65) if 4 + each_gib * n <= 64]
    for each in table(found.plans[0]):
        assert each.row.weighed
        assert each.row.fits == bool(fitting)
        assert each.row.candidate.micro_batch == (fitting or [1])[-1]
        if fitting:
            assert each.may == fitting[-1]
            assert each.row.peak.bytes >> 20 == int((4 + each_gib * fitting[-1]) * 1024)
    assert len(scale.seen) <= 6 * len(table(found.plans[0]))


def test_what_ran_out_of_memory_has_no_peak() -> None:
    found, out = ended(Scale(90.0), asked()), io.StringIO()
    print_answer(Console(file=out, width=200), found, 20)
    assert out.getvalue().count("out of memory  weighed    0%") == len(table(found.plans[0]))


def test_of_rows_far_above_the_memory_only_the_first_is_weighed() -> None:
    scale = Scale(90.0)
    rows = table(ended(scale, asked(depth="1000")).plans[0])
    assert [each.row.weighed for each in rows] == [True] + [False] * (len(rows) - 1)
    assert len(rows) > 1
    assert len(scale.seen) == 1


def test_a_modelled_speed_is_as_unsure_as_beside_published_runs() -> None:
    card = parse_gpus("A100-80GB").card
    found = ended(Scale(2.0), replace(asked(), card=card))
    for row in found.plans[0].expected:
        low, median, high = row.tokens_per_s
        assert min(median / low, high / median) >= 1.16 - 1e-9


def test_rows_that_nobody_sees_are_not_weighed() -> None:
    scale = Scale(2.0)
    found = ended(scale, asked(), most=1)
    first, second = table(found.plans[0])
    assert first.row.weighed
    assert not second.row.weighed


def test_what_cannot_be_weighed_is_expected_and_said() -> None:
    scale = Scale(2.0, broken="full")
    found = ended(scale, asked())
    rows = {each.row.candidate.checkpointing: each.row for each in table(found.plans[0])}
    assert (rows["none"].weighed, rows["full"].weighed) == (True, False)
    [said] = scale.said
    assert said.endswith("was not weighed: no such kernel")
    assert rows["full"].peak.low_bytes < rows["full"].peak.high_bytes


def test_each_number_of_gpus_stands_on_its_own() -> None:
    scale = Scale(2.0)
    found = ended(scale, asked(zero="3"), counts=(2, 8))
    assert {gpus for gpus, _ in scale.seen} == {2, 8}
    assert all(row.weighed and row.fits for row in found.rows)


def test_a_solution_fits_as_weighed() -> None:
    scale = Scale(2.0)
    found = ended(scale, solving(), solve="micro_batch")
    assert found.solved is not None
    assert found.solved.value == 30
    [row] = found.rows
    assert row.weighed


def solving() -> PlanRequest:
    texts = {"depth": "24", "seq_len": "2048", "dtype": "bf16", "checkpointing": "none"}
    return replace(asked(), options=Options.from_texts(texts))


def test_a_user_who_stops_it_gets_what_is_known() -> None:
    class Stopped(Scale):
        def weigh(self, found: Plan, candidate: Candidate) -> Outcome:
            if self.seen:
                raise StopRequestedError
            return super().weigh(found, candidate)

    scale = Stopped(70.0)
    found = ended(scale, asked())
    assert sum(row.weighed for row in found.plans[0].expected) == 1
    assert scale.said == ["stopped: some rows were not weighed"]


def test_a_weighing_takes_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of state-space models without kernels, each takes minutes."""

    class Runs:
        def run(self, job: Job, deadline: float) -> Any:
            assert (job.rule.warmup_steps, job.rule.timed_steps) == (2, 1)
            raise StopRequestedError

    monkeypatch.setattr(weighing.Scale, "_runner_of", lambda scale, found: Runs())
    [found] = answer(asked(), (1,), None, HELPERS).plans
    with pytest.raises(StopRequestedError):
        object.__new__(weighing.Scale).weigh(found, found.expected[0].candidate)
