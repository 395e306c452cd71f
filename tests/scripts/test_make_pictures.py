"""The pictures that the README shows: what they show, and that they need no network."""

from __future__ import annotations

import re
import shutil
import struct
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.programs import ROOT
from tests.support.scripts import load

make_pictures: Any = load("make_pictures")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=["made", "kept"])
def terminal(request: pytest.FixtureRequest) -> str:
    if request.param == "kept":
        return Path(make_pictures.PICTURES, "terminal.svg").read_text(encoding="utf-8")
    svg: bytes = make_pictures.terminal()
    return svg.decode()


def lines(svg: str) -> list[str]:
    """The lines of text in `svg`, from above."""
    rows: dict[float, list[str]] = {}
    for each in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        rows.setdefault(float(each.get("y", "0")), []).append(each.text or "")
    return [unescape(" ".join(rows[y])).replace("\xa0", " ") for y in sorted(rows)]


def test_the_terminal_shows_a_search_that_runs_and_its_result(terminal: str) -> None:
    shown = lines(terminal)
    begun = [line.split()[0] for line in shown if line.strip()]
    assert [begun.count(label) for label in ("finals", "trials", "Best:")] == [1, 1, 1]
    assert begun.index("finals") < begun.index("Best:")
    assert any(re.search(r"starting the ranks, \d+ s of about \d+ s", line) for line in shown)


def test_a_picture_asks_nobody_for_anything_and_is_small(terminal: str) -> None:
    assert set(re.findall(r"https?://[^\s\"')]*", terminal)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\((.)", terminal)) == {"#"}
    assert "@font-face" not in terminal
    assert len(terminal.encode()) < 150_000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser")
def test_the_picture_of_the_page_is_drawn_by_a_browser() -> None:
    picture = make_pictures.report()
    assert struct.unpack(">II", picture[16:24]) == make_pictures.PAGE_SIZE
    assert len(picture) > 100_000  # with its charts


def test_the_documents_show_every_picture() -> None:
    pages = (ROOT / "README.md", ROOT / "docs/pages/how-to/report.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    kept = [path.relative_to(ROOT) for path in Path(make_pictures.PICTURES).iterdir()]
    assert kept
    for path in kept:
        assert re.search(rf"\]\((\.\./)*{path}\)", text)
