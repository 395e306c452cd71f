"""Charts as files, and the card."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.errors import UsageError
from autotune.show.view import pictures
from autotune.show.view.charts import drawn
from autotune.show.view.page.rendering import asset
from autotune.show.view.study import read
from tests.support import scripts
from tests.support.shown import HOSTILE, change_json, folder

vl_convert = pytest.importorskip("vl_convert", reason="what draws pictures is not installed")


def test_every_chart_and_a_card_are_written_as_png_and_svg(tmp_path: Path) -> None:
    study = read(folder(tmp_path))
    out = tmp_path / "pictures"
    names = pictures.write(study, out)
    stems = [*drawn(study), pictures.CARD]
    assert sorted(names) == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    for name in names:
        body = (out / name).read_bytes()
        if name.endswith("png"):
            assert body.startswith(b"\x89PNG")
        else:
            assert ElementTree.fromstring(body).tag.endswith("svg")
    card = (out / f"{pictures.CARD}.png").read_bytes()
    assert struct.unpack(">II", card[16:24]) == (1200, 630)  # as sites expect


def test_a_study_without_a_result_has_no_card(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "best.json").unlink()
    assert "card.png" not in pictures.write(read(path), tmp_path / "pictures")


def test_a_hostile_name_is_text_on_the_card(tmp_path: Path) -> None:
    path = folder(tmp_path)
    change_json(path / "manifest.json", options=read(path).manifest.options | {"model": HOSTILE})
    out = tmp_path / "pictures"
    pictures.write(read(path), out)
    tags = {each.tag for each in ElementTree.parse(out / "card.svg").iter()}
    assert not [tag for tag in tags if tag.endswith(("script", "foreignObject", "img"))]


def test_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"--png: .*\[pictures\]"):
        pictures.write(read(folder(tmp_path)), tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_pages_draw_with_the_versions_that_pictures_are_drawn_with() -> None:
    assert asset("vega.js").partition("\n")[0] == scripts.load("bundle_charts").versions()
