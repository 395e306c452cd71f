"""Samples of different lengths: batches of them, and draws of batches.

Contracts:

- With a mix, the longest sample is padded or cut to `seq_len`. It is also the length of a row of
  packed samples.
- The search runs only the longest samples. The warm-up of a final begins with two steps on them,
  in all micro-steps. The first makes the optimizer's state, and the second runs beside it. Drawn
  batches follow in the same probe. So one peak covers both, and the cost of many shapes in the
  allocator. Packed batches all have one shape, so the search runs drawn ones, too.
- Ranks draw nothing. The study draws the lengths from the seed (`Batches.draw`), and
  `Probe.lengths` has them for all ranks. They are at most a few dozen micro-batches, which repeat,
  so the number of shapes is bounded.
- A compiled model compiles each shape that it meets, or one for all (`dynamic`). That time is
  spread over `LengthMix.run_steps`, by the number of shapes that so many steps meet.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, islice, pairwise
from typing import TypeVar

from autotune.space.candidate import Candidate
from autotune.wire.ranks import Rows, padded_to

MOST_BINS = 256
LEAST_BATCHES = 16
"""The least micro-batches of a rank in a cycle of drawn steps."""
LEAST_SAMPLES = 64
"""The least samples of all ranks in a cycle."""
MOST_BATCHES = 64
"""The most drawn micro-batches; they repeat in a longer schedule."""
DRAWS = 256
CLOSE = 0.003
"""A draw is taken at once if its real and padded tokens are this near to the expected ones."""
LIKE_ALL = 4096
"""So many samples stand for all, if rows are packed or batches filled up to a size."""
RUN_STEPS = 10_000

Item = TypeVar("Item")
Drawn = list[list[Rows]]
"""By [micro_batch][rank]."""


@dataclass(frozen=True, kw_only=True)
class LengthMix:
    """A histogram of lengths, in tokens. Longer samples than seq_len are cut to it."""

    file: str
    samples: int
    lengths: tuple[int, ...]
    """Ascending. At most `MOST_BINS`: means of ranges, if the file has more."""
    counts: tuple[int, ...]
    distinct: int
    """Number of lengths in the file."""
    by_tokens: bool = False
    """Whether a batch holds similar lengths: as many as fit in micro_batch x seq_len tokens."""
    run_steps: int = RUN_STEPS
    """Optimizer steps of the run, over which the time to compile is spread."""

    def __hash__(self) -> int:
        return hash((self.file, self.samples, self.by_tokens, self.run_steps))

    @classmethod
    def of(
        cls, file: str, histogram: Mapping[int, int], *, by_tokens: bool = False,
        run_steps: int = RUN_STEPS,
    ) -> LengthMix:  # fmt: skip
        """The mix of a `histogram`, samples by length, in ranges of about as many tokens."""
        bins = dict(histogram) if len(histogram) <= MOST_BINS else _binned(histogram)
        ordered = sorted(bins)
        return cls(
            file=file,
            samples=sum(bins.values()),
            lengths=tuple(ordered),
            counts=tuple(bins[length] for length in ordered),
            distinct=len(histogram),
            by_tokens=by_tokens,
            run_steps=run_steps,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.lengths[-1]

    @property
    def density(self) -> float:
        """Number of distinct lengths as a share of the longest; 0 if `lengths` has all of them."""
        return self.distinct / self.longest if self.distinct > len(self.lengths) else 0.0

    def mean(self, seq_len: int) -> float:
        """Mean tokens of a sample without padding."""
        return _mean_power(self, 1, seq_len)

    def weighted_mean(self, seq_len: int) -> int:
        """The mean length by tokens, at which linear costs, such as FLOPs, are the mix's."""
        return round(_mean_power(self, 2, seq_len) / self.mean(seq_len))

    def batches(self, candidate: Candidate, ranks: int) -> Batches:
        """The batches of `candidate` on so many ranks."""
        of = _Packed if candidate.pack == "on" else _ByTokens if self.by_tokens else Batches
        return _kept(of(
            mix=self, ranks=ranks, micro_batch=candidate.micro_batch, seq_len=candidate.seq_len,
            multiple=candidate.pad_to_multiple, buckets=candidate.buckets,
        ))  # fmt: skip

    def evenly(self, number: int, begin: float, seq_len: int) -> Iterator[int]:
        """`number` lengths, one from each of as many equal parts of the histogram."""
        bins = zip(self.lengths, accumulate(self.counts), strict=True)
        length, upto = next(bins)
        for place in range(number):
            while (place + begin) * self.samples / number >= upto:
                length, upto = next(bins)
            yield min(length, seq_len)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batches of `micro_batch` samples, padded from the longest to a multiple or bucket."""

    mix: LengthMix
    ranks: int
    micro_batch: int
    seq_len: int
    multiple: int
    buckets: int

    @property
    def samples(self) -> float:
        """Mean samples of a rank's micro-batch."""
        return self.micro_batch

    @property
    def tokens(self) -> float:
        """Mean tokens of a rank's micro-batch, without padding."""
        return self.samples * self.mix.mean(self.seq_len)

    @cached_property
    def padded_share(self) -> float:
        """The expected tokens of the slowest rank, as a share of micro_batch x seq_len."""
        return self._padded(self.micro_batch * self.ranks) / self.seq_len

    @cached_property
    def real_share(self) -> float:
        """The expected share of a batch's tokens without padding."""
        return self.mix.mean(self.seq_len) / self._padded(self.micro_batch)

    @cached_property
    def ends(self) -> list[int]:
        """The lengths of `buckets`, ascending, with the shortest longest batches; else empty."""
        if not self.buckets:
            return []
        chances = defaultdict[int, float](float)
        for length, chance in self._longest(self._alike):
            chances[padded_to(length, self.multiple)] += chance
        return _best_ends(sorted(chances.items()), self.buckets)

    @property
    def _alike(self) -> int:
        """Samples that are padded to one length, of all ranks."""
        return self.micro_batch * self.ranks

    def shapes(self, draws: float) -> float:
        """Expected number of different shapes of so many micro-batches of a rank."""
        chances, bins = defaultdict[int, float](float), Counter[int]()
        for length, chance in self._longest(self.micro_batch):
            chances[self._to(length)] += chance
            bins[self._to(length)] += 1
        found, before = 0.0, 0
        for padded, chance in sorted(chances.items()):
            # A range of lengths counts as one here, but its batches have several padded lengths.
            several = 1.0
            if bins[padded] == 1 and not self.ends:
                several = (padded - before) * min(self.mix.density, 1 / self.multiple)
            several, before = max(1.0, several), padded
            found += several * (1 - (1 - min(1.0, chance / several)) ** draws)
        return found

    def worst(self) -> Rows:
        """The batch that needs the most memory: the longest samples, one padded for a mask."""
        most = min(self.mix.longest, self.seq_len)
        return [[most]] + [[max(1, most - 1)]] * (self.micro_batch - 1)

    def searched(self, micro_steps: int, seed: int) -> Drawn:
        """The micro-batches of a step in the search."""
        return [[self.worst()] * self.ranks]

    def cycle_steps(self, micro_steps: int) -> int:
        """Number of steps after which drawn batches repeat."""
        batches = max(LEAST_BATCHES, math.ceil(LEAST_SAMPLES / (self.micro_batch * self.ranks)))
        return math.ceil(batches / micro_steps)

    def draw(self, micro_steps: int, seed: int) -> Drawn:
        """The micro-batches of a cycle of steps, the same for the same `seed`.

        They are drawn evenly over the histogram and shuffled, a few times. The draw nearest to the
        expectation is taken, by real tokens and by padded tokens of the largest rank.
        """
        steps = self.cycle_steps(micro_steps)
        batches = min(MOST_BATCHES, steps * micro_steps) if steps == 1 else steps * micro_steps
        real = self.tokens * batches * self.ranks
        padded = self.padded_share * self.micro_batch * self.seq_len * batches
        rng = random.Random(seed)
        best: Drawn = []
        best_off = math.inf
        for _ in range(DRAWS):
            drawn = list(_in_groups(self._drawn(rng, batches), self.ranks))
            mine = sum(_tokens(rows) for batch in drawn for rows in batch)
            largest = sum(max(len(rows) * self._to(_longest(rows)) for rows in batch)
                          for batch in drawn)  # fmt: skip
            off = max(abs(mine / real - 1), abs(largest / padded - 1))
            if off < best_off:
                best, best_off = drawn, off
            if off < CLOSE:
                break
        return best

    def _drawn(self, rng: random.Random, batches: int) -> Iterator[Rows]:
        number = batches * self.ranks * self.micro_batch
        lengths = list(self.mix.evenly(number, rng.random(), self.seq_len))
        rng.shuffle(lengths)
        for samples in _in_groups(lengths, self.micro_batch):
            yield [[length] for length in samples]

    def _to(self, length: int) -> int:
        return padded_to(length, self.multiple, self.ends)

    def _padded(self, samples: int) -> float:
        """The expected padded length of the longest of so many samples."""
        return sum(chance * self._to(length) for length, chance in self._longest(samples))

    def _longest(self, samples: int) -> list[tuple[int, float]]:
        """Lengths with their chance to be the longest of so many samples, drawn at random.
        Source: David & Nagaraja, Order Statistics (2003), section 2.1."""
        # All samples are within a bin with the share up to it, to the power of their number.
        mix = self.mix
        upto = [0.0, *((count / mix.samples) ** samples for count in accumulate(mix.counts))]
        chances = [after - before for before, after in pairwise(upto)]
        cut = [min(length, self.seq_len) for length in mix.lengths]
        return list(zip(cut, chances, strict=True))


class _LikeAll(Batches):
    """Batches with varying numbers of samples: some of them stand for all."""

    @cached_property
    def _all(self) -> list[Rows]:
        raise NotImplementedError

    @cached_property
    def samples(self) -> float:
        return sum(len(row) for rows in self._all for row in rows) / len(self._all)

    @cached_property
    def tokens(self) -> float:
        return sum(map(_tokens, self._all)) / len(self._all)

    @cached_property
    def padded_share(self) -> float:
        sizes = [len(rows) * self._to(_longest(rows)) for rows in self._all]
        return sum(sizes) / len(sizes) / (self.micro_batch * self.seq_len)

    @cached_property
    def real_share(self) -> float:
        return self.tokens / (self.padded_share * self.micro_batch * self.seq_len)

    def shapes(self, draws: float) -> float:
        return min(draws, len({(len(rows), self._to(_longest(rows))) for rows in self._all}))

    def _drawn(self, rng: random.Random, batches: int) -> Iterator[Rows]:
        number = batches * self.ranks
        drawn = [rows for _ in range(-(-number // len(self._all)))
                 for rows in rng.sample(self._all, len(self._all))]  # fmt: skip
        yield from drawn[:number]


class _Packed(_LikeAll):
    """Rows of seq_len tokens that hold several samples, by best fit, the longest first."""

    @cached_property
    def _all(self) -> list[Rows]:
        number = max(LIKE_ALL, math.ceil(2 * self.micro_batch * self.seq_len
                                         / self.mix.mean(self.seq_len)))  # fmt: skip
        rows = _packed([*self.mix.evenly(number, 0.5, self.seq_len)], self.seq_len)
        random.Random(0).shuffle(rows)
        groups = _in_groups(rows, self.micro_batch)
        return [each for each in groups if len(each) == self.micro_batch]

    def _to(self, length: int) -> int:
        return self.seq_len

    def worst(self) -> Rows:
        return []

    def searched(self, micro_steps: int, seed: int) -> Drawn:
        return self.draw(micro_steps, seed)[:micro_steps]


class _ByTokens(_LikeAll):
    """As many samples as fit in micro_batch x seq_len tokens, from samples sorted by length."""

    @property
    def _alike(self) -> int:
        return 1

    @cached_property
    def _all(self) -> list[Rows]:
        number = max(LIKE_ALL, math.ceil(LEAST_BATCHES * self.micro_batch * self.seq_len
                                         / self.mix.mean(self.seq_len)))  # fmt: skip
        lengths = [*self.mix.evenly(number, 0.5, self.seq_len)][::-1]
        found, begin = list[Rows](), 0
        while begin < number:
            fit = self.micro_batch * self.seq_len // self._to(lengths[begin])
            found.append([[length] for length in lengths[begin : begin + fit]])
            begin += fit
        return found


@cache
def _kept(batches: Batches) -> Batches:
    """`batches`, from a cache that keeps their computed properties."""
    return batches


def _in_groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Groups of `size`; the last may be smaller. As itertools.batched of Python 3.12."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _tokens(rows: Rows) -> int:
    return sum(map(sum, rows))


def _longest(rows: Rows) -> int:
    return max(map(sum, rows))


def _packed(lengths: Sequence[int], seq_len: int) -> Rows:
    """Rows of at most `seq_len` tokens that hold samples of these lengths."""
    rows: Rows = []
    room: list[tuple[int, int]] = []  # of each row, with its number
    for length in sorted(lengths, reverse=True):
        place = bisect_left(room, (length, 0))
        if place < len(room):
            left, number = room.pop(place)
            rows[number].append(length)
        else:
            left, number = seq_len, len(rows)
            rows.append([length])
        insort(room, (left - length, number))
    return rows


def _best_ends(chances: Sequence[tuple[int, float]], number: int) -> list[int]:
    """At most `number` of the lengths, with the last; padding to them is the least."""
    import numpy as np  # late: --help does without

    lengths = np.array([length for length, _ in chances], dtype=float)
    upto = np.concatenate([[0.0], np.cumsum([chance for _, chance in chances])])
    # By [previous end][end].
    cost = np.where(
        np.tri(len(lengths) + 1, len(lengths), -1, dtype=bool),
        np.inf,
        (upto[None, 1:] - upto[:, None]) * lengths[None, :],
    )
    least, came = cost[0], []
    for _ in range(min(number, len(lengths)) - 1):
        every = np.concatenate([[0.0], least])[:, None] + cost
        came.append(every.argmin(axis=0))
        least = every.min(axis=0)
    place, ends = len(lengths), list[int]()
    for before in [*came[::-1], None]:
        if place:
            ends.append(int(lengths[place - 1]))
            place = int(before[place - 1]) if before is not None else 0
    return ends[::-1]


@cache
def _mean_power(mix: LengthMix, power: int, seq_len: int) -> float:
    bins = zip(mix.lengths, mix.counts, strict=True)
    total: int = sum(min(length, seq_len) ** power * count for length, count in bins)
    return total / mix.samples


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
