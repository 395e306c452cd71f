"""SIGKILL of the study at many moments: what was told stays told, and the end is the same.

scripts/bench/faults.py does it at some hundred random moments.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.choice import campaign
from tests.support.hostile import QUICK_SPACE, HostileStudy, SqliteStudy, kill_and_resume

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]
MOMENTS = 5


@pytest.mark.parametrize("kind", [HostileStudy, *campaign(SqliteStudy)])
def test_killed_at_any_moment_it_ends_as_if_unkilled(make: Make, kind: type[HostileStudy]) -> None:
    whole = make(kind, *QUICK_SPACE)
    began = time.monotonic()
    assert whole.begin().wait() == 0
    length_s = time.monotonic() - began
    assert {row[2] for row in whole.trials()} >= {"ok", "oom", "over_ceiling", "skipped"}
    found, rng = [], random.Random(0)
    for moment in range(MOMENTS):
        study = make(kind, *QUICK_SPACE)
        after_s = length_s * (moment + rng.random()) / MOMENTS
        found.append(kill_and_resume(study, after_s, whole.trials()))
    assert [each for each in found if not each.sound] == []


@pytest.mark.parametrize("number", [
    signal.SIGTERM, *campaign(signal.SIGINT, signal.SIGHUP)
])  # fmt: skip
def test_a_study_that_was_asked_to_stop_goes_on_too(make: Make, number: signal.Signals) -> None:
    study = make(HostileStudy, *QUICK_SPACE)
    process = study.begin()
    while process.poll() is None and not study.told():
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 4
    assert f"--resume {study.out}" in stderr
    told = study.told()
    resumed = study.resume()
    stdout, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert "resumed after" in stdout
    assert told.items() <= study.told().items()
    assert study.told_twice() == []
