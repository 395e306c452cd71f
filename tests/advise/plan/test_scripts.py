"""The largest micro_batch of a script that fits is found in few launches."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.advise.plan.scripts import ScriptPlan, largest
from autotune.advise.plan.show_scripts import as_csv, print_plans
from autotune.space.candidate import Candidate
from autotune.space.outcome import Outcome, Verdict
from autotune.space.space import Fixed
from tests.support.records import record, space

LIMIT_MIB = 1000
Peak = Callable[[int], float]


class Launches:
    """Those of a script whose peak is known; twice the limit is more than the card has."""

    def __init__(self, peak: Peak) -> None:
        self.peak = peak
        self.seen: list[int] = []

    def __call__(self, asked: Candidate) -> Outcome:
        assert asked.micro_batch not in self.seen
        self.seen.append(asked.micro_batch)
        mib = int(self.peak(asked.micro_batch))
        if mib > 2 * LIMIT_MIB:
            return Outcome(verdict=Verdict.OOM)
        verdict = Verdict.OK if mib <= LIMIT_MIB else Verdict.OVER_CEILING
        return record(asked, verdict, peak_mib=mib).outcome


def values(*numbers: int) -> list[Candidate]:
    return [Candidate(depth=1, seq_len=64, micro_batch=n) for n in numbers]


@pytest.mark.parametrize(
    ("peak", "fits", "launches"),
    [
        (lambda n: 100 + 7 * n, 128, 4),
        (lambda n: 10 + 0.7 * n, 1024, 3),
        (lambda n: 700 + 7 * n, 42, 5),
        (lambda n: 100 + n**1.5, 93, 14),
        (lambda n: 100 + 64 * -(-n // 16), 224, 14),
        (lambda n: 400 if n < 300 else 3000, 299, 13),
        (lambda n: 400, 1024, 3),
        (lambda n: 999 + n, 1, 2),
    ],
    ids=["line", "all fit", "high", "curve", "steps", "cliff", "constant", "one"],
)
def test_the_border_is_found(peak: Peak, fits: int, launches: int) -> None:
    weigh = Launches(peak)
    found = largest(values(*range(1, 1025)), LIMIT_MIB << 20, weigh)
    assert found.candidate.micro_batch == fits
    assert found.outcome.verdict == Verdict.OK
    if fits == 1024:
        assert found.above is None
    else:
        assert found.above is not None
        assert found.above[0].micro_batch == fits + 1
        assert not found.above[1].verdict.fits
    assert len(weigh.seen) <= launches, weigh.seen


def test_only_values_that_were_asked_for_are_launched() -> None:
    weigh = Launches(lambda n: 100 + 7 * n)
    found = largest(values(64, 4, 256), LIMIT_MIB << 20, weigh)
    assert found.candidate.micro_batch == 64
    assert found.above is not None
    assert found.above[0].micro_batch == 256
    assert set(weigh.seen) == {4, 64, 256}


def test_where_nothing_fits_one_launch_says_so() -> None:
    weigh = Launches(lambda n: 1200)
    found = largest(values(2, 4, 8), LIMIT_MIB << 20, weigh)
    assert (found.candidate.micro_batch, found.above) == (2, None)
    assert found.outcome.verdict == Verdict.OVER_CEILING
    assert weigh.seen == [2]


def test_a_launch_that_fails_otherwise_is_no_border() -> None:
    """It is next to what fits, and says why."""
    seen: list[int] = []

    def weigh(asked: Candidate) -> Outcome:
        seen.append(asked.micro_batch)
        if asked.micro_batch > 1:
            return Outcome(verdict=Verdict.CRASHED, reason="not divisible")
        return record(asked, peak_mib=100).outcome

    found = largest(values(1, 2, 4, 8), LIMIT_MIB << 20, weigh)
    assert found.candidate.micro_batch == 1
    assert found.above is not None
    assert found.above[1].reason == "not divisible"


def test_rows_with_and_without_a_larger_micro_batch_are_one_table() -> None:
    weigh = [Launches(lambda n: 100), Launches(lambda n: 999 * n)]
    rows = [largest(values(1, 2), LIMIT_MIB << 20, each) for each in weigh]
    text = as_csv([ScriptPlan(gpus=1, space=space(), rows=rows)])
    first, second = csv.DictReader(text.splitlines())
    assert (first["micro_batch"], first["next_micro_batch"], first["next_fits"]) == ("2", "", "")
    assert (second["micro_batch"], second["next_verdict"]) == ("1", "over_ceiling")


def test_samples_without_tokens_are_counted_as_samples() -> None:
    one = Candidate(depth=1, seq_len=1, micro_batch=4)
    rows = [largest([one], LIMIT_MIB << 20, Launches(lambda n: 100))]
    fixed = (Fixed("script", "train.py", "--script"), Fixed("device", "T4", "--gpus"))
    of_script = replace(space(), fixed=fixed)
    text = io.StringIO()
    print_plans(Console(file=text), [ScriptPlan(gpus=1, space=of_script, rows=rows)], 1)
    assert "samples/s" in text.getvalue()
    assert "tok/s" not in text.getvalue()
