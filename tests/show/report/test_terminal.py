"""What people see: on a terminal, in a log, in 80 columns, without UTF-8."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from autotune.result import best as best_json
from autotune.result.best import Best, PeakBytes, PeakErrors, Sure
from autotune.result.choice import Repeats
from autotune.show.report import Reporter
from autotune.show.report.reporters import reporter_for
from autotune.show.report.result import ROUTED, Caution, cautions
from autotune.show.report.terminal import LiveReporter, PlainReporter
from autotune.show.report.text import minutes, si
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Purpose, Verdict
from autotune.space.space import LEFT_OUT, Fixed, Space
from autotune.space.workload import GlobalBatch
from autotune.wire.stopping import Phase
from tests.support.records import record, workload
from tests.support.screens import (
    FOLDER,
    LONG_REASON,
    SPACE,
    SPACES,
    A,
    B,
    C,
    Clock,
    Screen,
    best,
    study,
)

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def plain(
    width: int = 100, *, among: Space = SPACE, objective: Objective = "flops"
) -> tuple[Screen, Clock, PlainReporter]:
    """A study that has begun, in a log."""
    screen, clock = Screen(width), Clock()
    reporter = PlainReporter(screen.console, clock, objective)
    reporter.started(among, 600.0, FOLDER)
    return screen, clock, reporter


def live(
    width: int = 100, *, among: Space = SPACE, encoding: str = "utf-8"
) -> tuple[Screen, Clock, LiveReporter]:
    """A study that has begun, on a terminal."""
    screen, clock = Screen(width, terminal=True, encoding=encoding), Clock()
    reporter = LiveReporter(screen.console, clock)
    reporter.started(among, 600.0, FOLDER)
    return screen, clock, reporter


def line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


# The log.


def test_a_trial_is_one_line_with_its_candidate_verdict_rates_and_peak() -> None:
    screen, clock, reporter = plain()
    clock.now_s += 83
    reporter.told(record(A, number=12, tokens_per_s=12345, peak_mib=1024), None)
    assert " ".join(screen.text.splitlines()[-1].split()) == (
        "1:23 12 search depth 4 seq 128 micro 8 ckpt none ok 12.3k 330 GFLOP/s 1.00 GiB 25%"
    )


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (LONG_REASON, LONG_REASON),
        ("bad \x1b[31mred\nline \udcff", "bad ?[31mred line ?"),
        ("shape [2, 3] [/bold] :bug:", "shape [2, 3] [/bold] :bug:"),
    ],
    ids=["long", "of a terminal", "markup"],
)
def test_a_trial_that_failed_says_why_on_its_one_line(reason: str, shown: str) -> None:
    screen, _, reporter = plain()
    reporter.told(record(A, Verdict.CRASHED, reason=reason), None)
    assert screen.text.splitlines()[-1].endswith(f"crashed: {shown}")


def test_a_study_says_at_once_what_it_leaves_out_and_why() -> None:
    screen = Screen()
    lost = Fixed(LEFT_OUT, "micro_batch 3", "--global-batch 16 is no multiple of these")
    space = replace(SPACE, fixed=(*SPACE.fixed, lost))
    PlainReporter(screen.console, Clock()).started(space, 600.0, FOLDER)
    assert "\nwithout micro_batch 3 (--global-batch 16 is no multiple of these)\n" in screen.text


def test_a_script_whose_samples_have_no_tokens_is_shown_by_samples() -> None:
    candidate = Candidate(depth=1, seq_len=1, micro_batch=8)
    workload = replace(SPACE.workload, model="script:train.py")
    axes = SPACE.axes | {"seq_len": (1,), "depth": (1,)}
    screen = Screen()
    reporter = PlainReporter(screen.console, Clock())
    reporter.started(replace(SPACE, workload=workload, axes=axes), 600.0, FOLDER)
    assert "tok/s" in screen.text.splitlines()[-1]
    reporter.told(record(candidate, tokens_per_s=12345), None)
    header, row = screen.text.splitlines()[-2:]
    assert row.index("12.3k") + len("12.3k") == header.index("samples/s") + len("samples/s")


def test_trials_stand_under_their_header() -> None:
    screen, _, reporter = plain()
    header = screen.text.splitlines()[-1]
    reporter.told(record(A, tokens_per_s=12345), None)
    row = screen.text.splitlines()[-1]
    assert row.index("depth") == header.index("candidate")
    for title, value in [("tok/s", "12.3k"), ("FLOP/s", "GFLOP/s"), ("peak", "1.00 GiB")]:
        assert row.index(value) + len(value) == header.index(title) + len(title)


def logged() -> str:
    screen, clock = Screen(), Clock()
    study(PlainReporter(screen.console, clock), clock)
    return screen.text


@pytest.mark.parametrize("kind", [PlainReporter, LiveReporter])
def test_a_terminal_without_utf_8_gets_a_study(kind: Callable[[Console, Clock], Reporter]) -> None:
    screen, clock = Screen(terminal=kind is LiveReporter, encoding="ascii"), Clock()
    reporter = kind(screen.console, clock)
    study(reporter, clock)
    reporter.note("café")
    assert screen.text.endswith("caf?\n")


# The end.


def test_the_end_lists_every_cell_and_marks_the_winner() -> None:
    records = [record(A, purpose="final", tokens_per_s=5000), record(C, Verdict.PRUNED)]
    table = [line.split() for line in finished(best(*records)).splitlines() if "GFLOP/s  " in line]
    assert [(row[0], row[-1]) for row in table] == [("2", "early"), (">", "confirmed")]


def test_the_end_says_how_far_under_the_ceiling_the_winner_stays() -> None:
    assert "Uses 25% of 4.00 GiB; 2.20 GiB under the ceiling of 80%." in logged()


@pytest.mark.parametrize(
    ("sure", "said"),
    [(Sure(best=0.97, within_1_percent=0.98), "probability of 97%. It is within 1% of the best"
      " of them with 98%."),
     (Sure(best=1.0, within_1_percent=1.0), "probability of 100%."),
     (None, "")],
)  # fmt: skip
def test_the_end_says_how_sure_it_is(sure: Sure | None, said: str) -> None:
    found = best(record(A), record(A, purpose="final", tokens_per_s=5000), record(C))
    text = " ".join(finished(replace(found, sure=sure)).split())
    assert said in text
    most = "Of the 2 that were measured and fit, this one is fastest with a"
    untried = f"{len(SPACE.candidates) - 2} of the {len(SPACE.candidates)} candidates were not"
    assert (most in text, untried in text) == (sure is not None,) * 2
    if sure is not None:
        following = replace(sure, next=found.cells[-1].config)
        assert ". Next: " in " ".join(finished(replace(found, sure=following)).split())


def test_a_value_of_an_axis_of_the_user_s_own_has_one_name_everywhere() -> None:
    own = ("ckpt=yes", "ckpt=no")
    candidates = tuple(replace(A, own=each) for each in own)
    axes = SPACE.axes | {"own": own}
    among = replace(SPACE, axes=axes, candidates=candidates)
    screen, _, reporter = plain(140)
    reporter.started(among, 60.0, FOLDER)
    told = record(candidates[0])
    reporter.told(told, told)
    reporter.finished(best(told, record(candidates[1], tokens_per_s=1), among=among), FOLDER)
    assert screen.text.count("ckpt=yes") == 3
    assert not any(f"{word} ckpt=" in screen.text for word in ("own", "axis"))


@pytest.mark.parametrize(("rival", "said"), [(0.7, True), (0.4, False), (None, False)])
def test_where_another_is_likelier_it_is_undecided(rival: float | None, said: bool) -> None:
    found = best(record(A), record(B))
    sure = Sure(best=0.3, within_1_percent=0.3, next=found.config, next_best=rival)
    other = replace(found.config, micro_batch=64)
    text = " ".join(finished(replace(found, config=other, sure=sure)).split())
    assert (f"Undecided: micro_batch {A.micro_batch} is probably better." in text) == said


def test_all_is_said_of_all_candidates_alone() -> None:
    few = replace(SPACE, candidates=(A, C))
    found = best(record(A, purpose="final"), record(A), record(C), among=few)
    text = finished(replace(found, sure=Sure(best=0.97, within_1_percent=0.98)))
    assert "Of all that fit, this one is fastest with a probability of 97%" in text
    assert "not tried" not in text


def test_the_end_says_that_one_measurement_was_compared_with_nothing() -> None:
    alone = finished(best(record(A)))
    assert "No other configuration that fits was measured, so another may be faster." in alone
    assert "No other configuration" not in finished(best(record(A), record(C, Verdict.PRUNED)))


@pytest.mark.parametrize(("probes", "said"), [(5, True), (4, False)])
def test_the_end_says_how_far_off_predicted_peaks_were_unless_they_are_few(
    probes: int, said: bool
) -> None:
    found = best(record(A))
    known = replace(found, prediction=PeakErrors(0.054, probes))
    text = f"Memory: predicted peaks were off by 5.4% (median; probes: {probes})"
    assert (text in finished(known)) == said


def test_on_a_noisy_machine_the_end_says_what_it_cannot_tell() -> None:
    screen, _, reporter = plain(objective="samples_per_s")
    found = replace(
        best(record(A, purpose="final", tokens_per_s=5000), record(C)),
        sure=Sure(best=0.15, within_1_percent=0.23),
        repeats=Repeats(differ=0.234, pairs=7),
        objective="samples_per_s",
    )
    reporter.finished(found, FOLDER / "best.json")
    shown = " ".join(screen.text.split())
    assert "finals of one configuration differ by 23% here (median of 7 pairs)" in shown
    assert "probability" not in shown
    assert f"{si(found.measured.samples_per_s)} samples/s, 5.00k tokens/s" in shown
    assert "samples/s model FLOP/s" in shown


def test_the_end_names_what_tied_by_what_differs() -> None:
    assert "  micro_batch 4: 12.3k tokens/s, 37% of capacity" in logged()


def test_the_path_of_the_result_is_never_broken() -> None:
    screen, _, reporter = plain(80)
    path = Path("/a folder with spaces/" + "deep/" * 40 + "best.json")
    reporter.finished(best(record(A)), path)
    assert screen.text.splitlines()[-1] == f"Written: {path}"


CALM = best(record(B, purpose="final"))
FINAL = record(B, purpose="final")
CAUTIONS = [
    (Caution.EMULATED, replace(CALM, device="emulated")),
    (Caution.NO_FINALS, best(record(B), record(B, Verdict.SKIPPED, purpose="final"))),
    (Caution.FINALS_FAILED, best(record(B), record(B, Verdict.CRASHED, purpose="final"))),
    (Caution.MEASUREMENTS_DIFFER,
     best(record(B, tokens_per_s=5000), record(B, purpose="final", tokens_per_s=1000))),
    (Caution.FINALS_SLOWER,
     best(record(B, tokens_per_s=5000), record(C, purpose="final", tokens_per_s=1000))),
    (Caution.STOPPED_IN_SEARCH, best(FINAL, stopped_by="SIGINT", stopped_in="search")),
    (Caution.STOPPED_IN_FINALS, best(FINAL, stopped_by="SIGINT", stopped_in="finals")),
    (Caution.DISTURBED, best(record(B, purpose="final", disturbed_share=0.4))),
    (Caution.BROKEN_TRIALS, best(FINAL, record(C, Verdict.HUNG))),
    (Caution.LARGEST_MICRO_BATCH, best(record(A, purpose="final"))),
]  # fmt: skip


@pytest.mark.parametrize(("caution", "found"), CAUTIONS)
def test_each_caution_is_given_for_its_own_cause(caution: Caution, found: Best) -> None:
    assert cautions(found, SPACE.axes["micro_batch"]) == (caution,)


def test_a_larger_micro_batch_is_not_asked_for_where_the_global_batch_allows_none() -> None:
    found = best(record(A, purpose="final"))
    whole = {"options": {"global_batch": {"amount": 8, "unit": "samples"}}}
    half = replace(found.config, grad_accum=2)
    searched = SPACE.axes["micro_batch"]
    assert found.config.grad_accum == 1
    assert cautions(replace(found, provenance=whole), searched) == ()
    assert cautions(replace(found, provenance=whole, config=half), searched) == (
        Caution.LARGEST_MICRO_BATCH,
    )


def test_what_may_be_measured_again_is_by_resume_in_every_caution() -> None:
    """A user who reads two of them is told one thing."""
    again = [each.value for each in Caution if "easure it again" in each.value]
    assert len(again) == 2
    assert all("--resume with --budget" in text for text in again)
    assert not any("--out" in each.value for each in Caution)


def test_every_caution_has_a_test_of_its_cause() -> None:
    assert {caution for caution, _ in CAUTIONS} == set(Caution)


@pytest.mark.parametrize("searched", [SPACE.axes["micro_batch"], (4,)])
def test_a_calm_confirmed_result_comes_without_cautions(searched: tuple[int, ...]) -> None:
    assert cautions(CALM, searched) == ()


def test_cautions_are_printed_with_the_result() -> None:
    text = finished(best(record(B)))
    assert "Warning: " + Caution.NO_FINALS.value[:60] in text
    assert "Best: (not confirmed) depth" in text
    assert "(not confirmed)" not in finished(best(record(B, purpose="final")))


FRONT = [
    record(A, purpose="final", tokens_per_s=5000, joules_per_token=0.0123),
    record(B, tokens_per_s=4000, joules_per_token=0.01),
]


def finished(found: Best, width: int = 100) -> str:
    screen, _, reporter = plain(width)
    reporter.finished(found, FOLDER / "best.json")
    return screen.text


def test_the_end_says_what_a_token_takes_and_the_pareto_front() -> None:
    text = finished(best(*FRONT))
    assert "grad_accum 1. 0.0123 J a token." in " ".join(text.split())
    assert line_with(text, "J/token").split()[-2:] == ["J/token", "measured"]
    assert "  the best: 5.00k tokens/s, 0.0123 J a token" in text
    assert "  micro_batch 4: 4.00k tokens/s, 0.01 J a token" in text


def test_a_front_of_one_is_not_shown() -> None:
    assert "trade-offs" in finished(best(*FRONT))
    assert "trade-offs" not in finished(best(FRONT[0]))


def test_without_energy_nothing_is_said_of_it() -> None:
    assert "J" not in finished(best(record(A), record(B))).replace("FLOP/s", "")


def of_one_batch(*rates: tuple[Candidate, float], joules: float | None = None) -> Best:
    among = workload(GlobalBatch(8, "samples"), world_size=2)
    records = [
        record(c, tokens_per_s=rate, among=among, joules_per_token=joules) for c, rate in rates
    ]
    return best(*records, among=replace(SPACE, workload=among))


TWO = replace(A, micro_batch=2)


def test_the_end_compares_what_makes_the_same_batch() -> None:
    text = finished(of_one_batch((B, 12000), (TWO, 9000)))
    assert "The same batch of 8 samples, 1024 tokens" in text
    lines = text[text.index("micro x accum x ranks") :].splitlines()[:3]
    assert [" ".join(line.split()) for line in lines] == [
        "micro x accum x ranks tokens/s of best peak measured",
        "2 x 2 x 2 9.00k 75.0% 1.00 GiB 25% unconfirmed",
        "> 4 x 1 x 2 12.0k 100.0% 1.00 GiB 25% unconfirmed",
    ]
    assert "Fastest here: 4 x 1 x 2." in text


def test_the_comparison_names_what_else_differs() -> None:
    full = replace(TWO, checkpointing="full")
    text = finished(of_one_batch((B, 12000), (full, 9000)))
    assert "2 x 2 x 2 full 9.00k" in " ".join(text.split())


def test_the_comparison_has_energy_where_it_is_known() -> None:
    found = of_one_batch((B, 12000), (TWO, 9000), joules=0.5)
    assert "J/token" in line_with(finished(found), "of best")


def test_another_batch_is_not_promised_a_speed_that_was_not_measured() -> None:
    found = of_one_batch((B, 12000), (TWO, 9000))
    text = " ".join(finished(found).split())
    assert "changes the number of optimizer steps" in text
    assert "more tokens/s" not in text
    measured = " ".join(finished(replace(found, update_share=0.2)).split())
    assert "twice the batch would train 11.1% more tokens/s" in measured  # 1 / 0.9


def test_one_micro_batch_alone_is_not_compared() -> None:
    assert "same batch" not in finished(of_one_batch((B, 12000)))


# The live lines.


def test_the_live_lines_say_what_is_probed_in_which_phase_for_how_long() -> None:
    screen, clock, reporter = live()
    reporter.probing("search", A, 420.0)
    reporter.phase(Phase.WARMUP, 0)
    clock.now_s += 30
    reporter.phase(Phase.TIMED, 0)
    clock.now_s += 7
    reporter.phase(Phase.TIMED, 12)
    assert " ".join(_drawn(reporter, screen, "search").split()) == (
        "search depth 4 seq 128 micro 8 ckpt none timing, 12 steps, 7 s"
    )
    reporter.close()


def test_the_live_lines_show_the_incumbent_the_counts_and_the_clock() -> None:
    screen, clock, reporter = live()
    best = record(A, tokens_per_s=12345)
    reporter.told(best, best)
    reporter.told(record(C, Verdict.SKIPPED), best)
    clock.now_s += 125
    assert "micro 8  ckpt none  12.3k tok/s" in _drawn(reporter, screen, "best")
    assert _drawn(reporter, screen, "trials").strip() == "trials  2 (1 ok, 1 skipped)"
    assert "2:05 of 10:00, 7:55 left" in _drawn(reporter, screen, "budget")
    reporter.close()


def test_the_budget_bar_tells_the_search_from_the_finals() -> None:
    screen, clock, reporter = live(encoding="ascii")
    clock.now_s += 300
    reporter.probing("final", A, 599.0)
    clock.now_s += 150
    bar = _drawn(reporter, screen, "budget").split()[1]
    assert [bar.count(c) for c in "=#-"] == [32, 16, 16]
    reporter.close()


def test_the_live_lines_say_when_the_finals_begin_and_how_far_they_are() -> None:
    screen, clock, reporter = live()
    assert "finals  after the search" in _drawn(reporter, screen, "finals")
    reporter.probing("search", A, 420.0)
    clock.now_s += 100
    assert "finals  in 5:20 at the latest" in _drawn(reporter, screen, "finals")
    reporter.probing("final", A, 599.0)
    clock.now_s += 70
    reporter.told(record(A, purpose="final"), None)
    reporter.told(record(A, Verdict.SKIPPED, purpose="final"), None)  # never ran
    assert "finals  for 1:10, 1 round so far" in _drawn(reporter, screen, "finals")
    reporter.close()


def test_where_energy_is_known_the_best_has_it() -> None:
    screen, _, reporter = live()
    best = record(A, joules_per_token=0.0123)
    reporter.told(best, best)
    assert "25%  0.0123 J/token" in _drawn(reporter, screen, "GFLOP/s")
    reporter.close()


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("among", SPACES.values(), ids=SPACES)
def test_as_long_as_the_candidate_is_the_same_no_live_line_moves(among: Space, width: int) -> None:
    screen, clock, reporter = live(width, among=among)
    reporter.probing("search", among.candidates[-1], 420.0)
    heights = set()
    for phase, steps in [(phase, 0) for phase in Phase] + [(Phase.TIMED, 1000)]:
        for _ in range(3):
            reporter.phase(phase, steps)
            clock.now_s += 33
            heights.add(len(screen.console.render_lines(reporter.drawn())))
    assert len(heights) == 1
    reporter.close()


def test_the_names_of_columns_stand_above_trials_again_where_the_width_is_another() -> None:
    screen, _, reporter = live(100)
    for number, width in enumerate([100, 100, 80]):
        screen.console.width = width
        reporter.told(record(A, Verdict.HUNG, number=number), None)
    reporter.close()
    assert screen.text.count("result tok/s") == 2


def test_only_new_incumbents_and_failures_scroll_by() -> None:
    screen, _, reporter = live()
    best = record(A, number=901, tokens_per_s=2000)
    reporter.told(best, best)
    reporter.told(record(B, number=902), best)
    reporter.told(record(C, Verdict.SKIPPED, number=903), best)
    reporter.told(record(C, Verdict.HUNG, number=904), best)
    reporter.close()
    assert [n for n in ("901", "902", "903", "904") if f" {n} search" in screen.text] == [
        "901", "904",
    ]  # fmt: skip


@pytest.mark.parametrize("purpose", get_args(Purpose))
def test_a_probe_that_the_budget_cut_short_scrolls_by(purpose: Purpose) -> None:
    screen, _, reporter = live()
    found = record(A, Verdict.SKIPPED, number=901, purpose=purpose)
    reporter.told(replace(found, outcome=replace(found.outcome, probe_s=4.0)), None)
    reporter.close()
    assert f" 901 {purpose}" in screen.text


@pytest.mark.parametrize("ended", [False, True], ids=["closed early", "finished"])
def test_close_gives_the_terminal_back(ended: bool) -> None:
    screen, _, reporter = live()
    assert HIDE_CURSOR in screen.text
    if ended:
        reporter.finished(CALM, FOLDER / "best.json")
    reporter.close()
    reporter.close()
    assert screen.text.rindex(SHOW_CURSOR) > screen.text.rindex(HIDE_CURSOR)


@pytest.mark.parametrize("give_back", [LiveReporter.close, LiveReporter.abandon])
def test_a_terminal_is_given_back_if_taken(give_back: Callable[[LiveReporter], None]) -> None:
    screen = Screen(terminal=True)
    give_back(LiveReporter(screen.console, Clock()))
    assert screen.text == ""


def _drawn(reporter: LiveReporter, screen: Screen, label: str) -> str:
    """The live line that begins with `label`, as it is drawn now."""
    with screen.console.capture() as drawn:
        screen.console.print(reporter.drawn())
    return line_with(drawn.get(), label)


# Which reporter.


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A terminal or pipe that nobody holds any more."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_study_that_nobody_can_see_is_told_to_its_end(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    clock = Clock()
    study(reporter_for(Gone(terminal=terminal), clock), clock)


@pytest.mark.parametrize(
    ("stream", "term", "is_live"),
    [(Tty, "xterm-256color", True), (Tty, "dumb", False), (io.StringIO, "xterm", False)],
    ids=["a terminal", "one that cannot move its cursor", "a pipe"],
)
def test_live_lines_need_a_terminal(
    stream: type[io.StringIO], term: str, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert isinstance(reporter_for(stream(), Clock()), LiveReporter) is is_live


# Numbers for people.


@pytest.mark.parametrize(
    ("shown", "text"),
    [(si(0.5), "0.50"), (si(900), "900"), (si(999.9), "1.00k"), (si(12345), "12.3k"),
     (si(2.5e18), "2.50E"), (si(9.996), "10.0"), (si(1.21e12, "FLOP/s"), "1.21 TFLOP/s")],
)  # fmt: skip
def test_numbers_have_three_digits_and_a_prefix(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(("seconds", "text"), [(7.9, "0:07"), (83, "1:23"), (5400, "90:00")])
def test_times_are_minutes_and_seconds(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


def waited(share: float, **peaks: int) -> Best:
    found = best(record(A))
    measured = replace(found.measured, waiting_share=share, tokens="seen")
    return replace(found, measured=replace(measured, peak_bytes=PeakBytes(1, 1, 1, **peaks)))


def test_the_end_says_what_waits_for_data_and_what_would_help() -> None:
    text = " ".join(finished(waited(0.57, host=2**20)).split())
    assert "57% of the step waits for data. More loader processes" in text
    assert "of the host's memory" not in text
    assert "waits for data" not in finished(waited(0.02, host=2**20))


def test_a_full_host_is_named_before_more_processes_are_started() -> None:
    host_bytes = best(record(A)).limits.host_capacity_bytes
    assert host_bytes is not None
    text = " ".join(finished(waited(0.57, host=int(0.94 * host_bytes))).split())
    assert "uses 94% of the host's memory, and each loader process needs more" in text


def test_the_end_says_how_the_script_is_started_and_whether_its_tokens_were_seen() -> None:
    found = best(record(A))
    claimed = replace(found.measured, tokens="claimed", waiting_share=0.0)
    text = finished(
        replace(found, measured=claimed, command=["python", "my train.py", "--b", "4"])
    )
    assert "Run:     python 'my train.py' --b 4\n" in text
    assert "could not see a batch, so samples and tokens are those of the command" in " ".join(
        text.split()
    )


@pytest.mark.parametrize(
    ("options", "unseen", "says"),
    [
        ({}, ("evaluate", "save"), "If the script evaluates or saves, add --phase-args"),
        (
            {"phase_args": "--soon"},
            ("save",),
            "or does it unseen, as by pickle or in a thread: see trials.csv. If it never saves",
        ),
    ],
)
def test_what_was_not_seen_of_a_script_is_said_with_what_would_show_it(
    options: dict[str, str], unseen: tuple[best_json.Phase, ...], says: str
) -> None:
    found = best(record(A))
    text = " ".join(
        finished(
            replace(found, unseen=unseen, provenance={"options": options}, command=["python"])
        ).split()
    )
    assert says in text
    assert ("add --phase-args" in text) == (not options)


def test_what_was_not_tried_of_a_model_is_said_with_what_would_try_it() -> None:
    text = " ".join(finished(replace(best(record(A)), unseen=("evaluate", "save"))).split())
    assert "Not tried: evaluation and saving" in text
    assert "add --eval-batch 8 and --save full." in text


@pytest.mark.parametrize(
    ("command", "written_bytes", "said"),
    [
        (["python", "train.py"], None, "(once, 2 s)."),
        (None, None, "(once, 2 s, not written to a disk)."),
        (None, 2**30, "(once, 2 s to write 1.00 GiB)."),
    ],
)
def test_phases_are_said_with_what_one_time_takes(
    command: list[str] | None, written_bytes: int | None, said: str
) -> None:
    found = replace(best(record(A)), command=command)
    peaks = found.measured.peak_bytes
    train = best_json.PhaseTook(peak_bytes=peaks)
    evaluation = best_json.PhaseTook(peak_bytes=peaks, seconds=1.04, count=4)
    saving = best_json.PhaseTook(peak_bytes=peaks, seconds=2.0, count=1)
    saving = replace(saving, written_bytes=written_bytes)
    phases: dict[best_json.Phase, best_json.PhaseTook]
    phases = {"train": train, "evaluate": evaluation, "save": saving}
    text = finished(replace(found, measured=replace(found.measured, phases=phases)))
    assert "in evaluation (4 times, 0.26 s each), " in " ".join(text.split())
    assert f"while saving {said}" in " ".join(text.split())
    phases["evaluate"] = train
    text = finished(replace(found, measured=replace(found.measured, phases=phases)))
    assert "in evaluation (of small inputs only), " in " ".join(text.split())


@pytest.mark.parametrize("routing", get_args(best_json.Routed))
def test_how_experts_were_routed_is_said_in_one_line(routing: best_json.Routed) -> None:
    assert ROUTED[routing] in " ".join(finished(replace(best(record(A)), routing=routing)).split())
    assert "Routing:" not in finished(best(record(A)))


def test_what_a_script_s_values_would_do_to_a_terminal_is_not_done_at_the_end() -> None:
    hostile = replace(A, own="ckpt=\x1b[2J")
    records = [record(hostile, purpose="final"), record(replace(B, own="ckpt=\x1b]0;")),
               record(replace(C, own="ckpt=\x07"))]  # fmt: skip
    text = finished(best(*records))
    assert text.count("ckpt=?[2J") == 2  # in its cell, and of the winner
    assert not {"\x1b", "\x07"} & set(text)


def test_of_probes_that_run_at_once_the_one_is_shown_in_which_something_began_last() -> None:
    screen, _, reporter = live()
    reporter.phase(Phase.IMPORT, 0, 1)  # of a slot that has no probe yet
    reporter.probing("search", A, 420.0, 0)
    reporter.probing("search", B, 420.0, 1)
    reporter.phase(Phase.ENGINE, 0, 1)
    reporter.phase(Phase.WARMUP, 0, 0)
    reporter.phase(Phase.ENGINE, 0, 1)
    assert "warming up, 0 s; 1 more at once" in _drawn(reporter, screen, "search")
    reporter.phase(Phase.DONE, 0, 0)
    shown = _drawn(reporter, screen, "search")
    assert "building the engine, 0 s" in shown
    assert "more at once" not in shown
