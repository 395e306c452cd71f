"""One run of a study in its folder: of a new one, or of one that was interrupted."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from autotune import provenance, sampler
from autotune.budget import Clock, StopFlag
from autotune.device import Device
from autotune.device.replay import ReplayDevice
from autotune.ending import Ended, Ending, nothing
from autotune.export import best
from autotune.journal import Journal
from autotune.manifest import Changes, Manifest
from autotune.options import Options, UsageError
from autotune.outcome import Record
from autotune.report import Reporter
from autotune.report.text import minutes
from autotune.runner.describe import Trace
from autotune.runner.pool import Pool
from autotune.runner.replay import Replay
from autotune.space import Space
from autotune.study import Study
from autotune.wire import Phase

_FOLDER_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOENT,
    errno.EACCES, errno.EPERM,
)  # fmt: skip


@dataclass(frozen=True)
class Resumed:
    """How an interrupted study is to go on."""

    argv: list[str]
    budget_s: float | None
    """From now on; None for what is left of the last one."""
    accepted: Changes
    """What is not as it was when the study began."""


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
    try:
        if resumed is None:
            manifest.write(folder)
        proposals = sampler.make(space, options, device.kind)
        journal = Journal(folder, proposals)
        session = _Session(options, space, device, manifest, journal, reporter, clock)
        return session.run(proposals, resumed)
    except OSError as error:
        if error.errno not in _FOLDER_ERRORS:
            raise
        return Ended(
            Ending.INTERNAL,
            f"{folder}: {error.strerror}; what was measured before is kept: make room, and go on"
            f" with --resume {quote(str(folder))}",
        )
    finally:
        reporter.close()


@dataclass
class _Session:
    """What the parts of one run share."""

    options: Options
    space: Space
    device: Device
    manifest: Manifest
    journal: Journal
    reporter: Reporter
    clock: Clock
    stopped_by: str | None = None

    def run(self, proposals: sampler.SpaceSampler, resumed: Resumed | None) -> Ended:
        if resumed is not None and resumed.budget_s is None and self.journal.ended is not None:
            again = self._again(self.journal.ended)
            if again is not None:
                return again
        argv = self.manifest.argv if resumed is None else resumed.argv
        accepted = {} if resumed is None else resumed.accepted
        if resumed is not None:
            self._go_on(resumed.budget_s)
        self.journal.begin(
            {"argv": argv, "budget_s": self.clock.budget_s, "accepted_changes": accepted}
        )
        self.reporter.started(self.space, self.clock.budget_s, self.journal.folder)
        if resumed is not None:
            self._tell_of_earlier()
        ended = self._study(proposals)
        self.journal.end(ended, self.clock.elapsed_s())
        return ended

    def _again(self, ended: Ended) -> Ended | None:
        """Show the result of a study that did all it could; None where there is more to do."""
        if not ended.code.is_final:
            return None
        self.reporter.started(self.space, self.clock.budget_s, self.journal.folder)
        if ended.code == Ending.FOUND:
            try:
                document = best.read_best(self.journal.best)
            except UsageError as error:
                self.reporter.note(f"{error}; it is written again")
                return None
            self.reporter.finished(document, self.journal.best)
        return ended

    def _go_on(self, more_s: float | None) -> None:
        """Set the clock to where it stood; the budget is what was left of it, or `more_s`."""
        spent_s, sessions = self.journal.spent_s, self.journal.sessions
        left_of_s = sessions[-1]["budget_s"] if sessions else self.clock.budget_s
        self.clock.go_on(spent_s, left_of_s if more_s is None else spent_s + more_s)

    def _tell_of_earlier(self) -> None:
        journal = self.journal
        finals = sum(record.kind == "final" for record in journal.earlier)
        trials = len(journal.earlier) - finals
        torn = f"; {journal.cut_bytes} torn bytes were cut off" if journal.cut_bytes else ""
        self.reporter.note(
            f"resumed after {minutes(journal.spent_s)}: trials {trials}, finals {finals}{torn}"
        )

    def _study(self, proposals: sampler.SpaceSampler) -> Ended:
        with ExitStack() as stack:
            stop = StopFlag()
            stack.callback(stop.restore)
            trace = Trace(self.space, self.device, self.journal.logs, self.reporter.note)
            stack.callback(trace.close)
            runner = self._runner(stop, trace)
            stack.callback(runner.close)

            def leave() -> None:
                runner.kill()
                self.reporter.abandon()

            stop.kill = leave
            study = Study(
                options=self.options,
                space=self.space,
                device_kind=self.device.kind,
                clock=self.clock,
                journal=self.journal,
                proposals=proposals,
                runner=runner,
                reporter=self.reporter,
                stop=stop,
                publish=self._publish,
                traced=trace.poll,
            )
            study.restore(self.journal.earlier)
            if self.journal.earlier:
                self.journal.rewrite([*study.records, *study.settled])
            study.run()
            runner.close()  # before the result is written: the budget counts to there
            trace.close()
            self.stopped_by = stop.name
            return self._result([*study.records, *study.settled])

    def _runner(self, stop: StopFlag, trace: Trace) -> Pool | Replay:
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
            stop=lambda: bool(stop),
            on_phase=on_phase,
            note=self.reporter.note,
            budget_s=self.options.budget_s,
        )

    def _result(self, records: Sequence[Record]) -> Ended:
        document = self._publish(records)
        if document is None:
            return nothing(records, self.space, self.stopped_by)
        if isinstance(self.device, ReplayDevice):
            name = self.device.infos[0].name
            self.reporter.note(f"{name}: nothing was measured now, and time is virtual")
        self.reporter.finished(document, self.journal.best)
        if self.stopped_by:
            return Ended(
                Ending.STOPPED,
                f"stopped by {self.stopped_by}; the best so far is written; go on with"
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
                "stopped_by": self.stopped_by,
            },
        )
        best.write_best(self.journal.best, document)
        return document
