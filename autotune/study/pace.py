"""The durations of probes: the stopping rules, and the group starts so far."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_of
from autotune.space.options import Options
from autotune.space.outcome import Record, Verdict
from autotune.space.workload import Workload
from autotune.study.attempts import Probed
from autotune.study.prober import rule_for

FIRST_COMPILE_S = 15.0
"""Assumed seconds to compile a model, before the first one was compiled."""
RANKING_MICRO_STEPS = 2
"""Micro-steps of a long schedule that the search runs; finals run all of it."""


class Pace:
    """Durations in all slots. It learns from probes that ended."""

    def __init__(self, workload: Workload, device_kind: str, options: Options) -> None:
        self.rule = rule_for(device_kind, options)
        self.final_rule = rule_for(device_kind, options, final=True)
        self._workload = workload
        self._starts_s: defaultdict[str, list[float]] = defaultdict(list)
        """Seconds by engine, in the order of the starts."""
        self._compiles_s: list[float] = []

    def start_s(self, of: Build | Candidate) -> float:
        """Seconds to start a group. The first group of an engine imports its library."""
        engine = engine_of(self._workload, of)
        starts_s = self._starts_s[engine.name]
        plain_s = statistics.median(starts_s[1:] or starts_s or [engine.first_start_s])
        compiled_s = statistics.median(self._compiles_s or [FIRST_COMPILE_S])
        return plain_s + (compiled_s if of.compiles else 0.0)

    def compile_s(self, of: Build | Candidate) -> float:
        """Seconds to compile a shape that a live group of that build has not seen."""
        if of.compile == "off":
            return 0.0
        return statistics.median(self._compiles_s or [FIRST_COMPILE_S])

    def probe_s(self, record: Record) -> float:
        """Seconds of warm-up and timed steps of `record`, without disturbances."""
        outcome, rule = record.outcome, self.rule
        taken_s = outcome.least_s or (outcome.warmup_s + outcome.timed_s) / outcome.attempts
        least_s = (rule.warmup_steps + rule.timed_steps) * record.measured.step.low
        return min(taken_s, max(rule.warmup_limit_s + rule.timed_limit_s, least_s))

    def typical_probe_s(self, fitting: Sequence[Record]) -> float:
        """The same for a candidate like the `fitting` ones."""
        whole = [self.probe_s(record) for record in fitting]
        return statistics.median(whole) if whole else self.rule.timed_limit_s

    def learn(self, candidate: Candidate, probed: Probed) -> None:
        """Learn the group starts of a probe; one that the budget cut short takes longer."""
        cut = probed.outcome.verdict is Verdict.SKIPPED
        known_s = self.start_s(candidate) if cut else 0.0
        self._compiles_s += probed.compiles_s
        starts_s = self._starts_s[engine_of(self._workload, candidate).name]
        starts_s += [start_s for start_s in probed.starts_s if start_s > known_s]

    def restore(self, records: Sequence[Record]) -> None:
        """Learn the group starts of an earlier run, from the outcomes of its probes."""
        for record in records:
            outcome = record.outcome
            started_s = outcome.group_start_s - outcome.compile_s
            starts_s = (started_s,) if started_s > 0 else ()
            compiles_s = (outcome.compile_s,) if outcome.compile_s else ()
            probed = Probed(outcome=outcome, starts_s=starts_s, compiles_s=compiles_s)
            self.learn(record.candidate, probed)
