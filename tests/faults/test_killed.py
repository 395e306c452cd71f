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


def test_a_second_study_is_kept_out_of_the_folder(make: Make) -> None:
    study = make(HostileStudy, *QUICK_SPACE, QUICK_PACE="100")
    first = study.begin()
    while first.poll() is None and not study.told():
        time.sleep(0.02)
    second = study.resume()
    _, stderr = second.communicate()
    assert second.returncode == 2
    assert f"process {first.pid} on " in stderr
    assert first.poll() is None
    first.kill()
    first.wait()
    third = study.resume("--budget", "1s")
    assert third.wait() in (0, 5)


def test_a_study_that_is_done_shows_its_result_again(make: Make) -> None:
    study = make(HostileStudy, *QUICK_SPACE)
    first = study.begin()
    shown, _ = first.communicate()
    written = (study.out / "best.json").read_bytes()
    again = study.resume()
    repeated, _ = again.communicate()
    assert (first.returncode, again.returncode) == (0, 0)
    result = shown[shown.index("Best:") : shown.index("Exports:")]
    assert result in repeated
    assert (study.out / "best.json").read_bytes() == written
    (study.out / "best.json").write_text("{}")
    assert study.resume().wait() == 0
    assert study.best() is not None
