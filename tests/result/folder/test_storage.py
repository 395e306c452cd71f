"""Where Optuna keeps a study: written together, and in a database as in the journal."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError
from autotune.result.folder import databases, manifest, patience, processes
from autotune.result.folder.ask import Ask
from autotune.result.folder.databases import UnreachableError
from autotune.result.folder.earlier import learn
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import Journal, records_in
from autotune.result.folder.manifest import Manifest, manifest_of
from autotune.result.folder.past import News
from autotune.result.folder.sampler import Adapter, Asked
from autotune.result.folder.storage import Storage, checked, storage_of
from autotune.space.options import Options
from autotune.study.samplers.in_order import InOrder
from autotune.study.samplers.open_candidates import OpenCandidates
from autotune.wire.budget import Clock, StopFlag
from tests.support import recorded, studies
from tests.support.postgres import Server
from tests.support.records import record, space
from tests.support.studies import Killed, killing, open_journal

SPACE = space(depth=(2,), micro_batch=(1, 8))
MANY = space(depth=(1, 2, 4, 8))
FINGERPRINT = {"kind": "cpu", "devices": {"name": "two cores"}, "software": {"torch": "2.13.0"}}


def begun(folder: Path, url: str | None) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    made = manifest_of(Options.of(storage=url), SPACE, FINGERPRINT, folder, [])
    made.write(folder)
    return made


IN_DATABASES = [pytest.param(each, marks=pytest.mark.slow) for each in ("sqlite", "postgres")]


def url_of(kind: str | None, request: pytest.FixtureRequest, folder: Path) -> str | None:
    """A URL for new studies; None for their own folders."""
    if kind == "postgres":
        server: Server = request.getfixturevalue("postgres")
        return checked(server.url)
    return checked(f"sqlite:///{folder}/studies.db") if kind else None


@pytest.fixture(params=[None, *IN_DATABASES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", IN_DATABASES[1]])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Storage:
    folder = tmp_path / "study"
    return storage_of(Folder(folder), begun(folder, f"sqlite:///{tmp_path}/studies.db"))


def stored_in(folder: Path) -> Storage:
    return storage_of(Folder(folder), manifest.read(folder))


def seen_by(journal: Journal) -> News:
    return journal.look(lambda news: False)


def beat(journal: Journal) -> None:
    assert journal._processes is not None
    journal._processes.beat(journal.optuna_study)


@contextmanager
def patient(journal: Journal, notes: list[str], looks: int = 10**6) -> Iterator[None]:
    """The budget ends after so many `looks` at its clock."""
    stop, ticks = StopFlag(), itertools.count()
    journal.attend(Clock(looks, 0.0, lambda: next(ticks)), stop, notes.append)
    yield
    journal.close()
    stop.restore()


def losing(journal: Journal, arrived: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the next write gets lost, which `arrived`, or did not."""
    kept = journal._storage
    assert kept is not None
    together = kept.together

    @contextmanager
    def once() -> Iterator[None]:
        monkeypatch.setattr(kept, "together", together)
        lost = UnreachableError(errno.EIO, "server closed the connection", "url")
        if arrived:
            with together():
                yield
            raise lost
        with suppress(ZeroDivisionError), together():
            yield
            raise ZeroDivisionError
        raise lost

    monkeypatch.setattr(kept, "together", once)


def run(folder: Path, answer: studies.Answer = studies.saturating, **options: Any) -> studies.Run:
    """One run of the study in `folder`, in the storage that its manifest names."""
    stored = stored_in(folder)
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


def test_a_trial_is_told_at_once_or_not_at_all(tmp_path: Path, url: str | None) -> None:
    begun(tmp_path / "study", url)
    done = run(tmp_path / "study", trials=1, finals=1)
    told = [t for t in done.journal.optuna_study.get_trials() if "outcome" in t.user_attrs]
    optuna_study, stored = done.journal.optuna_study, stored_in(tmp_path / "study")
    with done.journal._together():
        optuna_study.set_user_attr("first", 1)
        optuna_study.set_user_attr("second", 2)
        assert optuna_study.user_attrs["second"] == 2  # to who writes
        assert "first" not in stored.read().user_attrs
    assert stored.read().user_attrs["second"] == 2
    assert len(told) == 1


def test_a_trial_is_written_in_3_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_trial_told_without_its_state_has_its_value(tmp_path: Path, url: str | None) -> None:
    begun(tmp_path / "study", url)
    run(tmp_path / "study", trials=1)
    optuna_study, _ = stored_in(tmp_path / "study").open()
    [told] = [t for t in optuna_study.get_trials() if "outcome" in t.user_attrs]
    optuna_study.enqueue_trial(told.params)
    again = optuna_study.ask(told.distributions)
    again.set_user_attr("outcome", told.user_attrs["outcome"])
    run(tmp_path / "study", trials=1)
    last = optuna_study.get_trials()[again.number]
    assert (last.state, last.value) == (TrialState.COMPLETE, told.value)


def test_an_earlier_study_is_learned_from_anywhere(tmp_path: Path, url: str | None) -> None:
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
    with pytest.raises(UsageError, match=f"belongs to {tmp_path}/study; resume that one"):
        run(tmp_path / "copy")
    shutil.rmtree(tmp_path / "study")
    run(tmp_path / "copy", trials=3)


def test_a_database_that_is_gone_is_missed(in_sqlite: Storage, tmp_path: Path) -> None:
    run(tmp_path / "study", trials=2)
    (tmp_path / "studies.db").unlink()
    with pytest.raises(UsageError, match="is missing, so its measurements are lost"):
        open_journal(tmp_path / "study", SPACE, in_sqlite)
    with pytest.raises(FileNotFoundError):
        records_in(Folder(tmp_path / "study"))
    assert not (tmp_path / "studies.db").exists()


def test_a_write_that_fails_says_why(
    in_sqlite: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases._Sqlite, "options", {"connect_args": {"timeout": 0}})
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


# Several processes, as far as one can be several.


def member(folder: Path, url: str, number: int) -> Journal:
    """The journal of a process of the study that the first one begins, in a folder of its own."""
    made = begun(folder / str(number), url)
    if number:
        name = manifest.read(folder / "0").study_name
        made = replace(made, study_name=name, part=f"{number:08x}")
    journal = open_journal(folder / str(number), MANY, storage_of(Folder(folder), made))
    journal.use(Adapter(MANY, InOrder(MANY)))
    return journal


def asking(journal: Journal) -> Callable[[], Asked]:
    """Asks for the next candidate that nobody asked for yet."""
    opened = OpenCandidates(MANY)

    def make(news: News) -> Ask:
        for candidate in [*news.running, *(told.candidate for told in news.records)]:
            opened.close(candidate)
        return Ask(allowed=opened.places())

    def ask() -> Asked:
        asked = journal.ask(make)
        assert asked is not None
        opened.close(asked.candidate)
        return asked

    return ask


def test_four_that_ask_at_once_ask_for_no_candidate_twice(tmp_path: Path, database: str) -> None:
    four = [asking(member(tmp_path, database, number)) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        asked = [*threads.map(lambda ask: [ask().candidate for _ in range(12)], four)]
    assert len({candidate for each in asked for candidate in each}) == 48


def test_who_writes_again_at_once_lets_others_go_first(tmp_path: Path) -> None:
    database = checked(f"sqlite:///{tmp_path}/studies.db")
    first, second = (member(tmp_path, database, number) for number in range(2))
    wrote: list[str] = []

    def write(journal: Journal, name: str) -> None:
        with journal._together():
            wrote.append(name)

    with ThreadPoolExecutor(1) as threads:
        with first._together():
            waits = threads.submit(write, second, "second")
            while is_free(tmp_path) and not waits.done():
                pass
        while len(wrote) < 3:
            write(first, "first")
        waits.result()
    assert wrote.index("second") == 0


def is_free(folder: Path) -> bool:
    """Whether nobody waits for a turn to write to a database in `folder`."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(place)
    return True


def test_four_that_begin_studies_at_once_make_one_database(tmp_path: Path, database: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = [*threads.map(lambda name: member(tmp_path / name, database, 0), "abcd")]
    assert len(made) == 4
    kind = databases.DATABASES[database.partition(":")[0]]
    assert len(kind.names(database)) == 4
    assert sorted(path.name for path in tmp_path.glob("*.tmp")) == []


def test_what_was_told_is_known_to_the_others(tmp_path: Path, database: str) -> None:
    first, second = (member(tmp_path, database, number) for number in range(2))
    asked = asking(first)()
    told = record(asked.candidate, number=asked.trial.number)
    assert seen_by(second).running == (asked.candidate,)
    first.tell(asked.trial, told)
    first.claim_final(lambda news: asked.candidate)
    news = seen_by(second)
    assert [(r.candidate, r.outcome.verdict) for r in news.records] == [(told.candidate, "ok")]
    assert (news.running, news.finals) == ((), (asked.candidate,))
    first.add_final(replace(told, purpose="final", number=0))
    assert [r.purpose for r in seen_by(second).records] == ["final"]
    assert seen_by(second).records == ()
    assert seen_by(first).records == ()


def test_a_process_that_leaves_frees_what_it_probed(tmp_path: Path, database: str) -> None:
    first, second = (member(tmp_path, database, number) for number in range(2))
    asking(first)()
    assert seen_by(second).at_work
    first.close()
    news = seen_by(second)
    assert (news.running, news.at_work) == ((), False)


def test_only_trials_of_silent_processes_are_ended(tmp_path: Path, database: str) -> None:
    dead, second = (member(tmp_path, database, number) for number in range(2))
    lives = member(tmp_path, database, 2)
    for each in (dead, lives):
        asking(each)()
    assert len(seen_by(second).running) == 2
    for _ in range(processes.MISSED + 1):
        beat(lives)
        beat(second)
    assert len(seen_by(second).running) == 1
    states = [trial.state for trial in second.optuna_study.get_trials()]
    assert sorted(states) == [TrialState.RUNNING, TrialState.FAIL]


@pytest.mark.parametrize("lost", [True, False])
def test_what_was_taken_from_a_process_is_told_all_the_same(
    tmp_path: Path, database: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, second = (member(tmp_path, database, number) for number in range(2))
    asked = asking(slow)()
    for _ in range(processes.MISSED + 1):
        beat(second)
    assert seen_by(second).running == ()
    slow.begin_probe(asked.trial, 1.0, [asked.trial.number])
    told = record(asked.candidate, number=asked.trial.number)
    with patient(slow, []):
        if lost:
            losing(slow, True, monkeypatch)
        slow.tell(asked.trial, told)
    [known] = seen_by(second).records
    assert (known.candidate, known.number) == (told.candidate, asked.trial.number + 1)
    assert known.outcome.measurement == told.outcome.measurement
    assert slow.told() == second.told()


def test_a_process_in_the_same_folder_follows_the_last(tmp_path: Path, database: str) -> None:
    first, second = (member(tmp_path, database, number) for number in range(2))
    mine, others = asking(first)(), asking(second)()
    again = open_journal(tmp_path / "0", MANY, stored_in(tmp_path / "0"))
    assert again.past.interrupted == [mine.candidate]
    assert seen_by(again).running == (others.candidate,)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_write_whose_answer_gets_lost_is_made_once(
    tmp_path: Path, database: str, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = member(tmp_path, database, 0)
    notes: list[str] = []
    with patient(journal, notes):
        losing(journal, arrived, monkeypatch)
        journal.begin([], 1.0, {"driver": (1, 2)})
        losing(journal, arrived, monkeypatch)
        asked = asking(journal)()
        told = record(asked.candidate, number=asked.trial.number)
        sliced = replace(told.measured, slices_s=(0.1, 0.2))
        told = replace(told, outcome=replace(told.outcome, measurement=sliced))
        losing(journal, arrived, monkeypatch)
        journal.tell(asked.trial, told)
        losing(journal, arrived, monkeypatch)
        number = journal.claim_final(lambda news: asked.candidate)
        losing(journal, arrived, monkeypatch)
        journal.add_final(replace(told, purpose="final", number=number))
    [trial] = stored_in(tmp_path / "0").read().get_trials()
    assert (trial.state, len(trial.intermediate_values)) == (TrialState.COMPLETE, 2)
    found = records_in(Folder(tmp_path / "0"))
    assert sorted((each.purpose, each.number) for each in found) == [("final", 0), ("search", 0)]
    assert len(journal.sessions) == 1
    assert notes == []  # it was there again at once


def test_a_server_that_is_away_is_waited_for_until_the_budget_ends(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = member(tmp_path, checked(postgres.url), 0)
    postgres.kill()
    notes: list[str] = []
    monkeypatch.setattr(patience, "GRACE_S", 0.5)
    with patient(journal, notes, looks=20), pytest.raises(UnreachableError, match="refused"):
        asking(journal)()
    [note] = notes
    assert note.startswith(f"--storage {postgres.url}: ")
    assert note.endswith("waiting for it")
    postgres.start()
    with patient(journal, notes):
        asking(journal)()
    assert len(notes) == 1  # nothing was to be waited for


# What cannot be a storage.


@pytest.mark.slow
@pytest.mark.parametrize("statements", [1, 2, 3])
def test_what_is_asked_of_a_connection_that_was_lost_is_lost_as_well(
    tmp_path: Path, postgres: Server, statements: int
) -> None:
    begun(tmp_path, checked(postgres.url))
    stored = stored_in(tmp_path)
    study, _ = stored.open()

    def lose() -> None:
        with stored.together():
            postgres.kill()
            for _ in range(statements - 1):
                with suppress(StorageInternalError, SQLAlchemyError):
                    study.set_user_attr("after", 1)
            study.set_user_attr("after", 1)

    with pytest.raises(UnreachableError):
        lose()


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
    "sqlite://studies.db": "has no file name",
    "sqlite:///": "has no file name",
    "sqlite:///:memory:": "has no file name",
    "sqlite:///a.db?mode=ro": "has no file name",
    "sqlite:///folder": "unable to open database file",
    "sqlite:///text/a.db": "Not a directory",
    "sqlite:///text": "file is not a database",
    "sqlite:///foreign.db": "holds other data",
    "sqlite:///other.db": "The runtime optuna version",
    "postgresql://host": "has no database name",
    "postgresql://host:port/name": "has no database name",
    "postgresql://127.0.0.1:1/name": "refused",
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are no storage of ours."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "folder").mkdir()
    (folder / "text").write_text("no database, but a text that is as long as a header of one")
    foreign(folder / "foreign.db")
    other_schema(folder / "other.db")
    return folder


@pytest.mark.parametrize("url", BAD)
def test_a_bad_one_is_refused_in_one_line_and_left_as_it_is(
    url: str, others: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(others)
    before = {path: path.read_bytes() for path in others.iterdir() if path.is_file()}
    # There is no such recording: what is wrong with the storage is said before that.
    code = main(["--device", "replay:grid.csv", "--out", "study", "--storage", url])
    assert code == ExitCode.USAGE
    message = capsys.readouterr().err
    assert message.startswith(f"autotune: --storage {url}: ")
    assert BAD[url] in message
    assert message.count("\n") == 1
    after = {path: path.read_bytes() for path in others.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@host/name",
        "postgresql://me:se/secret@host/name",
        "postgresql://host/name?password=secret",
        "mysql://me:secret@host/name",
    ],
)
@pytest.mark.parametrize("how", [["--storage", "{}"], ["--join", "{}/study"]])
def test_a_password_is_kept_out(
    url: str, how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [each.format(url) for each in how]
    assert main([*asked, "--out", str(tmp_path / "study")]) == ExitCode.USAGE
    message = capsys.readouterr().err
    assert "secret" not in message
    assert "mysql" in message or "~/.pgpass" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_server_that_cannot_hold_studies_is_refused_in_one_line(postgres: Server) -> None:
    postgres.sql("CREATE DATABASE notes")
    notes = postgres.url_of("notes")
    postgres.sql("CREATE TABLE notes (text text)", notes)
    with pytest.raises(UsageError, match="holds other data; name another one"):
        checked(notes)
    with pytest.raises(UsageError, match='database "none" does not exist'):
        checked(postgres.url_of("none"))
    postgres.sql("CREATE USER reader")
    with pytest.raises(UsageError, match="its user may make no tables in it"):
        checked(postgres.url.replace("autotune@", "reader@"))
    assert checked(postgres.url) == postgres.url
    RDBStorage(postgres.url.replace("postgresql", "postgresql+psycopg"))
    with pytest.raises(UsageError, match="its user may not write to it"):
        checked(postgres.url.replace("autotune@", "reader@"))
    postgres.sql("UPDATE alembic_version SET version_num = 'v9.9.9'")
    with pytest.raises(UsageError, match="The runtime optuna version"):
        checked(postgres.url)


def test_a_busy_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases._Sqlite, "options", {"connect_args": {"timeout": 0}})
    foreign(tmp_path / "studies.db")
    with locked(tmp_path / "studies.db"), pytest.raises(UsageError, match="database is locked"):
        checked(f"sqlite:///{tmp_path}/studies.db")


# From the command line.


def test_it_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
