"""A probe: the steps that it runs, and what it reports of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.replay.runner import walk
from autotune.space.candidate import Candidate
from autotune.wire.ranks import BALANCED, HOT, Entered, ModelSpec, Probe
from autotune.wire.reports import EVALUATE, SAVE, TRAIN, Energy, Peaks
from autotune.wire.stopping import Phase
from probes import conditions, routing, worker
from probes.compiling import Compiler
from probes.conditions import Watch
from probes.measure import ROUTED_STEPS, Attention, History, Live, Looks
from probes.models import Batch, chunked
from probes.world import World
from tests.support import defaults
from tests.support.defaults import RULE, probe
from tests.support.meters import Hearing, NoMeter


class CountingEngine:
    """Notes its calls; a micro-step is one character."""

    parameters = 1

    def __init__(self) -> None:
        self.calls = ""
        self.shapes: set[tuple[int, ...]] = set()
        self.ids: list[int] = []

    def forward_backward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        ids_bt, targets_bt = batch["ids_bt"], batch["targets_bt"]
        assert torch.equal(ids_bt[:, 1:], targets_bt[:, :-1])
        self.calls += "L" if last else "m"
        self.shapes.add(tuple(ids_bt.shape))
        self.ids += ids_bt.flatten().tolist()
        return torch.tensor(1.5)

    def update(self) -> None:
        self.calls += "u"

    def evaluate(self, batch: Batch) -> list[torch.Tensor]:
        self.calls += f"e{len(batch['ids_bt'])}"
        return []

    def save(self, write: Callable[[Any], None], *, full: bool) -> None:
        self.calls += "f" if full else "s"

    def prepare(self, micro_batch: int, micro_steps: int, weight: float = 1.0) -> None:
        self.calls += "p"


def run(
    asked: Probe,
    world: World | None = None,
    history: History | None = None,
    watch: Callable[[], Watch] = lambda: Watch(None),
    engine: CountingEngine | None = None,
    *,
    meter: NoMeter | None = None,
    tell: Callable[[Any], None] | None = None,
    **more: Any,
) -> tuple[CountingEngine, Any, list[Any]]:
    engine = engine or CountingEngine()
    told: list[Any] = []
    live = Live(
        engine=engine,
        world=world or World(0, 1, torch.device("cpu")),
        meter=meter or NoMeter(),
        model=more.pop("model", ModelSpec(name="gpt", depth=1, width=64, vocab_size=10)),
        watch=watch,
        history=history or History(),
        **more,
    )
    return engine, live.probe(asked, tell or told.append), told


def test_the_meter_hears_when_it_is_warm_before_anything_is_timed() -> None:
    meter, told = Hearing(), []

    def tell(message: object) -> None:
        told.append(message)
        meter.calls += ["timed"] if message == Entered(Phase.TIMED) else []

    run(probe(), meter=meter, tell=tell)
    begins, *_, ends = meter.calls
    assert (begins, ends) == ("reset", "peaks")
    assert meter.calls.count("warmed") == 1
    assert meter.calls.index("warmed") == meter.calls.index("timed") - 1


def test_a_step_is_its_micro_steps_and_one_update() -> None:
    engine, report, _ = run(probe(grad_accum=3, micro_steps=3))
    steps = len(report.step_s) + len(report.warmup_step_s)
    assert engine.calls == "p" + "mmLu" * steps


def test_batches_have_the_candidates_shape_and_the_models_tokens() -> None:
    engine, _, _ = run(probe(micro_batch=3, seq_len=7))
    assert engine.shapes == {(3, 7)}
    assert set(engine.ids) <= set(range(10))


def test_a_schedule_run_in_part_is_scaled_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each look at the clock is one second after the last: start, between, end.
    ticks = iter(range(10_000))
    monkeypatch.setattr("probes.measure.time.perf_counter", lambda: float(next(ticks)))
    _, report, _ = run(probe(grad_accum=8, micro_steps=2))
    assert set(report.step_s) == {7 * 1.0 + 1.0}


def test_a_report_has_the_loss_and_the_floors_of_the_rule() -> None:
    _, report, _ = run(probe())
    assert report.loss == 1.5
    assert len(report.warmup_step_s) >= 3
    assert len(report.step_s) >= 5
    assert math.isfinite(report.timed_s)


def test_a_probe_stopped_in_warm_up_reports_those_steps_and_no_timed_phase() -> None:
    _, report, told = run(probe(needed_step_s=1e-12))
    assert report.stopped_early
    assert report.step_s == report.warmup_step_s[1:]
    assert Entered(Phase.TIMED) not in told


class LengthsEngine(CountingEngine):
    """Notes how long each micro-batch is, and how many targets of each sample count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, list[int]]] = []

    def forward_backward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        counted = (batch["targets_bt"] != chunked.IGNORED).sum(dim=1)
        self.seen.append((batch["ids_bt"].shape[1], counted.tolist()))
        self.calls += "L" if last else "m"
        return torch.tensor(1.5)


MIXED = probe(
    seq_len=8, grad_accum=2, micro_steps=2, longest=[[8], [7]],
    lengths=[[[[2], [3]], [[8], [8]]], [[[1], [5]], [[2], [2]]],
             [[[8], [1]], [[7], [7]]], [[[4], [4]], [[1], [1]]]],
)  # fmt: skip
CYCLE = [(3, [2, 3]), (5, [1, 5]), (8, [8, 1]), (4, [4, 4])]
"""What rank 0 sees of `MIXED`."""


def test_batches_are_padded_to_their_longest_sample_and_come_round() -> None:
    engine = LengthsEngine()
    _, report, _ = run(MIXED, engine=engine)
    cycles = len(report.step_s) + len(report.warmup_step_s)
    assert engine.seen == [(8, [8, 7])] * 4 + CYCLE * cycles
    assert engine.calls == "p" + "mLu" * (2 + 2 * cycles)


def test_a_rank_takes_the_samples_that_are_its_own() -> None:
    engine = LengthsEngine()
    run(MIXED, EvenWorld(1, 2, torch.device("cpu")), engine=engine)
    assert engine.seen[4:8] == [(8, [8, 8]), (2, [2, 2]), (7, [7, 7]), (1, [1, 1])]


def test_the_search_s_lengths_are_one_batch_for_all_micro_steps() -> None:
    engine = LengthsEngine()
    run(replace(MIXED, longest=[], lengths=[[[[8], [7]]]]), engine=engine)
    assert set(map(str, engine.seen)) == {"(8, [8, 7])"}


def test_batches_are_padded_to_a_multiple() -> None:
    engine = LengthsEngine()
    run(replace(MIXED, pad_to_multiple=4), engine=engine)
    assert [length for length, _ in engine.seen[4:8]] == [4, 8, 8, 4]


def test_batches_are_padded_to_the_next_bucket() -> None:
    engine = LengthsEngine()
    run(replace(MIXED, ends=[4, 6, 8]), engine=engine)
    assert [length for length, _ in engine.seen[4:8]] == [4, 6, 8, 4]


def test_packed_rows_are_as_long_as_each_other_and_count_what_has_a_next_token() -> None:
    engine = LengthsEngine()
    rows = [[2, 3], [4, 4]]
    run(replace(MIXED, longest=[], lengths=[[rows]], pack=True), engine=engine)
    assert set(map(str, engine.seen)) == {"(8, [3, 6])"}


class CompiledEngine(LengthsEngine):
    """Compiles something for each shape that it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self._compiled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)

    def forward_backward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        self._compiled(batch["ids_bt"])
        return super().forward_backward(batch, last=last)


@pytest.mark.parametrize("multiple", [1, 8])
def test_what_compiles_each_shape_is_counted_and_not_timed(multiple: int) -> None:
    """Batches have 3, 4, 5 and 8 tokens."""
    shapes = {1: 4, 8: 1}[multiple]
    asked, history = replace(MIXED, pad_to_multiple=multiple), History()
    torch._dynamo.reset()  # which forgets who counts, too
    how: dict[str, Any] = {"compiles": "model", "compiler": Compiler(), "history": history}
    engine, report, told = run(asked, engine=CompiledEngine(), **how)
    assert [each.phase for each in told[:2]] == [Phase.COMPILE, Phase.WARMUP]
    assert (report.compilations, len(history.compiled)) == (shapes, shapes)
    assert report.shape_compile_s == pytest.approx(report.compile_s / shapes)
    _, again, told = run(asked, engine=engine, **how)
    assert (again.compilations, again.compile_s) == (0, 0)
    assert again.shape_compile_s == report.shape_compile_s
    assert told[0].phase is Phase.WARMUP


def test_one_piece_of_code_for_all_shapes_is_compiled_for_the_whole_run() -> None:
    asked, spec = MIXED, ModelSpec(name="gpt", depth=1, width=64, vocab_size=10, dynamic="on")
    torch._dynamo.reset()  # which forgets who counts, too
    how: dict[str, Any] = {"compiles": "model", "compiler": Compiler(), "model": spec}
    _, report, _ = run(asked, engine=CompiledEngine(), **how)
    assert report.shape_compile_s == report.compile_s > 0


def test_a_step_of_several_lengths_is_the_mean_of_their_cycle() -> None:
    _, report, _ = run(MIXED, SlowWorld([0.1, 0.5]), engine=LengthsEngine())
    assert report.step_s == pytest.approx([0.3] * len(report.step_s))
    assert report.warmup_step_s[0] == pytest.approx(0.3)


class SlowWorld(World):
    """Agrees on the steps it was told, over and over, whatever this rank took."""

    def __init__(self, step_s: list[float]) -> None:
        super().__init__(0, 1, torch.device("cpu"))
        self._step_s = itertools.cycle(step_s)

    def slowest(self, *seconds: float) -> list[float]:
        return [next(self._step_s)] * len(seconds)


@given(
    step_s=st.lists(st.floats(0.1, 4.0) | st.floats(1.0, 1.1), min_size=1, max_size=12),
    needed_step_s=st.floats(0.1, 4.0),
)
def test_replays_stop_where_a_rank_would(step_s: list[float], needed_step_s: float) -> None:
    _, recorded, _ = run(probe(), SlowWorld(step_s))
    asked = probe(needed_step_s=needed_step_s)
    _, ranks, _ = run(asked, SlowWorld(step_s))
    replayed = walk(
        recorded,
        defaults.job(
            Candidate(depth=1, seq_len=4, micro_batch=2), rule=RULE, needed_step_s=needed_step_s
        ),
    )
    assert replace(replayed, warmup_s=0.0, timed_s=0.0, conditions=ranks.conditions) == replace(
        ranks, warmup_s=0.0, timed_s=0.0
    )


def test_a_group_runs_for_a_while_before_its_first_timing_and_no_more_after_it() -> None:
    history = History()
    rule = replace(RULE, sustain_s=0.05, half_width=1.0)
    _, first, _ = run(probe(rule=rule), history=history)
    assert first.warmup_s >= 0.05
    assert history.ran_s >= 0.05
    _, second, _ = run(probe(rule=rule), history=history)
    assert len(second.warmup_step_s) < len(first.warmup_step_s)


def test_a_final_is_timed_for_a_while_however_steady_it_is() -> None:
    _, report, _ = run(probe(rule=replace(RULE, timed_least_s=0.05, half_width=1.0)))
    assert report.timed_s >= 0.05


class EvenWorld(World):
    """Agrees on steps of 10 ms, and on everything else as it is."""

    def slowest(self, *seconds: float) -> list[float]:
        return [0.01, 0.01] if len(seconds) == 2 else list(seconds)


class BusyWatch(Watch):
    """Sees others take four fifths of the processor's time."""

    def others_share(self, ranks: int) -> float:
        return 0.8


def test_a_timing_that_others_disturb_is_cut_short_where_it_may_be_repeated() -> None:
    world = EvenWorld(0, 1, torch.device("cpu"))
    rule = replace(RULE, timed_limit_s=0.395, half_width=-1.0)
    steps = [
        len(
            run(probe(rule=replace(rule, calm=calm)), world, watch=lambda: BusyWatch(None))[
                1
            ].step_s
        )
        for calm in (0.5, 0.9, 1.0)
    ]
    assert steps == [10, 40, 40]


def test_what_others_memory_did_goes_with_the_conditions() -> None:
    assert run(probe())[1].conditions.foreign_bytes == 7


def test_the_first_step_of_a_group_names_the_kernels_of_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, passed, dispatch = History(), [], Attention.__torch_dispatch__

    def passes(mode: Any, func: Any, *rest: Any) -> Any:
        passed.append(str(func))
        return dispatch(mode, func, *rest)

    monkeypatch.setattr(Attention, "__torch_dispatch__", passes)
    seen = Attention()
    with Looks(seen):
        x = torch.zeros(1, 2, 8, 16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()  # type: ignore[no-untyped-call]
    assert seen.names == "flash_attention"
    assert "aten.sum.default" not in passed  # other operations run as ever
    assert run(probe(), history=history)[1].attention == "none"  # of an engine without a model
    assert history.attention == "none"


class Counted(Watch):
    """Sees the device use 30 W."""

    def __init__(self) -> None:
        super().__init__(None)

        def used(of_s: float | None = None) -> Energy:
            assert of_s is not None
            return Energy(30.0 * of_s, "cpu")

        self.energy.used = used  # type: ignore[method-assign]


class Growing(NoMeter):
    """Sees a larger peak each time."""

    seen = 0

    def peaks(self) -> Peaks:
        self.seen += 1
        return Peaks.same(self.seen)

    def retries(self) -> int:
        return self.seen


@pytest.mark.parametrize("needed_step_s", [None, 1e-12])
def test_hot_steps_follow_the_others_and_only_their_peak_counts(
    needed_step_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now: list[str] = []
    monkeypatch.setattr(routing, "force", now.append)
    asked = probe(routing=[BALANCED, HOT], needed_step_s=needed_step_s)
    engine, report, told = run(asked, meter=Growing())
    assert now == [BALANCED, HOT]
    assert told[-1] == Entered(Phase.HOT)
    timed = [] if report.stopped_early else report.step_s
    assert engine.calls.count("u") == len([*report.warmup_step_s, *timed]) + ROUTED_STEPS
    assert report.stopped_early == (needed_step_s is not None)
    assert report.peaks == Peaks.same(2)
    assert {name: (seen.peaks.device_bytes, seen.count) for name, seen in report.phases.items()} \
        == {TRAIN: (1, 0), HOT: (2, 1)}  # fmt: skip
    assert report.phases[HOT].seconds > 0


def test_retries_of_hot_steps_count_as_those_of_timed_ones() -> None:
    class Retrying(NoMeter):
        looked = 0

        def retries(self) -> int:
            self.looked += 1
            return self.looked // 5  # the fifth look is the one after the hot steps

    _, report, _ = run(probe(routing=[BALANCED, HOT]), meter=Retrying())
    assert report.phases[TRAIN].peaks.alloc_retries == 0
    assert report.peaks.alloc_retries == 1


def test_an_evaluation_and_a_checkpoint_follow_all_steps() -> None:
    meter = Hearing()
    engine, report, told = run(probe(eval_batch=5, save="full"), meter=meter)
    assert engine.calls.endswith("ue5f")
    assert [name for name, found in report.phases.items() if found.count] == [EVALUATE, SAVE]
    assert told[-2:] == [Entered(Phase.EVALUATE), Entered(Phase.SAVE)]
    assert meter.calls[-4:] == ["reset", "peaks", "reset", "peaks"]


def test_one_routing_is_that_of_all_steps_and_none_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now: list[str] = []
    monkeypatch.setattr(routing, "force", now.append)
    assert run(probe(routing=[HOT]))[1].phases == {}
    assert now == [HOT]
    run(probe())
    assert now == [HOT]


def test_energy_is_that_of_the_timed_steps() -> None:
    _, report, _ = run(probe(), watch=Counted)
    assert report.energy == Energy(30.0 * sum(report.step_s), "cpu")


def test_energy_of_a_part_is_scaled_like_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr("probes.measure.time.perf_counter", lambda: float(next(ticks)))
    # 8 s of the whole schedule for every 2 s that ran.
    _, report, _ = run(probe(grad_accum=8, micro_steps=2), watch=Counted)
    assert set(report.step_s) == {8.0}
    assert report.energy == Energy(30.0 * 8 * len(report.step_s), "cpu")


def test_a_device_is_looked_at_now_and_then_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It idles meanwhile: a look after every step would change what is measured."""
    looks = 0

    class Looking(Watch):
        def __init__(self) -> None:
            super().__init__(None)

        def sample(self) -> None:
            nonlocal looks
            looks += 1
            super().sample()

    rule = replace(RULE, timed_steps=50)
    monkeypatch.setattr(conditions, "SAMPLE_S", 3600.0)
    _, report, _ = run(probe(rule=rule), watch=Looking)
    assert len(report.step_s) >= 50
    assert looks == 2  # at the end of each phase
    monkeypatch.setattr(conditions, "SAMPLE_S", 0.0)
    run(probe(rule=rule), watch=Looking)
    assert looks > 50


def test_a_probe_stopped_in_warm_up_has_no_energy() -> None:
    assert run(probe(needed_step_s=1e-12), watch=Counted)[1].energy is None


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", 2**30),
        ("CUDA error: out of memory", 0),
        ("no kernel image is available", 0),
    ],
)
def test_who_ran_out_of_memory_says_what_others_took(text: str, taken: int) -> None:
    said = worker.fault(RuntimeError(text), Phase.TIMED, "cuda", NoMeter())
    assert said.foreign_bytes == taken


def test_an_oom_is_told_though_peaks_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: NoMeter, requested_bytes: int) -> int:
        raise RuntimeError("the device was lost")

    monkeypatch.setattr(NoMeter, "taken_bytes", lost)
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    assert worker.fault(error, Phase.TIMED, "cuda", NoMeter()).cause == "oom"
