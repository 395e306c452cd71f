"""Weighs the rows of a plan: real ranks on emulated GPUs, until each row has a real peak."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from autotune.advise.plan.answers import Answer, table
from autotune.advise.plan.expected import Expected, Plan, Weighed, largest
from autotune.device import open_device
from autotune.device.cards import Card
from autotune.device.emulated.emulation import Emulation
from autotune.device.emulated.overheads import nccl_bytes
from autotune.measure.runner import Job, Runner, StopRequestedError
from autotune.measure.runner.node import LocalNode
from autotune.measure.runner.pool import pools
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.space.candidate import Candidate
from autotune.space.outcome import Outcome
from autotune.study.judging import Judge
from autotune.study.pace import RANKING_MICRO_STEPS
from autotune.wire.budget import StopFlag
from autotune.wire.stopping import Rule

GPUS_OF_A_MACHINE = 8
"""More GPUs communicate over the network."""
LIMIT_S = 900.0
"""Seconds for one candidate."""
RULE = Rule(
    warmup_steps=2, warmup_tolerance=math.inf, warmup_limit_s=0.0,
    timed_steps=2, half_width=math.inf, timed_limit_s=0.0,
)  # fmt: skip
"""The rule of a probe: the second step shows the peak, and modelled times are all the same."""
_OF_MODELS = replace(RULE, timed_steps=1)
"""The same for models, whose batches are all alike."""


class Scale:
    """Weighs candidates of plans, one after the other: one rank stands for all."""

    def __init__(
        self, cards: Emulation, card: Card, stack: ExitStack, note: Callable[[str], None],
        gone: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`cards` was entered; `stack` ends started processes; `note` takes lines."""
        self.note = note
        self._gone = gone
        self._stop = StopFlag()
        stack.callback(self._stop.restore)
        logs = tempfile.TemporaryDirectory(prefix="autotune-plan-")
        self._logs = Path(stack.enter_context(logs))
        self._unit, self._state = cards.units[0], cards.state
        self._card, self._stack = card, stack
        self._device = open_device("cuda", for_torch=True)
        self._plan: Plan | None = None
        self._runner: Runner | None = None

    def weigh(self, found: Plan, candidate: Candidate, limit_s: float = LIMIT_S) -> Outcome:
        """The outcome of `candidate` under the limits of the plan `found`. Raises
        StopRequestedError if the user asked to stop."""
        runner = self._runner_of(found)
        accum = found.space.workload.micro_steps(candidate)
        job = Job(
            candidate=candidate, grad_accum=accum, micro_steps=min(accum, RANKING_MICRO_STEPS),
            rule=_OF_MODELS, needed_step_s=None, fresh=False,
        )  # fmt: skip
        result = runner.run(job, time.monotonic() + limit_s)
        return Judge(found.space, "tokens_per_s").outcome(job, result)

    def _runner_of(self, found: Plan) -> Runner:
        if self._runner is None or self._plan is None or found.space != self._plan.space:
            if self._runner is not None:
                self._runner.close()
            self._unit.nccl = nccl_bytes(self._card, min(found.gpus, GPUS_OF_A_MACHINE))
            self._state.machine = GPUS_OF_A_MACHINE
            wiring = Wiring(
                logs=self._logs, note=self.note, stop=lambda: bool(self._stop) or self._gone()
            )
            node = LocalNode(
                self._device, self._logs, self._device.rank_environment(1), wiring.note
            )
            [self._runner] = pools(
                self._device.kind, Seating([(node, 1)], 1), found.space.workload,
                found.space.limits, [wiring],
                close=node.close, alone=True,
            )  # fmt: skip
            self._stack.callback(self._runner.close)
        self._plan = found
        return self._runner


@contextmanager
def scale(
    card: Card,
    note: Callable[[str], None],
    room: int = 1,
    gone: Callable[[], bool] = lambda: False,
    context: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Scale]:
    """A scale for plans on `card`, with `room` times its memory; no process is left afterwards.

    Weighing ends if `gone` becomes true. `context` are bytes of a process by the card's name.
    Raises UsageError if cards cannot be emulated here.
    """
    with Emulation(f"1x{card.name}") as cards, ExitStack() as stack:
        cards.know(context)
        cards.units[0].total *= room
        yield Scale(cards, card, stack, note, gone)


Again = Callable[[Weighed], Answer]
"""Makes the answer with weighed outcomes."""
Told = Callable[[int, int, str], None]
"""Gets the number of weighed rows, of all rows, and the next candidate."""


def weighed(found: Answer, again: Again, scale: Scale, most: int, told: Told) -> Answer:
    """The answer `found` after weighing its first `most` rows. Others, and all but the first far
    above the GPU's memory, keep their expectations."""
    known: dict[tuple[int, Candidate], Outcome] = {}
    failed: set[tuple[int, Candidate]] = set()
    while True:
        wanted = list(_rows(found, most))
        left = [
            (plan, each) for plan, row in wanted
            if (plan.gpus, row.candidate) not in failed
            and not (known and row.peak.low_bytes > plan.space.limits.capacity_bytes)
            and (each := _unweighed(plan, row, known.keys() | failed))
        ]  # fmt: skip
        if not left:
            return found
        plan, candidate = left[0]
        told(len(wanted) - len(left), len(wanted), candidate.key)
        try:
            outcome = scale.weigh(plan, candidate)
        except StopRequestedError:
            scale.note("stopped: some rows were not weighed")
            return found
        if outcome.measurement is None and not outcome.verdict.bounds_memory:
            scale.note(f"{candidate.key} was not weighed: {without_log(outcome.reason)}")
            failed.add((plan.gpus, candidate))
            continue
        known[plan.gpus, candidate] = outcome
        found = again(known)


def without_log(text: str) -> str:
    """`text` without the name of a log, which is deleted soon."""
    return re.sub(r"; see \S+\.log$", "", text)


def _rows(found: Answer, most: int) -> Iterator[tuple[Plan, Expected]]:
    if found.counts or found.solved:
        by_gpus = {plan.gpus: plan for plan in found.plans}
        yield from ((by_gpus[row.gpus], row) for row in found.rows)
    else:
        [plan] = found.plans
        yield from ((plan, each.row) for each in table(plan)[:most])


def _unweighed(
    plan: Plan, row: Expected, known: Collection[tuple[int, Candidate]]
) -> Candidate | None:
    """The next candidate to weigh for `row`: its own, or a larger micro_batch that may fit. While
    nothing fits and two did not, half of what is left: one that fits tells more of the others."""
    alike = [
        each for each in plan.expected
        if (each.candidate.build, each.candidate.seq_len)
        == (row.candidate.build, row.candidate.seq_len)
    ]  # fmt: skip
    may, tried = largest(alike)[0].may, [each for each in alike if each.weighed]
    wanted = [row.candidate, *(e.candidate for e in alike if e.candidate.micro_batch == may)]
    if len(tried) > 1 and not any(each.fits for each in tried):
        below = alike[: alike.index(tried[0])]
        wanted = [*(each.candidate for each in below[len(below) // 2 :]), *wanted]
    return next((each for each in wanted if (plan.gpus, each) not in known), None)
