"""What the processes of a launch have told, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.measure.runner.channel import Peer
from autotune.measure.script import timing
from autotune.measure.script.launch import Launch
from autotune.measure.script.seen import Process, Ranks
from autotune.space.candidate import Candidate
from autotune.wire.emulated import VARIABLE
from autotune.wire.hook import Place, Seen, Step
from autotune.wire.stopping import Steps
from tests.support.defaults import RULE

ASKED = Candidate(depth=1, seq_len=32, micro_batch=4)
ALL = ("micro_batch", "seq_len", "grad_accum")
Shapes = list[list[list[int]]]
"""Of one step, by [micro-step][tensor]."""


def seen(
    *shapes: Shapes, micro_steps: int = 1, step_s: float = 1.0,
    tokens: Sequence[int | None] = (), **more: Any,
) -> Seen:  # fmt: skip
    """A message of as many steps, in the first 0.1 s of which data was waited for."""
    steps = len(shapes)
    made = [
        Step(step_s=step_s, micro_steps=micro_steps, waited_s=0.1, tokens=said, shapes=each)
        for each, said in zip(shapes, tokens or [None] * steps, strict=True)
    ]
    fields: dict[str, Any] = {
        "backwards": steps * micro_steps, "ended": steps, "world_size": 1, "rank": 0,
        "trainable": 10, "frozen": 4, "dtype": "bf16", "steps": made,
        "cpu_s": 0.0, "peaks": None, "used_bytes": 0, "ooms": 0,
    }  # fmt: skip
    if (world_size := more.get("world_size", 1)) > 1:  # each has data of its own
        every = [list(range(world_size))]
        fields["place"] = Place(
            batches=[], fed=False, averages=every, shares=[], swaps=[], degrees={}
        )
    return Seen(**fields | more)


def ranks(*messages: Seen, told: tuple[str, ...] = ALL, asked: Candidate = ASKED) -> Ranks:
    """Of one process for each message."""
    found = []
    for pid, message in enumerate(messages):
        process = Process(pid=pid, peer=cast(Peer, None))
        process.told(message)
        found.append(process)
    return Ranks(found, asked, told)


def says(found: Ranks, accum: int = 1, world_size: int = 1) -> str:
    mismatch = found.mismatch(accum, world_size)
    return "" if mismatch is None else mismatch.says


def test_what_is_as_asked_for_is_no_mismatch() -> None:
    two = [seen([[[4, 32]]], [[[4, 32]]], world_size=2, rank=rank) for rank in (0, 1)]
    found = ranks(*two)
    assert says(found, world_size=2) == ""
    ran = found.ran(0, 1)
    assert (ran.samples, ran.tokens, ran.seq_len, ran.seen) == (8.0, 256.0, 32, True)
    assert ran.waiting_share == pytest.approx(0.1)


def test_processes_without_a_group_are_told_to_join() -> None:
    alone = "asked for 2 ranks, but 2 processes train, each alone; join them in the script"
    assert says(ranks(seen([[[4, 32]]]), seen([[[4, 32]]])), world_size=2).startswith(alone)


def test_a_step_ends_with_its_last_rank_whose_delay_counts_once() -> None:
    shapes: Shapes = [[[4, 32]]]
    taken_s = ([1.0, 1.3, 0.7], [1.2, 0.8, 1.0])
    messages = []
    for rank, each in enumerate(taken_s):
        message = seen(shapes, shapes, shapes, world_size=2, rank=rank)
        steps = [replace(s, step_s=t) for s, t in zip(message.steps, each, strict=True)]
        messages.append(replace(message, steps=steps))
    found = ranks(*messages)
    assert [found.step_s(n, 1) for n in range(3)] == pytest.approx([1.2, 1.1, 0.7])


def test_steps_of_an_emulated_device_have_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which neither the loader nor a limit of the host's time is held against."""
    monkeypatch.setenv(VARIABLE, "a file")
    hours = iter([0.0, 3600.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    steps = Steps(replace(RULE, warmup_steps=9), None)
    feeds = timing.Timing(steps, cast(Launch, None), (), lambda: ())
    feeds.feed(ranks())
    found = ranks(seen(*[[[[4, 32]]]] * 4, step_s=1e-4))
    feeds.feed(found)
    assert steps.warmup.wall_s == pytest.approx(3600.0)
    assert found.ran(0, 1).waiting_share == 0.0


def test_with_rollouts_a_step_is_the_mean_of_a_cycle() -> None:
    """Which begins with one; the first of all steps did, and is not told."""
    steps = Steps(RULE, None)
    feeds = timing.Timing(steps, cast(Launch, SimpleNamespace(times=lambda: None)), (), lambda: ())
    all_told = seen(*[[[[4, 32]]]] * 14, cycle=4)
    made = [replace(step, step_s=5.0 if number % 4 == 3 else 1.0)
            for number, step in enumerate(all_told.steps)]  # fmt: skip
    assert feeds.feed(ranks(replace(all_told, steps=made, cycle=0))) is None
    feeds.feed(ranks(replace(all_told, steps=made[:10])))
    assert (steps.warmup.step_s, steps.warmup.wall_s) == ([2.0], 8.0)
    feeds.feed(ranks(replace(all_told, steps=made)))
    assert (steps.warmup.step_s, steps.warmup.wall_s) == ([2.0, 2.0], 16.0)


def test_nothing_is_made_before_all_ranks_are_there() -> None:
    assert ranks(seen([[[4, 32]]], world_size=2)).made == 0
    ahead = seen([[[4, 32]]], [[[4, 32]]], world_size=2)
    behind = seen([[[4, 32]]], world_size=2, step_s=3.0)
    found = ranks(ahead, behind)
    assert found.made == 1
    assert found.step_s(0, 1) == 3.0


def test_a_process_that_makes_no_backward_pass_is_no_rank() -> None:
    assert says(ranks(seen([[[4, 32]]]), seen(backwards=0))) == ""


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (seen([[[3, 32]]]), "asked for micro_batch 4, the model got 3 x 32"),
        (seen(*[[[[4, 16]]]] * 4), "asked for seq_len 32, the model got 4 x 16"),
        (seen(*[[[[4, 16]]]] * 3), ""),  # others may be padded to more
        (seen(*[[[[4, 33]]]] * 4), ""),  # the next token of each is predicted
        (seen(*[[[[4, 31]]]] * 4), ""),
        (seen(*[[[[4, 30]]]] * 4), "asked for seq_len 32, the model got 4 x 30"),
        (seen([[[4, 48]]], [[[4, 40]]]), "asked for seq_len 32, the model got 4 x 48"),
        (seen([[[4, 32]]], micro_steps=2), "asked for 1 micro-steps, a step has 2 backward"),
        (
            seen([[[4, 32]]], world_size=2),
            "asked for 1 rank, but 2 ranks train; write --world-size 2 (of a plan: --gpus)",
        ),
        (seen([[[4, 24]]], [[[4, 30]]]), ""),  # padded to the longest of each batch
        (seen([[[4]]]), ""),  # images
        (seen([[[3]]]), "asked for micro_batch 4, the model got 3"),
        (seen([]), ""),  # nothing shows it
        (seen([[[1, 128]]]), ""),  # packed in one row
        (seen([[[32, 4]]]), ""),  # samples are columns
        (seen([[[1, 4]]]), ""),  # a state between recurrent layers
        (seen([[[1, 3]]]), "asked for micro_batch 4, the model got 1 x 3"),
        (seen([[[128]]]), ""),  # labels alone
        (seen([[[124]]]), ""),  # without the first of each sample
        (seen([[[4, 32], [4, 8]]]), ""),  # of a decoder, too
    ],
)  # fmt: skip
def test_a_mismatch_says_what_was_asked_for_and_what_ran(message: Seen, what: str) -> None:
    assert says(ranks(message)).removesuffix(" passes") == what


def test_who_says_its_samples_may_get_batches_in_any_layout() -> None:
    message = seen([[[2, 4]]])
    said = [replace(each, samples=4) for each in message.steps]
    assert says(ranks(replace(message, steps=said))) == ""


def of_steps(*each: dict[str, Any], shapes: Shapes) -> Ranks:
    """Of one process whose steps have these fields, and the same shapes."""
    message = seen(*[shapes] * len(each))
    steps = [replace(step, **more) for step, more in zip(message.steps, each, strict=True)]
    return ranks(replace(message, steps=steps))


def test_who_says_its_samples_may_go_back_as_often_as_it_likes() -> None:
    found = of_steps({"samples": 4, "micro_steps": 2}, shapes=[[[4, 32]]])
    assert says(found) == ""


@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 2)])
def test_one_step_of_other_passes_may_follow_one_that_was_skipped(counts: tuple[int, ...]) -> None:
    found = of_steps(*({"micro_steps": count} for count in counts), shapes=[[[4, 32]]])
    assert bool(says(found)) == (len(counts) == 3)


@pytest.mark.parametrize(
    ("shapes", "samples", "tokens"),
    [
        ([[4, 32], [4, 16]], 4.0, 192.0),  # two sides of a pair
        ([[1, 32], [3, 32]], 4.0, 128.0),  # the batch, cut in the model
        ([[1], [1], [1], [1]], 4.0, 4.0),  # images of unlike size
        ([[4], [4]], 4.0, 4.0),  # two views of images
    ],
)
def test_each_call_of_a_model_has_its_tokens(
    shapes: list[list[int]], samples: float, tokens: float
) -> None:
    found = of_steps({"calls": len(shapes)}, shapes=[shapes])
    assert says(found) == ""
    ran = found.ran(0, 1)
    assert (ran.samples, ran.tokens, ran.seen) == (samples, tokens, True)


@pytest.mark.parametrize(("rows", "is_seen"), [(4, True), (40, False)])
def test_rows_without_ids_or_labels_count_where_they_are_as_asked_for(
    rows: int, is_seen: bool
) -> None:
    found = of_steps({"sure": False}, shapes=[[[rows]]])
    assert says(found) == ""
    assert (found.ran(0, 1).samples, found.ran(0, 1).seen) == (4.0, is_seen)


@pytest.mark.parametrize(("second", "is_seen"), [([2], False), ([1, 2], True)])
def test_optimizers_that_step_in_turns_show_no_step(second: list[int], is_seen: bool) -> None:
    found = of_steps(*[{"steppers": [1]}, {"steppers": second}] * 2, shapes=[[[4, 32]]])
    assert found.ran(0, 1).seen == is_seen


def test_steps_of_unknown_size_are_weighed_by_their_passes() -> None:
    """As where a step was skipped, which is part of the next one."""
    found = of_steps({}, {"micro_steps": 2}, {}, {"micro_steps": 2}, shapes=[[[4, 32]]])
    assert found.ran(0, 1).samples == 6.0
    assert median(found.evened(0, [0.1, 0.2] * 2)) == pytest.approx(0.15)


def test_of_who_trained_before_and_ended_nothing_is_asked() -> None:
    found = ranks(seen([[[7, 9]]]), seen([[[4, 32]]]))
    before, now = found.all
    before.gone = True
    found = Ranks([before, now], ASKED, ALL)
    assert says(found) == ""
    assert found.ran(0, 1).samples == 4.0


def test_a_rank_that_ended_first_is_one_all_the_same() -> None:
    both = ranks(*[seen([[[4, 32]]], world_size=2, rank=rank) for rank in (0, 1)]).all
    both[1].gone = True
    assert says(Ranks(both, ASKED, ALL), world_size=2) == ""


def test_ranks_that_have_all_ended_are_still_those_that_trained() -> None:
    both = ranks(*[seen([[[4, 32]]], world_size=2, rank=rank) for rank in (0, 1)]).all
    for process in both:
        process.gone = True
    assert Ranks(both, ASKED, ALL).all == both


def test_tokens_are_those_of_the_steps_that_were_timed() -> None:
    warm = [[[[1, 32]]]] * 3
    found = ranks(seen(*warm, [[[4, 32]]], [[[4, 32]]], []))
    assert found.ran(3, 1).tokens == 128.0
    assert found.ran(5, 1).tokens == pytest.approx((3 * 32 + 2 * 128) / 5)  # none was looked at


def test_rows_of_a_sample_are_no_samples() -> None:
    found = ranks(seen([[[8, 32]]]))
    assert says(found) == "asked for micro_batch 4, the model got 8 x 32"
    assert found.mismatch(1, 1, rows=2) is None
    ran = found.ran(0, 1, rows=2)
    assert (ran.samples, ran.tokens) == (4.0, 256.0)


def test_the_last_batch_of_an_epoch_may_be_smaller() -> None:
    assert says(ranks(seen([[[4, 32]]], [[[4, 32]]], [[[1, 32]]]))) == ""


def test_what_a_script_is_not_told_is_no_mismatch() -> None:
    found = ranks(seen([[[3, 99]]], micro_steps=5), told=())
    assert says(found) == ""
    ran = found.ran(0, 1)
    assert (ran.samples, ran.tokens, ran.micro_steps) == (15.0, 15 * 99.0, 5)


def test_batches_of_so_many_tokens_may_hold_fewer() -> None:
    told = ("tokens_per_batch",)
    assert says(ranks(seen([[[8, 15]]], [[[2, 64]]]), told=told)) == ""
    too_many = says(ranks(seen([[[8, 17]]]), told=told))
    assert too_many == "asked for batches of 128 tokens, the model got 136"


def test_what_nobody_saw_is_as_asked_for() -> None:
    ran = ranks(seen([])).ran(0, 2)
    assert (ran.samples, ran.tokens, ran.seen) == (8.0, 256.0, False)


def test_tokens_that_the_script_says_come_first() -> None:
    ran = ranks(seen([[[4, 32]]], [[[4, 32]]], tokens=[100, 110])).ran(0, 1)
    assert (ran.samples, ran.tokens, ran.seen) == (4.0, 105.0, True)


def test_tokens_are_the_mean_of_the_batches_that_were_looked_at() -> None:
    ran = ranks(seen([[[4, 20]], [[4, 30]]], [[[4, 22]]], micro_steps=2)).ran(0, 2)
    assert (ran.samples, ran.tokens, ran.seq_len) == (8.0, 2 * 4 * 24.0, 22)


def sized(*sizes: int, looked: int, times_s: Sequence[float] = (), size: int = 64) -> Ranks:
    """Steps of so many samples of 32 tokens, of which the first ones were looked at."""
    message = seen(*[[[[n, 32]]] if number < looked else [] for number, n in enumerate(sizes)])
    steps = [replace(step, size=size * n) for step, n in zip(message.steps, sizes, strict=True)]
    steps = [replace(step, step_s=s) for step, s in zip(steps, times_s, strict=False)] or steps
    return ranks(replace(message, steps=steps))


def test_batches_that_were_not_looked_at_count_by_their_size() -> None:
    uneven = (4, 4, 4, 1) * 4
    found = sized(*uneven, looked=5)
    for first in (0, 4, 8):
        ran = found.ran(first, 1)
        assert (ran.samples, ran.tokens) == pytest.approx((3.25, 3.25 * 32))
    assert sized(*uneven, looked=5, size=0).ran(0, 1).samples == pytest.approx(17 / 5)


def test_sizes_that_do_not_go_with_what_is_counted_count_nothing() -> None:
    """As those of longer samples, of which there are as many."""
    message = seen([[[4, 32]]], [[[4, 24]]], [])
    sizes = (32, 24, 40)
    steps = [replace(step, size=n) for step, n in zip(message.steps, sizes, strict=True)]
    ran = ranks(replace(message, steps=steps)).ran(0, 1)
    assert (ran.samples, ran.tokens) == pytest.approx((4.0, 4 * 32))


def test_unlike_parts_of_sequences_are_added_up() -> None:
    both = [[0, 1]]
    parts = [
        seen([[[4, length]]], world_size=2, rank=n,
             place=Place(batches=[n], fed=False, averages=both, shares=both, swaps=[], degrees={}))
        for n, length in enumerate((17, 15))
    ]  # fmt: skip
    ran = ranks(*parts).ran(0, 1)
    assert (ran.samples, ran.tokens, ran.seq_len, ran.degrees) == (4.0, 128.0, 32, {"cp": 2})


def test_the_time_of_a_step_of_mean_work_is_the_mean_time() -> None:
    """Though most steps are longer."""
    times_s = [0.4, 0.4, 0.4, 0.2] * 2
    found = sized(*(4, 4, 4, 1) * 2, looked=4, times_s=times_s)
    assert median(found.evened(0, times_s)) == pytest.approx(0.35)
    alike = sized(*[4] * 8, looked=4, times_s=times_s)
    assert alike.evened(0, times_s) == times_s


def test_each_rank_is_compared_with_its_own_micro_batch() -> None:
    asked = replace(ASKED, micro_batch_per_rank="2+4")
    told = ("micro_batch_per_rank", "seq_len")
    two, four = ([[[size, 32]]] for size in (2, 4))
    right = [seen(each, world_size=2, rank=n) for n, each in enumerate((two, four))]
    found = ranks(*right, told=told, asked=asked)
    assert says(found, world_size=2) == ""
    ran = found.ran(0, 1)
    assert (ran.samples, ran.data_parallel, ran.seen) == (6.0, 2, True)
    alike = [seen(four, world_size=2, rank=n) for n in (0, 1)]
    assert says(ranks(*alike, told=told, asked=asked), world_size=2) == (
        "asked for micro_batch 2 of rank 0, its model got 4"
    )
