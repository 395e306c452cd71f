"""Samples of different lengths: what a batch of them is padded to, and batches drawn of them.

Contracts:

- With a mix, `seq_len` is the length to which the longest sample is padded or cut.
- The search runs the longest samples alone. The warm-up of a final begins with two steps on them,
  in all micro-steps. The first makes the optimizer's state, and the second runs beside it. Drawn
  batches follow in the same probe. So one peak covers both, and the cost of many shapes in the
  allocator.
- Ranks draw nothing. The study draws the lengths from the seed (`LengthMix.draw`), and
  `Probe.lengths` has them for all ranks. They are a few dozen micro-batches at most, which come
  round, so the number of shapes is bounded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

MOST_BINS = 256
LEAST_BATCHES = 16
"""Micro-batches of a rank in a cycle of drawn steps, at least."""
LEAST_SAMPLES = 64
"""Samples of all ranks in a cycle, at least."""
MOST_BATCHES = 64
"""Of a longer schedule so many are drawn, and come round."""
DRAWS = 256
CLOSE = 0.003
"""A draw whose real and padded tokens are this near to what is expected is taken at once."""

Drawn = list[list[list[int]]]
"""Lengths by [micro_batch][rank][sample]."""


@dataclass(frozen=True, kw_only=True)
class LengthMix:
    """A histogram of lengths, in tokens. A sample longer than a candidate's seq_len is cut to it,
    and a batch is padded to its longest sample."""

    file: str
    """The file that it was read from."""
    samples: int
    lengths: tuple[int, ...]
    """Ascending. Of a file with more of them, means of at most `MOST_BINS` ranges."""
    counts: tuple[int, ...]
    pad_to_multiple: int = 1

    def __hash__(self) -> int:
        return hash((self.file, self.samples, self.pad_to_multiple))

    @classmethod
    def of(cls, file: str, histogram: Mapping[int, int], pad_to_multiple: int = 1) -> LengthMix:
        """Lengths and how many samples have them; ranges hold about as many tokens each, and the
        longest stays as it is."""
        bins = dict(histogram) if len(histogram) <= MOST_BINS else _binned(histogram)
        ordered = sorted(bins)
        return cls(
            file=file,
            samples=sum(bins.values()),
            lengths=tuple(ordered),
            counts=tuple(bins[length] for length in ordered),
            pad_to_multiple=pad_to_multiple,
        )

    @property
    def longest(self) -> int:
        """The padded length of the longest sample."""
        return self.padded(self.lengths[-1])

    def padded(self, length: int) -> int:
        """The padded length of a batch whose longest sample has this `length`."""
        return -(-length // self.pad_to_multiple) * self.pad_to_multiple

    def mean(self, seq_len: int) -> float:
        """Mean tokens of a sample without padding."""
        return _mean_power(self, 1, seq_len)

    def weighted_mean(self, seq_len: int) -> int:
        """The mean length, each sample as often as it has tokens, padded: the length at which what
        grows evenly with it, as FLOPs a token do, is what it is on the mix."""
        return self.padded(round(_mean_power(self, 2, seq_len) / self.mean(seq_len)))

    def padded_mean(self, samples: int, seq_len: int) -> float:
        """The expected length of so many samples, drawn at random, when they are padded: that of
        their longest. Source: David & Nagaraja, Order Statistics (2003), section 2.1."""
        return _padded_mean(self, samples, seq_len)

    def worst(self, micro_batch: int, seq_len: int) -> list[int]:
        """The batch that needs the most memory: of the longest samples, one of them padded, so
        that there is a mask where a model takes one."""
        most = min(self.lengths[-1], seq_len)
        return [most] + [max(1, most - 1)] * (micro_batch - 1)

    def cycle_steps(self, micro_batch: int, ranks: int, micro_steps: int) -> int:
        """Number of steps after which drawn batches repeat."""
        batches = max(LEAST_BATCHES, math.ceil(LEAST_SAMPLES / (micro_batch * ranks)))
        return math.ceil(batches / micro_steps)

    def draw(
        self, micro_batch: int, seq_len: int, *, ranks: int, micro_steps: int, seed: int
    ) -> Drawn:
        """The micro-batches of a cycle of steps, the same for the same `seed`.

        They are drawn evenly over the histogram and shuffled, a few times; the draw whose real
        tokens, and whose padded tokens of the rank with the longest batch, are nearest to what is
        expected of a draw, stands for all.
        """
        steps = self.cycle_steps(micro_batch, ranks, micro_steps)
        batches = min(MOST_BATCHES, steps * micro_steps) if steps == 1 else steps * micro_steps
        real = self.mean(seq_len) * batches * ranks * micro_batch
        padded = self.padded_mean(ranks * micro_batch, seq_len) * batches
        rng = random.Random(seed)
        best, best_off = [], math.inf
        for _ in range(DRAWS):
            drawn = self._drawn(rng, batches, ranks, micro_batch, seq_len)
            mine = sum(sum(map(sum, batch)) for batch in drawn)
            longest = sum(self.padded(max(map(max, batch))) for batch in drawn)
            off = max(abs(mine / real - 1), abs(longest / padded - 1))
            if off < best_off:
                best, best_off = drawn, off
            if off < CLOSE:
                break
        return best

    def _drawn(
        self, rng: random.Random, batches: int, ranks: int, micro_batch: int, seq_len: int
    ) -> Drawn:
        number = batches * ranks * micro_batch
        lengths = list(self._evenly(number, rng.random(), seq_len))
        rng.shuffle(lengths)
        taken = iter(lengths)
        return [
            [[next(taken) for _ in range(micro_batch)] for _ in range(ranks)]
            for _ in range(batches)
        ]

    def _evenly(self, number: int, begin: float, seq_len: int) -> Iterator[int]:
        """`number` lengths, one from each of as many equal parts of the histogram."""
        bins = zip(self.lengths, accumulate(self.counts), strict=True)
        length, upto = next(bins)
        for place in range(number):
            while (place + begin) * self.samples / number >= upto:
                length, upto = next(bins)
            yield min(length, seq_len)


@cache
def _mean_power(mix: LengthMix, power: int, seq_len: int) -> float:
    bins = zip(mix.lengths, mix.counts, strict=True)
    total: int = sum(min(length, seq_len) ** power * count for length, count in bins)
    return total / mix.samples


@cache
def _padded_mean(mix: LengthMix, samples: int, seq_len: int) -> float:
    # No sample is longer than a bin's with the share of all up to it, to that power.
    upto = [0.0, *((count / mix.samples) ** samples for count in accumulate(mix.counts))]
    chances = [after - before for before, after in pairwise(upto)]
    return sum(
        chance * mix.padded(min(length, seq_len))
        for chance, length in zip(chances, mix.lengths, strict=True)
    )


def _binned(histogram: Mapping[int, int]) -> dict[int, int]:
    longest = max(histogram)
    rest = sorted(length for length in histogram if length < longest)
    tokens = sum(length * histogram[length] for length in rest)
    ranges: list[list[int]] = [[] for _ in range(MOST_BINS - 1)]
    before = 0
    for length in rest:
        ranges[before * len(ranges) // tokens].append(length)
        before += length * histogram[length]
    bins = {longest: histogram[longest]}
    for held in filter(None, ranges):
        count = sum(histogram[length] for length in held)
        mean = round(sum(length * histogram[length] for length in held) / count)
        bins[mean] = bins.get(mean, 0) + count
    return bins
