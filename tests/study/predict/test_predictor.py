"""What earlier studies change in what is expected."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from autotune.result.earlier import Earlier, seen_in
from autotune.space.candidate import Candidate
from autotune.space.models.counted import CountedShape
from autotune.space.models.described import Description
from autotune.space.outcome import Outcome, Record, Verdict, measurement
from autotune.space.space import Space
from autotune.space.trace import request
from autotune.space.workload import GlobalBatch, Workload
from autotune.study.predict.memory import MemoryModel, OutOf, more_base
from autotune.study.predict.predictor import Predictor
from autotune.wire.reports import Peaks, Ran
from autotune.wire.stopping import Interval
from tests.support.records import MIB, QUIET, record, space
from tests.support.traces import made_up

BEFORE, NOW = space(depth=(2, 3)), space(depth=(4, 6))


def step_s(workload: Workload, c: Candidate) -> float:
    full = 1.4 if c.checkpointing == "full" else 1.0
    flops = c.tokens * workload.shape(c.depth).flops_per_token(c.seq_len)
    return 3e-3 + full * flops * (1 + 900 / c.tokens) / 4e10


def peak_mib(c: Candidate) -> int:
    return int(420 + 9 * c.depth**2 + 0.1 * c.tokens + 0.04 * c.depth * c.tokens)


def measured(among: Space, candidate: Candidate, slower: float = 1.0) -> Record:
    found = record(candidate)
    median = slower * step_s(among.workload, candidate)
    known = measurement(
        candidate, among.workload, Interval(median, 0.99 * median, 1.01 * median, 20),
        peaks=Peaks.same(peak_mib(candidate) * MIB), disturbed_share=0.0, conditions=QUIET,
    )  # fmt: skip
    return replace(found, outcome=replace(found.outcome, measurement=known))


def at_power(earlier: Earlier, watts: float) -> Earlier:
    return replace(earlier, seen=[replace(each, mean_power_w=watts) for each in earlier.seen])


def test_energy_is_believed_beside_time_and_earlier_power_tells_it() -> None:
    frugal = Predictor(NOW, "cpu", [at_power(before(), 7.0)], objective="tokens_per_joule")
    plain = Predictor(NOW, "cpu", [before()])
    assert np.array_equal(frugal.log_step_s().mean, plain.log_step_s().mean)
    assert np.array_equal(plain.log_cost().mean, plain.log_step_s().mean)
    off = frugal.log_cost().mean - frugal.log_step_s().mean
    assert np.median(off) == pytest.approx(np.log(7.0), abs=0.1)
    unknown = Predictor(NOW, "cpu", [before()], objective="tokens_per_joule")
    assert unknown.log_cost().deviation.mean() > 3 * frugal.log_cost().deviation.mean()


def before(among: Space = BEFORE, every: int = 3, slower: float = 1.0) -> Earlier:
    records = [measured(among, c, slower) for c in among.candidates[::every]]
    return Earlier(folder="before", workload=among.workload, seen=seen_in(records))


def errors(predictor: Predictor, among: Space = NOW) -> tuple[float, float]:
    """Median error of predicted peaks, and of speeds beside each other, which decide."""
    peaks = [predictor.peak(c).bytes / MIB / peak_mib(c) - 1 for c in among.candidates]
    truth = np.log([step_s(among.workload, c) for c in among.candidates])
    off = predictor.log_step_s().mean - truth
    return float(np.median(np.abs(peaks))), float(np.median(np.abs(off - np.median(off))))


def test_another_space_of_the_same_machine_sharpens_both_expectations() -> None:
    unknown, known = (errors(Predictor(NOW, "cpu", past)) for past in ((), (before(),)))
    assert known[0] < unknown[0] / 2
    assert known[1] < unknown[1] / 2


def test_another_workload_tells_less_and_does_no_harm() -> None:
    other = replace(BEFORE, workload=replace(BEFORE.workload, vocab_size=8192))
    unknown, same, known = (
        errors(Predictor(NOW, "cpu", past)) for past in ((), (before(),), (before(other),))
    )
    assert same[0] < known[0] < unknown[0]
    assert known[1] < unknown[1]


def test_a_study_on_a_slower_day_does_not_make_its_candidates_slower_than_others() -> None:
    """Of two equal halves of a space one was measured before, when all took 15 % longer."""
    earlier = np.array([c.micro_batch in (1, 4) for c in NOW.candidates])
    half = replace(NOW, candidates=tuple(c for c in NOW.candidates if c.micro_batch in (1, 4)))
    predictor = Predictor(NOW, "cpu", [before(half, every=1, slower=1.15)])
    for candidate in set(NOW.candidates) - set(half.candidates):
        predictor.observe(candidate, measured(NOW, candidate).outcome)
    off = predictor.log_step_s().mean - np.log([step_s(NOW.workload, c) for c in NOW.candidates])
    assert np.median(off[earlier]) - np.median(off[~earlier]) == pytest.approx(0.0, abs=0.03)


def test_beliefs_are_of_the_studys_own_candidates_alone() -> None:
    predictor = Predictor(NOW, "cpu", [before()])
    size = len(NOW.candidates)
    assert len(predictor.chance()) == size
    assert len(predictor.log_step_s([NOW.candidates[0]]).mean) == size
    assert predictor.draws(NOW.candidates[:3], 5).shape == (5, 3)


def test_ranks_that_share_their_data_are_as_slow_as_one_is_for_all_of_it() -> None:
    """Beliefs are of steps with the samples that were asked for."""
    among = replace(NOW, workload=replace(NOW.workload, world_size=2))
    candidate = among.candidates[0]
    found = measured(among, candidate)
    ran = Ran(
        samples=1.0, tokens=1.0, seq_len=1, micro_steps=1, seen=True, waiting_share=0.0,
        trainable=1, data_parallel=1,
    )  # fmt: skip
    shared = replace(found.outcome, measurement=replace(found.measured, ran=ran))
    means = []
    for outcome in (found.outcome, shared):
        predictor = Predictor(among, "cpu")
        predictor.observe(candidate, outcome)
        means.append(predictor.log_cost().mean[0])
    assert means[1] - means[0] == pytest.approx(np.log(2.0), abs=0.01)


def test_a_trace_moves_what_it_covers_and_keeps_what_was_learned() -> None:
    """The learned depths are as wide as none of the traced ones."""
    found = []
    for past in ((), (before(),)):
        predictor = Predictor(NOW, "cpu", past)
        untraced = errors(predictor)[0]
        predictor.trace(made_up(request(NOW)))
        found.append(errors(predictor)[0])
        assert found[-1] != untraced
    assert found[1] < found[0]


def test_host_memory_that_ran_out_says_nothing_of_the_devices() -> None:
    moved = tuple(replace(c, zero_stage=3, offload="all") for c in NOW.candidates)
    limits = replace(NOW.limits, host_capacity_bytes=64 * 1024 * MIB)
    both = replace(NOW, candidates=moved, limits=limits)
    predictor = Predictor(both, "cuda")
    assert predictor.host_memory is not None
    before = predictor.peak(moved[0]), predictor.host_memory.predict(0)
    gone = Outcome(verdict=Verdict.OOM, of_host=True)
    predictor.observe(moved[0], gone)
    assert predictor.peak(moved[0]) == before[0]
    assert predictor.host_memory.predict(0).bytes > before[1].bytes
    predictor.observe(moved[0], replace(gone, of_host=False))
    assert predictor.peak(moved[0]).bytes > before[0].bytes


def test_a_process_that_imports_transformers_is_larger_and_a_trace_weighs_it_itself() -> None:
    of_gpt = space()
    config = {"model_type": "llama", "num_hidden_layers": 2}
    workload = replace(counted_for(of_gpt), model="llama-3-8b-tiny", recipe={"config": config})
    of_hf = replace(of_gpt, workload=workload)
    memories = [Predictor(each, "cpu").memory for each in (of_gpt, of_hf)]
    bases = [each.parts.base for each in memories if isinstance(each, MemoryModel)]
    assert np.all(bases[1] - bases[0] == 70 * MIB)
    known = [more_base(500 * MIB, each.workload.family) for each in (of_gpt, of_hf)]
    assert np.all(bases[0] + known[0] == bases[1] + known[1])


def counted_for(among: Space) -> Workload:
    """The workload of `among`, with the counts of its models as a helper gives them."""
    shapes = []
    for depth in among.axes["depth"]:
        shape, lengths = among.workload.shape(depth), list(among.axes["seq_len"])
        names = ("width", "vocab_size", "parameters", "trainable", "block_matrices",
                 "largest_block", "own_optimizer")  # fmt: skip
        shapes.append(CountedShape(
            **{name: getattr(shape, name) for name in names}, depth=depth, seq_lens=lengths,
            flops=[shape.flops_per_token(length) for length in lengths],
        ))  # fmt: skip
    return replace(among.workload, shapes=shapes)


def test_weighed_peaks_are_nearly_as_sure_as_measured_ones_and_say_nothing_of_speed() -> None:
    weighed = replace(before(NOW), timed=False)
    measured = replace(weighed, timed=True)
    unknown, told, seen = (Predictor(NOW, "cpu", past) for past in ((), [weighed], [measured]))
    assert np.array_equal(told.log_step_s().mean, unknown.log_step_s().mean)
    assert errors(told)[0] < 1.1 * errors(seen)[0] < errors(unknown)[0] / 4
    other = next(c for c in NOW.candidates if c not in {each.candidate for each in weighed.seen})
    deviations = [each.peak(other).high_bytes - each.peak(other).low_bytes
                  for each in (seen, told)]  # fmt: skip
    assert deviations[0] < deviations[1] < 1.2 * deviations[0]


def test_a_weighed_peak_counts_more_than_those_of_neighbours() -> None:
    """An allocator keeps blocks that it cannot use again. Half of the peaks are off a line."""
    weighed = replace(before(NOW, every=1), timed=False)
    off = [1.15 if place % 2 else 1.0 for place in range(len(weighed.seen))]
    seen = [replace(each, device_bytes=int(by * each.device_bytes))
            for each, by in zip(weighed.seen, off, strict=True)]  # fmt: skip
    predictor = Predictor(NOW, "cuda", [replace(weighed, seen=seen)])
    first, second, third = seen[:3]
    assert predictor.peak(second.candidate).bytes == second.device_bytes
    limit = int(1.06 * first.device_bytes), int(0.95 * second.device_bytes)
    assert predictor.memory.chance(limit[0])[0] > 0.95
    assert predictor.memory.chance(limit[1])[1] < 0.05
    # A real device that holds 2 % more does so for the others, too.
    for place in range(3, 6):
        predictor.memory.observe(place, 1.02 * seen[place].device_bytes)
    assert predictor.peak(third.candidate).bytes == pytest.approx(1.015 * third.device_bytes)
    # So does one on which memory ran out where less was weighed.
    predictor.memory.observe(0, OutOf(int(1.1 * first.device_bytes)))
    assert predictor.peak(third.candidate).bytes > 1.03 * third.device_bytes


def test_degrees_change_what_is_expected() -> None:
    """Of 8 billion parameters on 16 ranks, with as many micro-steps in each."""
    model = Description(
        layers=32, width=4096, heads=32, kv_heads=8, vocab_size=128256,
        attention=2 * 4096 * 128 * 40, mlp=3 * 4096 * 14336,
    )  # fmt: skip
    workload = replace(
        NOW.workload, model="script:train.py", dtype="bf16", world_size=16,
        global_batch=GlobalBatch(512, "samples"), shapes=[model.shape(32, [4096])],
        recipe={"command": "train.py", "own": {}, "set": {}, "described": asdict(model)},
    )  # fmt: skip
    axes: list[dict[str, Any]] = [{}, {"tp": 2}, {"tp": 8}, {"tp": 16}, {"pp": 4}, {"cp": 4}]
    plain, tp2, tp8, tp16, pp4, cp4 = among = [
        Candidate(depth=32, seq_len=4096, micro_batch=1, **each) for each in axes
    ]
    predictor = Predictor(replace(NOW, workload=workload, candidates=tuple(among)), "cuda")
    peaks = {c: predictor.peak(c).bytes for c in among}
    assert peaks[plain] > peaks[tp2] > peaks[tp8] > peaks[tp16]
    shape = workload.shape(32)
    state = 12 * shape.parameters  # fp32 weights and moments
    kept = 4096 * (shape.block_bytes("none", "bf16") + shape.head_bytes)
    assert peaks[plain] - peaks[pp4] == pytest.approx(0.75 * state, rel=0.1)
    gradients = 4 * shape.parameters  # come as activations go, and are the more with cp 4
    assert peaks[plain] - peaks[cp4] == pytest.approx(kept - gradients, rel=0.1)
    steps = dict(zip(among, np.exp(predictor.log_step_s().mean), strict=True))
    assert steps[plain] < steps[tp2] < steps[tp8]
    assert steps[tp16] > 2 * steps[tp8]  # between machines
    assert steps[plain] < steps[pp4] < 1.2 * steps[plain]  # 128 micro-steps hide its ends
