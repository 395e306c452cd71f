"""Groups of one machine: one at a time, until they are known not to disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.runner import Job, Result, StopRequestedError
from autotune.space.outcome import Verdict
from autotune.study.neighbours import Neighbours
from tests.support.records import space
from tests.support.scripted import Listener, ok
from tests.support.studies import Run, saturating

SPACE = space(micro_batch=(1, 8))
PATIENCE_S = 60.0


class Machine:
    """Steps that take longer where both slots make some."""

    def __init__(self, slower: float) -> None:
        self._listener = Listener()
        self.neighbours = Neighbours(2, lambda: False, self._listener)
        self.most = 0
        """Probes that made steps at once."""
        self._slower = slower
        self._stepping = 0
        self._lock = threading.Lock()
        self._met = threading.Barrier(2)

    @property
    def notes(self) -> list[str]:
        return self._listener.notes

    def answer(self, job: Job) -> Result:
        compared = bool(self.neighbours._awaited)
        with self.neighbours.turn(""):
            with self._lock:
                self._stepping += 1
                self.most = max(self.most, self._stepping)
            if compared:
                self._met.wait(PATIENCE_S)
            with self._lock:
                self._stepping -= 1
        plain = saturating(job)
        return ok(plain.reported.step_s[0] * (self._slower if compared else 1.0), 2**20)

    def run(self, folder: Path) -> Run:
        return Run(folder, self.answer, SPACE, slots=2, neighbours=self.neighbours)


def test_where_steps_take_longer_side_by_side_groups_take_turns(tmp_path: Path) -> None:
    machine = Machine(slower=1.2)
    machine.run(tmp_path)
    assert machine.notes == [
        "probes at the same time slow each other down: steps take 1.200 times as long; groups take"
        " turns at timing"
    ]
    assert machine.neighbours.in_turns
    assert machine.most == 2  # when they were compared


@pytest.mark.parametrize(("slower", "said"), [(1.0, "1.000"), (1.02, "1.020"), (0.8, "0.800")])
def test_close_results_let_groups_run_at_once(tmp_path: Path, slower: float, said: str) -> None:
    machine = Machine(slower)
    machine.run(tmp_path)
    assert machine.notes == [
        f"probes at the same time slow each other down: steps take {said} times as long; groups"
        " are timed at once"
    ]
    assert not machine.neighbours.in_turns


def test_the_first_candidate_is_measured_alone_and_then_once_in_each_slot(tmp_path: Path) -> None:
    run = Machine(slower=1.0).run(tmp_path)
    first = run.told[0].candidate
    jobs = [[j.candidate for j in each.jobs if not j.fresh] for each in run.runners]
    assert sorted(each.count(first) for each in jobs) == [1, 2]
    assert [r.candidate for r in run.told if r.purpose == "search"].count(first) == 1


def test_a_group_that_comes_to_no_steps_keeps_nobody_waiting(tmp_path: Path) -> None:
    machine = Machine(slower=1.0)
    broken = threading.Event()

    def answer(job: Job) -> Result:
        if machine.neighbours._awaited and not broken.is_set():
            broken.set()
            return Result(verdict=Verdict.CRASHED, reason="a rank did not come up")
        with machine.neighbours.turn(""):
            return saturating(job)

    run = Run(tmp_path, answer, SPACE, slots=2, neighbours=machine.neighbours)
    assert run.study.ledger.choice() is not None
    assert machine.notes == []
    assert machine.neighbours.in_turns


def test_who_waits_for_a_turn_hears_the_wish_to_stop() -> None:
    stop = threading.Event()
    neighbours = Neighbours(2, stop.is_set, Listener())
    began: list[Callable[[], None]] = []

    def wait() -> None:
        with pytest.raises(StopRequestedError), neighbours.turn(""):
            raise AssertionError("it was somebody else's")
        began.append(wait)

    with neighbours.turn(""):
        waiting = threading.Thread(target=wait)
        waiting.start()
        stop.set()
        waiting.join(PATIENCE_S)
    assert began


def test_machines_have_turns_of_their_own() -> None:
    neighbours = Neighbours(2, lambda: False, Listener())
    with neighbours.turn("n1"), neighbours.turn("n2"):
        assert neighbours.in_turns


def test_a_disturbed_comparison_is_not_repeated_alone(tmp_path: Path) -> None:
    machine = Machine(slower=1.2)
    seen: list[bool] = []

    def answer(job: Job) -> Result:
        compared = bool(machine.neighbours._awaited)
        result = machine.answer(job)
        seen.append(compared)
        if not compared:
            return result
        busy = replace(
            result.reported.conditions, interval_cpu_s=2.0, busy_cpu_s=2.0, own_cpu_s=1.0
        )
        return replace(result, report=replace(result.reported, conditions=busy))

    Run(tmp_path, answer, SPACE, slots=2, neighbours=machine.neighbours)
    assert sum(seen) == 2
    assert machine.neighbours.in_turns
