"""Measurements of earlier studies: good for predictions, not for a choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.stopping import Interval

Point = tuple[Workload, Candidate]
"""A candidate with the workload that it belongs to."""


@dataclass(frozen=True, kw_only=True)
class EarlierProbe:
    """The part of a measurement that another study can use."""

    candidate: Candidate
    step: Interval
    disturbed_share: float
    device_bytes: int
    host_bytes: int
    mean_power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The measurements of one study, one for each candidate."""

    folder: str
    workload: Workload
    seen: list[EarlierProbe]
    timed: bool = True
    """Whether its times are of the same devices, not of emulated or other ones."""


def seen_in(records: Sequence[Record]) -> list[EarlierProbe]:
    """The last measurement of each candidate, by time: a final is later than its search."""
    found: dict[Candidate, EarlierProbe] = {}
    for record in records:
        if (measured := record.outcome.measurement) is not None:
            found[record.candidate] = EarlierProbe(
                candidate=record.candidate,
                step=measured.step,
                disturbed_share=measured.disturbed_share,
                device_bytes=measured.peaks.device_bytes,
                host_bytes=measured.peaks.host_bytes,
                mean_power_w=measured.mean_power_w,
            )
    return list(found.values())


def points(space: Space, earlier: Sequence[Earlier]) -> list[Point]:
    """The candidates of `space` in its order, then those that earlier studies measured."""
    own = [(space.workload, candidate) for candidate in space.candidates]
    return [*own, *((study.workload, seen.candidate) for study, seen in each_seen(earlier))]


def each_seen(earlier: Sequence[Earlier]) -> Iterator[tuple[Earlier, EarlierProbe]]:
    """Measurements in the order of `points`, each with its study."""
    for study in earlier:
        for seen in study.seen:
            yield study, seen
