"""Samples of different lengths: what batches of them are padded to, and what is drawn of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from autotune.space.candidate import Candidate
from autotune.space.mix import LEAST_BATCHES, MOST_BATCHES, MOST_BINS, Batches, LengthMix
from autotune.space.models.defaults import GptTraits
from autotune.space.models.gpt import shape_of
from autotune.wire.ranks import padded_to
from tests.support.records import WORKLOAD

FEW = LengthMix.of("few.csv", {3: 2, 5: 1, 8: 1})
"""Four samples."""
_rng = random.Random(0)
WIDE = LengthMix.of(
    "wide.csv", Counter(max(1, min(4000, int(_rng.lognormvariate(5, 1)))) for _ in range(20_000))
)
SHAPES = [(1, 1, 1), (2, 1, 1), (8, 2, 4), (64, 1, 1), (16, 8, 3), (4, 1, 100)]
"""Of micro_batch, ranks and micro_steps."""


def _batches(
    mix: LengthMix, micro_batch: int, seq_len: int, *, ranks: int = 1, **ways: Any
) -> Batches:
    candidate = Candidate(depth=2, seq_len=seq_len, micro_batch=micro_batch, **ways)
    return mix.batches(candidate, ranks)


@pytest.mark.parametrize("seq_len", [8, 4])
@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 4])
def test_padding_is_expected_of_all_batches(samples: int, seq_len: int, multiple: int) -> None:
    batches = itertools.product([3, 3, 5, 8], repeat=samples)
    expected = mean(padded_to(min(max(batch), seq_len), multiple) for batch in batches)
    found = _batches(FEW, samples, seq_len, pad_to_multiple=multiple)
    assert found.padded_share * seq_len == pytest.approx(expected)


def test_real_tokens_are_those_of_the_file_cut_to_seq_len() -> None:
    assert FEW.mean(8) == (3 + 3 + 5 + 8) / 4
    assert FEW.mean(4) == (3 + 3 + 4 + 4) / 4


def test_flops_of_a_mix_are_those_of_its_samples() -> None:
    """They grow evenly with the length, so one length stands for all."""
    shape, candidate = (
        shape_of(2, 128, 4096, GptTraits()),
        Candidate(depth=2, seq_len=4000, micro_batch=4),
    )
    pairs = list(zip(WIDE.lengths, WIDE.counts, strict=True))
    flops = sum(count * length * shape.flops_per_token(length) for length, count in pairs)
    tokens = sum(count * length for length, count in pairs)
    found = replace(WORKLOAD, length_mix=WIDE).flops_per_token(candidate)
    assert found == pytest.approx(flops / tokens, rel=1e-3)


def test_a_file_of_many_lengths_is_kept_in_few_ranges() -> None:
    histogram = {length: 1 + length % 7 for length in range(1, 5001)}
    mix = LengthMix.of("many.csv", histogram)
    assert len(mix.lengths) == len(mix.counts) <= MOST_BINS
    assert mix.samples == sum(histogram.values()) == sum(mix.counts)
    assert (mix.lengths[-1], mix.counts[-1]) == (5000, histogram[5000])
    assert list(mix.lengths) == sorted(set(mix.lengths))
    tokens = sum(length * count for length, count in histogram.items())
    assert mix.mean(5000) == pytest.approx(tokens / mix.samples, rel=0.002)


@pytest.mark.parametrize(("micro_batch", "ranks", "micro_steps"), SHAPES)
def test_drawn_tokens_are_as_expected(micro_batch: int, ranks: int, micro_steps: int) -> None:
    batches = _batches(WIDE, micro_batch, 4000, ranks=ranks)
    drawn = batches.draw(micro_steps, seed=3)
    real = mean(length for batch in drawn for rank in batch for [length] in rank)
    padded = mean(max(max(row) for rank in batch for row in rank) for batch in drawn)
    assert real == pytest.approx(WIDE.mean(4000), rel=0.01)
    assert padded == pytest.approx(batches.padded_share * 4000, rel=0.01)


@pytest.mark.parametrize(("micro_batch", "ranks", "micro_steps"), SHAPES)
def test_drawn_batches_make_whole_steps(micro_batch: int, ranks: int, micro_steps: int) -> None:
    batches = _batches(WIDE, micro_batch, 4000, ranks=ranks)
    drawn = batches.draw(micro_steps, seed=3)
    steps = batches.cycle_steps(micro_steps)
    assert {len(batch) for batch in drawn} == {ranks}
    assert {len(rank) for batch in drawn for rank in batch} == {micro_batch}
    assert len(drawn) == min(steps * micro_steps, MOST_BATCHES)
    assert len(drawn) >= LEAST_BATCHES


def test_the_same_seed_draws_the_same_and_ranks_have_samples_of_their_own() -> None:
    first, again, other = (
        _batches(WIDE, 4, 4000, ranks=2).draw(1, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(one != two for one, two in first)


def test_a_drawn_sample_is_cut_to_seq_len() -> None:
    drawn = _batches(WIDE, 8, 100).draw(1, seed=0)
    assert max(max(row) for batch in drawn for rank in batch for row in rank) == 100


def test_the_worst_batch_is_as_long_as_any_and_has_padding() -> None:
    assert _batches(FEW, 3, 8).worst() == [[8], [7], [7]]
    assert _batches(FEW, 2, 4).worst() == [[4], [3]]
    assert _batches(FEW, 1, 8).worst() == [[8]]


def test_a_workload_of_one_length_is_what_it_was() -> None:
    candidate = Candidate(depth=2, seq_len=64, micro_batch=4)
    assert WORKLOAD.padded_share(candidate) == 1.0
    assert WORKLOAD.real_share(candidate) is None
    assert WORKLOAD.step_tokens(candidate) == 64 * WORKLOAD.step_samples(candidate)
    assert WORKLOAD.cycle_steps(candidate, 1) == 1


def test_ranks_wait_for_the_longest_sample_of_all_of_them() -> None:
    one, two = (replace(WORKLOAD, length_mix=WIDE, world_size=ranks) for ranks in (1, 2))
    candidate = Candidate(depth=2, seq_len=4000, micro_batch=4)
    assert two.padded_share(candidate) == one.padded_share(replace(candidate, micro_batch=8))
    assert two.real_share(candidate) == one.real_share(candidate)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_buckets_are_the_lengths_that_pad_the_least(number: int) -> None:
    mix = LengthMix.of("five.csv", {2: 5, 3: 1, 7: 4, 11: 2, 16: 1})

    def padding(ends: tuple[int, ...]) -> int:
        return sum(count * padded_to(length, 1, ends)
                   for length, count in zip(mix.lengths, mix.counts, strict=True))  # fmt: skip

    every = [(*ends, 16) for ends in itertools.combinations([2, 3, 7, 11], number - 1)]
    found = _batches(mix, 1, 16, buckets=number)
    assert tuple(found.ends) == min(every, key=padding)
    assert found.padded_share * 16 == pytest.approx(padding(tuple(found.ends)) / mix.samples)


def test_buckets_follow_the_batch_and_the_multiple() -> None:
    """The longest of many samples is long, so short buckets would stand empty."""
    few, many = (_batches(WIDE, size, 4032, buckets=4).ends for size in (1, 32))
    assert few[0] < many[0]
    assert all(
        end % 64 == 0 for end in _batches(WIDE, 4, 4032, buckets=4, pad_to_multiple=64).ends
    )


def test_shapes_of_a_run_are_counted_by_their_chance() -> None:
    """Four samples of 3, 3, 5 and 8: in two batches of one the chance to miss 5 is (3/4)^2."""
    missed = (1 / 2) ** 2 + 2 * (3 / 4) ** 2
    assert _batches(FEW, 1, 8).shapes(2) == pytest.approx(3 - missed)
    assert _batches(FEW, 1, 8).shapes(10_000) == pytest.approx(3)
    assert _batches(FEW, 1, 8, pad_to_multiple=4).shapes(10_000) == pytest.approx(2)
    assert _batches(FEW, 1, 8, buckets=1).shapes(10_000) == pytest.approx(1)


def test_ranges_of_lengths_count_as_the_shapes_that_they_stand_for() -> None:
    mix = LengthMix.of("many.csv", dict.fromkeys(range(1, 2001), 1))
    assert _batches(mix, 1, 2000).shapes(1e6) == pytest.approx(2000, rel=0.05)
    assert _batches(mix, 1, 2048, pad_to_multiple=64).shapes(1e6) == pytest.approx(32, rel=0.05)


def test_packed_rows_are_full_and_hold_each_sample_once() -> None:
    batches = _batches(WIDE, 4, 4000, ranks=2, pack="on")
    drawn = batches.draw(1, seed=1)
    rows = [row for batch in drawn for rank in batch for row in rank]
    assert {len(rank) for batch in drawn for rank in batch} == {4}
    assert max(map(sum, rows)) <= 4000
    assert mean(map(sum, rows)) / 4000 == pytest.approx(batches.real_share, rel=0.01)
    assert batches.real_share > 0.97
    assert batches.samples == pytest.approx(
        4 * 4000 * batches.real_share / WIDE.mean(4000), rel=0.1
    )
    assert (batches.padded_share, batches.shapes(1000), batches.worst()) == (1.0, 1, [])


def test_samples_that_fill_no_row_together_are_not_packed() -> None:
    mix = LengthMix.of("long.csv", {60: 1})
    batches = _batches(mix, 2, 100, pack="on")
    assert batches.draw(1, seed=0)[0] == [[[60], [60]]]
    assert batches.real_share == pytest.approx(0.6)


def test_batches_by_tokens_keep_to_them_and_hold_samples_alike() -> None:
    mix = replace(WIDE, by_tokens=True)
    batches = _batches(mix, 2, 4000, ranks=2)
    drawn = batches.draw(2, seed=1)
    for rows in (rank for batch in drawn for rank in batch):
        lengths = [length for [length] in rows]
        assert len(rows) * max(lengths) <= 2 * 4000
    assert batches.real_share > 0.9 > _batches(WIDE, 2, 4000, ranks=2).real_share
    assert batches.samples > 10
    tokens = mean(sum(map(sum, rank)) for batch in drawn for rank in batch)
    assert tokens == pytest.approx(batches.tokens, rel=0.02)


def test_an_out_of_memory_error_stands_for_every_padding() -> None:
    one, two = (
        Candidate(depth=2, seq_len=64, micro_batch=4, pad_to_multiple=n, buckets=n - 1)
        for n in (1, 8)
    )
    assert one.covers(two)
    assert two.covers(one)
    assert not replace(one, pack="on").covers(one)
