"""What is said of a group's start, and how long it is taken to last."""

from __future__ import annotations

import pytest

from autotune.show.report.progress import StudyProgress
from autotune.wire.stopping import Phase
from tests.support.screens import Clock


def start(progress: StudyProgress, clock: Clock, engine: str, engine_s: float) -> None:
    """A whole start, whose engine takes that long, and steps."""
    progress.begin(engine)
    for phase, seconds in {Phase.BUILD: 2.0, Phase.ENGINE: engine_s, Phase.WARMUP: 9.0}.items():
        progress.phase(phase, 0)
        clock.now_s += seconds
    progress.phase(Phase.TIMED, 12)


def building(progress: StudyProgress, clock: Clock, engine: str, seconds: float) -> str:
    progress.begin(engine)
    progress.phase(Phase.ENGINE, 0)
    clock.now_s += seconds
    return progress.text


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> StudyProgress:
    return StudyProgress(clock)


@pytest.mark.parametrize(
    ("earlier_s", "engine", "seconds", "said"),
    [
        ([], "ddp", 3.0, "3 s"),
        ([5.0], "ddp", 3.0, "3 s of about 5 s"),
        ([5.0, 6.0, 60.0, 7.0], "ddp", 3.0, "3 s of about 7 s"),  # their median
        ([5.0], "ddp", 9.0, "9 s, usually 5 s"),
        ([5.0], "deepspeed", 3.0, "3 s"),
    ],
)
def test_a_start_is_held_against_earlier_ones_of_its_engine(
    clock: Clock, earlier_s: list[float], engine: str, seconds: float, said: str
) -> None:
    progress = StudyProgress(clock)
    for engine_s in earlier_s:
        start(progress, clock, "ddp", engine_s)
    assert building(progress, clock, engine, seconds) == f"building the engine, {said}"


@pytest.mark.parametrize("after", [Phase.BUILD, Phase.DONE], ids=["tried again", "given up"])
def test_a_start_that_failed_is_no_measure_of_others(
    progress: StudyProgress, clock: Clock, after: Phase
) -> None:
    building(progress, clock, "ddp", 1.0)
    progress.phase(after, 0)
    assert building(progress, clock, "ddp", 3.0) == "building the engine, 3 s"


def test_steps_are_counted_and_held_against_no_others(
    progress: StudyProgress, clock: Clock
) -> None:
    start(progress, clock, "ddp", 5.0)
    clock.now_s += 7
    assert progress.text == "timing, 12 steps, 7 s"
    progress.phase(Phase.WARMUP, 0)
    assert progress.text == "warming up, 0 s"


@pytest.mark.parametrize("of_script", [False, True])
@pytest.mark.parametrize("phase", Phase)
def test_there_are_words_for_every_phase(phase: Phase, of_script: bool) -> None:
    progress = StudyProgress(Clock(), of_script=of_script)
    preparing = progress.text
    progress.phase(phase, 0)
    assert progress.text != preparing


def test_imports_before_the_first_probe_are_for_tracing(progress: StudyProgress) -> None:
    progress.phase(Phase.IMPORT, 0)
    assert progress.text == "importing, then tracing the model, 0 s"
    progress.begin("ddp")
    progress.phase(Phase.IMPORT, 0)
    assert progress.text == "importing, 0 s"


def test_a_script_is_started_and_has_no_ranks_of_ours() -> None:
    progress = StudyProgress(Clock(), of_script=True)
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

    progress = StudyProgress(clock)
    progress.phase(Phase.TIMED, 0)
    before = len(read)
    for steps in range(100):
        progress.phase(Phase.TIMED, steps)
    assert len(read) == before
