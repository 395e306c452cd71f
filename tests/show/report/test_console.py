"""What a real terminal shows: as wide as it is, in its alphabet, with or without colours."""

from __future__ import annotations

import re

import pytest

from tests.support.screens import SPACES, Terminal

LIVE = "timing, 3 steps"
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m")
STYLE = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\r")


def widest(text: bytes) -> int:
    """Characters of the longest line that was written; one ends where the cursor leaves it."""
    lines = CONTROL.sub("\n", STYLE.sub("", text.decode())).splitlines()
    return max(len(line.rstrip()) for line in lines)


@pytest.mark.parametrize(
    ("columns", "among"), [*((80, name) for name in SPACES), (100, "many"), (140, "many")]
)
def test_lines_fit_the_terminal_and_no_live_ones_are_left(columns: int, among: str) -> None:
    terminal = Terminal(columns, among)
    live = terminal.wait_for(LIVE)
    assert live.count("\ntrials  ") == 1
    ended = terminal.end()
    assert widest(terminal.text) <= columns
    assert "\ntrials  " not in ended
    assert "Written: results/a-study/best.json" in ended


def test_sentences_are_no_wider_on_a_wide_terminal() -> None:
    terminal = Terminal(140, "many")
    terminal.wait_for(LIVE)
    text = terminal.end()
    assert max(map(len, text[text.index("Best:") : text.index("Trials:")].splitlines())) <= 100
    assert max(map(len, text.splitlines())) > 120


def test_a_terminal_that_becomes_narrower_gets_narrower_lines() -> None:
    terminal = Terminal(140)
    terminal.wait_for(LIVE)
    terminal.resize(80)
    terminal.redrawn(LIVE)
    before = len(terminal.text)
    terminal.end()
    assert widest(terminal.text[before:]) <= 80


def test_colours_are_left_out_where_nobody_wants_them() -> None:
    for wanted, environment in {True: {}, False: {"NO_COLOR": "1"}}.items():
        terminal = Terminal(100, **environment)
        terminal.wait_for(LIVE)
        terminal.end()
        assert bool(COLOUR.search(terminal.text)) == wanted


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_of_another_alphabet_gets_ascii_alone(environment: dict[str, str]) -> None:
    terminal = Terminal(100, "many", **environment)
    assert "budget  ====" in terminal.wait_for(LIVE)
    terminal.end()
    assert terminal.text.isascii()


def test_a_terminal_of_the_c_locale_whose_user_says_utf_8_gets_that() -> None:
    terminal = Terminal(100, LC_ALL="C", PYTHONIOENCODING="utf-8")
    assert "budget  ████" in terminal.wait_for(LIVE)
    terminal.end()


def test_a_dumb_terminal_gets_a_log() -> None:
    terminal = Terminal(100, TERM="dumb")
    shown = terminal.wait_for(" 4 search")
    assert LIVE not in shown
    terminal.end()
    assert b"\x1b" not in terminal.text
