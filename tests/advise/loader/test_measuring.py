"""Which settings are measured, when, and which one is taken: on loaders that are formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.advise.loader import measuring, show
from autotune.advise.loader.asked import LoaderProbe, Need, Setting, settings, worker_counts
from autotune.advise.loader.choice import choose
from autotune.advise.loader.measured import Round, SettingRow
from autotune.advise.loader.measuring import MeasuredSettings, Measuring
from autotune.errors import ModelError, UsageError
from autotune.measure.runner import StopRequestedError
from autotune.wire.budget import Clock, VirtualTime
from autotune.wire.helpers import Loaded, Slice
from tests.support.exported import result

MIB = 2**20
ASKED = LoaderProbe(
    module="mine",
    function="make",
    folder="/",
    settings=settings((0, 1, 2, 4), (2,), (False,)),
    ranks=1,
    micro_batch=None,
    seq_len=None,
    need=None,
    training_bytes=0,
    limit_bytes=1000 * MIB,
    budget_s=200.0,
)
ROW_START_S = 2.0


def loaded(tokens_per_s: float, workers: int = 0, **fields: Any) -> Loaded:
    """A loader of such a rate, whose slices differ by 1 %; each worker holds 100 MiB."""
    slices = [Slice(wall_s, 10, 40, 400) for wall_s in
              (400 / tokens_per_s * share for share in (0.99, 1.0, 1.01))]  # fmt: skip
    found = Loaded(
        slices=slices,
        first_batch_s=0.1,
        shape=[4, 10],
        loader_bytes=200 * MIB,
        worker_bytes=[100 * MIB] * workers,
        shm_bytes=0,
        epochs=[],
        left=True,
    )
    return replace(found, **fields)


def row(tokens_per_s: float, workers: int = 0, **fields: Any) -> SettingRow:
    setting = Setting(workers, 2 if workers else None, False)
    return SettingRow(setting, ((loaded(tokens_per_s, workers, **fields),),) * 2)


class Formula(Measuring):
    """Rounds that take no time but on the clock. A worker gives 1000 tokens/s, two at most."""

    def __init__(self, asked: LoaderProbe, stop_after: int = 1000) -> None:
        self._now = VirtualTime()
        self.done: list[Setting] = []
        self.failing: dict[int, str] = {}
        clock = Clock(asked.budget_s, 0.0, self._now)
        super().__init__(asked, clock, lambda: len(self.done) >= stop_after)

    def _round(self, setting: Setting, timed_s: float) -> Round:
        if self._stop():
            raise StopRequestedError
        self.done.append(setting)
        self._now.advance(ROW_START_S + timed_s)
        if setting.workers in self.failing:
            raise measuring._Failed(self.failing[setting.workers])
        rate = 1000.0 * min(2, max(0.5, setting.workers))
        return (loaded(rate, setting.workers),) * self._asked.ranks

    @property
    def took_s(self) -> float:
        return self._now()


def sentence(asked: LoaderProbe, measured: MeasuredSettings) -> str:
    return show.sentence(choose([r for r in measured.rows if r.rounds], asked), asked)


# Which settings there are.


def test_settings_ascend_and_without_workers_nothing_is_loaded_ahead() -> None:
    found = settings((2, 0), (4, 2), (True, False))
    assert [str(each) for each in found] == [
        "num_workers 0", "num_workers 0, pin_memory",
        "num_workers 2, prefetch_factor 2", "num_workers 2, prefetch_factor 2, pin_memory",
        "num_workers 2, prefetch_factor 4", "num_workers 2, prefetch_factor 4, pin_memory",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "ranks", "counts"),
    [(1, 1, (0, 1)), (2, 1, (0, 1, 2)), (12, 1, (0, 1, 2, 4, 8)), (12, 4, (0, 1, 2)),
     (2, 8, (0, 1))],
)  # fmt: skip
def test_worker_counts_are_powers_of_two(cores: int, ranks: int, counts: tuple[int, ...]) -> None:
    assert worker_counts(cores, ranks) == counts


# Which are measured.


def test_all_are_measured_from_the_smallest_up_and_then_once_more() -> None:
    run = Formula(ASKED)
    measured = run.run()
    assert run.done == [*ASKED.settings, *ASKED.settings]
    assert {len(each.rounds) for each in measured.rows} == {2}
    assert run.took_s <= ASKED.budget_s
    assert measured.left_out == {}


def test_what_does_not_fit_the_budget_is_said_and_the_rest_is_measured_twice() -> None:
    asked = replace(ASKED, budget_s=12.0)
    run = Formula(asked)
    measured = run.run()
    assert run.took_s <= asked.budget_s
    assert {len(each.rounds) for each in measured.rows} == {2}
    assert [each.setting.workers for each in measured.rows] == [0, 1]
    told = show.notes(measured, asked, 8)
    assert any("not tried: the budget is too short; --budget " in line for line in told)


def test_workers_that_would_pass_the_host_ceiling_are_not_tried() -> None:
    asked = replace(ASKED, limit_bytes=500 * MIB)
    measured = Formula(asked).run()
    assert [each.setting.workers for each in measured.rows] == [0, 1, 2]
    [line] = [each for each in show.notes(measured, asked, 8) if "not tried" in each]
    assert line == (
        "num_workers 4, prefetch_factor 2: not tried: 4 workers would hold about 600 MiB, and"
        " 500 MiB are under the host ceiling"
    )
    with_training = replace(asked, limit_bytes=1000 * MIB, training_bytes=500 * MIB)
    assert len(Formula(with_training).run().rows) == 3
    two_ranks = replace(asked, limit_bytes=1000 * MIB, ranks=2)
    assert len(Formula(two_ranks).run().rows) == 3


def test_a_setting_that_failed_is_said_and_not_measured_again() -> None:
    run = Formula(ASKED)
    run.failing = {2: "a worker was killed (SIGKILL)"}
    measured = run.run()
    assert len(run.done) == 7
    assert [each.setting.workers for each in measured.rows if each.failed] == [2]
    [line] = show.notes(measured, ASKED, 8)
    assert line == "num_workers 2, prefetch_factor 2: failed: a worker was killed (SIGKILL)"


@pytest.mark.parametrize(("grown", "said"), [(0, False), (1, True)])
def test_a_kill_is_of_memory_only_where_the_kernel_says_so(
    grown: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(0, 1000, grown) if grown else [0] * 1000)
    monkeypatch.setattr(measuring, "host_oom_kills", lambda: next(counts))
    run = Formula(ASKED)
    run.failing = {2: "a worker was killed (SIGKILL)"}
    [failed] = [each for each in run.run().rows if each.failed]
    assert ("by the kernel for memory" in failed.failed) == said


def test_a_loader_killed_for_memory_fails_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: Formula, setting: Setting, timed_s: float) -> Round:
        raise ModelError("loader mine:make: the helper ended without an answer", "")

    monkeypatch.setattr(Formula, "_round", ended)
    with pytest.raises(ModelError):
        Formula(ASKED).run()
    counts = iter(range(1000))
    monkeypatch.setattr(measuring, "host_oom_kills", lambda: next(counts))
    failed = {each.failed for each in Formula(ASKED).run().rows}
    assert failed == {"its process ended as the kernel killed one for memory"}


def test_what_was_measured_counts_when_the_user_stops() -> None:
    measured = Formula(ASKED, stop_after=2).run()
    assert [each.setting.workers for each in measured.rows] == [0, 1]
    assert any("measured once" in line for line in show.notes(measured, ASKED, 8))
    with pytest.raises(StopRequestedError):
        Formula(ASKED, stop_after=0).run()


def test_tokens_that_are_missing_are_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    none = loaded(1.0, slices=[Slice(1.0, 10, 40, 0)], shape=[4])
    monkeypatch.setattr(Formula, "_round", lambda self, setting, timed_s: (none,))
    with pytest.raises(UsageError, match="--needs 5: no tensor of a batch"):
        Formula(replace(ASKED, need=Need(5.0, None))).run()
    assert Formula(replace(ASKED, need=Need(5.0, 2.0))).run().rows


# Which is taken.


@pytest.mark.parametrize(
    ("needed", "workers", "says"),
    [
        (400.0, 0, "Smallest that is no bottleneck: num_workers 0 gives 500 tokens/s"),
        (499.0, 1, "Smallest that is no bottleneck: num_workers 1, "),
        (1500.0, 2, "Smallest that is no bottleneck: num_workers 2, "),
        (1900.0, 2, "None is surely enough: the fastest, num_workers 2, "),
        (4000.0, 2, "are needed; the device would wait 50% of its time"),
    ],
)
def test_the_smallest_is_taken_that_surely_gives_a_tenth_more_than_is_needed(
    needed: float, workers: int, says: str
) -> None:
    asked = replace(ASKED, need=Need(needed, None))
    measured = Formula(asked).run()
    choice = choose(measured.rows, asked)
    assert choice.row is not None
    assert choice.row.setting.workers == workers
    assert choice.enough == says.startswith("Smallest")
    assert says in sentence(asked, measured)


def test_without_a_need_the_smallest_is_taken_that_is_as_fast_as_the_fastest() -> None:
    measured = Formula(ASKED).run()
    assert sentence(ASKED, measured).startswith(
        "Smallest within 5% of the fastest: num_workers 2, prefetch_factor 2 gives 2.00k tokens/s"
    )


def test_what_passes_the_host_ceiling_is_not_taken() -> None:
    rows = [row(1000.0), row(5000.0, 1)]
    asked = replace(ASKED, limit_bytes=250 * MIB, need=Need(2000.0, None))
    choice = choose(rows, asked)
    assert choice.row is rows[0]
    assert not choice.enough
    assert choice.lost_share == pytest.approx(0.5)
    choice = choose(rows, replace(asked, limit_bytes=MIB))
    assert (choice.row, choice.enough) == (None, False)
    assert "--host-ceiling" in show.sentence(choice, asked)


def test_training_goes_at_the_pace_of_the_slowest_rank() -> None:
    two = SettingRow(Setting(0, None, False), ((loaded(1000.0), loaded(600.0)),))
    assert two.rate("tokens").median == pytest.approx(1200.0)
    assert two.rate("tokens").low == pytest.approx(1200.0 / 1.01)
    assert two.host_bytes == 400 * MIB


def test_both_rounds_count() -> None:
    found = SettingRow(Setting(0, None, False), ((loaded(1000.0),), (loaded(500.0),)))
    assert found.rate("tokens").low < 500.0 < found.rate("tokens").median < 1000.0
    assert found.rate("tokens").high > 1000.0
    measured = MeasuredSettings((found,), {})
    assert any("rounds differ by more than 20%" in x for x in show.notes(measured, ASKED, 8))


# What is said beside it.


@pytest.mark.parametrize(
    ("changes", "of_row", "cores", "says"),
    [
        ({}, {}, 8, ""),
        ({}, {}, 1, "2 workers in all, more than the cores that they may use (1)"),
        ({"ranks": 8}, {}, 8, "16 workers in all, more than the cores that they may use (8)"),
        ({}, {"epochs": [3, 3]}, 8, "an epoch has only 3 batches: it was iterated up to 3 times"),
        ({}, {"left": False}, 8, "workers did not leave when told to"),
        ({}, {"shm_bytes": 2**50}, 8, "/dev/shm has "),
        ({"micro_batch": 4, "seq_len": 10}, {}, 8, ""),
        ({"micro_batch": 8}, {}, 8, "batches are 4 x 10, and 8 x ? was asked for"),
        ({"seq_len": 64}, {}, 8, "batches are 4 x 10, and ? x 64 was asked for"),
        (
            {},
            {"slices": [Slice(1.0, 2, 8, 0)], "shape": [4]},
            8,
            "no integer tensor",
        ),
    ],
)
def test_what_is_to_be_known_beside_it_is_one_line(
    changes: dict[str, Any], of_row: dict[str, Any], cores: int, says: str
) -> None:
    measured = MeasuredSettings((row(1000.0, 2, **of_row),), {})
    told = show.notes(measured, replace(ASKED, **changes), cores)
    assert len(told) == bool(says), told
    assert all(says in line for line in told)


def test_of_a_result_over_several_nodes_one_nodes_ranks_are_kept_up_with() -> None:
    best = result("ddp", 0, world_size=4, nodes=2)
    need = Need.of(best)
    assert need.tokens_per_s == best.measured.tokens_per_s / 2
    assert need.samples_per_s is not None
    assert need.samples_per_s == best.measured.samples_per_s / 2
