"""The choice of the winner: a pure function of finished records."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from autotune.space.candidate import Candidate
from autotune.space.outcome import Measurement, Objective, Record, Verdict, measurement
from autotune.space.workload import Workload
from autotune.wire.reports import TRAIN, Conditions, InPhase, Peaks, Ran
from autotune.wire.stopping import Interval

MAX_TIE = 0.01
"""Candidates that are slower than the fastest by more than this share are not tied, however noisy
the measurements are. Less memory is not worth more speed."""
CLEAR_MARGIN = 0.1
"""An unconfirmed candidate must be faster by this share, interval to interval, to win over a
confirmed one. Finals are slower than the search, by 1 to 12 % in results/samples: they come last,
on a warm machine, and the best looked best partly by luck. The margin grows if probes of one
candidate spread by more than half of it."""
AGREE, MOST_AGREE = 0.15, 0.25
"""Measurements of one candidate agree if they differ by at most the first share, as finals and
search do. Noisy studies allow two standard deviations, up to the second share."""

NOISY = 0.05
"""If probes of one candidate differ by this share, so may tied candidates, beyond `MAX_TIE`."""
FEWEST_PAIRS = 2
"""The fewest pairs of finals of one candidate from which noise is estimated."""
EQUAL = 0.01
"""Candidates that differ by less than this share are as good as each other."""
PROBABLY = 0.5
"""From this probability on, another candidate is called probably the best."""


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """How sure it is, by all measurements, that a candidate is the best."""

    best: float
    """Probability that it is the best of those that fitted."""
    equal: float
    """Probability that it is the best, or is within `EQUAL` of it."""
    next: Candidate | None
    """The likeliest best one beside it."""
    next_best: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The spread of single finals of one candidate."""

    differ: float
    """Median difference over all pairs, as a share of the slower one's step time; under 1."""
    pairs: int

    @property
    def noisy(self) -> bool:
        return self.differ >= NOISY

    @property
    def spread(self) -> float:
        """Standard deviation of a probe's logarithm: half of normal pairs differ by 0.95 of it."""
        return -math.log(1 - self.differ) / 0.954


_SUMMED = ("probe_s", "group_start_s", "compile_s", "warmup_s", "timed_s", "attempts")
"""Fields of outcomes that add up over rounds."""
Unconfirmed = Literal[
    "no finals",
    "its finals failed",
    "its measurements differ",
    "other finals were slower",
    "emulated GPUs",
]
MEASURED_UNCONFIRMED: tuple[Unconfirmed, ...] = (
    "its measurements differ",
    "other finals were slower",
)
"""Reasons that more finals may remove."""
UNCONFIRMED: dict[Unconfirmed, str] = {
    "no finals": "it was not measured again in fresh processes",
    "its finals failed": "one of its finals failed",
    "its measurements differ": "its finals differ from each other, or from the search",
    "other finals were slower": "finals of others were much slower, and it had none",
    "emulated GPUs": "nothing was timed on emulated GPUs",
}
"""The reasons as ends of sentences."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The result of a study. One pooled `Record` stands for all measurements of a candidate."""

    record: Record
    confirmed: bool
    """Whether finals in fresh groups were ok every time, and speeds agree (`agree`)."""
    ties: tuple[Record, ...]
    """Others within the noise of the fastest, fastest first; they need no less memory."""
    cells: tuple[Record, ...]
    """The best of every (depth, seq_len) in which anything fits, ascending."""
    pareto: tuple[Record, ...] = ()
    """The Pareto front of speed and energy, the fastest first. Empty if energy is unknown."""
    same_batch: tuple[Record, ...] = ()
    """If the global batch is given: the best of every micro_batch in the cell of `record`."""
    certainty: Certainty | None = None
    repeats: Repeats | None = None
    unconfirmed: Unconfirmed | None = None


def winner(
    records: Iterable[Record],
    workload: Workload,
    objective: Objective,
    believed: Callable[[Candidate], float] | None = None,
) -> Choice | None:
    """The best of `records`; None if no candidate fits.

    `believed` is a candidate's value by all measurements together; without it each record stands
    for itself. A belief cannot overrule finals that differ by more than the noise.

    Candidates with finals come first. Another one wins if there are none, or if it is clearly
    faster, measured and believed: then something was wrong with the finals. If lengths differ, it
    never wins: only finals ran the mix.
    """
    records = list(records)
    standing = _standing(records, workload)
    # Candidates that were stopped early fit, too. They are the last resort.
    measured = [r for r in standing if r.outcome.verdict is Verdict.OK] or standing
    if not measured:
        return None

    def measured_value(record: Record) -> float:
        return record.measured.value(objective)

    def value(record: Record) -> float:
        return measured_value(record) if believed is None else believed(record.candidate)

    finals = [r for r in measured if r.purpose == "final"]
    repeats = repeats_in(records)
    rounds = Counter(
        r.candidate
        for r in records
        if r.purpose == "final" and r.outcome.verdict is not Verdict.SKIPPED
    )
    if finals:
        best, ties = _select_final(finals, value, measured_value, repeats, rounds)
    else:
        best, ties = _select(measured, value)
    margin = max(CLEAR_MARGIN, 2 * repeats.spread if repeats is not None else 0.0)
    faster = [
        r
        for r in measured
        if r.purpose == "search"
        and value(r) > (1 + CLEAR_MARGIN) * value(best)
        and _clearly_faster(r, best, objective, margin)
    ]
    if faster and workload.length_mix is None:
        best, ties = _select(faster, value)
    why: Unconfirmed | None = None
    if best.purpose != "final":
        failed = best.candidate in rounds
        why = "its finals failed" if failed else "no finals"
        if finals:
            why = "other finals were slower"
    elif not agree([r for r in records if r.candidate == best.candidate], workload, repeats):
        why = "its measurements differ"
    known = value if workload.length_mix is not None else measured_value
    launches = [r for r in records if r.outcome.phases]
    whole = {r.candidate: _with_phases(r, launches) for r in standing}
    best, standing = whole[best.candidate], list(whole.values())
    return Choice(
        record=best,
        confirmed=why is None,
        unconfirmed=why,
        repeats=repeats,
        ties=tuple(whole[r.candidate] for r in ties),
        cells=_best_of_each(lambda c: c.cell, standing, best, known),
        pareto=_pareto(measured, objective),
        same_batch=_same_batch(standing, best, known) if workload.global_batch else (),
    )


def _with_phases(record: Record, launches: Sequence[Record]) -> Record:
    each = [r.outcome.phases for r in launches if r.candidate == record.candidate]
    if not each:
        return record
    found = record.measured
    own = found.phases or {TRAIN: InPhase(peaks=found.peaks, seconds=0.0, count=0)}
    phases = InPhase.largest([own, *each])
    peaks = Peaks.largest([found.peaks, *(seen.peaks for seen in phases.values())])
    measured = replace(found, peaks=peaks, phases=phases)
    return replace(record, outcome=replace(record.outcome, measurement=measured))


def repeats_in(records: Iterable[Record]) -> Repeats | None:
    """The spread of finals; None if there are too few. Probes of the search have a bias."""
    steps: defaultdict[Candidate, list[float]] = defaultdict(list)
    for record in records:
        if record.purpose == "final" and record.outcome.verdict is Verdict.OK:
            steps[record.candidate].append(record.measured.step.median)
    pairs = [pair for each in steps.values() for pair in itertools.combinations(each, 2)]
    if len(pairs) < FEWEST_PAIRS:
        return None
    return Repeats(differ=statistics.median(1 - min(p) / max(p) for p in pairs), pairs=len(pairs))


def agree(records: Sequence[Record], workload: Workload, repeats: Repeats | None) -> bool:
    """Whether one candidate's finals agree, and with its search unless lengths differ.

    `repeats` are its study's. A search slower than two agreeing finals was disturbed.
    """
    seen: dict[str, list[float]] = {"final": [], "search": []}
    for record in records:
        if record.outcome.verdict is Verdict.OK and record.purpose in seen:
            seen[record.purpose].append(math.log(record.measured.step.median))
    finals, searched = seen["final"], seen["search"] if workload.length_mix is None else []
    spread = repeats.spread if repeats is not None else 0.0
    most = -math.log(1 - min(MOST_AGREE, max(AGREE, 1 - math.exp(-2 * spread))))
    if not finals:
        return True
    middle = statistics.median(finals)
    apart = 2 * statistics.median(abs(each - middle) for each in finals)  # if two: the difference
    slower = [middle - each if len(finals) > 1 else abs(middle - each) for each in searched]
    return max([apart, *slower]) <= most


def pool(rounds: Sequence[Record], workload: Workload) -> Record:
    """One record for several rounds of one candidate; the first that is not ok stands for all.

    Peaks are the largest of any round. The step time is the median of the rounds' medians. Its
    interval reaches from the lowest to the highest bound of any round. It is wider than that of
    all steps together, on purpose. Steps of one process share memory layout, clocks and
    neighbours, so differences between processes show only between rounds.
    """
    first = rounds[0]
    for record in rounds:
        if record.outcome.verdict is not Verdict.OK:
            return record
    if len(rounds) == 1:
        return first
    outcomes = [r.outcome for r in rounds]
    measured = [r.measured for r in rounds]
    powers_w = [m.mean_power_w for m in measured if m.mean_power_w is not None]
    sums = {name: sum(getattr(each, name) for each in outcomes) for name in _SUMMED}
    outcome = replace(
        first.outcome,
        **sums,
        started_s=min(each.started_s for each in outcomes),
        measurement=measurement(
            first.candidate,
            workload,
            _pooled_interval([m.step for m in measured]),
            peaks=Peaks.largest([m.peaks for m in measured]),
            disturbed_share=max(m.disturbed_share for m in measured),
            conditions=_pooled_conditions([m.conditions for m in measured]),
            kernels=first.measured.kernels,
            compile_s=max(m.compile_s for m in measured),
            compilations=max(m.compilations for m in measured),
            shape_compile_s=max(m.shape_compile_s for m in measured),
            ran=_pooled_run([m.ran for m in measured]),
            mean_power_w=statistics.median(powers_w) if powers_w else None,
            phases=InPhase.largest([m.phases for m in measured]),
            rank_bytes=[max(each) for each in zip(*(m.rank_bytes for m in measured), strict=True)],
        ),
    )
    return replace(first, outcome=outcome)


def _standing(records: Iterable[Record], workload: Workload) -> list[Record]:
    """One record per candidate that fits."""
    by_candidate: defaultdict[Candidate, list[Record]] = defaultdict(list)
    for record in records:
        by_candidate[record.candidate].append(record)
    standing = [_stands(of_one, workload) for of_one in by_candidate.values()]
    return [r for r in standing if r is not None]


def _stands(records: list[Record], workload: Workload) -> Record | None:
    """The fullest measurement of one candidate: its finals, else its search; None without any.

    One out-of-memory error overrules all other records. Another failure of a final may be the end
    of the budget: the search's measurement stays, unconfirmed. A skipped round says nothing.
    """
    if any(r.outcome.verdict.bounds_memory for r in records):
        return None
    rounds = [
        r for r in records if r.purpose == "final" and r.outcome.verdict is not Verdict.SKIPPED
    ]
    if rounds:
        pooled = pool(rounds, workload)
        if pooled.outcome.verdict is Verdict.OK:
            return pooled
    searched = [
        r
        for r in records
        if r.purpose == "search" and r.outcome.verdict.fits and r.outcome.measurement is not None
    ]
    return max(searched, key=_fullness, default=None)


def _fullness(record: Record) -> tuple[bool, int]:
    return record.outcome.verdict is Verdict.OK, record.measured.step.steps


def _select(
    records: list[Record], value: Callable[[Record], float]
) -> tuple[Record, tuple[Record, ...]]:
    """The candidate with the least memory within the noise of the fastest; and the others."""
    ordered = sorted(records, key=value, reverse=True)
    fastest = ordered[0]
    tied = [
        r for r in ordered if 1 - value(r) / value(fastest) <= _noise(r.measured, fastest.measured)
    ]
    best = min(tied, key=lambda r: r.measured.peaks.device_bytes)
    return best, tuple(r for r in tied if r is not best)


def _select_final(
    finals: list[Record],
    value: Callable[[Record], float],
    measured: Callable[[Record], float],
    repeats: Repeats | None,
    rounds: Mapping[Candidate, int],
) -> tuple[Record, tuple[Record, ...]]:
    """`_select` among `finals`, by the standard error of a difference. A candidate that is slower
    by more cannot win; a faster one than the winner is tied with it."""
    leader = max(finals, key=measured)
    spread = repeats.spread if repeats is not None else 0.0

    def level(record: Record) -> bool:
        each = 1 / rounds[record.candidate] + 1 / rounds[leader.candidate]
        noise = max(_noise(record.measured, leader.measured), spread * math.sqrt(each))
        return measured(record) >= measured(leader) * math.exp(-noise)

    able = [r for r in finals if level(r)]
    fastest, others = _select(able, value)
    if repeats is not None and repeats.noisy:
        least = (1 - NOISY) * value(fastest)
        others = tuple(r for r in able if r is not fastest and value(r) >= least)
    others += tuple(r for r in able if measured(r) > measured(fastest) and r not in others)
    best = min((fastest, *others), key=lambda r: r.measured.peaks.device_bytes)
    tied = sorted((fastest, *others), key=value, reverse=True)
    return best, tuple(r for r in tied if r is not best)


def _noise(one: Measurement, other: Measurement) -> float:
    """The share by which tied candidates may differ: half widths as variances, to `MAX_TIE`."""
    return min(math.hypot(one.step.half_width, other.step.half_width), MAX_TIE)


def _clearly_faster(
    record: Record, confirmed: Record, objective: Objective, margin: float
) -> bool:
    """Whether the interval of `record` lies above that of `confirmed` by the share `margin`."""
    one, other = record.measured, confirmed.measured
    slowest = one.value(objective) * one.step.median / one.step.high
    fastest = other.value(objective) * other.step.median / other.step.low
    return slowest > fastest * (1 + margin)


def _best_of_each(
    what: Callable[[Candidate], Any],
    among: list[Record],
    best: Record,
    value: Callable[[Record], float],
) -> tuple[Record, ...]:
    """The best record for each value of `what`, ascending. The overall winner is best in its own.

    Elsewhere the fastest wins, without regard to noise: intervals of probes that were stopped
    early are so wide that nearly everything would tie.
    """
    ordered = sorted(among, key=value)
    found = {what(r.candidate): r for r in [*ordered, best]}
    return tuple(found[key] for key in sorted(found))


def _same_batch(
    standing: list[Record], best: Record, value: Callable[[Record], float]
) -> tuple[Record, ...]:
    """The best of every micro_batch in the winner's cell; empty if there is only one."""
    cell = [r for r in standing if r.candidate.cell == best.candidate.cell]
    found = _best_of_each(lambda c: c.micro_batch, cell, best, value)
    return found if len(found) > 1 else ()


def _pareto(measured: list[Record], objective: Objective) -> tuple[Record, ...]:
    """The Pareto front of work per second and per joule, by the objective's work."""
    counted: Objective = "tokens_per_s" if objective == "tokens_per_joule" else objective
    known = [
        (r.measured.value(counted), r.measured.value(counted) / power_w, r)
        for r in measured
        if (power_w := r.measured.mean_power_w)
    ]
    front: list[Record] = []
    most = 0.0
    for _, a_joule, record in sorted(known, key=lambda each: each[:2], reverse=True):
        if a_joule > most:
            front.append(record)
            most = a_joule
    return tuple(front)


def _pooled_interval(steps: list[Interval]) -> Interval:
    return Interval(
        statistics.median(s.median for s in steps),
        min(s.low for s in steps),
        max(s.high for s in steps),
        sum(s.steps for s in steps),
    )


def _pooled_run(ran: Sequence[Ran | None]) -> Ran | None:
    """The last run, with the longest wait of all."""
    known = [each for each in ran if each is not None]
    if not known:
        return None
    return replace(known[-1], waiting_share=max(each.waiting_share for each in known))


def _pooled_conditions(rounds: list[Conditions]) -> Conditions:
    """Times add up; each reading is the worst."""
    pooled = Conditions(
        interval_cpu_s=sum(c.interval_cpu_s for c in rounds),
        busy_cpu_s=sum(c.busy_cpu_s for c in rounds),
        steal_cpu_s=sum(c.steal_cpu_s for c in rounds),
        own_cpu_s=sum(c.own_cpu_s for c in rounds),
        foreign_bytes=max(c.foreign_bytes for c in rounds),
    )
    return pooled.at_worst(rounds)
