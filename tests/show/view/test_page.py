"""The page: what is on it, and that nothing from outside is more than text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autotune.show.view.page import page
from autotune.show.view.page.rows import LOG_TAIL
from autotune.show.view.study import read
from tests.support.shown import (
    HOSTILE,
    change_json,
    change_rows,
    failed,
    folder,
    of_1000_trials,
)


class Page(HTMLParser):
    """Its tags, its text outside scripts, and what its scripts are given."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: Any = None
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = "data" if dict(attrs).get("type") == "application/json" else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data = json.loads(data)
        elif self._inside not in ("script", "style"):
            self.text += data


def test_the_winner_is_on_it(path: Path) -> None:
    shown = Page(page(read(path)))
    for said in ("Best configuration", "145 GFLOP/s", "5.44k", "micro_batch 12", "headroom",
                 "AMD EPYC, 2 cores"):  # fmt: skip
        assert said in shown.text


def test_a_rate_that_is_the_objective_is_shown_once(path: Path) -> None:
    options = read(path).manifest.options | {"objective": "tokens_per_s"}
    change_json(path / "manifest.json", options=options)
    text = page(read(path))
    assert text.count('<button type="button">tokens/s</button>') == 1
    assert text.count("<span>tokens/s</span>") == 1
    assert "<strong>5.44k</strong>" in text


def test_what_stands_beside_the_best_is_held_against_the_fastest(path: Path) -> None:
    cells = json.loads((path / "best.json").read_text("utf-8"))["cells"]
    change_json(path / "best.json", same_batch=[cell for cell in cells if cell["depth"] == 4])
    shown = Page(page(read(path)))
    text = " ".join(shown.text.split())
    assert "of the fastest" in text
    assert "100.0%" in text
    assert "the best" in text
    assert "J/token" not in text


def test_every_trial_has_a_row_and_its_verdict(path: Path) -> None:
    study = read(path)
    shown = Page(page(study))
    rows = [attrs["data-verdict"] for tag, attrs in shown.tags if "data-verdict" in attrs]
    assert rows == list(study.trials["verdict"])


def test_nothing_is_asked_of_anybody(path: Path) -> None:
    text = page(read(path))
    shown = Page(text)
    assert not [a for tag, a in shown.tags if "src" in a or tag in ("iframe", "object", "base")]
    assert [a.get("href") for tag, a in shown.tags if "href" in a] == ["data:,"]
    policy = next(a["content"] for tag, a in shown.tags if "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy


def test_what_is_hostile_is_text(tmp_path: Path) -> None:
    path = folder(tmp_path, "a <b>bold & name")
    log = "group001-rank0.log"
    (path / "logs" / log).write_text(f"{HOSTILE} in a log")
    change_rows(
        path,
        lambda rows: [failed(rows[0], "crashed", reason=HOSTILE, log=log), *rows[1:]],
    )
    manifest = read(path).manifest
    change_json(
        path / "manifest.json",
        fingerprint=manifest.fingerprint | {HOSTILE: HOSTILE},
        options=manifest.options | {"model": HOSTILE},
    )
    text = page(read(path))
    shown = Page(text)
    clean = Page(page(read(folder(tmp_path, "clean"))))
    assert [tag for tag, _ in shown.tags].count("script") == 3
    assert {tag for tag, _ in shown.tags} == {tag for tag, _ in clean.tags}
    assert not [a for _, a in shown.tags if any(name.startswith("on") for name in a)]
    assert shown.text.count(HOSTILE) >= 3
    assert shown.data["logs"][log] == f"{HOSTILE} in a log"
    assert HOSTILE not in text
    assert "49" not in re.findall(r"\{\{.*?\}\}", shown.text)


def test_a_log_is_shown_by_its_end_and_only_from_the_folder(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "logs" / "group001-rank0.log").write_text("start\n" + "x" * 9000 + "\nend\n")
    (tmp_path / "secret.log").write_text("secret")
    names = ["group001-rank0.log", "../../secret.log", "/etc/hostname.log", "a\0b.log"]
    change_rows(
        path,
        lambda rows: [row | {"log": name} for row, name in zip(rows, names, strict=False)],
    )
    logs = Page(page(read(path))).data["logs"]
    assert list(logs) == ["group001-rank0.log"]
    assert len(logs["group001-rank0.log"]) == LOG_TAIL
    assert logs["group001-rank0.log"].endswith("end\n")


def test_the_log_that_a_reason_names_comes_before_its_groups(path: Path) -> None:
    for rank in (0, 1):
        (path / "logs" / f"group001-rank{rank}.log").write_text(f"rank {rank}")
    reason = "rank 1 ended; see group001-rank1.log"
    change_rows(
        path, lambda rows: [failed(rows[0], "crashed", reason=reason, log="group001-rank0.log")]
    )
    assert Page(page(read(path))).data["logs"] == {"group001-rank1.log": "rank 1"}


@pytest.mark.slow
def test_1000_trials_take_less_than_3_mb(path: Path) -> None:
    of_1000_trials(path)
    text = page(read(path))
    assert len(Page(text).data["trials"]) == 1000
    assert len(text.encode()) < 3e6


def test_a_study_that_found_nothing_says_why_and_counts_its_verdicts(path: Path) -> None:
    (path / "best.json").unlink()
    change_rows(path, lambda rows: [failed(row, "oom") for row in rows if row["kind"] == "search"])
    shown = Page(page(read(path)))
    assert "There is no result: the study was interrupted before anything fitted." in shown.text
    assert "10 (10 oom)" in shown.text


def test_what_is_not_confirmed_is_said_above_the_numbers(path: Path) -> None:
    change_json(path / "best.json", confirmed=False, unconfirmed="no finals")
    text = Page(page(read(path))).text
    assert text.index("Not confirmed:") < text.index("Best configuration, not confirmed")
