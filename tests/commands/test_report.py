"""`python -m autotune report` and `compare`, and the page that a study writes at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.study import session
from tests.support.programs import ROOT
from tests.support.shown import folder

Run = Callable[..., Any]
GRID = ROOT / "results" / "grids" / "cpu-1-rank.csv"


def replayed(path: Path, **options: str) -> None:
    autotune.tune(device=f"replay:{GRID}", out=str(path), budget="3m", depth=2, **options)


def test_a_study_ends_with_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed(tmp_path / "study")
    page = (tmp_path / "study" / "report.html").read_text("utf-8")
    words = capsys.readouterr().out.split()  # a long path is on a line of its own
    assert words[-2:] == ["Report:", str(tmp_path / "study" / "report.html")]
    assert "<span>ended</span>" in page
    assert "Best configuration" in page


def test_a_study_that_found_nothing_has_a_page_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(autotune.NothingFoundError) as error:
        replayed(tmp_path / "study", capacity="300MiB", sampler="random")
    assert error.value.code == 3
    page = (tmp_path / "study" / "report.html").read_text("utf-8")
    assert "There is no result: nothing fits under 240 MiB" in page


@pytest.mark.parametrize("error", [KeyError("a chart"), OSError("a full disk")])
def test_a_page_that_cannot_be_made_costs_nobody_a_result(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def broken(*given: object) -> str:
        raise error

    monkeypatch.setattr(session, "page", broken)
    replayed(tmp_path / "study")
    said = f"report.html could not be written: {type(error).__name__}: {error}"
    assert said in capsys.readouterr().out
    assert (tmp_path / "study" / "best.json").exists()


def test_a_page_can_be_written_again(tmp_path: Path, run: Run) -> None:
    study = folder(tmp_path)
    assert run("report", study) == (f"Written: {study / 'report.html'}\n", "")
    run("report", study, "--out", tmp_path / "elsewhere.html")
    texts = [p.read_text("utf-8") for p in (study / "report.html", tmp_path / "elsewhere.html")]
    assert texts[0] == texts[1]


def test_markdown_goes_to_stdout_alone(tmp_path: Path, run: Run) -> None:
    study = folder(tmp_path)
    out, err = run("report", study, "--markdown")
    assert err == ""
    assert out.startswith("### gpt on ")
    assert not (study / "report.html").exists()


def test_pictures_go_where_asked_for(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("vl_convert")
    out = run("report", folder(tmp_path), "--png", tmp_path / "figures").out
    assert "card.png" in out
    assert (tmp_path / "figures" / "throughput.svg").exists()


def test_studies_are_compared_on_the_terminal_and_as_a_page(tmp_path: Path, run: Run) -> None:
    one, two = folder(tmp_path, "one"), folder(tmp_path, "two")
    page = tmp_path / "both.html"
    out = run("compare", one, two, "--html", page).out
    assert "within the noise (+0.0%)" in " ".join(out.split())
    assert "one and two" in page.read_text("utf-8")


def test_trackers_get_trials_later(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("tensorboardX")
    replayed(tmp_path / "study")
    place = tmp_path / "study" / "tensorboard"
    found = run("report", tmp_path / "study", "--log", "tensorboard")
    assert found == (f"Written: {place}\n", "")
    assert len(list(place.glob("search-*"))) >= 3


@pytest.mark.slow
def test_the_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "report", str(folder(tmp_path)), "--serve"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ shows .*; Ctrl\+C ends it\n", line)
        assert found is not None
        connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
