"""Weighs the border of a study's own space on emulated GPUs, before its search: `--weigh`.

The study must not load stand-ins for the libraries of its real devices. So `weighed_ahead` starts
this module as another process. It reads a `_Task` and then candidates, and writes a `_Told` for
each: JSON, one a line. It ends with its input.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from autotune.advise.plan.expected import KIND, LIKELY, Plan
from autotune.advise.plan.learning import is_such
from autotune.advise.plan.weighing import scale, without_log
from autotune.device.cards import CARDS, Card
from autotune.errors import UsageError
from autotune.measure.runner import StopRequestedError, counting
from autotune.result.earlier import Earlier, EarlierProbe, seen_in
from autotune.result.folder.earlier import MOST_SEEN
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_of
from autotune.space.options import Options
from autotune.space.outcome import Outcome, Record, Verdict, step_cost_for
from autotune.space.space import NO_LIMIT, Limits, Space
from autotune.space.trace import Trace, request
from autotune.space.workload import Workload
from autotune.study.attempts import Probed
from autotune.study.pace import Pace
from autotune.study.predict.belief import normal_cdf
from autotune.study.predict.predictor import Predictor
from autotune.study.prober import most_s
from autotune.study.samplers.frontier import ENOUGH
from autotune.wire.helpers import Described

SHARE = 0.1
"""The largest share of the budget for weighing."""
START_S = 20.0
"""Seconds for the process to start: Python, torch, a compiler, and the first rank. On a machine
with an H200 14 s were not enough (`results/real.md`)."""
GRACE_S = 5.0
"""Seconds, after its time is over, for a weighing to end by itself."""
ROOM = 2
"""Emulated cards have so many times the memory, to weigh also candidates that do not fit."""
_STARTS_LOST = 2
"""Starts of groups that a lost probe costs: one to try it again, one for the next probe."""
_STEPS_S = 1.0
"""Assumed seconds of a weighing in a live group, before the first one."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    card: str
    workload: dict[str, Any]
    """As in a manifest."""
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class _Asked:
    candidate: Candidate
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The end of a weighing."""

    seen: EarlierProbe | None = None
    covers: bool = False
    """Whether candidates that need more memory would end like it."""
    start_s: float = 0.0
    compile_s: float = 0.0
    reason: str = ""


def weighed_ahead(
    space: Space, name: str, options: Options, earlier: Sequence[Earlier],
    note: Callable[[str], None],
) -> Earlier | None:  # fmt: skip
    """Peaks around the memory limit, from emulated devices, or None; `note` is told why."""
    card = next((each for each in CARDS if is_such(each, name)), None)
    if card is None:
        note(f"--weigh: nothing was weighed: no card is known as {name}")
        return None
    began, share_s = time.monotonic(), SHARE * options.limits.budget_s
    until = began + share_s
    if share_s < START_S:
        note(
            f"--weigh: nothing was weighed: a start takes about {START_S:.0f} s, and {SHARE:.0%}"
            f" of the budget is {share_s:.0f} s"
        )
        return None
    chooser = _Chooser(space, options, earlier)
    ended = f"{SHARE:.0%} of the budget is spent"
    try:
        with _process(card, space, until) as weigh:
            chooser.traced = _traced(space, until)
            while (left_s := until - time.monotonic()) > 0:
                candidate = chooser.next()
                if candidate is None:
                    ended = "one more would take longer than it saves"
                    break
                asked = time.monotonic()
                told = weigh(_Asked(candidate=candidate, limit_s=left_s))
                chooser.take(candidate, told, time.monotonic() - asked)
    except UsageError as error:
        note(f"--weigh: nothing was weighed: {error}")
        return None
    note(
        f"--weigh: {len(chooser.seen)} candidates weighed in {time.monotonic() - began:.0f} s, on"
        f" an emulated {card.name}: {ended}{chooser.why}"
    )
    return chooser.found(card) if chooser.seen else None


class _Chooser:
    """Chooses candidates that are worth weighing.

    A weighing has to take less time than it saves. It saves the time of a lost probe, times two
    chances. One is that the prediction is wrong about whether the candidate fits. The other is
    that the candidate is enough faster than the best that likely fits.
    """

    def __init__(self, space: Space, options: Options, earlier: Sequence[Earlier]) -> None:
        self.seen: list[EarlierProbe] = []
        self.why = ""
        """Why some could not be weighed, to append to a line."""
        self.traced: Trace | None = None
        self._space, self._earlier = space, list(earlier)
        self._objective = options.search.objective
        self._most = MOST_SEEN - sum(len(study.seen) for study in earlier)
        self._pace, self._probe_s = Pace(space.workload, KIND, options), most_s(options)
        self._steps_s: list[float] = []
        self._imported: set[str] = set()
        """Engines that were imported, in their first start."""
        self._live: Build | None = None
        self._open = np.ones(len(space.candidates), dtype=bool)
        work = [step_cost_for(1.0, c, space.workload, self._objective) for c in space.candidates]
        self._work = np.log(work)

    def found(self, card: Card) -> Earlier:
        """All weighed candidates, as measurements of an earlier study."""
        workload = self._space.workload
        spec = f"emulated:{workload.world_size}x{card.name}"
        return Earlier(folder=spec, workload=workload, seen=self.seen, timed=False)

    def next(self) -> Candidate | None:
        """The candidate to weigh next; None if none is worth it."""
        if len(self.seen) >= self._most or not self._open.any():
            return None
        # Modelled times show where the search would go; the study itself does not learn them.
        known = [*self._earlier,
                 Earlier(folder="", workload=self._space.workload, seen=self.seen)]  # fmt: skip
        predictor = Predictor(self._space, KIND, known, objective=self._objective)
        if self.traced is not None:
            predictor.trace(self.traced)
        chance, belief = predictor.chance(), predictor.log_cost()
        value, faster = self._work - belief.mean, np.ones(len(chance))
        if (sure := chance >= LIKELY).any():
            best = int(np.where(sure, value, -np.inf).argmax())
            off = np.hypot(belief.deviation, belief.deviation[best])
            faster = normal_cdf((value - value[best] - ENOUGH) / np.maximum(off, 1e-9))
        each = {build: self._seconds(build) for build in self._space.builds}
        lost_s, weighing_s = np.array([each[c.build] for c in self._space.candidates]).T
        saved = np.minimum(chance, 1 - chance) * faster * lost_s - weighing_s
        place = int(np.where(self._open, saved, -np.inf).argmax())
        return self._space.candidates[place] if saved[place] > 0 else None

    def _seconds(self, build: Build) -> tuple[float, float]:
        """Seconds of a lost probe, and of a weighing."""
        start_s = self._pace.start_s(build)
        steps_s = min(self._steps_s, default=_STEPS_S)
        return (
            _STARTS_LOST * start_s + self._probe_s,
            steps_s + (0.0 if build == self._live else start_s),
        )

    def take(self, candidate: Candidate, told: _Told, took_s: float) -> None:
        """Learn how the weighing of `candidate` ended."""
        engine = engine_of(self._space.workload, candidate).name
        if told.start_s and engine in self._imported:
            self._pace.learn(candidate, Probed(
                outcome=Outcome(verdict=Verdict.OK), starts_s=(told.start_s - told.compile_s,),
                compiles_s=(told.compile_s,) if told.compile_s else (),
            ))  # fmt: skip
        self._imported.add(engine)
        self._live = None
        if told.seen is not None:
            self.seen.append(told.seen)
            self._steps_s.append(max(0.0, took_s - told.start_s))
            self._live = candidate.build
        elif not self.why:
            self.why = f"; {candidate.key} was not weighed: {without_log(told.reason)}"
        for place, each in enumerate(self._space.candidates):
            alike = each.covers(candidate) if told.covers else each.build == candidate.build
            if each == candidate or (told.seen is None and alike):
                self._open[place] = False


def _traced(space: Space, until: float) -> Trace | None:
    asked = request(space, KIND)
    if not asked.models:
        return None
    with counting.forked(space.workload.family) as start:
        found = counting.describe(asked, (until - time.monotonic()) / 2, start)
    return Trace(asked, found) if isinstance(found, Described) else None


@contextmanager
def _process(card: Card, space: Space, until: float) -> Iterator[Callable[[_Asked], _Told]]:
    """A function that weighs a candidate, in a process that ends with this context. Raises
    UsageError if cards cannot be emulated here, or the process ended, or was not ready at
    `until`."""
    limits = replace(
        space.limits, capacity_bytes=ROOM * space.limits.capacity_bytes,
        host_capacity_bytes=NO_LIMIT,
    )  # fmt: skip
    task = _Task(card=card.name, workload=space.manifest()["workload"], limits=limits)
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, tells = process.stdin, process.stdout

        def line(asked: _Task | _Asked) -> _Told:
            asks.write(msgspec.json.encode(asked) + b"\n")
            asks.flush()
            left_s = max(0.0, until - time.monotonic()) + GRACE_S
            if not select.select([tells], [], [], left_s)[0]:
                process.kill()
                raise UsageError("the process that weighs took too long")
            told = tells.readline()
            if not told:
                raise UsageError("the process that weighs ended")
            return msgspec.json.decode(told, type=_Told)

        if (began := line(task)).reason:
            raise UsageError(began.reason)
        yield line


def _serve() -> None:
    """Weigh candidates from stdin until its end."""
    lines = iter(sys.stdin.buffer.readline, b"")
    task = msgspec.json.decode(next(lines), type=_Task)
    workload = Workload.from_json(task.workload)
    space = Space(workload=workload, limits=task.limits, axes={}, candidates=(), fixed=())
    of = Plan(
        space=space, gpus=workload.world_size, untraced="", speed_known=False, expected=[]
    )  # fmt: skip
    card = next(each for each in CARDS if each.name == task.card)

    def gone() -> bool:
        """Whether stdin ended. No candidate comes during a weighing."""
        return bool(select.select([sys.stdin], [], [], 0)[0])

    def tell(told: _Told) -> None:
        print(msgspec.json.encode(told).decode(), flush=True)

    try:
        with scale(card, lambda line: None, room=ROOM, gone=gone) as of_card:
            tell(_Told())
            for line in lines:
                asked = msgspec.json.decode(line, type=_Asked)
                tell(_told(asked.candidate, of_card.weigh(of, asked.candidate, asked.limit_s)))
    except UsageError as error:
        tell(_Told(reason=str(error)))
    except StopRequestedError:
        pass


def _told(candidate: Candidate, outcome: Outcome) -> _Told:
    seen = seen_in([Record(None, "search", candidate, outcome)])
    return _Told(
        seen=seen[0] if seen else None, covers=outcome.verdict.bounds_memory,
        start_s=outcome.group_start_s, compile_s=outcome.compile_s, reason=outcome.reason,
    )  # fmt: skip


if __name__ == "__main__":
    _serve()
