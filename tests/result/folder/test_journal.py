"""Optuna's journal of a study: cut, torn, damaged, and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.result.folder.journal_file import repair
from autotune.result.folder.past import Ending, Lost, StudyEnd
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from tests.support.records import space
from tests.support.studies import Killed, Run, killing, open_journal

SPACE = space(micro_batch=(1, 8))


def told(folder: Path) -> list[Record]:
    return open_journal(folder, SPACE).past.records


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("journal")
    with pytest.raises(Killed):
        Run(folder, killing(6), SPACE, sampler="grid")
    return (folder / "optuna.log").read_bytes()


def test_a_journal_cut_at_any_byte_keeps_what_was_told(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal)
    records = told(tmp_path)
    data = path.read_bytes()  # with what was running told as failed
    start = data.rstrip(b"\n").rfind(b"\n")
    start = data.rfind(b"\n", 0, start) + 1
    for size in range(start, len(data) + 1):
        path.write_bytes(data[:size])
        assert told(tmp_path) == records, size
        assert path.read_bytes().endswith(b"\n")


def test_lost_nodes_are_kept_with_the_next_write_and_by_the_next_run(tmp_path: Path) -> None:
    first, second = Lost(13.5, "node n3 was lost"), Lost(70.0, "node n3 was lost")
    journal = open_journal(tmp_path, SPACE)
    journal.lost.append(first)
    journal.end(StudyEnd(Ending.FOUND), 20.0)
    again = open_journal(tmp_path, SPACE)
    assert again.lost == again.past.lost == [first]
    again.lost.append(second)
    again.begin([], 60.0, {})
    assert open_journal(tmp_path, SPACE).past.lost == [first, second]


def test_a_final_is_numbered_without_reading_the_study_back(
    journal: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optuna.log").write_bytes(journal)
    again = open_journal(tmp_path, SPACE)
    finals = [r.number for r in again.past.records if r.purpose == "final"]
    monkeypatch.delattr("optuna.Study.user_attrs")
    assert again.claim_final(lambda news: SPACE.candidates[0]) == len(finals)


def test_a_journal_cut_at_any_line_can_be_gone_on_with(journal: bytes, tmp_path: Path) -> None:
    lines = journal.splitlines(keepends=True)
    counts: list[int] = []
    for number in range(len(lines) + 1):
        (tmp_path / "optuna.log").write_bytes(b"".join(lines[:number]))
        counts.append(len(told(tmp_path)))
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_an_outcome_counts_without_its_state(journal: bytes, tmp_path: Path) -> None:
    lines = journal.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"outcome"' in line)
    (tmp_path / "optuna.log").write_bytes(b"".join(lines[: last + 1]))
    assert len(told(tmp_path)) == 6


def test_zeros_after_a_power_failure_are_cut(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal + bytes(4096))
    assert repair(path) == 4096
    assert path.read_bytes() == journal


def test_damage_before_the_last_line_is_refused(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "optuna.log"
    lines = journal.splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"#" + lines[3], *lines[4:]])
    path.write_bytes(damaged)
    with pytest.raises(UsageError, match="line 4 is damaged"):
        told(tmp_path)
    assert path.read_bytes() == damaged


def test_a_journal_of_another_space_is_refused(journal: bytes, tmp_path: Path) -> None:
    (tmp_path / "optuna.log").write_bytes(journal)
    other = replace(
        SPACE,
        candidates=(Candidate(depth=8, seq_len=64, micro_batch=1),),
        axes={**SPACE.axes, "depth": (8,)},
    )
    with pytest.raises(UsageError, match="not a candidate of this study's space"):
        open_journal(tmp_path, other)
