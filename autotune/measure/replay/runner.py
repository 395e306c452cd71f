"""The `Runner` of a recorded grid: real measurements, on a clock that only the replay moves.

A replayed probe stops by the job's own rule, as a rank would. Its start, steps and phases take the
recorded time. Candidates that were not recorded are refused: nothing is interpolated.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.errors import UsageError
from autotune.measure.replay.grid import Grid, GridRow
from autotune.measure.runner import OUT_OF_BUDGET, Job, Result
from autotune.space.candidate import Build, Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Limits, Space
from autotune.space.trace import Trace
from autotune.wire.budget import VirtualTime
from autotune.wire.reports import Report
from autotune.wire.stopping import Phase, Steps


class Replay:
    """Answers each job with one of the candidate's measurements, drawn with `seed`."""

    def __init__(
        self,
        grid: Grid,
        limits: Limits,
        time: VirtualTime,
        seed: int,
        on_phase: Callable[[Phase, int], object] = lambda phase, steps: None,
    ) -> None:
        self.live_build: Build | None = None
        self._compiled: set[tuple[int, int]] = set()
        """Shapes that the live group has met, as micro_batch and seq_len."""
        self._grid = grid
        self._limits = limits
        self._time = time
        self._on_phase = on_phase
        self._random = random.Random(seed)
        self._rows: defaultdict[Candidate, list[GridRow]] = defaultdict(list)
        self._starts_s: defaultdict[Build, list[float]] = defaultdict(list)
        for row in grid.rows:
            self._rows[row.candidate].append(row)
            if row.group_start_s:
                self._starts_s[row.candidate.build].append(row.group_start_s)

    def run(self, job: Job, deadline: float) -> Result:
        """Replay `job`; `deadline` is on the scale of the virtual time. Raises UsageError if the
        candidate was not recorded with this schedule."""
        row = self._random.choice(self._rows_of(job))
        build = job.candidate.build
        # Every foreign run is a launch of its own.
        warm = build == self.live_build and not job.fresh and not self._grid.workload.of_script
        start_s = 0.0 if warm else self._start_s(build)
        if not warm:
            self._compiled.clear()
        result, probe_s = self._result(row, job)
        left_s = max(0.0, deadline - self._time())
        if start_s + probe_s > left_s:
            needs_s = start_s + probe_s
            result = Result(verdict=Verdict.SKIPPED, reason=OUT_OF_BUDGET, needs_s=needs_s)
            start_s, probe_s = min(start_s, left_s), max(0.0, left_s - start_s)
        self._let_pass(start_s, probe_s, result.report)
        self.live_build = None if result.report is None else build
        return replace(result, group_start_s=start_s, warm=warm)

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        """The recorded trace; it takes no time."""
        return self._grid.trace

    def retire(self, until: float) -> None:
        """End the live group; it takes no time."""
        self.live_build = None

    def kill(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is open."""

    def _let_pass(self, start_s: float, probe_s: float, report: Report | None) -> None:
        """Let a probe's time pass, by phases. The parts of a start are not recorded."""
        phases = {Phase.BUILD: start_s, Phase.WARMUP: probe_s}
        if report is not None:
            phases |= {
                Phase.COMPILE: report.compile_s,
                Phase.WARMUP: report.warmup_s,
                Phase.TIMED: report.timed_s,
            }
        for phase in sorted(phases, key=list(Phase).index):
            if phases[phase]:
                self._on_phase(phase, 0)
                self._time.advance(phases[phase])
        if report is not None and report.timed_s:
            self._on_phase(Phase.TIMED, len(report.step_s))

    def _rows_of(self, job: Job) -> list[GridRow]:
        key, path = job.candidate.key, self._grid.path
        recorded = self._grid.workload.grad_accum(job.candidate)
        if job.candidate not in self._rows:
            raise UsageError(f"{key}: not recorded in {path}")
        if job.grad_accum != recorded:
            raise UsageError(
                f"{key}: recorded in {path} with grad_accum {recorded}, not {job.grad_accum}"
            )
        return self._rows[job.candidate]

    def _start_s(self, build: Build) -> float:
        """Seconds to start `build`; those of any build if none of its starts was recorded."""
        every = [start_s for starts_s in self._starts_s.values() for start_s in starts_s]
        return statistics.median(self._starts_s.get(build) or every or [0.0])

    def _result(self, row: GridRow, job: Job) -> tuple[Result, float]:
        """The result of `job` in a live group, and its seconds."""
        if row.report is None:
            return Result(verdict=row.verdict, reason=row.reason), 0.0  # its time is not recorded
        if row.report.peaks.device_bytes > self._limits.capacity_bytes:
            first_s, *_ = row.report.warmup_step_s + row.report.step_s
            reason = "rank 0 ran out of memory in phase warmup"
            return Result(
                verdict=Verdict.OOM, reason=reason
            ), first_s * job.micro_steps / job.grad_accum
        report = walk(row.report, job)
        shape = (job.candidate.micro_batch, job.candidate.seq_len)
        if shape in self._compiled:
            report = replace(report, compile_s=0.0)
        self._compiled.add(shape)
        verdict = Verdict.PRUNED if report.stopped_early else Verdict.OK
        took_s = report.compile_s + report.warmup_s + report.timed_s
        return Result(verdict=verdict, report=report), took_s


def walk(recorded: Report, job: Job) -> Report:
    """`recorded`, as the rule of `job` would have ended it; at most all recorded steps."""
    part = job.micro_steps / job.grad_accum
    steps = Steps(job.rule, job.needed_step_s)
    known = {Phase.WARMUP: recorded.warmup_step_s, Phase.TIMED: recorded.step_s}
    for phase, known_s in known.items():
        for step_s in known_s:
            if not steps.wanted(phase):
                break
            steps.add(phase, step_s, step_s * part)
    energy, timed = recorded.energy, steps.timed.step_s
    if energy is not None:  # of timed steps alone, as in the recording
        joules = energy.joules * sum(timed) / sum(recorded.step_s)
        energy = replace(energy, joules=joules) if timed else None
    return replace(
        recorded,
        step_s=steps.step_s,
        energy=energy,
        warmup_step_s=steps.warmup.step_s,
        warmup_s=steps.warmup.wall_s * _pace(recorded.warmup_s, recorded.warmup_step_s),
        timed_s=steps.timed.wall_s * _pace(recorded.timed_s, recorded.step_s),
        stopped_early=steps.stopped_early,
    )


def _pace(phase_s: float, step_s: Sequence[float]) -> float:
    """Wall time per second of recorded steps: time between steps is spread over them."""
    return max(1.0, phase_s / sum(step_s)) if step_s else 1.0
