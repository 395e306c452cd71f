"""Samplers of the command line, in the study's own loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

from autotune.device.cpu import CpuDevice
from autotune.measure.replay.runner import Replay
from autotune.measure.testbed.resolve import resolve
from autotune.result.earlier import Earlier, seen_in
from autotune.result.folder.ask import Ask
from autotune.result.folder.journal import Journal
from autotune.result.folder.past import News
from autotune.result.folder.sampler import Adapter
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Outcome, Record, Verdict, measurement
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.frontier import Frontier
from autotune.study.samplers.open_candidates import OpenCandidates
from autotune.study.study import Study
from autotune.wire.budget import Clock, StopFlag, VirtualTime
from autotune.wire.reports import Conditions, Peaks
from autotune.wire.stopping import Interval
from searches.grids import Course, Point, Searched, Truth

TRACE_S = 4.0
"""Seconds of tracing before the first probe, on 2 cores; recordings lack it."""


class Watcher(Reporter):
    """A reporter that keeps the states of the search."""

    def __init__(self, clock: Clock) -> None:
        self.course: Course = []
        self._clock = clock

    def told(self, record: Record, incumbent: Record | None) -> None:
        outcome = record.outcome
        if record.purpose != "search" or outcome.verdict == Verdict.SKIPPED:
            return
        found = None if incumbent is None else incumbent.candidate
        lost = outcome.verdict.bounds_memory
        self.course.append(Point(self._clock.elapsed_s(), found, lost, _error(outcome)))


def _error(outcome: Outcome) -> float | None:
    found, predicted = outcome.measurement, outcome.predicted_peak_bytes
    if found is None or predicted is None or not found.peaks.device_bytes:
        return None
    return abs(predicted / found.peaks.device_bytes - 1)


def sampler_course(
    truth: Truth, name: str, seed: int, probes: int, earlier: Sequence[Earlier] = ()
) -> Course:
    """One search by the sampler `name`."""
    options = truth.options.but(sampler=name, seed=seed, trials=probes, finals=1)
    return run_study(truth, options, earlier)[1].course


def study_before(truth: Truth, seed: int, minutes: float) -> Earlier:
    """The measurements of a whole study, for another one."""
    study, _ = run_study(truth, truth.options.but(seed=seed, budget_s=60 * minutes))
    seen = seen_in(study.ledger.records)
    return Earlier(folder="before", workload=truth.space.workload, seen=seen)


def study_result(
    truth: Truth, name: str, seed: int, minutes: float
) -> tuple[Candidate | None, float]:
    """The winner of a whole study, or None; and the share of its probes that was lost to memory.
    Finals are included."""
    options = truth.options.but(sampler=name, seed=seed, budget_s=60 * minutes)
    study, _ = run_study(truth, options)
    choice = study.ledger.choice()
    ran = [r for r in study.ledger.records if r.outcome.verdict != Verdict.SKIPPED]
    lost = sum(r.outcome.verdict.bounds_memory for r in ran) / len(ran)
    return None if choice is None else choice.record.candidate, lost


def run_study(
    of: Searched, options: Options, earlier: Sequence[Earlier] = ()
) -> tuple[Study, Watcher]:
    """A whole study, and its watcher."""
    seeds = range(options.search.seed, options.search.seed + int(options.devices.parallel))
    now = VirtualTime()  # not the recording's, which goes on from search to search
    clock = Clock(options.limits.budget_s, now(), now)
    now.advance(TRACE_S)
    watcher, stop = Watcher(clock), StopFlag()
    try:
        study = Study(
            options=options,
            space=of.space,
            device_kind=of.grid.device_kind,
            clock=clock,
            journal=Journal.in_memory(of.space, options.search.objective),
            runners=[Replay(of.grid, of.space.limits, now, seed) for seed in seeds],
            reporter=watcher,
            stop=stop,
            publish=lambda records: None,
            earlier=earlier,
        )
        study.run()
    finally:
        stop.restore()
    return study, watcher


def ask_seconds(size: int, told: int = 20) -> float:
    """Median time of one question to frontier, over `size` candidates with `told` trials."""
    options = Options.of(
        depth=tuple(range(2, 12)), seq_len=(256, 512, 1024, 2048, 4096),
        micro_batch=tuple(range(1, size // 1600 + 1)), device="cpu",
        checkpointing=("none", "full", "selective", "1/2"), attention=("sdpa", "eager"),
        loss=("whole", "chunked"), compile=("off", "on"),
    )  # fmt: skip
    space = resolve(options, CpuDevice(), 2**40, 2)
    predictor, opened = Predictor(space, "cpu"), OpenCandidates(space)
    journal = Journal.in_memory(space, options.search.objective)
    journal.use(Adapter(space, Frontier(space, predictor, options.search.objective)))
    fitting: list[Candidate] = []
    took: list[float] = []
    for number in range(told):
        began = time.perf_counter()
        ask = Ask(allowed=opened.places(), fitting=tuple(fitting))
        asked = journal.ask(partial(_always, ask))
        assert asked is not None
        took.append(time.perf_counter() - began)
        fitting.append(asked.candidate)
        opened.close(asked.candidate)
        outcome = _made_up(space, asked.candidate)
        record = Record(number, "search", asked.candidate, outcome)
        journal.tell(asked.trial, record)
        predictor.observe(asked.candidate, outcome)
    return statistics.median(took[told // 2 :])


def _always(ask: Ask, news: News) -> Ask:
    return ask


def _made_up(space: Space, candidate: Candidate) -> Outcome:
    step_s = 1e-3 * (candidate.tokens + 200)
    size = 2**20 * candidate.tokens
    peaks = Peaks.same(size)
    quiet = Conditions(
        interval_cpu_s=1.0,
        busy_cpu_s=1.0,
        steal_cpu_s=0.0,
        own_cpu_s=1.0,
    )
    found = measurement(
        candidate, space.workload, Interval(step_s, step_s, step_s, 9),
        peaks=peaks, disturbed_share=0.0, conditions=quiet,
    )  # fmt: skip
    return Outcome(verdict=Verdict.OK, measurement=found)
