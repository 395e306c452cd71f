"""Compares a result with a longer run: is that as fast, and within the memory limit?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from autotune.device import open_device
from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure import launch
from autotune.measure.runner import Job, Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed import REPLAY, open_testbed
from autotune.result.best import Best, Verified
from autotune.result.hardware import other_hardware
from autotune.result.making import peak_phase, unseen
from autotune.space.axes import AXES, Batching
from autotune.space.candidate import Candidate
from autotune.space.models import where
from autotune.space.options import Options
from autotune.space.outcome import DISTURBED_SHARE, Verdict, others_share
from autotune.space.space import Limits
from autotune.space.workload import GlobalBatch
from autotune.study.prober import rule_for
from autotune.wire.reports import InPhase, Peaks, Report
from autotune.wire.settings import rows
from autotune.wire.stopping import Rule

SLOWER = {"cpu": 0.05, "cuda": 0.03}
"""Share by which a longer run may be slower than the study's measurement."""
SHORT_STEPS = 20
"""Steps of a short run before the long one. Growth is counted from the memory after it."""
LEAST_STEPS = 40
QUARTERS = 4
PATIENCE_S = 600.0
"""Seconds for the group's start and its short run, beside the long run."""


START_S = 10.0
"""Assumed seconds to start a group."""


def needed_s(best: Best) -> float:
    """Approximate seconds of the shortest run."""
    steps = SHORT_STEPS + _least_steps(best)
    return START_S + steps * best.measured.step_s.median + 2 * (best.measured.compile_s or 0.0)


def _least_steps(best: Best) -> int:
    """The fewest useful steps: each quarter has every length that is drawn."""
    return max(LEAST_STEPS, QUARTERS * best.cycle_steps)


class VerifyError(Exception):
    """The winner could not be trained, for the reason in the message."""


class RanOutError(VerifyError):
    """The winner ran out of memory, at the place in the message."""


def verify(
    best: Best,
    *,
    steps: int,
    limit_s: float,
    logs: Path,
    note: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Verified:
    """Train the winner of `best` in fresh processes, for `steps` optimizer steps with all
    micro-steps. It makes fewer if they would take more than `limit_s` seconds.

    Raises:
        UsageError: the study's devices are not here, or the winner was never measured.
        VerifyError: it could not be trained.
        StopRequestedError: the user asked to stop.
    """
    _options(best)  # raises if no device has what was measured
    step_s = best.measured.step_s.median
    possible, fewest = int(limit_s / step_s) - SHORT_STEPS, _least_steps(best)
    if possible < fewest:
        least = (fewest + SHORT_STEPS) * step_s
        raise UsageError(
            f"--minutes: too short: the least of {fewest + SHORT_STEPS} steps takes"
            f" {least / 60:.1f} minutes"
        )
    planned = max(QUARTERS * best.cycle_steps, min(steps, possible))
    with training(best, limit_s=limit_s, logs=logs, note=note, stop=stop) as run:
        of = f" of {steps}" if planned < steps else ""
        more = "; fewer do not have every length of the mix" if planned > steps else ""
        note(f"training {planned}{of} steps, about {planned * step_s:.0f} s{more}")
        made = 0
        try:
            before = run(_steps(best, SHORT_STEPS), fresh=True)
            made = len(before.step_s) * best.cycle_steps
            after = run(_steps(best, planned), fresh=False)
            made = len(after.step_s) * best.cycle_steps
            found = _verified(best, before, after, run.device)
            if found.passed or found.cannot_tell:  # else no phase changes that
                after = _with_phases(run, after, limit_s / 2, note)
        except RanOutError as error:
            return _ran_out(best, made, str(error), run.device)
        return _verified(best, before, after, run.device)


def _with_phases(
    run: Training, after: Report, limit_s: float, note: Callable[[str], None]
) -> Report:
    """`after`, with the peaks of a launch for phases, if the user asked or a script may."""
    told, waits = run.best.phase_args, run.best.may_have_phases and unseen(after.phases)
    if not (told or waits):
        return after
    note(f"{'waiting' if waits else 'training'} until it evaluates and saves,"
         f" at most {limit_s:.0f} s")  # fmt: skip
    try:
        found = run(probing(run.best), fresh=True, phases_s=limit_s)
    except RanOutError:
        raise
    except VerifyError as error:
        note(f"it did not come to its phases: {error}")
        return after
    peaks = Peaks.largest([after.peaks, replace(found.peaks, alloc_retries=0)])
    return replace(after, peaks=peaks, phases=InPhase.largest([after.phases, found.phases]))


@dataclass(frozen=True)
class Training:
    """Makes steps of the winner."""

    runner: Runner
    best: Best
    candidate: Candidate
    device: Device

    def __call__(self, rule: Rule, *, fresh: bool, phases_s: float = 0.0) -> Report:
        """Make the steps of `rule` in `fresh` processes, or in the last ones. With `phases_s`,
        launch the script for its phases instead, for so many seconds.

        Raises:
            RanOutError: the winner ran out of memory.
            VerifyError: the winner could not be trained.
            StopRequestedError: the user asked to stop.
        """
        accum = self.best.config.grad_accum
        job = Job(
            candidate=self.candidate, grad_accum=accum, micro_steps=accum, rule=rule,
            needed_step_s=None, fresh=fresh, mixed=True, phases=phases_s > 0,
        )  # fmt: skip
        step_s = self.best.cycle_steps * self.best.measured.step_s.median
        patience_s = PATIENCE_S + 3 * rule.timed_steps * step_s
        result = self.runner.run(job, time.monotonic() + (phases_s or patience_s))
        if result.report is None:
            cause = result.reason or "it ended without a report"
            if result.verdict is Verdict.OOM:
                raise RanOutError(cause)
            raise VerifyError(f"the winner was {result.verdict}: {cause}")
        return result.report


@contextmanager
def training(
    best: Best,
    *,
    limit_s: float,
    logs: Path,
    note: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Training]:
    """The winner of `best` on its devices; no process of it is left afterwards. Raises UsageError
    if the study's devices are not here, or the winner was never measured."""
    with _looked_in_its_folder(best):
        options = _here(best, _options(best))
        testbed = open_testbed(options)
        space = replace(testbed.space(options), limits=_limits(best))
    space = replace(space, workload=replace(space.workload, length_mix=best.length_mix))
    winner = best.config.candidate
    plain = {name: axis.plain for name, axis in rows(Batching).items()}
    candidate = space.asked_for(replace(winner, **plain))
    if candidate is None:
        raise UsageError(f"best.json: {winner.key} can no longer be trained on this machine")
    if best.length_mix is not None:
        candidate = winner
    wiring = Wiring(logs=logs, seed=options.search.seed, budget_s=limit_s, stop=stop, note=note,
                    rows=best.measured.rows or 1)  # fmt: skip
    (runner,) = testbed.runners(space, [wiring])
    try:
        yield Training(runner, best, candidate, testbed.device)
    finally:
        runner.close()


@contextmanager
def _looked_in_its_folder(best: Best) -> Iterator[None]:
    """Look for the user's own script or module where the study was started."""
    try:
        with where.looked_in(Path(best.started_in) if best.started_in else None):
            yield
    except NotADirectoryError as error:
        raise UsageError(f"best.json: {error}") from error


def probing(best: Best) -> Rule:
    """How the study that found `best` probed."""
    return rule_for(best.device_kind, _options(best))


def _steps(best: Best, steps: int) -> Rule:
    """So many timed steps, however long they take."""
    return replace(
        probing(best),
        timed_steps=-(-steps // best.cycle_steps),
        half_width=float("inf"),
        timed_limit_s=float("inf"),
    )


def _options(best: Best) -> Options:
    """The study's options, narrowed to its winner. A script's stay: it may take fewer."""
    config, asked = best.config, best.provenance.get("options")
    if not isinstance(asked, dict):
        raise UsageError("best.json: has no options of its study")
    with _looked_in_its_folder(best):
        # Its file may be gone: what a model cannot do is known of its winner.
        options = Options.from_json(asked | {"model_config": None})
    if options.devices.device.startswith(REPLAY):
        raise UsageError("best.json: comes from a recording, which has no device to train on")
    if options.devices.emulated:
        raise UsageError("best.json: comes from emulated GPUs, which have no speed to verify")
    if options.script.template is not None:
        return options
    batch = GlobalBatch(config.global_batch_samples, "samples")
    unset = (*rows(Batching), "micro_batch" if config.candidate.vector else "micro_batch_per_rank")
    return options.but(
        **{each.option: (getattr(config, name),)
           for name, each in AXES.items() if not each.of_script and name not in unset},
        tokens_per_batch=None,
        length_mix=None,  # its file may be gone: best.json has it
        run_steps=None,
        **dict.fromkeys(unset),
        world_size=config.world_size,
        parallel=1,
        global_batch=batch,
    )  # fmt: skip


def _here(best: Best, options: Options) -> Options:
    """`options` for one machine, without the study's launcher. Raises UsageError if one machine
    has not as many devices."""
    nodes, kind = best.config.nodes, best.device_kind
    try:
        cluster, ranks = options.cluster, options.devices.world_size
        if launch.checked(cluster.launch, cluster.nodes, world_size=ranks,
                          interface=cluster.interface):  # fmt: skip
            return options
        why = f"verify it in a Slurm job of {nodes} nodes"
    except UsageError as error:
        why = str(error)
    alone = options.but(launch=None, nodes=None, interface=None)
    if nodes == 1:
        return alone
    if _devices(kind) < best.config.world_size:
        raise UsageError(
            f"best.json: was measured on {nodes} nodes, and cannot be verified on one: {why}"
        )
    return alone.but(device=kind)


def _devices(kind: str) -> int:
    try:
        return len(open_device(kind).infos)
    except UsageError:
        return 0


def _limits(best: Best) -> Limits:
    found = best.limits
    host = found.host_capacity_bytes or found.host_limit_bytes
    share = found.host_ceiling or found.host_limit_bytes / host
    by_rank = found.rank_capacities or ()
    return Limits(
        capacity_bytes=found.capacity_bytes,
        ceiling=found.ceiling,
        host_capacity_bytes=host,
        host_ceiling=share,
        rank_capacities=by_rank,
    )


def _noise(best: Best, after: Report, quarters: list[float]) -> str | None:
    """The cause if the machine may have slowed `after` down; None if nothing shows that.
    `quarters` are the median steps of each quarter, in seconds."""
    kind, measured = best.device_kind, best.measured.step_s
    slow_s = statistics.median(after.step_s)
    others = others_share(after.conditions)
    # A step waits for its slowest core, which runs one more of others' processes than the mean.
    slower = 2 + others / max(1 - others, 1e-3)
    if others > DISTURBED_SHARE[kind] and slow_s <= slower * measured.median:
        return f"other processes took {others:.0%} of the processor; run it on an idle machine"
    limit_s = measured.median / (1 - SLOWER[kind])
    slow = [each > limit_s for each in quarters]
    if any(before and not later for before, later in pairwise(slow)):  # it does not wear out
        return "a later quarter of the run was as fast as measured; run it for longer"
    if slow_s <= measured.high / (1 - SLOWER[kind]):
        return "the study's own steps varied as much; run the study again on an idle machine"
    return None


def _is_faster(best: Best, quarters: list[float]) -> bool:
    """Whether the steps of all `quarters` are shorter than the study's noise explains. Noise is
    that of steps, of finals of one candidate, and of longer runs."""
    differ = best.repeats.differ if best.repeats is not None else 0.0
    return max(quarters) < best.measured.step_s.low * (1 - max(SLOWER[best.device_kind], differ))


def _ran_out(best: Best, steps: int, cause: str, on: Device) -> Verified:
    return Verified(
        passed=False, steps=steps, tokens_per_s=None, share_of_measured=None, quarters=[],
        peak_bytes=None, limit_bytes=best.limits.limit_bytes, alloc_retries=0,
        growth_bytes_per_100_steps=None, ran_out=cause,
        other_hardware=other_hardware(best, on) or None,
    )  # fmt: skip


def _verified(best: Best, before: Report, after: Report, on: Device | None = None) -> Verified:
    kind, tokens = best.device_kind, best.tokens_per_step
    step_s = statistics.median(after.step_s)
    size = len(after.step_s) // QUARTERS
    quarters = [
        statistics.median(after.step_s[place * size : (place + 1) * size])
        for place in range(QUARTERS)
    ]
    peak_bytes = max(before.peaks.device_bytes, after.peaks.device_bytes)
    share = best.measured.step_s.median / step_s
    retries = before.peaks.alloc_retries + after.peaks.alloc_retries
    fast = share >= 1 - SLOWER[kind]
    fits = peak_bytes <= best.limits.limit_bytes and not retries  # as in the study
    grown_bytes = after.state_bytes - before.state_bytes
    spread_s = best.measured.spread_s or 0.0
    made = (len(after.step_s) + len(after.warmup_step_s)) * best.cycle_steps
    noise = None if fast or not fits else _noise(best, after, quarters)
    return Verified(
        passed=fast and fits,
        cannot_tell=noise,
        steps=len(after.step_s) * best.cycle_steps,
        tokens_per_s=tokens / (step_s + spread_s),
        share_of_measured=share,
        quarters=[tokens / (each + spread_s) for each in quarters],
        peak_bytes=peak_bytes,
        limit_bytes=best.limits.limit_bytes,
        alloc_retries=retries,
        growth_bytes_per_100_steps=None if best.command else grown_bytes * 100 / made,
        other_hardware=other_hardware(best, on) or None,
        faster=_is_faster(best, quarters),
        peak_in=peak_phase(after.phases),
        unseen=unseen(after.phases),
    )
