"""Resuming by the command line, on recorded measurements and virtual time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import OUT_OF_BUDGET, Job, Result, StopRequestedError
from autotune.measure.testbed import open_testbed, testbed
from autotune.result.best import Best
from autotune.result.files import MANIFEST, hold
from autotune.result.folder.past import Ending
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.study import samplers
from autotune.study.search import Search
from autotune.study.study import Study
from tests.support import recorded
from tests.support.records import space

Run = tuple[int, str, str]
Tune = Callable[..., Run]
ROWS = [recorded.row(candidate) for candidate in space(micro_batch=(1, 8)).candidates]


class Died(BaseException):
    """The end of the process, as far as that can be done in one."""


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> Tune:
    """Runs a command line in a folder of its own: exit code, stdout, stderr."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    recorded.write(here / "grid.csv", ROWS)

    def tune(*argv: str) -> Run:
        code = main(list(argv))
        return (code, *capsys.readouterr())

    return tune


NEW = ("--device", "replay:grid.csv", "--out", "study", "--budget", "1h", "--sampler", "grid")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that came to its end."""
    here = tmp_path_factory.mktemp("ended")
    with chdir(here):
        recorded.write(Path("grid.csv"), ROWS)
        assert main([*NEW]) == ExitCode.FOUND
    return here / "study"


@pytest.fixture
def ended(tune: Tune, study: Path) -> None:
    """Where `tune` runs there is that study."""
    shutil.copytree(study, "study")


@pytest.fixture
def die(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a command line whose process dies in the probe that comes after so many."""
    run = Replay.run

    def die(after: int, *argv: str) -> None:
        left = iter(range(after))

        def until(self: Replay, job: Job, deadline: float) -> Result:
            if next(left, None) is None:
                raise Died
            return run(self, job, deadline)

        with monkeypatch.context() as patch:
            patch.setattr(Replay, "run", until)
            with pytest.raises(Died):
                tune(*argv)

    return die


def rows() -> pd.DataFrame:
    return pd.read_csv("study/trials.csv", dtype=str)


def test_a_study_goes_on_from_another_working_directory(
    tune: Tune, die: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    die(5, *NEW)
    folder = Path("study").absolute()
    monkeypatch.chdir("/")
    code, stdout, _ = tune("--resume", f"{folder}/")
    assert (code, "trials 5" in stdout) == (ExitCode.FOUND, True)


@pytest.mark.parametrize("names", [{"lock"}, {"lock", f"{MANIFEST}.tmp"}])
def test_a_folder_without_a_begun_study_is_as_empty(tune: Tune, names: set[str]) -> None:
    Path("study").mkdir()
    for name in names:
        (Path("study") / name).touch()
    assert tune(*NEW)[0] == ExitCode.FOUND


def test_no_result_is_left_of_a_misfit(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    probe = Replay.run

    def run(self: Replay, job: Job, deadline: float) -> Result:
        if job.mixed:  # a final
            seen.append(Path("study/best.json").exists())
            return Result(verdict=Verdict.OOM)
        return probe(self, job, deadline)

    monkeypatch.setattr(Replay, "run", run)
    assert tune(*NEW)[0] == ExitCode.NOTHING_FITS
    assert seen[0]
    assert not Path("study/best.json").exists()


def test_a_probe_without_time_says_whether_it_was_the_search_s_part_or_all_of_the_budget(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Job] = []
    probe = Replay.run

    def run(self: Replay, job: Job, deadline: float) -> Result:
        searched.extend([] if job.mixed else [job])
        if job.mixed or len(searched) == 5:
            return Result(verdict=Verdict.SKIPPED, reason=OUT_OF_BUDGET)
        return probe(self, job, deadline)

    monkeypatch.setattr(Replay, "run", run)
    tune(*NEW)
    skipped = rows().query("verdict == 'skipped' and witness.isna()")
    said = set(zip(skipped["kind"], skipped["reason"], strict=True))
    assert said == {
        ("search", "the search's part of the budget ended during this probe"),
        ("final", OUT_OF_BUDGET),
    }


@pytest.mark.parametrize("whole", [True, False])
def test_where_no_final_fits_the_line_that_makes_them_is_told_and_does(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Of half the grid, finals leave time to search: what wins there has finals, too."""
    probe = Replay.run

    def slow(self: Replay, job: Job, deadline: float) -> Result:
        if self._time() + 55.0 > deadline:
            self._time.advance(deadline - self._time())
            return Result(verdict=Verdict.SKIPPED, reason=OUT_OF_BUDGET, group_start_s=10.0)
        self._time.advance(55.0)
        return replace(probe(self, job, deadline), group_start_s=55.0)

    monkeypatch.setattr(Replay, "run", slow)
    if whole:
        recorded.write(Path("grid.csv"))
    _, stdout, _ = tune(*NEW[:4], "--sampler", "grid", "--budget", "110s")
    assert not Best.read(Path("study/best.json")).confirmed
    step = r"a final takes (\d+) s. Go on:\nautotune (--resume study --budget \d+m)\n"
    told = re.search(step, stdout)
    assert told is not None
    assert len(re.findall(r"--budget \d", stdout)) == 1
    assert 55 <= int(told[1]) <= 65
    assert f"leaves no time for finals: one takes {told[1]} s" in stdout
    assert "a final takes" not in tune(*told[2].split())[1]
    assert Best.read(Path("study/best.json")).confirmed


def test_values_that_no_probe_told_of_are_named(tune: Tune) -> None:
    stdout = tune(*NEW[:4], "--sampler", "grid", "--trials", "1")[1]
    told = re.search(r"(\w+ \S+)(, .*)?: not measured; run again with --(\S+) (\S+)\n", stdout)
    assert told is not None
    assert told[1] == f"{told[3].replace('-', '_')} {told[4]}"
    code, stdout, _ = tune(*NEW[:2], "--sampler", "grid", "--out", "whole", "--budget", "1h")
    assert (code, ": not measured" in stdout) == (0, False)


def test_a_search_without_result_goes_on(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Replay, job: Job, deadline: float) -> Result:
        self._time.advance(deadline - self._time())
        return Result(verdict=Verdict.SKIPPED, reason=OUT_OF_BUDGET)

    monkeypatch.setattr(Replay, "run", run)
    assert tune(*NEW)[0] == ExitCode.NO_MEASUREMENT
    assert list(rows()["reason"]) == [
        "the search's part of the budget ended during this probe", OUT_OF_BUDGET,
    ]  # fmt: skip


def test_the_first_study_is_not_overwritten(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(options: Options) -> testbed.Testbed:
        monkeypatch.setattr("autotune.measure.testbed.open_testbed", open_testbed)
        assert main(list(NEW)) == 0  # another process, meanwhile
        return open_testbed(options)

    monkeypatch.setattr("autotune.measure.testbed.open_testbed", slow)
    code, _, stderr = tune(*NEW)
    assert code == ExitCode.USAGE
    assert "has a study" in stderr


def test_stopping_makes_no_suspects(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Replay, job: Job, deadline: float) -> Result:
        raise StopRequestedError

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "run", stopped)
        tune(*NEW)
        tune("--resume", "study")
    seen: list[set[Any]] = []
    restore = Search.restore

    def look(self: Search, suspects: set[Any], interrupted: list[Any]) -> None:
        seen.append(suspects)
        restore(self, suspects, interrupted)

    monkeypatch.setattr(Search, "restore", look)
    assert tune("--resume", "study")[0] == ExitCode.FOUND
    assert seen == [set()]


@pytest.mark.parametrize(
    ("of_final", "said"),
    [(False, "the search early"), (True, "the finals early")],
)
def test_the_result_says_in_what_the_user_stopped_the_study(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, of_final: bool, said: str
) -> None:
    replayed, jobs = Replay.run, 0

    def run(self: Replay, job: Job, deadline: float) -> Result:
        nonlocal jobs
        jobs += 1
        if job.fresh or (jobs > 3 and not of_final):  # finals alone are in fresh groups
            signal.raise_signal(signal.SIGINT)
            raise StopRequestedError
        return replayed(self, job, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "run", run)
        code, stdout, _ = tune(*NEW)
    assert code == ExitCode.STOPPED
    assert f"You stopped {said}" in " ".join(stdout.split())
    code, stdout, _ = tune("--resume", "study")
    assert code == ExitCode.FOUND
    assert "You stopped" not in stdout


def test_what_was_interrupted_still_comes_first_after_a_resume_that_died_at_once(
    tune: Tune, die: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    die(5, *NEW[:-1], "tpe")
    with monkeypatch.context() as patch:
        patch.setattr(Study, "run", lambda self: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            tune("--resume", "study")
    seen: list[tuple[int, bool]] = []
    restore = Search.restore

    def look(self: Search, suspects: set[Any], interrupted: list[Any]) -> None:
        seen.append((len(interrupted), self._records.journal.past.round_begun))
        restore(self, suspects, interrupted)

    monkeypatch.setattr(Search, "restore", look)
    assert tune("--resume", "study")[0] == ExitCode.FOUND
    assert seen == [(3, True)]


def test_limits_stay_as_they_were_recorded(tune: Tune, die: Callable[..., None]) -> None:
    die(5, *NEW)
    path = Path("study") / MANIFEST
    body = json.loads(path.read_text())
    recorded_bytes = body["space"]["limits"]["capacity_bytes"]
    body["space"]["limits"]["capacity_bytes"] = recorded_bytes * 995 // 1000
    path.write_text(json.dumps(body))
    code, _, stderr = tune("--resume", "study")
    assert (code, stderr) == (ExitCode.FOUND, "")
    best = json.loads(Path("study/best.json").read_text())
    assert best["limits"]["capacity_bytes"] == recorded_bytes * 995 // 1000


def test_more_budget_for_a_study_that_is_done_is_used_to_search(tune: Tune) -> None:
    tune(*NEW[:4], "--sampler", "random", "--budget", "5m")
    searched = (rows()["kind"] == "search").sum()
    code, stdout, _ = tune("--resume", "study", "--budget", "3m")
    assert code == ExitCode.FOUND
    assert "resumed after" in stdout
    assert (rows()["kind"] == "search").sum() > searched


def test_random_proposals_are_not_drawn_again(
    tune: Tune, die: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    make = samplers.make

    def look(name: str, space: Any, predictor: Any, objective: Any, seed: int) -> Any:
        seen.append(seed)
        return make(name, space, predictor, objective, seed)

    die(5, *NEW[:-1], "random")
    monkeypatch.setattr(samplers, "make", look)
    tune("--resume", "study")
    assert seen[0] > 0


@pytest.mark.slow
def test_a_result_is_shown_again_from_a_read_only_folder(ended: None, tune: Tune) -> None:
    script = (
        "mount --bind study study && mount -o remount,ro,bind study && "
        f'exec {sys.executable} -m autotune --resume study "$@"'
    )
    inside = ["unshare", "--mount", "sh", "-c"]
    able = subprocess.run([*inside, "mount --bind study study"], check=False).returncode == 0
    if os.getuid() != 0 or not able:
        pytest.skip("may not mount")
    shown = subprocess.run([*inside, script], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Best: depth" in shown.stdout
    more = [*inside, script, "sh", "--budget", "1m"]
    refused = subprocess.run(more, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "Read-only file system" in refused.stderr


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("logs", replace_by_file), ("trials.csv", replace_by_folder),
        ("optuna.log", replace_by_folder), ("best.json", replace_by_folder),
        ("lock", Path.mkdir), ("manifest.json", replace_by_folder), ("optuna.log", Path.unlink),
        ("manifest.json", Path.unlink),
    ],
)  # fmt: skip
def test_damaged_files(ended: None, tune: Tune, name: str, damage: Callable[[Path], None]) -> None:
    damage(Path("study") / name)
    code, _, stderr = tune("--resume", "study", "--budget", "1m")
    assert code in (ExitCode.USAGE, ExitCode.INTERNAL)
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["trials.csv", "best.json", "logs"])
def test_what_can_be_made_anew_is(ended: None, tune: Tune, name: str) -> None:
    path = Path("study") / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert tune("--resume", "study", "--budget", "1m")[0] == ExitCode.FOUND
    assert path.exists()
    assert len(rows()) == len(ROWS) + 2


@pytest.mark.parametrize(
    "change",
    [
        (b'"code":"found"', b'"code":"fouod"'), (b'"budget_s":3600.0', b'"budget_s":"soon"'),
        (b'"spent_s":0.0', b'"spent_s":[]'), (b'"op_code":4', b'"op_code":44'),
        (b'"outcome":{"verdict":"ok"', b'"outcome":{"verdict":"no"'),
    ],
)  # fmt: skip
def test_damaged_json_is_refused(ended: None, tune: Tune, change: tuple[bytes, bytes]) -> None:
    path = Path("study/optuna.log")
    assert change[0] in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(*change, 1))
    code, _, stderr = tune("--resume", "study")
    assert code == ExitCode.USAGE
    assert stderr.count("\n") == 1
    assert "cannot be read back" in stderr


def test_a_signal_keeps_a_result(ended: None, tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: Options) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.measure.testbed.open_testbed", interrupted)
    code, _, stderr = tune("--resume", "study")
    assert (code, stderr) == (
        ExitCode.STOPPED,
        "autotune: stopped; earlier measurements are kept\n",
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resume="], "no folder given"),
        (["--resume", "grid.csv"], "not a study folder"),
        (["--resume", "nowhere"], "not a study folder"),
        (["--resume", "study", "--budget", "0"], "must be more than 0"),
        (["--resume", "study", "--accept-changed"], "--accept-changed"),
        (["--resume", "study", "--depth", "2"], "--depth"),
        (["--resume", "study", "--out", "elsewhere"], "--out"),
        (["--resume", "study", "--dry-run"], "--dry-run"),
        (["--resume", "study", "--config", "x.toml"], "--config"),
    ],
)
def test_wrong_input_is_one_line(ended: None, tune: Tune, argv: list[str], message: str) -> None:
    code, stdout, stderr = tune(*argv)
    assert (code, stdout, stderr.count("\n")) == (ExitCode.USAGE, "", 1)
    assert message in stderr


def test_what_changed_is_refused_by_name_unless_that_is_accepted(ended: None, tune: Tune) -> None:
    path = Path("study") / MANIFEST
    path.write_text(path.read_text().replace('"torch": "', '"torch": "0.'))
    code, _, stderr = tune("--resume", "study")
    assert code == ExitCode.USAGE
    assert "fingerprint.software.torch was 0." in stderr
    assert stderr.endswith("--accept-changed torch\n")
    assert tune("--resume", "study", "--accept-changed", "torch")[0] == ExitCode.FOUND


def test_a_study_in_which_nothing_fits_says_so_again(tune: Tune) -> None:
    shape = ("--capacity", "64MiB", "--ceiling", "1%")
    first = tune(*NEW, *shape)
    again = tune("--resume", "study")
    assert first[0] == again[0] == ExitCode.NOTHING_FITS
    assert first[2] == again[2] != ""


def test_only_the_endings_of_a_study_that_could_do_no_more_are_final() -> None:
    assert [code for code in Ending if code.is_final] == [Ending.FOUND, Ending.NOTHING_FITS]


def test_a_result_is_shown_again_though_others_use_the_device(
    ended: None, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(device: object, allow_busy: bool) -> None:
        raise UsageError("busy")

    monkeypatch.setattr("autotune.device.idle.check_idle", busy)
    written = Path("study/best.json").read_bytes()
    code, stdout, _ = tune("--resume", "study")
    assert (code, "Best: depth 4, seq_len 128" in stdout) == (ExitCode.FOUND, True)
    assert Path("study/best.json").read_bytes() == written
    assert tune("--resume", "study", "--budget", "1m")[0] == ExitCode.USAGE


def test_a_damaged_result_is_written_again(ended: None, tune: Tune) -> None:
    Path("study/best.json").write_text("{}")
    assert tune("--resume", "study")[0] == ExitCode.FOUND
    assert Best.read(Path("study/best.json")).confirmed


def test_a_folder_that_another_process_holds_is_refused(ended: None, tune: Tune) -> None:
    with hold(Path("study")):
        code, _, stderr = tune("--resume", "study", "--budget", "1m")
    assert (code, f"process {os.getpid()} on " in stderr) == (ExitCode.USAGE, True)


def test_earlier_studies_are_kept_on_resume(tune: Tune, die: Callable[..., None]) -> None:
    first = ("--depth", "2", "--device", "replay:grid.csv", "--budget", "1h")
    assert tune(*first, "--out", "before/one")[0] == ExitCode.FOUND
    second = ("--depth", "4", "--device", "replay:grid.csv", "--budget", "1h", "--out", "study")
    die(1, *second, "--learn-from", "before")
    body = json.loads((Path("study") / MANIFEST).read_text())
    [known] = body["earlier"]
    assert (known["folder"], body["options"]["learn_from"]) == ("before/one", "before")
    shutil.rmtree("before")
    code, stdout, _ = tune("--resume", "study")
    said = f"learns from {len(known['seen'])} measurements of earlier studies: before/one"
    assert (code, said in stdout.replace("\n", " ")) == (ExitCode.FOUND, True)
    best = json.loads(Path("study/best.json").read_text())
    assert best["provenance"]["learned_from"] == ["before/one"]


def test_what_has_no_gpus_is_not_weighed(tune: Tune) -> None:
    code, _, stderr = tune(*NEW, "--weigh")
    said = "autotune: --weigh: nothing was weighed: nothing is measured on GPUs\n"
    assert (code, stderr) == (ExitCode.FOUND, said)


def test_a_replay_learns_from_nothing_unless_asked(tune: Tune) -> None:
    for name in ("one", "two"):
        assert tune(*NEW[:2], "--budget", "1h", "--out", f"r/{name}")[0] == ExitCode.FOUND
    assert json.loads(Path("r/two", MANIFEST).read_text())["earlier"] == []
    code, _, stderr = tune(*NEW, "--learn-from", "here")
    assert (code, "--learn-from here: there is no such folder" in stderr) == (ExitCode.USAGE, True)
    Path("here").mkdir()
    code, _, stderr = tune(*NEW, "--learn-from", "here")
    assert (code, "nothing was learned" in stderr) == (ExitCode.FOUND, True)
