"""A plan for a user's script: the script runs, unchanged, on emulated GPUs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.advise.plan.weighing import GPUS_OF_A_MACHINE, LIMIT_S, RULE, without_log
from autotune.device import open_device
from autotune.device.cards import Card
from autotune.device.cpu import cores
from autotune.device.emulated.emulation import Emulation
from autotune.device.emulated.layout import MOST_UNITS
from autotune.device.emulated.overheads import nccl_bytes
from autotune.errors import ModelError, UsageError
from autotune.measure.runner import Job, Runner, StopRequestedError
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.script_space import resolve_script
from autotune.measure.testbed.scripted import Scripted
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Outcome
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.study.judging import Judge
from autotune.wire.budget import StopFlag

_MOST_GUESSES = 8
"""The most guesses of the limit; then the remaining range is halved."""


@dataclass(frozen=True, kw_only=True)
class Border:
    """The largest micro_batch that fits, with equal other values; the least if none fits."""

    candidate: Candidate
    outcome: Outcome
    above: tuple[Candidate, Outcome] | None
    """The next larger one and its outcome; None if no larger one was requested."""

    def grad_accum(self, workload: Workload) -> int:
        """Micro-steps of a step, for the replicas that ran."""
        ran = self.outcome.measurement.ran if self.outcome.measurement else None
        replicas = ran.data_parallel if ran else None
        return workload.over(replicas, self.candidate).micro_steps(self.candidate)


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    gpus: int
    space: Space
    rows: Sequence[Border]
    """Fitting rows by modelled throughput, then the others."""


Weigh = Callable[[Candidate], Outcome]


def largest(candidates: Sequence[Candidate], limit_bytes: int, weigh: Weigh) -> Border:
    """The largest micro_batch of `candidates` that fits. They differ only in it. Peaks grow with
    it. Two known peaks give a guess of the limit, and its neighbours are weighed."""
    by_batch = {each.micro_batch: each for each in candidates}
    values, known = sorted(by_batch), dict[int, Outcome]()
    while (value := _next(values, known, limit_bytes)) is not None:
        known[value] = weigh(by_batch[value])
    fits = max((value for value, each in known.items() if each.verdict.fits), default=values[0])
    above = min((value for value in known if value > fits), default=None)
    return Border(
        candidate=by_batch[fits],
        outcome=known[fits],
        above=None if above is None else (by_batch[above], known[above]),
    )


def _next(values: Sequence[int], known: Mapping[int, Outcome], limit_bytes: int) -> int | None:
    """The micro_batch to weigh next; None if the largest that fits is known."""
    if not known:
        return values[0]
    fits = {value for value, each in known.items() if each.verdict.fits}
    if not fits:
        return None
    others = known.keys() - fits
    between = [each for each in values if max(fits) < each < min(others, default=math.inf)]
    if not between:
        return None
    guess = _crossing(known, limit_bytes)
    if others and (guess >= min(others) or len(known) >= _MOST_GUESSES):
        return between[len(between) // 2]
    return max((each for each in between if each <= guess), default=between[0])


def _crossing(known: Mapping[int, Outcome], limit_bytes: int) -> float:
    """The micro_batch whose peak is the limit, by the two largest known peaks. With one, the whole
    peak is taken as proportional, which does not overshoot."""
    peaks = {
        value: each.measurement.peaks.device_bytes for value, each in known.items()
        if each.measurement is not None
    }  # fmt: skip
    *_, (low, least), (high, most) = [(0, 0), *sorted(peaks.items())]
    slope = (most - least) / (high - low)
    return high + (limit_bytes - most) / slope if slope > 0 else math.inf


class ScriptScale:
    """Launches a script on emulated cards, one candidate after the other."""

    def __init__(
        self, cards: Emulation, card: Card, stack: ExitStack, note: Callable[[str], None]
    ) -> None:
        """`cards` was entered; `stack` ends started processes; `note` takes lines."""
        self._cards, self._card = cards, card
        self._note = note
        self.stop = StopFlag()
        """True after the user asked to stop."""
        stack.callback(self.stop.restore)
        logs = tempfile.TemporaryDirectory(prefix="autotune-plan-")
        self._logs = Path(stack.enter_context(logs))

    def plan(
        self, options: Options, gpus: int, host_bytes: int, told: Callable[[int, int, str], None]
    ) -> ScriptPlan:
        """The plan for `gpus` of the cards, complete or until the user ended it. `told` gets the
        numbers of known and of all rows, and the next candidate.

        Raises:
            UsageError: the command has no place for an option, or no rank for each GPU.
            ModelError: the script failed for another reason than memory.
        """
        self._cards.state.units = gpus
        self._cards.state.machine = GPUS_OF_A_MACHINE
        for unit in self._cards.units:
            unit.nccl = nccl_bytes(self._card, min(gpus, GPUS_OF_A_MACHINE))
        device = open_device("cuda")
        testbed = Scripted(device, "cuda")
        space = resolve_script(options, device, host_bytes, cores(), None)
        wiring = Wiring(
            logs=self._logs, note=self._note, stop=lambda: bool(self.stop),
            seed=options.search.seed,
        )  # fmt: skip
        alike: dict[Candidate, list[Candidate]] = {}
        for each in space.candidates:
            alike.setdefault(replace(each, micro_batch=1), []).append(each)
        rows: list[Border] = []
        [runner] = testbed.runners(space, [wiring])
        with closing(runner):
            for group in alike.values():
                known = partial(told, len(rows), len(alike))
                weigh = partial(self._weigh, runner, space, known)
                try:
                    rows.append(largest(group, space.limits.limit_bytes, weigh))
                except StopRequestedError:
                    self._note(f"stopped after {len(rows)} of {len(alike)} rows")
                    break
        return ScriptPlan(gpus=gpus, space=space, rows=sorted(rows, key=_order))

    def _weigh(
        self, runner: Runner, space: Space, told: Callable[[str], None], candidate: Candidate
    ) -> Outcome:
        told(candidate.key)
        accum = space.workload.micro_steps(candidate)
        job = Job(
            candidate=candidate, grad_accum=accum, micro_steps=accum, rule=RULE,
            needed_step_s=None, fresh=False,
        )  # fmt: skip
        try:
            result = runner.run(job, time.monotonic() + LIMIT_S)
        except ModelError as error:
            raise ModelError(without_log(str(error)), error.traceback) from error
        result = replace(result, reason=without_log(result.reason))
        return Judge(space, "tokens_per_s").outcome(job, result)


def _order(row: Border) -> tuple[bool, float]:
    found = row.outcome.measurement
    return not row.outcome.verdict.fits, 0.0 if found is None else -found.tokens_per_s


@contextmanager
def script_scale(card: Card, gpus: int, note: Callable[[str], None]) -> Iterator[ScriptScale]:
    """A scale for scripts on up to `gpus` of `card`; no process is left afterwards. Raises
    UsageError if so many cards cannot be emulated here."""
    if gpus > MOST_UNITS:
        raise UsageError(f"--gpus {gpus}x{card.name}: with --script at most {MOST_UNITS}")
    with Emulation(f"{gpus}x{card.name}") as cards, ExitStack() as stack:
        yield ScriptScale(cards, card, stack, note)
