"""Ranks that go wrong in any phase, and studies in which many do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from autotune.measure.runner import channel, group, local
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from tests.support.choice import campaign
from tests.support.hostile import QUICK_SPACE, HostileStudy
from tests.support.pools import Started, ranks
from tests.support.programs import QUICK_RANK

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]
FAULTS = {
    "killed": "was ended by SIGKILL", "stop": "gave no sign", "leave": "left with exit code 7",
    "garbage": "sent an invalid message: not an autotune message",
    "cut_short": "sent an invalid message", "huge": "sent an invalid message",
}  # fmt: skip
"""With what is said of them."""
EACH = list(zip(itertools.cycle(FAULTS), Phase, strict=False))
REST = [case for case in itertools.product(FAULTS, Phase) if case not in EACH]
WIDE = ["--device", "cpu", "--depth", "1,2,3,4", "--seq-len", "64,128", "--micro-batch", "1:8"]
LATE_S = 12.0
"""Of a busy machine, to end ranks and write the report. A hang would be waited for for longer."""


@pytest.mark.parametrize(("fault", "phase"), [*EACH, *campaign(*REST)])
def test_a_rank_that_goes_wrong_in_any_phase_is_a_verdict_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, phase: Phase
) -> None:
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)
    monkeypatch.setattr(channel, "PEER_TIMEOUT_S", 1)
    monkeypatch.setenv("FAULT", f"{fault}@{phase}:0")
    with monkeypatch.context() as hasty:  # where it takes a deadline to see that it went wrong
        if fault == "stop":
            hasty.setitem(group.PHASE_DEADLINE_S, phase, 2.0)
        started = Started(tmp_path)
        result = started.run()
    try:
        assert result.verdict is (Verdict.HUNG if fault == "stop" else Verdict.CRASHED)
        assert FAULTS[fault] in result.reason
        assert f"phase {phase}" in result.reason or "invalid" in result.reason
        assert ranks() == []
        monkeypatch.setenv("FAULT", "")
        assert started.run().verdict is Verdict.OK
    finally:
        started.pool.close()
    assert ranks() == []


def test_a_third_of_probes_that_break_does_not_break_the_budget(make: Make) -> None:
    budget_s = 15.0
    study = make(
        HostileStudy, *WIDE, "--budget", f"{budget_s:.0f}s",
        QUICK_FAULTS="hang:0.03,killed:0.1,leave:0.1,garbage:0.07",
    )  # fmt: skip
    began = time.monotonic()
    process = study.begin()
    _, stderr = process.communicate()
    assert time.monotonic() - began < budget_s + LATE_S
    assert process.returncode in (0, 5), stderr
    verdicts = pd.read_csv(study.out / "trials.csv")["verdict"].value_counts()
    assert verdicts.get("crashed", 0) > 0


def test_a_study_in_which_every_rank_goes_wrong_says_so_in_one_line(make: Make) -> None:
    study = make(HostileStudy, *QUICK_SPACE, FAULT="leave@engine:0")
    process = study.begin()
    stdout, stderr = process.communicate()
    assert process.returncode == 5
    assert stderr.count("\n") == 1
    assert "rank 0 left with exit code 7 in phase engine" in stderr
    assert "Traceback" not in stdout + stderr
    study.environment["FAULT"] = ""
    assert study.resume().wait() == 0
