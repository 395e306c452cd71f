"""The content of best.json for a choice, or for a candidate that was not measured."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from autotune.result.best import (
    FINALS,
    UNKNOWN,
    Best,
    BestLimits,
    Cell,
    Config,
    Measured,
    PeakBytes,
    PeakErrors,
    Phase,
    PhaseTook,
    Routed,
    StepTime,
    Sure,
    Tie,
)
from autotune.result.choice import Certainty, Choice
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.outcome import Objective, Record, Verdict, phase_of_peak
from autotune.space.space import Limits, Space
from autotune.space.workload import Workload
from autotune.wire.reports import HOT, TRAIN, InPhase, Peaks, Ran


def best_of(
    choice: Choice,
    records: Iterable[Record],
    space: Space,
    objective: Objective,
    *,
    fingerprint: dict[str, Any],
    environment: dict[str, Any],
    provenance: dict[str, Any],
    command: list[str] | None = None,
) -> Best:
    """The content of best.json for `choice`, of a study with these `records`."""
    records = list(records)
    counts = Counter(r.outcome.verdict for r in records if r.purpose == "search")
    emulated = bool(fingerprint.get("devices", {}).get("emulated"))
    recorded = str(provenance.get("options", {}).get("device")).startswith("replay:")
    winner = tie_of(choice.record, space.workload, space.limits)
    return Best(
        device="emulated" if emulated else None,
        confirmed=choice.confirmed and not emulated,
        config=winner.config,
        measured=winner.measured,
        limits=_limits(space.limits),
        objective=objective,
        dtypes=_dtypes(choice.record.candidate, space.workload),
        sure=_sure(choice.certainty, space, winner.config),
        repeats=choice.repeats,
        unconfirmed="emulated GPUs" if emulated else choice.unconfirmed,
        cells=tuple(_cell(r, space, choice) for r in choice.cells),
        ties=tuple(tie_of(r, space.workload, space.limits) for r in choice.ties),
        pareto=tuple(tie_of(r, space.workload, space.limits) for r in choice.pareto),
        same_batch=tuple(_cell(r, space, choice) for r in choice.same_batch),
        trials={
            **{verdict.value: counts[verdict] for verdict in Verdict},
            FINALS: sum(
                r.purpose == "final" and r.outcome.verdict != Verdict.SKIPPED for r in records
            ),
        },
        candidates=len(space.candidates),
        prediction=_prediction(records, of_script=space.workload.of_script),
        routing=next((each for each in get_args(Routed) if each == space.workload.routed), None),
        length_mix=space.workload.length_mix,
        unseen=None if recorded else unseen(choice.record.measured.phases),
        exports=_exports(
            choice.record.candidate,
            space.workload.over(winner.config.replicas, choice.record.candidate),
            fingerprint["kind"],
            environment,
        ),
        fingerprint=fingerprint,
        environment=environment,
        provenance=provenance,
        command=command,
    )


def unmeasured(
    candidate: Candidate,
    space: Space,
    device_kind: str,
    replicas: int | None = None,
    **provenance: Any,
) -> Best:
    """best.json if `candidate` were the winner, unmeasured; `replicas` share the global batch."""
    nothing = Measured(
        tokens_per_s=0.0, samples_per_s=0.0, model_flops_per_s=0.0,
        step_s=StepTime(0.0, 0.0, 0.0, 0), peak_bytes=PeakBytes(0, 0, 0, 0), share_of_capacity=0.0,
    )  # fmt: skip
    return Best(
        confirmed=False,
        config=_config(candidate, space.workload, replicas=replicas),
        measured=nothing,
        limits=_limits(space.limits),
        objective="tokens_per_s",
        dtypes=_dtypes(candidate, space.workload),
        cells=(),
        ties=(),
        trials={},
        exports=_exports(candidate, space.workload.over(replicas, candidate), device_kind, {}),
        fingerprint={"kind": device_kind},
        environment={},
        provenance=provenance,
    )


def _exports(
    candidate: Candidate, workload: Workload, device_kind: str, environment: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The engine's configuration, and the allocator's settings: the candidate's or the user's."""
    engine, conf = engine_of(workload, candidate), candidate.alloc_conf
    config = engine.config(candidate, workload, device_kind)
    found = {str(engine.package): config} if config else {}
    set_before = environment.get("variables", {}) if device_kind == "cuda" else {}
    own = {name: value for name, value in set_before.items() if name.endswith("_ALLOC_CONF")}
    variables = {"PYTORCH_ALLOC_CONF": conf} if conf else own
    return found | ({"env": variables} if variables else {})


def _prediction(records: Sequence[Record], *, of_script: bool) -> PeakErrors:
    """Errors of predictions. A script has none before its first measurement."""
    errors = [
        abs(r.outcome.predicted_peak_bytes / r.outcome.measurement.peaks.device_bytes - 1)
        for r in sorted(records, key=lambda r: r.outcome.started_s)
        if r.purpose == "search"
        and r.outcome.measurement is not None
        and r.outcome.measurement.peaks.device_bytes
        and r.outcome.predicted_peak_bytes is not None
    ][of_script:]
    return PeakErrors(statistics.median(errors) if errors else None, len(errors))


def _sure(certainty: Certainty | None, space: Space, winner: Config) -> Sure | None:
    if certainty is None:
        return None
    # Settings that a script is not told are the same in all candidates.
    same = {name: getattr(winner, name) for name, each in space.axes.items() if len(each) == 1}
    if _has_own_optimizer(space.workload):
        same["optimizer"] = winner.optimizer
    following = certainty.next
    after = None
    if following is not None:
        asked = replace(following, **same)
        replicas = winner.data_parallel if asked.sharing == winner.candidate.sharing else None
        after = _config(asked, space.workload, replicas=replicas)
    return Sure(
        best=certainty.best,
        within_1_percent=certainty.equal,
        next=after,
        next_best=None if after is None else certainty.next_best,
    )


def tie_of(record: Record, workload: Workload, limits: Limits) -> Tie:
    """The entry of best.json for a record with a measurement."""
    found = record.measured
    return Tie(_config(record.candidate, workload, found.ran),
               _measured(record, workload, limits))  # fmt: skip


def _cell(record: Record, space: Space, choice: Choice) -> Cell:
    config = _config(record.candidate, space.workload, record.measured.ran)
    return Cell(
        depth=config.depth,
        seq_len=config.seq_len,
        config=config,
        measured=_measured(record, space.workload, space.limits),
        verdict=record.outcome.verdict.value,
        confirmed=choice.confirmed if record is choice.record else record.purpose == "final",
    )


def _config(
    candidate: Candidate, workload: Workload, ran: Ran | None = None, replicas: int | None = None
) -> Config:
    """`candidate` as requested, or as it `ran`. Values that a script is not told are 1."""
    length, batch = candidate.seq_len, candidate.micro_batch
    data_parallel = (ran and ran.data_parallel) or replicas or workload.replicas(candidate)
    if ran is None:
        accum = workload.over(data_parallel, candidate).micro_steps(candidate)
    else:
        accum = ran.micro_steps
        by_tokens = "{tokens_per_batch}" in workload.recipe["command"]
        length = length if length > 1 or by_tokens else ran.seq_len
        each = round(ran.samples / (accum * data_parallel))
        batch = batch if batch > 1 or candidate.vector else max(1, each)
        if _has_own_optimizer(workload):
            candidate = replace(candidate, optimizer=ran.optimizer or UNKNOWN)
    samples = replace(candidate, micro_batch=batch).samples_of(data_parallel) * accum
    known = not workload.of_script
    return Config(
        **asdict(candidate) | {"seq_len": length, "micro_batch": batch},
        model=workload.model,
        width=workload.shape(candidate.depth).width if known else None,
        vocab_size=workload.vocab_size if known else None,
        task=workload.recipe.get("task"),
        token=workload.recipe.get("token"),
        dtype=(ran and ran.dtype) or workload.dtype,
        engine=engine_of(workload, candidate).name,
        world_size=workload.world_size,
        nodes=workload.nodes,
        data_parallel=data_parallel,
        degrees=(ran and ran.degrees) or None,
        grad_accum=accum,
        global_batch_samples=samples,
        global_batch_tokens=samples * length,
    )


def _has_own_optimizer(workload: Workload) -> bool:
    """Whether the optimizer is a script's own, which autotune does not choose."""
    return workload.of_script and "{optimizer}" not in workload.recipe["command"]


def _dtypes(candidate: Candidate, workload: Workload) -> dict[str, str] | None:
    if workload.of_script:
        return None
    return engine_of(workload, candidate).dtypes(workload.dtype, candidate)


def _measured(record: Record, workload: Workload, limits: Limits) -> Measured:
    found, batches = record.measured, workload.batches(record.candidate)
    peaks = found.peaks
    tokens = None if batches else workload.step_tokens(record.candidate)
    return Measured(
        tokens_per_s=found.tokens_per_s,
        samples_per_s=found.samples_per_s,
        model_flops_per_s=found.model_flops_per_s,
        step_s=StepTime(**asdict(found.step)),
        peak_bytes=_peak_bytes(peaks),
        share_of_capacity=peaks.device_bytes / limits.capacity_bytes,
        headroom_bytes=limits.limit_bytes - peaks.device_bytes,
        rank_peak_bytes=found.rank_bytes or None,
        disturbed_share=found.disturbed_share,
        kernels=found.kernels or None,
        compile_s=found.compile_s or None,
        compilations=found.compilations or None,
        spread_s=found.spread_s or None,
        tokens=None if found.ran is None else "seen" if found.ran.seen else "claimed",
        waiting_share=None if found.ran is None else found.ran.waiting_share,
        rows=None if found.ran is None or found.ran.rows == 1 else found.ran.rows,
        joules_per_token=found.joules_per_token,
        real_share=found.real_share,
        bucket_lengths=tuple(batches.ends) or None if batches else None,
        phases={
            _phase(name): _took(each, tokens if name == HOT else None)
            for name, each in found.phases.items()
        }
        or None,
    )


def unseen(phases: Mapping[str, InPhase]) -> tuple[Phase, ...]:
    """Evaluation and saving, where they are not among `phases`."""
    asked: tuple[Phase, ...] = ("evaluate", "save")
    return tuple(name for name in asked if name not in phases or not phases[name].count)


def peak_phase(phases: Mapping[str, InPhase]) -> Phase | None:
    name = phase_of_peak(phases, "device_bytes", sys.maxsize)
    return _phase(name) if name not in ("", TRAIN) else None


def _took(found: InPhase, tokens: float | None = None) -> PhaseTook:
    """What a phase took, in which each time so many `tokens` were trained."""
    peak_bytes = _peak_bytes(found.peaks)
    if not found.count:  # training is not timed here
        return PhaseTook(peak_bytes=peak_bytes)
    rate = tokens and tokens * found.count / found.seconds
    return PhaseTook(
        peak_bytes=peak_bytes, seconds=found.seconds, count=found.count, tokens_per_s=rate,
        written_bytes=found.written_bytes or None,
    )  # fmt: skip


def _phase(name: str) -> Phase:
    return next(phase for phase in get_args(Phase) if phase == name)


def _peak_bytes(peaks: Peaks) -> PeakBytes:
    return PeakBytes(
        peaks.device_bytes, peaks.reserved_bytes, peaks.allocated_bytes, peaks.host_bytes
    )


def _limits(limits: Limits) -> BestLimits:
    return BestLimits(
        **asdict(limits) | {"rank_capacities": limits.rank_capacities or None},
        limit_bytes=limits.limit_bytes,
        host_limit_bytes=limits.host_limit_bytes,
    )
