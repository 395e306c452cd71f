"""One run of a study in its folder: of a new one, or of one that was interrupted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from autotune.budget import Clock, StopFlag
from autotune.device import Device
from autotune.folder import provenance
from autotune.folder.journal import Journal, Past
from autotune.folder.manifest import Changes, Manifest
from autotune.options import Options, UsageError
from autotune.outcome import Record
from autotune.replay.device import ReplayDevice
from autotune.replay.runner import Replay
from autotune.report import Reporter
from autotune.report.text import minutes
from autotune.result import best
from autotune.runner.describe import Trace
from autotune.runner.pool import Pool
from autotune.samplers import adapter as sampler
from autotune.space.space import Space
from autotune.study.ending import Ended, Ending, nothing
from autotune.study.study import Study
from autotune.wire.messages import Phase

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOST = (errno.EROFS, errno.EIO, errno.ESTALE)


@dataclass(frozen=True)
class Resumed:
    """How an interrupted study is to go on."""

    argv: list[str]
    budget_s: float | None
    """From now on; None for what is left of the last one."""
    accepted: Changes
    """What is not as it was when the study began."""
    check_idle: Callable[[], None]
    """Raises `UsageError` where others use the devices; a result is shown again all the same."""


def run(
    options: Options,
    *,
    space: Space,
    device: Device,
    manifest: Manifest,
    reporter: Reporter,
    clock: Clock,
    resumed: Resumed | None = None,
) -> Ended:
    """Run the study of `manifest` in its folder, which this process holds; write its result there.

    The budget is that of `clock`. Returns how it ended; no process of the study is left, however
    that was.

    Raises:
        UsageError: what is to be resumed cannot be read back.
    """
    folder = Path(manifest.folder)
    stop = StopFlag()
    try:
        if resumed is None:
            manifest.write(folder)
        proposals = sampler.make(space, options, device.kind)
        journal = Journal(folder, proposals)
        session = _Session(
            options, space, device, manifest, journal, proposals, reporter, clock, stop
        )
        return session.run(resumed)
    except OSError as error:
        if not _is_of(folder, error):
            raise
        return Ended(Ending.INTERNAL, _why_unwritable(folder, error))
    finally:
        reporter.close()
        stop.restore()


def _is_of(folder: Path, error: OSError) -> bool:
    """Whether `error` is about files of the study, and not about anything else."""
    named = error.filename is not None and str(error.filename).startswith(str(folder))
    return named or error.errno in (*_FULL, *_LOST)


def _why_unwritable(folder: Path, error: OSError) -> str:
    what = f"{error.filename or folder}: {error.strerror}"
    if not folder.exists():
        return f"{what}; the study's folder is gone"
    before = "make room, and go on" if error.errno in _FULL else "repair that, and go on"
    return f"{what}; what was told before is kept: {before} with --resume {quote(str(folder))}"


@dataclass
class _Session:
    """What the parts of one run share."""

    options: Options
    space: Space
    device: Device
    manifest: Manifest
    journal: Journal
    proposals: sampler.SpaceSampler
    reporter: Reporter
    clock: Clock
    stop: StopFlag

    def run(self, resumed: Resumed | None) -> Ended:
        past = self.journal.past
        if resumed is None:
            argv, accepted = self.manifest.argv, {}
        else:
            argv, accepted = resumed.argv, resumed.accepted
            budget_s = past.budget_s or self.clock.budget_s
            if resumed.budget_s is not None:
                budget_s = past.spent_s + resumed.budget_s
            self.clock.go_on(past.spent_s, budget_s)
            if past.ended is not None and past.ended.code.is_final and resumed.budget_s is None:
                again = self._again(past.ended)
                if again is not None:
                    return again
            resumed.check_idle()
        self.journal.begin(argv, self.clock.budget_s, accepted)
        self.reporter.started(self.space, self.clock.budget_s, self.journal.folder)
        if resumed is not None:
            self._tell_of(past)
        ended = self._study()
        self.journal.end(ended, self.clock.elapsed_s())
        return ended

    def _again(self, ended: Ended) -> Ended | None:
        """Show the result of a study that did all it could; None where it has to be made again."""
        document = None
        if ended.code == Ending.FOUND:
            try:
                document = best.read_best(self.journal.best)
            except UsageError as error:
                self.reporter.note(f"{error}; it is written again")
                return None
        self.reporter.started(self.space, self.clock.budget_s, self.journal.folder)
        if document is not None:
            self.reporter.finished(document, self.journal.best)
        return ended

    def _tell_of(self, past: Past) -> None:
        finals = sum(record.kind == "final" for record in past.records)
        cut = self.journal.cut_bytes
        torn = f"; {cut} torn bytes were cut off" if cut else ""
        self.reporter.note(
            f"resumed after {minutes(past.spent_s)}: trials {len(past.records) - finals},"
            f" finals {finals}{torn}"
        )

    def _study(self) -> Ended:
        past, journal = self.journal.past, self.journal
        if past.trials:  # with another seed, or it would draw again what it drew at first
            seed = (self.options.seed + past.trials) % 2**32
            asked = replace(self.options, seed=seed)
            self.proposals = sampler.make(self.space, asked, self.device.kind)
            journal.study.sampler = self.proposals
        with ExitStack() as stack:
            trace = Trace(self.space, self.device, journal.logs, self.reporter.note)
            stack.callback(trace.close)
            runner = self._runner(trace)
            stack.callback(runner.close)

            def leave() -> None:
                runner.kill()
                self.reporter.abandon()

            self.stop.kill = leave
            study = Study(
                options=self.options,
                space=self.space,
                device_kind=self.device.kind,
                clock=self.clock,
                journal=journal,
                proposals=self.proposals,
                runner=runner,
                reporter=self.reporter,
                stop=self.stop,
                publish=self._publish,
                traced=trace.poll,
            )
            if past.trials:
                study.restore(past.records)
                journal.rewrite([*study.records, *study.settled])
            study.run()
            runner.close()  # before the result is written: the budget counts to there
            trace.close()
            return self._result([*study.records, *study.settled])

    def _runner(self, trace: Trace) -> Pool | Replay:
        if isinstance(self.device, ReplayDevice):
            device = self.device
            return Replay(device.grid, self.space.limits, device.time, self.options.seed)

        def on_phase(phase: Phase, steps: int) -> None:
            trace.poll()  # it is to be made while the first group starts
            self.reporter.phase(phase, steps)

        return Pool(
            device=self.device,
            workload=self.space.workload,
            limits=self.space.limits,
            logs=self.journal.logs,
            seed=self.options.seed,
            stop=lambda: bool(self.stop),
            on_phase=on_phase,
            note=self.reporter.note,
            budget_s=self.clock.budget_s,
        )

    def _result(self, records: Sequence[Record]) -> Ended:
        document = self._publish(records)
        if document is None:
            return nothing(records, self.space, self.stop.name)
        if isinstance(self.device, ReplayDevice):
            name = self.device.infos[0].name
            self.reporter.note(f"{name}: nothing was measured now, and time is virtual")
        self.reporter.finished(document, self.journal.best)
        if self.stop.name:
            return Ended(
                Ending.STOPPED,
                f"stopped by {self.stop.name}; the best so far is written; go on with"
                f" --resume {quote(str(self.journal.folder))}",
            )
        return Ended(Ending.FOUND)

    def _publish(self, records: Sequence[Record]) -> dict[str, Any] | None:
        """Write best.json as far as `records` know it; None where nothing fits."""
        choice = best.winner(records, self.space.workload, self.options.objective)
        if choice is None:
            return None
        manifest = self.manifest
        document = best.best_json(
            choice,
            records,
            self.space,
            self.options.objective,
            fingerprint=manifest.fingerprint | {"ranks": provenance.rank_versions(records)},
            environment=provenance.environment(self.device, self.space),
            provenance={
                "argv": manifest.argv,
                "options": manifest.options,
                "folder": manifest.folder,
                "sessions": self.journal.sessions,
                "elapsed_s": round(self.clock.elapsed_s(), 3),
                "stopped_by": self.stop.name,
            },
        )
        best.write_best(self.journal.best, document)
        return document
