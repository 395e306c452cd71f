"""Several processes on one study: of a server of PostgreSQL, and of a file of SQLite."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import UsageError
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from autotune.result.folder.storage import place_of, storage_of
from tests.support.hostile import QUICK_SPACE, HostileStudy
from tests.support.postgres import Server

pytestmark = pytest.mark.slow

SOON = {"QUICK_BEAT_S": "1"}
"""For what has to notice that a process died; a busy machine lets a process miss quicker beats."""
SPACE = [*QUICK_SPACE, "--budget", "10m"]


class Team:
    """Processes on one study, each in a folder of its own; the first one begins it."""

    def __init__(self, folder: Path, url: str, *arguments: str, **environment: str) -> None:
        self._folder, self._url = folder, url
        self._arguments = arguments
        self._environment = environment
        self.studies: list[HostileStudy] = []
        self.running: list[subprocess.Popen[str]] = []

    def begin(self, others: int = 0) -> None:
        """So many others join the first one."""
        study = self._new()
        self.running.append(study.begin("--storage", self._url, *self._arguments))
        self.wait(lambda: bool(self._trials_now()))
        for _ in range(others):
            self.join()

    def join(self, *arguments: str) -> subprocess.Popen[str]:
        study = self._new()
        process = study.start("--join", self.place, "--out", str(study.out), *arguments)
        self.running.append(process)
        return process

    def _new(self) -> HostileStudy:
        study = HostileStudy(self._folder / str(len(self.studies)), **self._environment)
        self.studies.append(study)
        return study

    @property
    def first(self) -> Folder:
        return Folder(self.studies[0].out)

    @property
    def place(self) -> str:
        return place_of(self._url, manifest.read(self.first.path).study_name)

    def trials(self) -> list[FrozenTrial]:
        found = manifest.read(self.first.path)
        return storage_of(self.first, found).read().get_trials()

    def _trials_now(self) -> list[FrozenTrial]:
        with suppress(UsageError, KeyError, SQLAlchemyError, StorageInternalError, OSError):
            return self.trials()
        return []  # there is nothing yet, or the server is away

    def until(self, told: int) -> None:
        """So many trials were told, and each process has some."""

        def happened() -> bool:
            trials = self._trials_now()
            owners = {trial.user_attrs["owner"] for trial in trials}
            return sum(trial.state.is_finished() for trial in trials) >= told and len(
                owners
            ) >= len(self.running)

        self.wait(happened)

    def wait(self, happened: Callable[[], bool]) -> None:
        while not happened():
            assert any(process.poll() is None for process in self.running)
            time.sleep(0.05)

    def ended(self, *codes: int) -> list[str]:
        """What all said, which ended with these."""
        said = ["".join(process.communicate()) for process in self.running]
        found = [process.returncode for process in self.running]
        assert found == list(codes), "".join(text[-2000:] for text in said)
        return said

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].wait()

    def close(self) -> None:
        for study in self.studies:
            study.end()

    def asked(self) -> dict[str, int]:
        """Candidates, and how often each was told with a verdict."""
        return Counter(
            record.candidate.key
            for record in records_in(self.first)
            if record.purpose == "search" and not record.outcome.put_off
        )

    def results(self, *numbers: int) -> list[Any]:
        """best.json of these, without what tells where it was made."""
        found = [json.loads(Folder(self.studies[n].out).best.read_text()) for n in numbers]
        for each in found:
            del each["provenance"], each["environment"]
        return found


Teams = Callable[..., Team]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Teams]:
    made: list[Team] = []

    def make(url: str, *arguments: str, **environment: str) -> Team:
        made.append(Team(tmp_path, url, *(arguments or SPACE), **environment))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_four_processes_probe_each_once_and_agree(team: Teams, postgres: Server) -> None:
    four = team(postgres.url, QUICK_PACE="5")
    four.begin(3)
    four.ended(0, 0, 0, 0)
    assert set(four.asked().values()) == {1}
    assert len(four.asked()) == len(four.trials())
    owners = {trial.user_attrs["owner"] for trial in four.trials()}
    assert len(owners) == 4
    first, *others = four.results(0, 1, 2, 3)
    assert others == [first] * 3
    tables = [pd.read_csv(Folder(study.out).trials) for study in four.studies]
    for table in tables:
        assert table["key"].tolist() == tables[0]["key"].tolist()


def test_what_a_killed_process_probed_comes_back(team: Teams, postgres: Server) -> None:
    four = team(postgres.url, QUICK_PACE="30", **SOON)
    four.begin(3)
    four.until(6)
    four.kill(2)
    four.ended(0, 0, -9, 0)
    assert set(four.asked().values()) == {1}
    lost = [trial for trial in four.trials() if "outcome" not in trial.user_attrs]
    assert {trial.state for trial in lost} <= {TrialState.FAIL}
    assert all(f"-{four.running[2].pid}-" in trial.user_attrs["owner"] for trial in lost)
    first, *others = four.results(0, 1, 3)
    assert others == [first] * 2


def test_a_server_that_is_away_is_waited_for(team: Teams, postgres: Server) -> None:
    four = team(postgres.url, QUICK_PACE="5")
    four.begin(3)
    four.until(6)
    postgres.kill()
    for process in four.running:
        assert process.stdout is not None
        assert any("waiting for it" in line for line in process.stdout)
    postgres.start()
    said = four.ended(0, 0, 0, 0)
    assert sum("answers again" in each for each in said) == 4
    assert set(four.asked().values()) == {1}
    first, *others = four.results(0, 1, 2, 3)
    assert others == [first] * 3


def test_a_study_stopped_without_its_server_keeps_its_best(team: Teams, postgres: Server) -> None:
    one = team(postgres.url, QUICK_PACE="5")
    one.begin()
    one.wait(one.first.best.exists)
    postgres.kill()
    one.running[0].send_signal(signal.SIGINT)
    stdout, stderr = one.running[0].communicate()
    assert one.running[0].returncode == 1
    assert f"Written: {one.first.best}" in stdout, stdout + stderr
    assert f"--resume {one.first.path}" in stderr
    assert stderr.count("\n") == 1
    assert one.first.best.exists()


def test_two_processes_share_a_file_of_sqlite(team: Teams, tmp_path: Path) -> None:
    two = team(f"sqlite:///{tmp_path}/studies.db", QUICK_PACE="5")
    two.begin(1)
    two.ended(0, 0)
    assert set(two.asked().values()) == {1}
    assert len({trial.user_attrs["owner"] for trial in two.trials()}) == 2
    first, second = two.results(0, 1)
    assert first == second


def test_a_resumed_process_ends_nothing_that_runs_elsewhere(team: Teams, postgres: Server) -> None:
    two = team(postgres.url, QUICK_PACE="30")
    two.begin(1)
    two.until(6)
    two.kill(0)
    two.running[0] = two.studies[0].resume()
    two.ended(0, 0)
    assert set(two.asked().values()) == {1}
    first, second = two.results(0, 1)
    assert first == second
