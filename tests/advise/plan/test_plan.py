"""Plans: what fits, what to set, and the largest or least that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.advise.plan.answers import (
    Answer,
    Solved,
    by_count,
    fitting,
    last_that,
    recommended,
    solve_gpus,
    solve_micro_batch,
    solve_seq_len,
    table,
    why_not,
)
from autotune.advise.plan.expected import Expected, Helpers, Plan, PlanRequest, plan
from autotune.device.cards import parse_gpus
from autotune.errors import UsageError
from autotune.result.earlier import Earlier, EarlierProbe
from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES, state_bytes
from autotune.space.models.counted import CountedShape
from autotune.space.options import Options
from autotune.space.space import LEFT_OUT
from autotune.space.workload import parse_global_batch
from autotune.units import gib
from autotune.wire.helpers import Count, Counted, Describe, Described, Parameters, Traced
from autotune.wire.stopping import Interval

GIB = 2**30


def no_count(asked: Count) -> Counted:
    raise AssertionError("a gpt has a closed form")


def no_trace(asked: Describe) -> str:
    return "nobody traces here"


def helpers() -> Helpers:
    return Helpers(no_count, no_trace)


def asked(gpus: str = "80GiB", host_gib: int | None = None, **texts: str) -> PlanRequest:
    given = {"depth": "24", "seq_len": "2048", "micro_batch": "1:16", "dtype": "bf16"} | texts
    return PlanRequest(
        options=Options.from_texts(given),
        card=parse_gpus(gpus).card,
        host_bytes=None if host_gib is None else host_gib * GIB,
    )


def planned(count: int, *args: Any, **texts: Any) -> Plan:
    return plan(asked(*args, **texts), count, helpers())


def solution(found: Answer) -> int:
    assert found.solved is not None
    assert found.solved.value is not None
    return found.solved.value


def only(found: Plan, **values: Any) -> Expected:
    (row,) = [
        each for each in found.expected
        if all(getattr(each.candidate, name) == value for name, value in values.items())
    ]  # fmt: skip
    return row


# What is expected.


def test_parts_add_up_to_the_peak() -> None:
    for row in planned(8, zero="0,1,2,3", offload="none,optimizer,all").expected:
        assert sum(vars(row.parts).values()) == pytest.approx(row.peak.bytes, rel=1e-6)
        assert min(vars(row.parts).values()) >= 0


def test_state_is_shared_exactly_among_ranks() -> None:
    for ranks in (2, 8, 64):
        found = planned(ranks, zero="3", checkpointing="full", micro_batch="1")
        (row,) = found.expected
        held = state_bytes(found.space.workload, row.candidate)
        shape = found.space.workload.shape(24)
        assert held.optimizer == pytest.approx(12 * shape.parameters / ranks)
        assert row.parts.optimizer == pytest.approx(held.optimizer, rel=1e-6)


def test_more_of_anything_needs_more() -> None:
    found = planned(4, zero="0,2,3", depth="12,24", seq_len="1024,2048")
    for row in found.expected:
        for other in found.expected:
            if row.candidate.covers(other.candidate):
                assert row.peak.bytes >= other.peak.bytes


def test_what_a_higher_stage_shares_is_not_held() -> None:
    found = planned(8, zero="1,2,3", micro_batch="1", checkpointing="full", depth="48")
    peaks = [only(found, zero_stage=stage).peak.bytes for stage in (1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 1.2 * peaks[2]


def test_what_is_offloaded_is_in_host_memory_and_counts_against_it() -> None:
    found = planned(4, zero="3", offload="none,optimizer", micro_batch="1", checkpointing="full")
    kept, moved = only(found, offload="none"), only(found, offload="optimizer")
    shape = found.space.workload.shape(24)
    assert moved.host_bytes - kept.host_bytes > 12 * shape.parameters
    assert moved.peak.bytes < kept.peak.bytes
    small = plan(asked(host_gib=18, zero="3", offload="optimizer", micro_batch="1"), 4, helpers())
    assert not any(row.fits for row in small.expected)
    assert "nothing fits the host" in why_not(small)


@pytest.mark.parametrize(
    ("gpus", "host_gib", "limited_by", "said"),
    [("80GiB", 49, "host", "of the host's memory, and 44.1"), ("4.5GiB", 900, "device", "a GPU")],
)
def test_what_may_fit_is_said_with_the_memory_that_it_may_break(
    gpus: str, host_gib: int, limited_by: str, said: str
) -> None:
    found = plan(
        asked(gpus, host_gib=host_gib, zero="3", offload="optimizer", micro_batch="1"),
        4, helpers(),
    )  # fmt: skip
    best = max(found.expected, key=lambda row: row.chance)
    assert best.limited_by == limited_by
    assert "nothing surely fits" in why_not(found)
    assert said in why_not(found)


def test_nothing_is_shared_with_nobody() -> None:
    assert {row.candidate.zero_stage for row in planned(1, zero="0,2,3").expected} == {0}
    assert {row.candidate.zero_stage for row in planned(1, zero="3").expected} == {3}
    several, one = planned(1, zero="0,2,3"), planned(1, zero="3")
    (why,) = (each for each in several.space.fixed if each.name == LEFT_OUT)
    assert (why.value, why.why) == (
        "--zero 2,3 without offload",
        "one GPU has nobody to share with",
    )
    assert LEFT_OUT not in [each.name for each in one.space.fixed]


def test_a_known_card_narrows_the_speed_that_is_expected() -> None:
    slower, faster, unknown = (
        planned(1, card).expected[0].tokens_per_s for card in ("A100-80GB", "H100", "80GiB")
    )
    assert faster[2] / faster[0] < 0.3 * unknown[2] / unknown[0]
    assert slower[1] < faster[1]


def test_what_is_sent_is_as_often_as_engines_send_it() -> None:
    steps, ranks = 4, 8

    def sent(**texts: Any) -> list[float]:
        """In bytes for each parameter, of what all ranks but this one hold."""
        found = planned(ranks, micro_batch="1", checkpointing="full", global_batch="32", **texts)
        assert {row.grad_accum for row in found.expected} == {steps}
        per = (1 - 1 / ranks) * found.space.workload.shape(24).parameters
        return [row.traffic_bytes / per for row in found.expected]

    # Gradients, weights: fp32 reduced and gathered; then bf16 of both.
    assert sent(zero="0") == pytest.approx([4 + 4])
    assert sent(zero="1,2,3") == pytest.approx([2 + 2, steps * 2 + 2, steps * (2 + 2 * 2)])
    assert {row.traffic_bytes for row in planned(1).expected} == {0.0}
    # Gathered in bf16 in each micro-step, reduced in fp32 in the last.
    assert sent(zero="2,3", engine="fsdp") == pytest.approx([steps * 2 + 4, steps * 2 * 2 + 4])


def test_gradients_of_fsdp_wait_whole_for_the_last_micro_step() -> None:
    def gradients(global_batch: str) -> float:
        found = planned(8, micro_batch="1", checkpointing="full", zero="3", engine="fsdp",
                        global_batch=global_batch)  # fmt: skip
        (row,) = found.expected
        return row.parts.gradients / found.space.workload.shape(24).parameters

    assert gradients("8") == pytest.approx(4 / 8, rel=0.01)
    assert gradients("16") == pytest.approx(4, rel=0.01)


def test_gradients_that_make_the_peak_of_one_gpu_are_said_to_be_gradients() -> None:
    found = planned(1, micro_batch="1", seq_len="128", checkpointing="full")
    (row,) = found.expected
    assert row.parts.gradients > 0.8 * 4 * found.space.workload.shape(24).parameters


def test_what_was_measured_corrects_what_is_expected_and_narrows_it() -> None:
    what = asked(micro_batch="1,2,4,8", checkpointing="none")
    before = plan(what, 1, helpers())
    truth = {row.candidate: int(1.3 * row.peak.bytes) for row in before.expected}
    learnt = before.expected[0].candidate, before.expected[2].candidate
    seen = [
        EarlierProbe(candidate=c, step=Interval(0.1, 0.1, 0.1, 10), disturbed_share=0.0,
             device_bytes=truth[c], host_bytes=GIB)
        for c in learnt
    ]  # fmt: skip
    earlier = [Earlier(folder="a", workload=before.space.workload, seen=seen, timed=False)]
    after = plan(replace(what, earlier=earlier), 1, helpers())
    for one, other in zip(before.expected, after.expected, strict=True):
        assert other.peak.bytes == pytest.approx(truth[other.candidate], rel=0.08)
        assert spread(other) < spread(one)
        assert other.tokens_per_s == pytest.approx(
            one.tokens_per_s, rel=0.01
        )  # measured elsewhere
        assert sum(vars(other.parts).values()) == pytest.approx(other.peak.bytes)


def spread(row: Expected) -> float:
    return (row.peak.high_bytes - row.peak.low_bytes) / row.peak.bytes


# Answers.


def test_of_each_build_and_length_the_largest_that_fits_is_shown() -> None:
    found = planned(1, "24GiB", seq_len="1024,2048")
    rows = table(found)
    keys = [(each.row.candidate.build, each.row.candidate.seq_len) for each in rows]
    assert len(keys) == len(set(keys)) == 4
    for each in rows:
        build, length = each.row.candidate.build, each.row.candidate.seq_len
        same = [row for row in found.expected
                if (row.candidate.build, row.candidate.seq_len) == (build, length)]  # fmt: skip
        sizes = [row.candidate.micro_batch for row in same]
        fitting = [row.candidate.micro_batch for row in same if row.chance >= 0.8]
        possible = [row.candidate.micro_batch for row in same if row.chance >= 0.5]
        assert each.row.candidate.micro_batch == (fitting or possible or sizes[:1])[-1]
        assert each.may == (possible[-1] if possible else None)
    fit = [each.row.may_fit for each in rows]
    assert fit == sorted(fit, reverse=True)


@pytest.mark.parametrize("count", [1, 4])
def test_what_to_set_is_the_first_row(count: int) -> None:
    what = asked("24GiB", depth="24,48", zero="0,2,3", offload="none,optimizer")
    found = plan(what, count, helpers())
    first = table(found)[0].row
    assert recommended(found.expected) == fitting(found.expected) == first
    assert by_count(what, (count,), helpers()).counts == {count: first}


def test_what_the_host_lacks_is_the_least_of_what_fits_a_gpu() -> None:
    found = plan(asked("24GiB", host_gib=16, depth="48", micro_batch="1"), 1, helpers())
    limit = found.space.limits.limit_bytes
    least = min((row for row in found.expected if row.peak.bytes <= limit),
                key=lambda row: row.host_bytes)  # fmt: skip
    lightest = min(found.expected, key=lambda row: row.peak.bytes)
    assert least.host_bytes < 0.9 * lightest.host_bytes
    said = why_not(found)
    assert f"{least.candidate.key} needs the least" in said
    assert gib(least.host_bytes) in said


def test_the_largest_micro_batch_is_the_edge() -> None:
    what = asked("24GiB", checkpointing="full")
    found = solve_micro_batch(what, 1, helpers())
    value = solution(found)
    fits = {row.candidate.micro_batch: row.fits for row in found.plans[0].expected}
    assert fits[value]
    assert not fits[value + 1]
    assert found.solved == Solved("micro_batch", value)


def test_the_longest_sample_is_the_edge() -> None:
    what = asked("24GiB", checkpointing="full", micro_batch="1")
    value = solution(solve_seq_len(what, 1, helpers()))
    assert value % 128 == 0
    over = plan(asked("24GiB", checkpointing="full", micro_batch="1",
                      seq_len=str(value + 128)), 1, helpers())  # fmt: skip
    assert fitting(over.expected) is None


def test_the_longest_sample_is_found_by_few_helpers() -> None:
    times: list[Describe] = []

    def describe(wanted: Describe) -> Described | str:
        times.append(wanted)
        return "none"

    what = asked("24GiB", checkpointing="full", micro_batch="1")
    value = solution(solve_seq_len(what, 1, Helpers(no_count, describe)))
    assert value > 64 * 128
    assert len(times) <= 5


def test_the_longest_sample_is_found_by_one_trace_where_lengths_grow_alike() -> None:
    times: list[Describe] = []
    unknown = 1024

    def describe(wanted: Describe) -> Described:
        """As a helper answers: of many lengths it leaves out those that grow in another way."""
        times.append(wanted)
        many = len(wanted.seq_lens) > 32
        peaks = [
            [-1 if many and n < unknown else 2**30 + n * 2**20] * len(wanted.micro_batches)
            for n in wanted.seq_lens
        ]
        traced = Traced(
            parameters=2**29, held_bytes=2**29, update_bytes=2**29,
            early_bytes=peaks, late_bytes=peaks,
        )  # fmt: skip
        return Described(base_bytes=2**28, models=[traced] * len(wanted.models))

    what = asked("24GiB", checkpointing="full", micro_batch="1")
    value = solution(solve_seq_len(what, 1, Helpers(no_count, describe)))
    assert value > unknown
    # The shortest is asked for again, which it left out.
    assert [len(each.seq_lens) > 32 for each in times] == [True, False]


@pytest.mark.parametrize(("bend", "asked_for"), [(0, 1), (8192, 2)], ids=["parabola", "other"])
def test_flops_of_many_lengths_come_from_a_few(bend: int, asked_for: int) -> None:
    times: list[Count] = []

    def flops(length: int) -> float:
        return 1e12 + 3e9 * length + 7e5 * length**2 + 1e9 * max(0, length - bend) * (bend > 0)

    def count(wanted: Count) -> Counted:
        times.append(wanted)
        of = [[flops(n) for n in wanted.seq_lens]]
        return Counted(parameters=[], flops_per_sample=of, uncounted="")

    known = Helpers(count, no_trace)
    known.lengths = range(128, 2**15 + 1, 128)
    found = known.count(Count(models=[], shallow=[], seq_lens=[4096, 9984]))
    assert found.flops_per_sample == [[pytest.approx(flops(n), rel=1e-12) for n in (4096, 9984)]]
    assert len(times) == asked_for


def test_samples_may_be_as_long_as_the_model_takes() -> None:
    what = asked("1000GiB", depth="1", gpt="width=64", checkpointing="full", micro_batch="1")
    assert solve_seq_len(what, 1, helpers()).solved == Solved("seq_len", 2**20, "or more")


def test_the_fewest_gpus_are_the_edge() -> None:
    what = asked("26GiB", depth="48", zero="3", checkpointing="full", micro_batch="1")
    value = solution(solve_gpus(what, helpers()))
    assert value > 1
    assert fitting(plan(what, value - 1, helpers()).expected) is None
    assert fitting(plan(what, value, helpers()).expected) is not None


def test_what_no_number_of_gpus_does_has_no_answer() -> None:
    what = asked("1GiB", depth="48", zero="3", checkpointing="full", micro_batch="1")
    found = solve_gpus(what, helpers())
    assert found.solved == Solved("gpus", None)
    assert "nothing fits" in why_not(found.plans[0])


@pytest.mark.parametrize("edge", [1, 2, 3, 5, 64, 99, 100, 101, 1000])
@pytest.mark.parametrize("step", [1, 4])
def test_an_edge_is_found_by_few_looks(edge: int, step: int) -> None:
    looks: list[int] = []

    def holds(value: int) -> bool:
        looks.append(value)
        return value <= edge

    found = last_that(holds, range(step, 401, step))
    last = 400 if edge >= 400 else edge // step * step
    assert found == (last or None)
    assert len(looks) == len(set(looks)) <= 2 * np.log2(400) + 2


def test_the_fewest_gpus_are_of_those_that_divide_the_global_batch() -> None:
    what = asked("26GiB", depth="48", zero="3", checkpointing="full", micro_batch="1")
    assert solve_gpus(what, helpers()).solved == Solved("gpus", 8)
    batch = parse_global_batch("27", "--global-batch")  # 1, 3, 9 or 27
    what = replace(what, options=what.options.but(global_batch=batch))
    assert solve_gpus(what, helpers()).solved == Solved("gpus", 9)


def test_the_longest_sample_is_of_those_that_make_up_the_global_batch() -> None:
    what = asked("24GiB", checkpointing="full", micro_batch="1", global_batch="65536tok")
    value = solution(solve_seq_len(what, 1, helpers()))
    assert 65536 % value == 0


def test_a_batch_that_nothing_divides_is_wrong_input() -> None:
    what = asked(micro_batch="3")
    batch = parse_global_batch("64", "--global-batch")
    what = replace(what, options=what.options.but(global_batch=batch))
    with pytest.raises(UsageError, match="nearest that works is --global-batch 63"):
        plan(what, 1, helpers())


def test_a_trace_is_asked_for_once_for_all_numbers_of_gpus() -> None:
    times: list[Describe] = []

    def describe(wanted: Describe) -> Described | str:
        times.append(wanted)
        return "none"

    by_count(asked(zero="3"), (2, 4, 8), Helpers(no_count, describe))
    assert len(times) == 1


# What engines and families know better.


def a_mamba(seq_len: str) -> Plan:
    """With parameters as they might be; nobody counts or traces here."""
    one = Parameters(
        width=2560, vocab_size=50280, parameters=2_770_000_000, trainable=2_770_000_000,
        block_matrices=2_600_000_000, largest_block=40_000_000,
    )  # fmt: skip

    def count(asked: Count) -> Counted:
        flops = [[6.0 * 2.77e9 * n for n in asked.seq_lens]] * len(asked.models)
        counts = [one] * len(asked.models)
        return Counted(parameters=counts, flops_per_sample=flops, uncounted="")

    def trace(asked: Describe) -> str:
        raise AssertionError("loops are not what kernels keep")

    asking = asked(
        "80GiB", model="mamba2", seq_len=seq_len, depth="64", micro_batch="1",
        checkpointing="none",
    )  # fmt: skip
    return plan(asking, 1, Helpers(count, trace))


def test_what_a_state_space_model_keeps_grows_with_every_token() -> None:
    found = a_mamba("1024,2048,16384")
    short, double, long = (
        only(found, seq_len=n).parts.activations + only(found, seq_len=n).parts.logits
        for n in (1024, 2048, 16384)
    )
    assert found.untraced.startswith("kernels of a mamba2 keep less than the loops")
    # 12 bytes of each of 5120 inner channels and 6 of each of 2560, in 64 blocks.
    a_token = 64 * (12 * 5120 + 6 * 2560) + 12 * 50280
    assert long == pytest.approx(16384 * a_token - 2 * 2.77e9, rel=0.15)
    assert short < double < long


@pytest.mark.parametrize("fused", [True, False])
def test_a_state_space_model_is_traced_where_its_kernels_are_not_installed(fused: bool) -> None:
    one = Parameters(
        width=4096, vocab_size=65024, parameters=7_270_000_000, trainable=7_270_000_000,
        block_matrices=6_700_000_000, largest_block=105_000_000,
    )  # fmt: skip
    wanted: list[Describe] = []

    def count(asked: Count) -> Counted:
        return Counted(parameters=[one], flops_per_sample=[[1e12]], uncounted="")

    def trace(asked: Describe) -> str:
        wanted.append(asked)
        return "nobody traces here"

    asking = asked(model="mamba-7b", depth="64", seq_len="1024", micro_batch="2,4")
    found = plan(replace(asking, fused=fused), 8, Helpers(count, trace))
    said = {each.name: each.value for each in found.space.fixed}["kernels"]
    assert said == ("mamba-ssm" if fused else "torch")
    # Short samples, as many tokens in all: loops go over each token of one.
    sizes = [(each.seq_lens, each.micro_batches) for each in wanted]
    assert sizes == ([] if fused else [([64], [32, 64])])


def test_checkpoints_on_the_host_alone_have_no_trace() -> None:
    def trace(asked: Describe) -> str:
        raise AssertionError("there is nothing to trace")

    found = plan(asked(checkpointing="host", micro_batch="1"), 8, Helpers(no_count, trace))
    assert "kept on the host" in found.untraced


@pytest.mark.parametrize(("stage", "left"), [("1", 1 / 2), ("2", 0), ("3", 0)])
def test_gradients_go_to_the_host_with_the_optimizer(stage: str, left: float) -> None:
    offloaded = planned(2, zero=stage, offload="optimizer", micro_batch="1")
    (row,) = (each for each in offloaded.expected if each.candidate.checkpointing == "none")
    whole = 2 * offloaded.space.workload.shape(24).parameters
    assert row.parts.gradients == pytest.approx(left * whole)


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_blocks_that_are_frozen_send_no_gradients(engine: str) -> None:
    workload = planned(8, zero="3").space.workload
    [shape] = {workload.shape(24)}
    candidate = Candidate(depth=24, seq_len=2048, micro_batch=1, zero_stage=3)
    counted = CountedShape(
        depth=24, width=shape.width, vocab_size=shape.vocab_size, parameters=shape.parameters,
        trainable=shape.parameters, block_matrices=shape.block_matrices,
        largest_block=shape.largest_block, seq_lens=[2048], flops=[1.0],
    )  # fmt: skip
    whole, few = (
        ENGINES[engine].passing_bytes(
            replace(workload, model="hf:x", shapes=[replace(counted, trainable=trained)]),
            candidate, "cuda",
        )
        for trained in (shape.parameters, shape.parameters // 100)
    )  # fmt: skip
    a_block = {"fsdp": 2 + 4, "deepspeed": 2 * 2}[engine] * shape.largest_block
    assert whole - few == pytest.approx(0.99 * a_block, rel=0.01)


def test_logits_in_chunks_are_an_eighth() -> None:
    found = planned(8, zero="3", loss="whole,chunked", micro_batch="8", checkpointing="full")
    whole, chunked = only(found, loss="whole").parts, only(found, loss="chunked").parts
    assert chunked.logits == pytest.approx(whole.logits / 8, rel=0.35)  # as both share a base


def test_more_is_reserved_than_is_used() -> None:
    for row in planned(8, zero="3").expected:
        used = row.parts.gradients + row.parts.activations + row.parts.logits + row.parts.buffers
        share = 0.18 if row.candidate.checkpointing == "none" else 0.41
        assert row.parts.unused == pytest.approx(share * used)
