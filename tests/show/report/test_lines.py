"""How a trial's lines use the room that there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.show.report.lines import Lines
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from tests.support.records import record
from tests.support.screens import SPACES, A, Screen

OFFLOADED = SPACES["offload"].candidates[-1]
LONGEST = SPACES["many"].candidates[-1]


def shown(among: Space, candidate: Candidate, width: int, *, of_log: bool = False) -> list[str]:
    """The header and a trial of `candidate`."""
    lines = lines_of(among, Screen(width), of_log=of_log)
    trial = lines.trial(record(candidate, number=7, tokens_per_s=12345), 83.0)
    return [line.plain for line in [*lines.header(), *trial]]


def test_a_wide_line_has_the_names_of_its_axes() -> None:
    _, trial = shown(SPACES["offload"], OFFLOADED, 140)
    assert trial.startswith(
        " 1:23   7 search depth 4  seq 128  micro 8  zero 2  offload optimizer  ckpt full ok"
    )


def test_a_narrow_line_has_its_result_below_itself() -> None:
    header, below, trial, result = shown(SPACES["offload"], OFFLOADED, 100)
    assert header.split() == ["time", "no", "kind", "candidate"]
    assert trial.endswith("micro 8  zero 2  offload optimizer  ckpt full")
    assert below.split() == ["result", "tok/s", "model", "FLOP/s", "peak"]
    assert result.split() == ["ok", "12.3k", "330", "GFLOP/s", "1.00", "GiB", "25%"]


def test_samples_of_one_token_are_counted_as_samples() -> None:
    plain = SPACES["offload"]
    axes = plain.axes | {"seq_len": (1,)}
    among = replace(plain, workload=replace(plain.workload, model="factory:a:b"), axes=axes)
    header, trial = shown(among, replace(OFFLOADED, seq_len=1), 140)
    assert "samples/s" in header
    assert "seq" not in trial


def lines_of(
    among: Space, screen: Screen, *, budget_s: float = 600.0, of_log: bool = False
) -> Lines:
    return Lines(space=among, budget_s=budget_s, console=screen.console, of_log=of_log)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_value_is_cut_and_no_line_too_long(width: int) -> None:
    lines = shown(SPACES["many"], LONGEST, width)
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    for name in SPACES["many"].axes:
        assert str(getattr(LONGEST, name)) in text


def test_a_log_has_a_trial_in_one_line_however_long_it_is() -> None:
    header, trial = shown(SPACES["many"], LONGEST, 80, of_log=True)
    assert len(header) > 200
    assert trial.endswith("12.3k  330 GFLOP/s  1.00 GiB  25%")


def test_a_reason_goes_on_below_the_candidate() -> None:
    failed = record(A, Verdict.OOM, reason="no room for " + "more and " * 20 + "more")
    _, first, second, *_ = lines_of(SPACES["few"], Screen(80)).trial(failed, 83.0)
    assert first.plain.startswith(" " * 17 + "oom: no room for more and")
    assert second.plain.startswith(" " * 17 + "more and")


def test_what_a_value_would_do_to_a_terminal_is_not_done() -> None:
    own = "ckpt=\x1b[31mred"
    among = SPACES["many"]
    [*lines] = shown(among, Candidate(depth=2, seq_len=64, micro_batch=1, own=own), 140)
    assert "ckpt=?[31mred" in "".join(lines)


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("among", SPACES.values(), ids=SPACES)
def test_columns_line_up_from_first_to_last_of_a_long_study(among: Space, width: int) -> None:
    lines = lines_of(among, Screen(width), budget_s=24 * 3600.0)
    first, last = (
        lines.trial(record(among.candidates[-1], number=number), elapsed_s)
        for number, elapsed_s in [(0, 1.0), (999, 24 * 3600.0)]
    )
    assert [line.cell_len for line in first] == [line.cell_len for line in last]
    assert max(line.cell_len for line in [*lines.header(), *last]) <= width
