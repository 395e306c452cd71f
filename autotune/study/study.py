"""A study: search, then finals. Its parts are wired here and nowhere else.

The budget is wall clock from the command's first statement, before its imports, to the written
best.json. A part of it is kept for the finals; the rest is the search's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from autotune.errors import NoNodesError
from autotune.measure.runner import Runner, StopRequestedError
from autotune.result.choice import MEASURED_UNCONFIRMED, PROBABLY
from autotune.result.earlier import Earlier
from autotune.result.folder.databases import UnreachableError
from autotune.result.folder.journal import Journal
from autotune.result.folder.sampler import Adapter
from autotune.show.report import Reporter
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.study import samplers
from autotune.study.finals import CLOSING_S, Finals
from autotune.study.ledger import Ledger
from autotune.study.neighbours import Neighbours
from autotune.study.pace import Pace
from autotune.study.predict.predictor import Predictor
from autotune.study.prober import Prober
from autotune.study.records import Records
from autotune.study.search import FEW, Search
from autotune.study.slots import Slots
from autotune.study.why_nothing import nothing_expected
from autotune.study.work import NextWork, Slot
from autotune.wire.budget import Clock, StopFlag

ENOUGH_FINALS = 10
"""The advised budget has time for so many finals."""
TRACE_S, TRACE_SHARE = 10.0, 0.1
"""Tracing the models may take these seconds, or this share of the budget where that is more."""


class Study:
    """One study over one space. It goes on from the measurements in `journal`."""

    def __init__(
        self,
        *,
        options: Options,
        space: Space,
        device_kind: str,
        clock: Clock,
        journal: Journal,
        runners: Sequence[Runner],
        reporter: Reporter,
        stop: StopFlag,
        publish: Callable[[Ledger], object],
        earlier: Sequence[Earlier] = (),
        neighbours: Neighbours | None = None,
    ) -> None:
        """A slot for each of `runners`; `publish` is told at each new incumbent."""
        past = journal.past
        self._new_predictor = partial(
            Predictor, space, device_kind, earlier, objective=options.search.objective
        )
        predictor = self._new_predictor()
        # A resumed study needs another seed, or it would repeat its first draws.
        seed = (options.search.seed + past.trials + int(journal.part or "0", 16)) % 2**32
        sampler = samplers.make(
            options.search.sampler, space, predictor, options.search.objective, seed
        )
        journal.use(Adapter(space, sampler))
        self._new_ledger = partial(Ledger, space, options.search.objective)
        self.ledger = self._new_ledger(predictor)
        self._traced: Trace | None = None
        pace = self._pace = Pace(space.workload, device_kind, options)
        slots = [
            Slot(
                number=number, runner=each, prober=Prober(space, device_kind, clock, each, options)
            )
            for number, each in enumerate(runners)
        ]
        self._space = space
        self._clock = clock
        self._stop = stop
        self._slots = Slots(slots, clock, pace, reporter, stop=stop, neighbours=neighbours)
        self._records = Records(self.ledger, journal, reporter, publish)
        self._tracer = runners[0]
        self.lost = ""
        """Why nothing could run any more; empty otherwise."""
        self.stopped_in: str | None = None
        """The part that the user ended early: search or finals."""
        self.away: UnreachableError | None = None
        """Why the storage could not be reached any more."""
        # A modelled time is the same in every round.
        finalists = 0 if options.devices.emulated else options.search.finals
        self._finals = Finals(space, self._slots, self._records, finalists)
        self._search = Search(
            space,
            self._slots,
            self._records,
            finals=self._finals,
            sampler=sampler,
            trials=options.search.trials,
        )
        if past.trials:
            self._restore()

    def run(self) -> None:
        """Search and finals. The ledger has all measurements even if the user stopped it."""
        try:
            self._trace()
            for next_work in self._turns():
                self._slots.run(next_work)
            if self._records.journal.shared:
                self._agree()
        except StopRequestedError:
            self.stopped_in = "finals" if self._finals.under_way else "search"
            self._records.reporter.note("stopped by the user")
        except NoNodesError as error:
            self.lost = str(error)
            self._records.reporter.note(f"nothing more can be run: {error}")
        except UnreachableError as error:
            self.away = error

    def _turns(self) -> Iterator[NextWork]:
        """Search and finals in turn, each as the source of work for the slots."""
        made, first = (yield from self._turn()), True
        # Finals may leave time to search: they end early, nothing fits in them, or an earlier
        # run made them.
        while (made or first) and not self._finals.out_of_time:
            made, first = (yield from self._turn()), False
        while self._records.wait(self._has_time):
            yield from self._turn()
        if self._space.workload.may_have_phases:
            yield from self._finals.turn(waits=True)

    def _turn(self) -> Generator[NextWork, None, int]:
        """One turn; returns the number of probes."""
        searched = yield from self._search.turn()
        self._records.unsearched = False
        return searched + (yield from self._finals.turn())

    def next_step(self, folder: str) -> str | None:
        """Two lines if more time would tell more: why, and the command to go on in `folder`."""
        choice, finals = self.ledger.choice(), self._finals
        if choice is None:
            return None
        what = "launch" if self._space.workload.of_script else "final"
        final_s = finals.lacked_s or finals.round_s(choice.record)
        needs_s, certainty = ENOUGH_FINALS * final_s, choice.certainty
        if few := self._few():
            why, needs_s = few, self._search.enough * self._search.launch_s()
        elif not choice.confirmed and finals.out_of_time:
            why = f"The finals lacked time: a {what} takes {math.ceil(final_s)} s"
        elif choice.unconfirmed in MEASURED_UNCONFIRMED or (
            certainty is not None and certainty.next_best > PROBABLY
        ):
            why = "More finals would tell more"
        else:
            return None
        return f"{why}. Go on:\nautotune --resume {folder} --budget {math.ceil(needs_s / 60)}m"

    def _few(self) -> str:
        """A note if the budget had time for few candidates of a script; else empty."""
        tried, search = self.ledger.probed, self._search
        every = len(self._space.candidates)
        is_few = tried < min(FEW, every)
        if not self._space.workload.of_script or not search.out_of_time or not is_few:
            return ""
        return (
            f"Only {tried} of {every} candidates {'was' if tried == 1 else 'were'} tried: a launch"
            f" takes {search.launch_s():.0f} s here"
        )

    def close(self) -> None:
        """Wait for the running probes, which were asked to stop."""
        self._slots.close()

    def _trace(self) -> None:
        """Trace before anything is timed: it would disturb a machine of few cores."""
        clock = self._clock
        limit_s = max(TRACE_S, TRACE_SHARE * clock.budget_s)
        found = self._tracer.trace(self._space, limit_s, clock.at(clock.budget_s - CLOSING_S))
        if found is not None:
            self.ledger.predictor.trace(found)
        self._traced = found
        if nothing := nothing_expected(self._space, self.ledger.predictor):
            self._records.reporter.note(nothing)

    def _has_time(self) -> bool:
        if self._stop:
            raise StopRequestedError
        return self._clock.remaining_s() > CLOSING_S

    def _agree(self) -> None:
        """Start over with the records in the order that all processes of the study share."""
        predictor = self._new_predictor()
        if self._traced is not None:
            predictor.trace(self._traced)
        records = self._records.journal.told()
        self.ledger = self._new_ledger(predictor)
        self.ledger.take(records)
        self._records.journal.rewrite(self.ledger.all)

    def _restore(self) -> None:
        past, ledger = self._records.journal.past, self.ledger
        self._pace.restore(past.records)
        ledger.take(past.records)
        left = None if self._records.journal.shared else ledger.choice()
        if left is not None and left.unconfirmed in MEASURED_UNCONFIRMED:
            self._finals.unconfirmed = left.record.candidate
        self._search.restore(past.suspects, past.interrupted)
        self._records.journal.rewrite(ledger.all)
        self._records.reporter.restored(ledger.records, ledger.incumbent)
