"""Samples of different lengths: what batches of them are padded to, and what is drawn of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest

from autotune.space.candidate import Candidate
from autotune.space.mix import LEAST_BATCHES, MOST_BATCHES, MOST_BINS, LengthMix
from autotune.space.models.defaults import GptTraits
from autotune.space.models.gpt import shape_of
from tests.support.records import WORKLOAD

FEW = LengthMix.of("few.csv", {3: 2, 5: 1, 8: 1})
"""Four samples."""
_rng = random.Random(0)
WIDE = LengthMix.of(
    "wide.csv", Counter(max(1, min(4000, int(_rng.lognormvariate(5, 1)))) for _ in range(20_000))
)
SHAPES = [(1, 1, 1), (2, 1, 1), (8, 2, 4), (64, 1, 1), (16, 8, 3), (4, 1, 100)]
"""Of micro_batch, ranks and micro_steps."""


@pytest.mark.parametrize("seq_len", [8, 4])
@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 4])
def test_padding_is_expected_of_all_batches(samples: int, seq_len: int, multiple: int) -> None:
    mix = replace(FEW, pad_to_multiple=multiple)
    batches = itertools.product([3, 3, 5, 8], repeat=samples)
    expected = mean(mix.padded(min(max(batch), seq_len)) for batch in batches)
    assert mix.padded_mean(samples, seq_len) == pytest.approx(expected)


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
    drawn = WIDE.draw(micro_batch, 4000, ranks=ranks, micro_steps=micro_steps, seed=3)
    real = mean(length for batch in drawn for rank in batch for length in rank)
    padded = mean(max(map(max, batch)) for batch in drawn)
    assert real == pytest.approx(WIDE.mean(4000), rel=0.01)
    assert padded == pytest.approx(WIDE.padded_mean(ranks * micro_batch, 4000), rel=0.01)


@pytest.mark.parametrize(("micro_batch", "ranks", "micro_steps"), SHAPES)
def test_drawn_batches_make_whole_steps(micro_batch: int, ranks: int, micro_steps: int) -> None:
    drawn = WIDE.draw(micro_batch, 4000, ranks=ranks, micro_steps=micro_steps, seed=3)
    steps = WIDE.cycle_steps(micro_batch, ranks, micro_steps)
    assert {len(batch) for batch in drawn} == {ranks}
    assert {len(rank) for batch in drawn for rank in batch} == {micro_batch}
    assert len(drawn) == min(steps * micro_steps, MOST_BATCHES)
    assert len(drawn) >= LEAST_BATCHES


def test_the_same_seed_draws_the_same_and_ranks_have_samples_of_their_own() -> None:
    first, again, other = (
        WIDE.draw(4, 4000, ranks=2, micro_steps=1, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(one != two for one, two in first)


def test_a_drawn_sample_is_cut_to_seq_len() -> None:
    drawn = WIDE.draw(8, 100, ranks=1, micro_steps=1, seed=0)
    assert max(max(rank) for batch in drawn for rank in batch) == 100


def test_the_worst_batch_is_as_long_as_any_and_has_padding() -> None:
    assert FEW.worst(3, 8) == [8, 7, 7]
    assert FEW.worst(2, 4) == [4, 3]
    assert FEW.worst(1, 8) == [8]


def test_a_workload_of_one_length_is_what_it_was() -> None:
    candidate = Candidate(depth=2, seq_len=64, micro_batch=4)
    assert WORKLOAD.padded_share(candidate) == 1.0
    assert WORKLOAD.real_share(candidate) is None
    assert WORKLOAD.tokens_per_sample(64) == 64
    assert WORKLOAD.cycle_steps(candidate, 1) == 1


def test_ranks_wait_for_the_longest_sample_of_all_of_them() -> None:
    one, two = (replace(WORKLOAD, length_mix=WIDE, world_size=ranks) for ranks in (1, 2))
    candidate = Candidate(depth=2, seq_len=4000, micro_batch=4)
    assert two.padded_share(candidate) == one.padded_share(replace(candidate, micro_batch=8))
    assert two.real_share(candidate) == one.real_share(candidate)
