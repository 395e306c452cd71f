"""Answers of a plan: what fits, what to set by number of GPUs, and solutions of --solve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from autotune.advise.plan.expected import (
    Expected,
    Helpers,
    Largest,
    Plan,
    PlanRequest,
    largest,
    plan,
)
from autotune.errors import UsageError
from autotune.space.models import FAMILIES
from autotune.units import gib

MOST_MICRO_BATCH = 1024
MOST_GPUS = 1024
OR_MORE = "or more"
Quantity = Literal["micro_batch", "seq_len", "gpus"]
_LENGTHS_APART = 128
_LAST_LENGTH = 2**20
_ROUND_A_GUESS = 1 / 16
"""Distance from a guess to the two lengths tried with it, as a share of the remaining ones."""


@dataclass(frozen=True)
class Solved:
    quantity: Quantity
    value: int | None
    """None if not even the smallest, or the largest, value fits."""
    bound: str = ""
    """Why no larger value was tried; empty if one was."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    plans: Sequence[Plan]
    """By number of GPUs."""
    rows: Sequence[Expected]
    counts: Mapping[int, Expected | str] = field(default_factory=dict)
    """By number of GPUs, if several: the row to set, or why there is none."""
    solved: Solved | None = None
    """`rows` has the rows with that value."""

    @property
    def to_set(self) -> Sequence[Expected]:
        """The rows to set: one for each number of GPUs."""
        several = self.counts or self.solved
        return self.rows if several else [row for row in self.rows[:1] if row.may_fit]


def answer(
    asked: PlanRequest, counts: Sequence[int], solve: Quantity | None, helpers: Helpers
) -> Answer:
    """The answer for these numbers of GPUs; `solve` takes the first, or any.

    Raises:
        UsageError: there is no such model, or no candidate.
        ModelError: the model's own code failed.
    """
    if len(counts) > 1:
        return by_count(asked, counts, helpers)
    if solve == "gpus":
        return solve_gpus(asked, helpers)
    if solve is not None:
        solver = solve_seq_len if solve == "seq_len" else solve_micro_batch
        return solver(asked, counts[0], helpers)
    found = plan(asked, counts[0], helpers)
    return Answer(plans=[found], rows=[each.row for each in table(found)])


def table(found: Plan) -> list[Largest]:
    """The largest micro_batch of each build and length. First come those that may fit, in the
    order of a study; then the others, the smallest peak first."""

    def key(each: Largest) -> tuple[float, ...]:
        return (0, *_order(each.row)) if each.row.may_fit else (1, each.row.peak.bytes)

    return sorted(largest(found.expected), key=key)


def _order(row: Expected) -> tuple[float, float]:
    """The order of a study: likely fits first, then by expected value."""
    return not row.fits, -row.value * row.chance


def recommended(rows: Sequence[Expected]) -> Expected | None:
    """The row to set; None if nothing may fit."""
    return min((each.row for each in largest(rows) if each.row.may_fit), key=_order, default=None)


def fitting(rows: Sequence[Expected]) -> Expected | None:
    """The row to set if it likely fits; else None."""
    best = recommended(rows)
    return best if best is not None and best.fits else None


def by_count(asked: PlanRequest, counts: Sequence[int], helpers: Helpers) -> Answer:
    """The row to set on each number of GPUs. Raises UsageError if there is no candidate for any
    number."""
    found: dict[int, Expected | str] = {}
    plans: list[Plan] = []
    for count in counts:
        try:
            plans.append(plan(asked, count, helpers))
        except UsageError as error:
            found[count] = str(error)
        else:
            found[count] = recommended(plans[-1].expected) or why_not(plans[-1])
    if not plans:
        raise UsageError(str(found[counts[0]]))
    rows = [row for row in found.values() if isinstance(row, Expected)]
    return Answer(plans=plans, rows=rows, counts=found)


def _solved(found: Plan, row: Expected | None, *solved: Any) -> Answer:
    return Answer(plans=[found], rows=[] if row is None else [row], solved=Solved(*solved))


def why_not(found: Plan) -> str:
    """The least memory of any candidate: of a GPU, or of the host if only that is too small."""
    limits = found.space.limits
    best = max(found.expected, key=lambda row: row.chance)
    if best.may_fit:
        needed, allowed, whose = (
            (best.host_bytes, limits.host_limit_bytes, "of the host's memory")
            if best.limited_by == "host"
            else (best.peak.bytes, limits.limit_bytes, "a GPU")
        )
        return (
            f"nothing surely fits: {best.candidate.key} may, with {best.chance:.0%}; it needs"
            f" {gib(needed)} {whose}, and {gib(allowed)} are allowed"
        )
    on_gpu = [row for row in found.expected if row.peak.bytes <= limits.limit_bytes]
    if on_gpu:
        row = min(on_gpu, key=lambda row: (row.host_bytes, row.peak.bytes))
        return (
            f"nothing fits the host: of what fits a GPU, {row.candidate.key} needs the least of"
            f" the host's memory, {gib(row.host_bytes)}, and {gib(limits.host_limit_bytes)} are"
            " allowed"
        )
    row = min(found.expected, key=lambda row: row.peak.bytes)
    return (
        f"nothing fits: the least, {row.candidate.key}, needs {gib(row.peak.bytes)} a GPU, and"
        f" {gib(limits.limit_bytes)} are allowed"
    )


def solve_micro_batch(asked: PlanRequest, gpus: int, helpers: Helpers) -> Answer:
    """The largest micro_batch that fits, over all requested builds and lengths."""
    wide = asked.options.but(micro_batch=tuple(range(1, MOST_MICRO_BATCH + 1)))
    found = plan(replace(asked, options=wide), gpus, helpers)
    row = max(
        (row for row in found.expected if row.fits),
        key=lambda row: (row.candidate.micro_batch, row.value),
        default=None,
    )
    value = None if row is None else row.candidate.micro_batch
    bound = OR_MORE if value == MOST_MICRO_BATCH else ""
    return _solved(found, row, "micro_batch", value, bound)


def solve_seq_len(asked: PlanRequest, gpus: int, helpers: Helpers) -> Answer:
    """The longest samples that fit with a requested micro_batch; a multiple of 128. Raises
    UsageError if the model takes none of these lengths, or the plan refuses its options."""
    family = FAMILIES[asked.options.model.family]
    recipe = family.recipe(asked.options.model.asked)
    most = family.most_seq_len(recipe)
    longest = most or _LAST_LENGTH
    sizes = asked.options.space.axes.get("micro_batch") or (1,)
    every = [*range(_LENGTHS_APART, longest, _LENGTHS_APART), longest]
    if why := family.wrong_length(recipe, longest):
        why = why.partition("; ")[0]
        raise UsageError(f"--solve seq_len: {asked.options.model.name}: {why}; leave it out")
    every = [length for length in every if not family.wrong_length(recipe, length)]
    lengths = [n for n in every if _divides(asked, gpus, n)] or every
    helpers.lengths = lengths
    low, high = -1, len(lengths)
    plans: list[Plan] = []
    best: Expected | None = None
    over: dict[int, float] = {}
    while high - low > 1:
        places = _between(low, high, over) if over else sorted({0, high - 1})
        some = asked.options.but(
            seq_len=tuple(lengths[place] for place in places), micro_batch=sizes
        )
        found = plan(replace(asked, options=some), gpus, helpers)
        plans.append(found)
        for place in places:
            same = [row for row in found.expected if row.candidate.seq_len == lengths[place]]
            over[place] = min(map(_likely_bytes, same)) - found.space.limits.limit_bytes
            if (fits := fitting(same)) is None:
                high = place
                break
            low, best = place, fits
    value = None if low < 0 else lengths[low]
    bound = OR_MORE if most is None else "as many as the model has positions for"
    found = plans[0 if best is None else -1]
    return _solved(found, best, "seq_len", value, bound if value == longest else "")


def _between(low: int, high: int, over: Mapping[int, float]) -> list[int]:
    """Up to three places to try, interpolated from the bytes `over` the limit at both ends."""
    guess = low + round((high - low) * over[low] / ((over[low] - over[high]) or 1.0))
    apart = max(1, int((high - low) * _ROUND_A_GUESS))
    guess = min(max(guess, low + 1), high - 1)
    return [place for place in (guess - apart, guess, guess + apart) if low < place < high]


def _likely_bytes(row: Expected) -> float:
    """An upper bound of the peak, with about the probability that a row needs to fit."""
    return float((row.peak.bytes * row.peak.high_bytes) ** 0.5)


def _divides(asked: PlanRequest, gpus: int, length: int) -> bool:
    """Whether a micro_batch of samples of this length divides the global batch."""
    batch = asked.options.space.global_batch
    if batch is None or batch.unit != "tokens":
        return True
    sizes = asked.options.space.axes.get("micro_batch") or (1,)
    return any(batch.amount % (size * gpus * length) == 0 for size in sizes)


def solve_gpus(asked: PlanRequest, helpers: Helpers) -> Answer:
    """The fewest GPUs on which something fits, of the numbers that divide the global batch."""
    one = plan(asked, 1, helpers).space
    alike = {(c.micro_batch, c.seq_len): c for c in one.candidates}.values()
    counts = [
        count for count in range(1, MOST_GPUS + 1)
        if any(replace(one.workload, world_size=count).grad_accum(c) for c in alike)
    ]  # fmt: skip
    known: dict[int, tuple[Plan, Expected | None]] = {}

    def lacks(count: int) -> bool:
        found = plan(asked, count, helpers)
        known[count] = (found, fitting(found.expected))
        return known[count][1] is None

    most = last_that(lacks, counts)
    if most == counts[-1]:
        return _solved(known[most][0], None, "gpus", None)
    value = counts[0] if most is None else counts[counts.index(most) + 1]
    return _solved(*known[value], "gpus", value)


def last_that(holds: Callable[[int], bool], values: Sequence[int]) -> int | None:
    """The last of `values` for which `holds`, by few calls; None if there is none."""
    low, high = -1, 0
    while high < len(values) and holds(values[high]):
        low, high = high, 2 * high + 1
    if low < 0:
        return None
    high = min(high, len(values))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(values[middle]) else (low, middle)
    return values[low]
