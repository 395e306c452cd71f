"""A study: search, then finals. Its parts are wired here and nowhere else.

The budget is wall clock from the command's first statement, before its imports, to the written
best.json. A part of it is kept for the finals; the rest is the search's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune import samplers
from autotune.budget import Clock, StopFlag
from autotune.folder.journal import Journal
from autotune.options import Options
from autotune.predict.earlier import Earlier
from autotune.predict.predictor import Predictor
from autotune.report import Reporter
from autotune.runner import Runner, StopRequestedError
from autotune.samplers.sampler import Adapter
from autotune.space.space import Space
from autotune.study.finals import Finals
from autotune.study.ledger import Ledger
from autotune.study.parts import Parts
from autotune.study.prober import Prober
from autotune.study.search import Search

TRACE_S, TRACE_SHARE = 10.0, 0.1
"""Tracing the models may take these seconds, or this share of the budget where that is more."""


class Study:
    """One study over one space. What was measured before, by `journal`, it goes on from."""

    def __init__(
        self,
        *,
        options: Options,
        space: Space,
        device_kind: str,
        clock: Clock,
        journal: Journal,
        runner: Runner,
        reporter: Reporter,
        stop: StopFlag,
        publish: Callable[[Ledger], object],
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """`publish` is told at each new incumbent; `earlier` studies are learned from."""
        past = journal.past
        predictor = Predictor(space, device_kind, earlier, objective=options.objective)
        # Resumed with another seed, or it would draw again what it drew at first.
        seed = (options.seed + past.trials) % 2**32
        sampler = samplers.make(options.sampler, space, predictor, options.objective, seed)
        journal.use(Adapter(space, sampler))
        self.ledger = Ledger(space, options.objective, predictor)
        self._parts = Parts(
            space=space,
            clock=clock,
            stop=stop,
            journal=journal,
            reporter=reporter,
            ledger=self.ledger,
            prober=Prober(space, device_kind, clock, runner, options),
        )
        self._runner = runner
        self._finals = Finals(self._parts, options.finals)
        self._search = Search(
            self._parts,
            sampler=sampler,
            runner=runner,
            trials=options.trials,
            finals_s=self._finals.needed_s,
            publish=publish,
        )
        if past.trials:
            self._restore()

    def run(self) -> None:
        """What was measured is in the ledger even if the user stopped it."""
        try:
            self._trace()
            # Finals that end early, or find out that nothing fits after all, leave time to search.
            while self._search.run() + self._finals.run() and not self._finals.out_of_time:
                pass
        except StopRequestedError:
            self._parts.reporter.note("stopped by the user")

    def _trace(self) -> None:
        """Before anything is timed: on a machine of few cores it would be in the way."""
        clock = self._parts.clock
        limit_s = min(max(TRACE_S, TRACE_SHARE * clock.budget_s), clock.remaining_s())
        found = self._runner.trace(self._parts.space, limit_s)
        if found is not None:
            self.ledger.predictor.trace(found)

    def _restore(self) -> None:
        past, ledger = self._parts.journal.past, self.ledger
        for record in past.records:
            if record.purpose == "search" and not record.outcome.put_off:
                ledger.opened.close(record.candidate)
        self._parts.prober.restore(past.records)
        for record in past.records:
            ledger.add(record)
            if not record.outcome.put_off:
                ledger.settle(record)
        self._search.restore(past.suspects, past.interrupted)
        self._parts.journal.rewrite(ledger.all)
        self._parts.reporter.restored(ledger.records, ledger.incumbent)
