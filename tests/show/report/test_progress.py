"""What is said of a group's start, and how long it is taken to last."""

from __future__ import annotations

import pytest

from autotune.show.report.progress import Progress
from autotune.wire.stopping import Phase
from tests.support.screens import Clock


def start(progress: Progress, clock: Clock, engine: str, engine_s: float) -> None:
    """A whole start, whose engine takes that long, and steps."""
    progress.begin(engine)
    for phase, seconds in {Phase.BUILD: 2.0, Phase.ENGINE: engine_s, Phase.WARMUP: 9.0}.items():
        progress.phase(phase, 0)
        clock.now_s += seconds
    progress.phase(Phase.TIMED, 12)


def building(progress: Progress, clock: Clock, engine: str, seconds: float) -> str:
    progress.begin(engine)
    progress.phase(Phase.ENGINE, 0)
    clock.now_s += seconds
    return progress.text


def test_what_was_never_seen_is_not_guessed() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert building(progress, clock, "ddp", 3.0) == "building the engine, 3 s"


def test_a_start_is_held_against_the_median_of_earlier_ones() -> None:
    clock = Clock()
    progress = Progress(clock)
    start(progress, clock, "ddp", 5.0)
    assert building(progress, clock, "ddp", 3.0) == "building the engine, 3 s of about 5 s"
    for engine_s in (6.0, 60.0, 7.0):
        start(progress, clock, "ddp", engine_s)
    assert building(progress, clock, "ddp", 3.0) == "building the engine, 3 s of about 7 s"


def test_a_start_that_takes_longer_than_others_did_says_so() -> None:
    clock = Clock()
    progress = Progress(clock)
    start(progress, clock, "ddp", 5.0)
    assert building(progress, clock, "ddp", 9.0) == "building the engine, 9 s, usually 5 s"


def test_one_engine_s_starts_say_nothing_of_another_s() -> None:
    clock = Clock()
    progress = Progress(clock)
    start(progress, clock, "ddp", 5.0)
    assert building(progress, clock, "deepspeed", 3.0) == "building the engine, 3 s"


@pytest.mark.parametrize("after", [Phase.BUILD, Phase.DONE], ids=["tried again", "given up"])
def test_a_start_that_failed_is_no_measure_of_others(after: Phase) -> None:
    clock = Clock()
    progress = Progress(clock)
    building(progress, clock, "ddp", 1.0)
    progress.phase(after, 0)
    assert building(progress, clock, "ddp", 3.0) == "building the engine, 3 s"


def test_steps_are_counted_and_not_held_against_those_of_other_candidates() -> None:
    clock = Clock()
    progress = Progress(clock)
    start(progress, clock, "ddp", 5.0)
    clock.now_s += 7
    assert progress.text == "timing, 12 steps, 7 s"
    progress.phase(Phase.WARMUP, 0)
    assert progress.text == "warming up, 0 s"


@pytest.mark.parametrize("of_script", [False, True])
@pytest.mark.parametrize("phase", Phase)
def test_there_are_words_for_every_phase(phase: Phase, of_script: bool) -> None:
    progress = Progress(Clock(), of_script=of_script)
    preparing = progress.text
    progress.phase(phase, 0)
    assert progress.text != preparing


def test_imports_before_the_first_probe_are_for_tracing() -> None:
    progress = Progress(Clock())
    progress.phase(Phase.IMPORT, 0)
    assert progress.text == "importing, then tracing the model, 0 s"
    progress.begin("ddp")
    progress.phase(Phase.IMPORT, 0)
    assert progress.text == "importing, 0 s"


def test_a_script_is_started_and_has_no_ranks_of_ours() -> None:
    progress = Progress(Clock(), of_script=True)
    progress.begin("ddp")
    progress.phase(Phase.IMPORT, 0)
    assert progress.text == "starting the script, 0 s"
    progress.phase(Phase.BUILD, 0)
    assert progress.text == "before its first step, 0 s"


def test_the_clock_is_read_when_a_phase_begins_and_not_at_its_steps() -> None:
    read = []

    def clock() -> float:
        read.append(0)
        return 0.0

    progress = Progress(clock)
    progress.phase(Phase.TIMED, 0)
    before = len(read)
    for steps in range(100):
        progress.phase(Phase.TIMED, steps)
    assert len(read) == before
