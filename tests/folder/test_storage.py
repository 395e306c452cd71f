"""Where Optuna keeps a study: written together, and in a database as in the journal."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError
from autotune.files import MANIFEST
from autotune.folder import manifest, storage
from autotune.folder.earlier import learn
from autotune.folder.folder import Folder
from autotune.folder.journal import records_in
from autotune.folder.manifest import Manifest, manifest_of
from autotune.folder.storage import Storage, checked, storage_of
from autotune.options import Options
from tests.support import recorded, studies
from tests.support.records import space
from tests.support.studies import Killed, killing, open_journal

SPACE = space(depth=(2,), micro_batch=(1, 8))
FINGERPRINT = {"kind": "cpu", "devices": {"name": "two cores"}, "software": {"torch": "2.13.0"}}


def begun(folder: Path, url: str | None) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    made = manifest_of(Options(storage=url), SPACE, FINGERPRINT, folder, [])
    made.write(folder)
    return made


@pytest.fixture(params=[None, pytest.param("sqlite", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return checked(f"sqlite:///{tmp_path}/studies.db") if request.param else None


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Storage:
    folder = tmp_path / "study"
    return storage_of(Folder(folder), begun(folder, f"sqlite:///{tmp_path}/studies.db"))


def run(folder: Path, answer: studies.Answer = studies.saturating, **options: Any) -> studies.Run:
    """One run of the study in `folder`, in the storage that its manifest names."""
    stored = storage_of(Folder(folder), manifest.read(folder))
    return studies.Run(folder, answer, SPACE, storage=stored, **{"sampler": "grid"} | options)


# A study in any of them.


def test_a_study_that_is_interrupted_in_any_probe_loses_nothing_and_ends_the_same(
    tmp_path: Path, url: str | None
) -> None:
    begun(tmp_path / "whole", url)
    whole = run(tmp_path / "whole")
    begun(tmp_path / "often", url)
    for after in range(len(whole.runner.jobs)):
        with pytest.raises(Killed):
            run(tmp_path / "often", killing(min(after, 1)))
        told = records_in(Folder(tmp_path / "often"))
        assert len({(r.purpose, r.number) for r in told}) == len(told) == after
    assert run(tmp_path / "often").ended == whole.ended
    assert sorted(records_in(Folder(tmp_path / "often")), key=str) == sorted(
        run(tmp_path / "often").told, key=str
    )


def test_what_is_told_of_a_trial_is_there_at_once_or_not_at_all(
    tmp_path: Path, url: str | None
) -> None:
    begun(tmp_path / "study", url)
    done = run(tmp_path / "study", trials=1, finals=1)
    told = [t for t in done.journal.optuna_study.get_trials() if "outcome" in t.user_attrs]
    optuna_study, where = done.journal.optuna_study, Folder(tmp_path / "study")
    stored = storage_of(where, manifest.read(where.path))
    with done.journal._together():
        optuna_study.set_user_attr("first", 1)
        optuna_study.set_user_attr("second", 2)
        assert optuna_study.user_attrs["second"] == 2  # to who writes
        assert "first" not in stored.read().user_attrs
    assert stored.read().user_attrs["second"] == 2
    assert len(told) == 1


def test_a_trial_is_written_to_the_journal_in_three_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes: list[int] = []
    append = JournalFileBackend.append_logs

    def counted(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        goes.append(len(logs))
        append(self, logs)

    begun(tmp_path / "study", None)
    few = run(tmp_path / "study", trials=2, finals=1)
    monkeypatch.setattr(JournalFileBackend, "append_logs", counted)
    more = run(tmp_path / "study", trials=5, finals=1)
    finals = sum(r.purpose == "final" for r in more.told) - sum(
        r.purpose == "final" for r in few.told
    )
    assert len(goes) == 3 * 3 + finals  # asked, begun and told
    assert max(goes) > 15


def test_a_trial_that_was_told_but_for_its_state_has_the_value_of_its_objective(
    tmp_path: Path, url: str | None
) -> None:
    begun(tmp_path / "study", url)
    run(tmp_path / "study", trials=1)
    optuna_study, _ = storage_of(
        Folder(tmp_path / "study"), manifest.read(tmp_path / "study")
    ).open()
    [told] = [t for t in optuna_study.get_trials() if "outcome" in t.user_attrs]
    optuna_study.enqueue_trial(told.params)
    again = optuna_study.ask(told.distributions)
    again.set_user_attr("outcome", told.user_attrs["outcome"])
    run(tmp_path / "study", trials=1)
    last = optuna_study.get_trials()[again.number]
    assert (last.state, last.value) == (TrialState.COMPLETE, told.value)


def test_an_earlier_study_is_learned_from_wherever_its_trials_are(
    tmp_path: Path, url: str | None
) -> None:
    begun(tmp_path / "before", url)
    run(tmp_path / "before")
    now = begun(tmp_path / "now", None)
    [known] = learn(now, str(tmp_path / "before"), True).earlier
    assert known.seen


# A database.


def test_studies_of_two_folders_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    for name in ("a", "b"):
        begun(tmp_path / name / "study", url)
        run(tmp_path / name / "study", trials=2)
    assert len(optuna.get_all_study_names(url)) == 2
    for name in ("a", "b"):
        folder = tmp_path / name / "study"
        assert len([r for r in records_in(Folder(folder)) if r.purpose == "search"]) == 2


def test_a_folder_may_be_moved_but_a_copy_is_kept_out(tmp_path: Path) -> None:
    begun(tmp_path / "study", f"sqlite:///{tmp_path}/studies.db")
    run(tmp_path / "study", trials=2)
    shutil.copytree(tmp_path / "study", tmp_path / "copy")
    with pytest.raises(UsageError, match=f"is that of {tmp_path}/study; go on with that"):
        run(tmp_path / "copy")
    shutil.rmtree(tmp_path / "study")
    run(tmp_path / "copy", trials=3)


def test_a_database_that_is_gone_is_missed(in_sqlite: Storage, tmp_path: Path) -> None:
    run(tmp_path / "study", trials=2)
    (tmp_path / "studies.db").unlink()
    with pytest.raises(UsageError, match="is missing, and with it what was measured"):
        open_journal(tmp_path / "study", SPACE, in_sqlite)
    with pytest.raises(FileNotFoundError):
        records_in(Folder(tmp_path / "study"))
    assert not (tmp_path / "studies.db").exists()


def test_a_write_that_fails_says_why(
    in_sqlite: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage._Sqlite, "options", {"connect_args": {"timeout": 0}})
    journal = open_journal(tmp_path / "study", SPACE, in_sqlite)
    with locked(tmp_path / "studies.db"), pytest.raises(OSError, match="database is locked") as e:
        journal.begin([], 1.0, {})
    assert e.value.errno == errno.EIO
    journal.begin([], 1.0, {})


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


# What cannot be a storage.


def other_schema(path: Path) -> None:
    RDBStorage(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v9.9.9'")
        database.commit()


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text)")


BAD = {
    "mysql://host/name": "unknown; write it as sqlite:///",
    "studies.db": "unknown; write it as sqlite:///",
    "sqlite://studies.db": "names no file",
    "sqlite:///": "names no file",
    "sqlite:///:memory:": "names no file",
    "sqlite:///a.db?mode=ro": "names no file",
    "sqlite:///folder": "unable to open database file",
    "sqlite:///text/a.db": "Not a directory",
    "sqlite:///text": "file is not a database",
    "sqlite:///foreign.db": "holds something else",
    "sqlite:///other.db": "The runtime optuna version",
}


@pytest.mark.parametrize("url", BAD)
def test_a_bad_one_is_refused_in_one_line_and_left_as_it_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database, but a text that is as long as a header of one")
    foreign(tmp_path / "foreign.db")
    other_schema(tmp_path / "other.db")
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    # There is no such recording: what is wrong with the storage is said before that.
    code = main(["--device", "replay:grid.csv", "--out", "study", "--storage", url])
    assert code == ExitCode.USAGE
    message = capsys.readouterr().err
    assert message.startswith(f"autotune: --storage {url}: ")
    assert BAD[url] in message
    assert message.count("\n") == 1
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before


def test_a_database_that_others_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_S", 0.0)
    foreign(tmp_path / "studies.db")
    with locked(tmp_path / "studies.db"), pytest.raises(UsageError, match="database is locked"):
        checked(f"sqlite:///{tmp_path}/studies.db")


# From the command line.


def test_a_study_is_gone_on_with_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.write(tmp_path / "grid.csv")
    monkeypatch.chdir(tmp_path)
    assert main(["--device", f"replay:{tmp_path}/grid.csv", "--out", "study", "--trials", "3",
                 "--storage", "sqlite:///new/studies.db"]) == ExitCode.FOUND  # fmt: skip
    assert not Folder(tmp_path / "study").optuna_log.exists()
    monkeypatch.chdir("/")
    told = records_in(Folder(tmp_path / "study"))
    assert main(["--resume", f"{tmp_path}/study", "--budget", "1h"]) == ExitCode.FOUND
    assert [r for r in records_in(Folder(tmp_path / "study")) if r in told] == told


def test_a_dry_run_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.write(tmp_path / "grid.csv")
    monkeypatch.chdir(tmp_path)
    assert main(["--device", "replay:grid.csv", "--dry-run",
                 "--storage", "sqlite:///studies.db"]) == ExitCode.FOUND  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["grid.csv"]


def test_an_older_manifest_names_the_study_of_the_journal(tmp_path: Path) -> None:
    made = begun(tmp_path, None)
    text = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(text.replace(',\n  "study_name": "autotune"', ""))
    assert (tmp_path / MANIFEST).read_text() != text
    assert manifest.read(tmp_path) == replace(made, study_name="autotune")
