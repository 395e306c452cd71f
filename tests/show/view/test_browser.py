"""The page in a real browser, opened from disk and served live."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from autotune.show.view.compare import compare_page
from autotune.show.view.page import page
from autotune.show.view.serve import HOST, server
from autotune.show.view.study import read
from tests.support import browser
from tests.support.browser import DESKTOP, PHONE, Browser
from tests.support.shown import (
    HOSTILE,
    change_json,
    change_rows,
    failed,
    folder,
    of_1000_trials,
)

pytestmark = pytest.mark.slow

LOG = "group001-rank0.log"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = browser.start(tmp_path_factory.mktemp("profile"))
    yield started
    started.driver.quit()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """With builds that differ, a trial that failed, and hostile words everywhere."""
    path = folder(tmp_path, "a study & <b>more")
    (path / "logs" / LOG).write_text(f"{HOSTILE}\nthe end of the log\n")

    def change(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        rows[1] |= {"checkpointing": "full"}
        lost = failed(rows[2], "oom", reason=f"{HOSTILE}; see {LOG}", micro_batch="32")
        return [*rows, lost | {"number": "50"}]

    change_rows(path, change)
    change_json(path / "manifest.json", options=read(path).manifest.options | {"model": HOSTILE})
    return path


def written(study: Path) -> str:
    (study / "report.html").write_text(page(read(study)), encoding="utf-8")
    return (study / "report.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_all_charts_are_drawn_without_an_error_or_a_request(
    chromium: Browser, study: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    chromium.driver.get("about:blank")
    assert chromium.requests is not None  # of pages before
    address = written(study)
    chromium.open(address, width=width, scheme=scheme)
    assert chromium.requests == [address]
    assert chromium.errors == []
    drawn = chromium.run("return document.querySelectorAll('[data-chart] svg').length")
    assert drawn == len(chromium.texts("figure h2")) == 8
    marks = chromium.run(
        "return [...document.querySelectorAll('[data-chart]')]"
        ".map(e => e.querySelectorAll('svg .mark-group path, svg .mark-symbol path,"
        " svg .mark-rect path').length)"
    )
    assert min(marks) > 0
    assert chromium.run("return document.documentElement.scrollWidth") <= width
    chromium.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_names_are_whole_on_a_phone(chromium: Browser, study: Path) -> None:
    chromium.open(written(study), width=PHONE)
    for chart in ("peak", "finals", "cells"):
        shown = chromium.texts(f"[data-chart={chart}] svg text")
        assert any("micro" in text for text in shown)
        assert not [text for text in shown if "…" in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_hinders_access(chromium: Browser, study: Path, scheme: str) -> None:
    axe = resources.files("axe_playwright_python") / "axe.min.js"
    chromium.open(written(study), scheme=scheme)
    chromium.driver.execute_cdp_cmd(  # the page's own policy forbids scripts of others
        "Runtime.evaluate", {"expression": axe.read_text("utf-8")}
    )
    found = chromium.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(found["passes"]) > 10


def test_a_click_sorts_and_another_one_turns_it_round(chromium: Browser, study: Path) -> None:
    chromium.open(written(study))
    names = chromium.texts("#table th")
    micro = names.index("micro")
    column = f"#table tbody tr td:nth-child({micro + 1})"
    header = f"#table th:nth-child({micro + 1})"
    button = chromium.find(f"{header} button")
    button.click()
    rising = [int(text) for text in chromium.texts(column)]
    assert rising == sorted(rising)
    assert chromium.find(header).get_attribute("aria-sort") == "ascending"
    button.click()
    assert [int(text) for text in chromium.texts(column)] == sorted(rising, reverse=True)
    assert chromium.find(header).get_attribute("aria-sort") == "descending"


def test_what_is_not_known_is_sorted_last(chromium: Browser, study: Path) -> None:
    chromium.open(written(study))
    place = chromium.texts("#table th").index("peak, GiB") + 1
    for _ in range(2):
        chromium.find(f"#table th:nth-child({place}) button").click()
        assert chromium.texts(f"#table tbody tr td:nth-child({place})")[-1] == ""


def test_words_and_verdicts_filter(chromium: Browser, study: Path) -> None:
    chromium.open(written(study))
    rows = "#table tbody tr"
    every = len(chromium.texts(rows))
    chromium.find("#filter").send_keys("final")
    finals = len(chromium.texts(rows))
    assert 0 < finals < every
    assert chromium.find("#shown").text == f"{finals} rows"
    chromium.find("#filter").clear()
    chromium.find("#filter").send_keys(" ")
    chromium.find("#verdict").send_keys("oom")
    assert len(chromium.texts(rows)) == 1


def test_a_log_opens_and_is_text(chromium: Browser, study: Path) -> None:
    chromium.open(written(study))
    chromium.find(f"button[data-log='{LOG}']").click()
    said = chromium.find("dialog pre").text
    assert "the end of the log" in said
    assert HOSTILE in said
    chromium.find("dialog form button").click()
    assert not chromium.run("return document.querySelector('dialog').open")


def test_on_paper_a_page_is_light_and_whole(chromium: Browser, study: Path) -> None:
    chromium.open(written(study), scheme="dark")
    light = "rgb(232, 234, 238)"
    ink = "return getComputedStyle(document.querySelector(arguments[0])).{}"
    title = "[data-chart] svg .role-axis-title text"
    assert chromium.run(ink.format("fill"), title) == light
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert chromium.run("return getComputedStyle(document.body).backgroundColor") in (
            "rgb(255, 255, 255)", "rgba(0, 0, 0, 0)",
        )  # fmt: skip
        seen, whole = chromium.run(
            "const e = [...document.querySelectorAll('.scroll')].pop();"
            " return [e.clientHeight, e.scrollHeight]"
        )
        assert seen >= whole - 1  # of the table
        assert chromium.run(ink.format("fill"), title) == "rgb(0, 0, 0)"
        chromium.run("document.body.style.width = '400px'")  # as paper is, without an event
        wider = (
            "return [...document.querySelectorAll('[data-chart]')]"
            ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.dataset.chart)"
        )
        assert chromium.run(wider) == []
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_1000_trials_are_drawn_and_filtered(chromium: Browser, study: Path) -> None:
    of_1000_trials(study)
    chromium.open(written(study))
    chromium.find("#verdict").send_keys("oom")
    assert len(chromium.texts("#table tbody tr")) == 200
    assert chromium.errors == []


def test_the_live_page_shows_new_trials_and_keeps_input(chromium: Browser, study: Path) -> None:
    with server(study, 0, print) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        chromium.open(f"http://{HOST}:{serving.server_port}/")
        chromium.find("#filter").send_keys("oom")
        assert len(chromium.texts("#table tbody tr")) == 1
        other = chromium.run(
            "const choice = document.querySelector('.vega-bindings select');"
            "const other = [...choice.options].find(each => !each.selected);"
            "other.selected = true; choice.dispatchEvent(new Event('change')); return other.value"
        )

        def one_more(rows: list[dict[str, str]]) -> list[dict[str, str]]:
            return [*rows, failed(rows[0], "oom", number="51")]

        change_rows(study, one_more)
        chromium.wait(lambda: len(chromium.texts("#table tbody tr")) == 2)
        assert chromium.find("#filter").get_attribute("value") == "oom"
        chosen = "return document.querySelector('.vega-bindings select')?.value"
        chromium.wait(lambda: chromium.run(chosen) == other)
        assert chromium.errors == []
        chromium.driver.get("about:blank")
        serving.shutdown()
        thread.join()


def test_studies_side_by_side_are_drawn(chromium: Browser, study: Path, tmp_path: Path) -> None:
    other = folder(tmp_path, "other")
    path = tmp_path / "compare.html"
    path.write_text(compare_page([read(study), read(other)]), encoding="utf-8")
    chromium.open(path.as_uri(), width=PHONE)
    assert chromium.run("return document.querySelectorAll('[data-chart] svg').length") == 1
    assert chromium.errors == []
    assert chromium.run("return document.documentElement.scrollWidth") <= PHONE
