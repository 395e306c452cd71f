"""best.json: which candidate won, and the document that says so.

Everything up to `best_json` is a pure function of finished records. `write_best` alone touches
the disk, and writes nothing that does not match `best.schema.json`.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.engines import deepspeed
from autotune.files import write_whole
from autotune.options import Objective, UsageError
from autotune.outcome import Measurement, Outcome, Record, Verdict, measurement
from autotune.space.space import Candidate, Limits, Space, Workload
from autotune.wire.messages import Conditions, Interval, Peaks

SCHEMA_VERSION = 1
MAX_TIE = 0.03
"""Candidates slower than the fastest by more than this share are not tied, however noisy it was:
memory below the ceiling is not worth more speed than that."""
CLEAR_MARGIN = 0.1
"""How much faster, interval to interval, an unconfirmed candidate must be to win over a confirmed
one. Finals come last, on a warm machine, and of what looked best once a part was luck: they come
out slower than the search, by 1 to 12 % in results/samples. Intervals this far apart are more."""


@dataclass(frozen=True)
class Choice:
    """What a study found. Of a candidate measured several times, one pooled `Record` stands."""

    record: Record
    confirmed: bool
    """Whether it was measured again in a fresh group, and every time found ok."""
    ties: tuple[Record, ...]
    """Others within the noise of the fastest, fastest first; they need no less memory."""
    cells: tuple[Record, ...]
    """The best of every (depth, seq_len) in which anything fits, ascending."""


def winner(records: Iterable[Record], workload: Workload, objective: Objective) -> Choice | None:
    """The best of `records`; None where no candidate was measured to the end and fits.

    Confirmed candidates come first. An unconfirmed one wins only if there is none of them, or if
    it is clearly faster than the best of them: then something was wrong with the finals.
    """
    standing = _standing(records, workload)
    measured = [r for r in standing if r.outcome.verdict is Verdict.OK]
    if not measured:
        return None
    best, ties = _select([r for r in measured if r.kind == "final"] or measured, objective)
    faster = [r for r in measured if r.kind == "search" and _clearly_faster(r, best, objective)]
    if faster:
        best, ties = _select(faster, objective)
    return Choice(best, best.kind == "final", ties, _cells(standing, best, objective))


def pool(rounds: Sequence[Record], workload: Workload) -> Record:
    """One record for several rounds of one candidate; the first that is not ok stands for all.

    Peaks are the largest of any round. The step time is the median of the rounds' medians, and its
    interval reaches from the lowest to the highest bound of any round. That is wider than the
    interval of all steps taken together, on purpose: steps of one process share their memory
    layout, clocks and neighbours, so what differs between processes shows only between rounds.

    Raises:
        ValueError: no rounds, or rounds of several candidates.
    """
    if len({r.candidate for r in rounds}) != 1:
        raise ValueError("pool takes the rounds of exactly one candidate")
    first = rounds[0]
    for record in rounds:
        if record.outcome.verdict is not Verdict.OK:
            return record
    if len(rounds) == 1:
        return first
    outcomes = [r.outcome for r in rounds]
    measured = [_measured(r) for r in rounds]
    outcome = Outcome(
        Verdict.OK,
        started_s=min(o.started_s for o in outcomes),
        probe_s=sum(o.probe_s for o in outcomes),
        group_start_s=sum(o.group_start_s for o in outcomes),
        warmup_s=sum(o.warmup_s for o in outcomes),
        timed_s=sum(o.timed_s for o in outcomes),
        measurement=measurement(
            first.candidate,
            workload,
            _pooled_interval([m.step for m in measured]),
            peaks=Peaks.largest([m.peaks for m in measured]),
            disturbed_share=max(m.disturbed_share for m in measured),
            conditions=_pooled_conditions([m.conditions for m in measured]),
        ),
        predicted_peak_bytes=first.outcome.predicted_peak_bytes,
        attempts=sum(o.attempts for o in outcomes),
        parameters=first.outcome.parameters,
        versions=first.outcome.versions,
    )
    return Record(first.number, first.kind, first.candidate, outcome)


def best_json(
    choice: Choice,
    records: Iterable[Record],
    space: Space,
    objective: Objective,
    *,
    fingerprint: dict[str, Any],
    environment: dict[str, Any],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """The content of best.json. Its names are a contract: scripts and exporters rely on them.

    `records` are all of the study's; `trials` counts the search's by verdict, and its finals.
    """
    records = list(records)
    counts = Counter(r.outcome.verdict for r in records if r.kind == "search")
    return {
        "schema_version": SCHEMA_VERSION,
        "confirmed": choice.confirmed,
        **_entry(choice.record, space),
        "limits": _limits(space.limits),
        "objective": objective,
        "cells": [_cell(r, space) for r in choice.cells],
        "ties": [_entry(r, space) for r in choice.ties],
        "trials": {
            **{verdict.value: counts[verdict] for verdict in Verdict},
            "finals": sum(r.kind == "final" for r in records),
        },
        "prediction": _prediction(records),
        "exports": _exports(choice.record.candidate, space.workload, fingerprint["kind"]),
        "fingerprint": fingerprint,
        "environment": environment,
        "provenance": provenance,
    }


def _prediction(records: Sequence[Record]) -> dict[str, Any]:
    """How far measured peaks were from what was predicted just before, as shares of them."""
    errors = [
        abs(r.outcome.predicted_peak_bytes / r.outcome.measurement.peaks.device_bytes - 1)
        for r in records
        if r.kind == "search"
        and r.outcome.measurement is not None
        and r.outcome.predicted_peak_bytes is not None
    ]
    median = statistics.median(errors) if errors else None
    return {"peak_median_error": median, "trials": len(errors)}


def write_best(path: Path, document: dict[str, Any]) -> None:
    """Write `document` to `path` whole or not at all: a reader never sees a part of it.

    Raises:
        ValueError: it does not match the schema, or holds a number that JSON has no word for;
            the message names the path of the field.
    """
    _validate(document)
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def read_best(path: Path) -> dict[str, Any]:
    """The document that `write_best` wrote to `path`.

    Raises:
        UsageError: it cannot be read, or does not match the schema.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _validate(document)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no best.json: {error!s:.200}") from error
    return document


def load_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of best.json."""
    text = resources.files(__package__).joinpath("best.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _standing(records: Iterable[Record], workload: Workload) -> list[Record]:
    """One record per candidate that fits."""
    by_candidate: defaultdict[Candidate, list[Record]] = defaultdict(list)
    for record in records:
        by_candidate[record.candidate].append(record)
    standing = [_stands(of_one, workload) for of_one in by_candidate.values()]
    return [r for r in standing if r is not None]


def _stands(records: list[Record], workload: Workload) -> Record | None:
    """The fullest measurement of one candidate: its finals, else its search; None: it has none.

    Running out of memory once overrules every time that it did not. Any other failure of a final
    round may be the end of the budget, and leaves what the search measured, unconfirmed. A skipped
    round never ran and says nothing.
    """
    if any(r.outcome.verdict.bounds_memory for r in records):
        return None
    rounds = [r for r in records if r.kind == "final" and r.outcome.verdict is not Verdict.SKIPPED]
    if rounds:
        pooled = pool(rounds, workload)
        if pooled.outcome.verdict is Verdict.OK:
            return pooled
    searched = [
        r
        for r in records
        if r.kind == "search" and r.outcome.verdict.fits and r.outcome.measurement is not None
    ]
    return max(searched, key=_fullness, default=None)


def _fullness(record: Record) -> tuple[bool, int]:
    return record.outcome.verdict is Verdict.OK, _measured(record).step.steps


def _select(records: list[Record], objective: Objective) -> tuple[Record, tuple[Record, ...]]:
    """Of those within the noise of the fastest, the one with the least memory; and the others."""
    ordered = sorted(records, key=lambda r: -_measured(r).value(objective))
    fastest = _measured(ordered[0])
    tied = [r for r in ordered if _within_noise(_measured(r), fastest, objective)]
    best = min(tied, key=lambda r: _measured(r).peaks.device_bytes)
    return best, tuple(r for r in tied if r is not best)


def _within_noise(measured: Measurement, fastest: Measurement, objective: Objective) -> bool:
    """Whether the difference is no more than the two intervals' half widths, as variances add,
    and no more than `MAX_TIE`."""
    difference = 1 - measured.value(objective) / fastest.value(objective)
    noise = math.hypot(measured.step.half_width, fastest.step.half_width)
    return difference <= min(noise, MAX_TIE)


def _clearly_faster(record: Record, confirmed: Record, objective: Objective) -> bool:
    """Whether the whole interval of `record` is above that of `confirmed` by `CLEAR_MARGIN`."""
    one, other = _measured(record), _measured(confirmed)
    slowest = one.value(objective) * one.step.median / one.step.high
    fastest = other.value(objective) * other.step.median / other.step.low
    return slowest > fastest * (1 + CLEAR_MARGIN)


def _cells(standing: list[Record], best: Record, objective: Objective) -> tuple[Record, ...]:
    """The best of every cell; in the winner's own that is the winner, whatever tied with it.

    Elsewhere the fastest wins, without the noise: where probes were stopped early the intervals
    are so wide that nearly everything would tie.
    """
    ordered = sorted(standing, key=lambda r: _measured(r).value(objective))
    cells = {r.candidate.cell: r for r in ordered} | {best.candidate.cell: best}
    return tuple(cells[cell] for cell in sorted(cells))


def _measured(record: Record) -> Measurement:
    if record.outcome.measurement is None:
        raise ValueError(f"{record.candidate.key} has no measurement")
    return record.outcome.measurement


def _pooled_interval(steps: list[Interval]) -> Interval:
    return Interval(
        statistics.median(s.median for s in steps),
        min(s.low for s in steps),
        max(s.high for s in steps),
        sum(s.steps for s in steps),
    )


def _pooled_conditions(rounds: list[Conditions]) -> Conditions:
    """Times add up; of every reading the worst."""
    clocks = [c.sm_clock_mhz for c in rounds if c.sm_clock_mhz is not None]
    powers = [c.power_w for c in rounds if c.power_w is not None]
    temperatures = [c.temperature_c for c in rounds if c.temperature_c is not None]
    throttles = [c.throttle_reasons for c in rounds if c.throttle_reasons is not None]
    return Conditions(
        interval_cpu_s=sum(c.interval_cpu_s for c in rounds),
        busy_cpu_s=sum(c.busy_cpu_s for c in rounds),
        steal_cpu_s=sum(c.steal_cpu_s for c in rounds),
        own_cpu_s=sum(c.own_cpu_s for c in rounds),
        sm_clock_mhz=min(clocks, default=None),
        power_w=max(powers, default=None),
        temperature_c=max(temperatures, default=None),
        # A bit mask: any round's reason is one of the whole.
        throttle_reasons=functools.reduce(operator.or_, throttles) if throttles else None,
        thermally_throttled=any(c.thermally_throttled for c in rounds),
    )


def _entry(record: Record, space: Space) -> dict[str, Any]:
    return {
        "config": _config(record.candidate, space.workload),
        "measured": _measured_json(_measured(record), space.limits),
    }


def _cell(record: Record, space: Space) -> dict[str, Any]:
    return {
        "depth": record.candidate.depth,
        "seq_len": record.candidate.seq_len,
        **_entry(record, space),
        "verdict": record.outcome.verdict.value,
        "confirmed": record.kind == "final",
    }


def _config(candidate: Candidate, workload: Workload) -> dict[str, Any]:
    samples = workload.global_batch_samples(candidate)
    return {
        "model": workload.model,
        "depth": candidate.depth,
        "width": workload.shape(candidate.depth).width,
        "vocab_size": workload.vocab_size,
        "seq_len": candidate.seq_len,
        "micro_batch": candidate.micro_batch,
        "zero_stage": candidate.zero_stage,
        "offload": candidate.offload,
        "checkpointing": candidate.checkpointing,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "engine": workload.engine_of(candidate),
        "world_size": workload.world_size,
        "grad_accum": workload.grad_accum(candidate),
        "global_batch_samples": samples,
        "global_batch_tokens": samples * candidate.seq_len,
    }


def _measured_json(measured: Measurement, limits: Limits) -> dict[str, Any]:
    step, peaks = measured.step, measured.peaks
    return {
        "tokens_per_s": measured.tokens_per_s,
        "samples_per_s": measured.samples_per_s,
        "model_flops_per_s": measured.model_flops_per_s,
        "step_s": {
            "median": step.median,
            "low": step.low,
            "high": step.high,
            "steps": step.steps,
        },
        "peak_bytes": {
            "device": peaks.device_bytes,
            "reserved": peaks.reserved_bytes,
            "allocated": peaks.allocated_bytes,
            "host": peaks.host_bytes,
        },
        "share_of_capacity": peaks.device_bytes / limits.capacity_bytes,
        "headroom_bytes": limits.limit_bytes - peaks.device_bytes,
        "disturbed_share": measured.disturbed_share,
    }


def _exports(candidate: Candidate, workload: Workload, kind: str) -> dict[str, Any]:
    """Configs that a training run can use as they are: only of the engine that was probed."""
    if workload.engine_of(candidate) != "deepspeed":
        return {}
    return {"deepspeed": deepspeed.config(candidate, workload, kind)}


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "capacity_bytes": limits.capacity_bytes,
        "ceiling": limits.ceiling,
        "limit_bytes": limits.limit_bytes,
        "host_capacity_bytes": limits.host_capacity_bytes,
        "host_ceiling": limits.host_ceiling,
        "host_limit_bytes": limits.host_limit_bytes,
    }


def _validate(document: dict[str, Any]) -> None:
    # A schema cannot say it: to jsonschema NaN is a number that is below no minimum.
    for where in _not_finite(document, "$"):
        raise ValueError(f"best.json: {where} is not a finite number")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(load_schema()).iter_errors(document))
    if error is not None:
        raise ValueError(f"best.json: {error.json_path}: {error.message}")


def _not_finite(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield where
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{where}[{index}]")
