"""One run of a study in its folder: of a new or an interrupted study."""

from __future__ import annotations

import errno
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any

from autotune.device.device import Device
from autotune.errors import ModelError, UsageError
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.scripted import shown_command, write_files
from autotune.measure.testbed.testbed import Testbed
from autotune.result import export, loggers
from autotune.result.best import Best
from autotune.result.files import write_whole
from autotune.result.folder import provenance
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import Journal
from autotune.result.folder.manifest import Changes, Manifest
from autotune.result.folder.past import Ending, Lost, Past, StudyEnd
from autotune.result.folder.storage import place_of, storage_of
from autotune.result.making import best_of
from autotune.show.report import Reporter
from autotune.show.report.text import minutes
from autotune.show.view.page import page
from autotune.show.view.study import read
from autotune.space.axes import AXES
from autotune.space.options import Options
from autotune.space.outcome import Record
from autotune.space.space import Space
from autotune.study.ledger import Ledger
from autotune.study.neighbours import Neighbours
from autotune.study.predict.update import update_share
from autotune.study.study import Study
from autotune.study.why_nothing import why_nothing
from autotune.wire.budget import Clock, StopFlag

SHOWN_UNTRIED = 3
"""At most so many untried values of axes are named."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOST = (errno.EROFS, errno.EIO, errno.ESTALE)


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """How an interrupted study is to go on."""

    argv: list[str]
    budget_s: float | None
    """From now on; None for the rest of the last budget."""
    accepted: Changes
    """Changes since the study began."""
    check_idle: Callable[[], None]
    """Raises `UsageError` if others use the devices. Not called to show a result again."""
    joined: bool = False
    """Whether this process joins another one's study, with a folder of its own."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A study that can be run, in a folder that this process holds."""

    options: Options
    space: Space
    testbed: Testbed
    manifest: Manifest
    resumed: Resumed | None = None
    built_in: bool = False
    """Whether the user named no model or script."""


def run(setup: Setup, *, reporter: Reporter, clock: Clock, stop: StopFlag) -> StudyEnd:
    """Run the study in its folder; write its result there; return how it ended.

    The budget is that of `clock`. No process is left; signal handlers of `stop` are restored.
    Raises UsageError if the study to resume cannot be read back.
    """
    folder = Folder(Path(setup.manifest.folder))
    stack = ExitStack()
    try:
        if setup.resumed is None or setup.resumed.joined:
            setup.manifest.write(folder.path)
        folder.prepare()
        storage = storage_of(folder, setup.manifest)
        journal = Journal.open(folder, setup.space, storage, setup.options.search.objective)
        stack.callback(journal.close)
        session = _Session(
            **vars(setup),
            folder=folder,
            journal=journal,
            reporter=reporter,
            clock=clock,
            stop=stop,
        )
        if (shown := session.begin()) is not None:
            return shown
        try:
            with session.study() as study:
                study.run()
            ended = session.result(study)
        except ModelError as error:  # the folder tells it later, too
            session.end(StudyEnd(Ending.NO_MEASUREMENT, str(error)))
            raise
        session.end(ended)
        return ended
    except OSError as error:
        if not _is_of(folder.path, error):
            raise
        return StudyEnd(Ending.INTERNAL, _why_unwritable(folder.path, error))
    finally:
        stack.close()
        reporter.close()
        stop.restore()


def _not_measured(untried: Sequence[tuple[str, Any]], recorded: bool) -> str:
    """A note: no probe tried these values of axes, and how to try them. Columns tell those of the
    user's own in a recorded table."""
    names = [str(value) if name == "own" else f"{name} {value}" for name, value in untried]
    more = f" and {len(names) - SHOWN_UNTRIED} more" if len(names) > SHOWN_UNTRIED else ""
    name, value = untried[0]
    flag = "--axis" if name == "own" else AXES[name].flag
    how = f"{flag} {quote(str(value))}"
    if name == "own" and recorded:
        how = "--row COLUMN=VALUE for each"
    return f"{', '.join(names[:SHOWN_UNTRIED])}{more}: not measured; run again with {how}"


def _is_of(folder: Path, error: OSError) -> bool:
    """Whether `error` is about files of the study."""
    named = error.filename is not None and str(error.filename).startswith(str(folder))
    return named or error.errno in (*_FULL, *_LOST)


def _why_unwritable(folder: Path, error: OSError) -> str:
    what = f"{error.filename or folder}: {error.strerror}"
    if not folder.exists():
        return f"{what}; the study's folder is gone"
    before = "make room, and go on" if error.errno in _FULL else "repair that, and go on"
    return f"{what}; what was told before is kept: {before} with --resume {quote(str(folder))}"


@dataclass(frozen=True, kw_only=True)
class _Session(Setup):
    """A `Setup` while it runs."""

    folder: Folder
    journal: Journal
    reporter: Reporter
    clock: Clock
    stop: StopFlag

    def begin(self) -> StudyEnd | None:
        """Tell journal and user of the start. Returns an end if nothing is left to do."""
        resumed = self.resumed
        past = self.journal.past
        if resumed is None:
            argv, accepted = self.manifest.argv, {}
        else:
            argv, accepted = resumed.argv, resumed.accepted
            budget_s = past.budget_s or self.clock.budget_s
            if resumed.budget_s is not None:
                budget_s = past.spent_s + resumed.budget_s
            self.clock.go_on(past.spent_s, budget_s)
            again = not resumed.joined and resumed.budget_s is None
            if again and past.ended is not None and past.ended.code.is_final:
                shown = self._again(past.ended)
                if shown is not None:
                    return shown
            resumed.check_idle()
        self.journal.attend(self.clock, self.stop, self.reporter.note)
        self.journal.begin(argv, self.clock.budget_s, accepted)
        if self.built_in:
            self.reporter.note("no --script or --model: tuning the built-in GPT")
        self.reporter.started(self.space, self.clock.budget_s, self.folder.path)
        if resumed is not None:
            self._tell_of(past, "joined" if resumed.joined else "resumed")
        if self.journal.shared:
            name = place_of(str(self.options.output.storage), self.manifest.study_name)
            self.reporter.note(f"other processes can join this study with --join {quote(name)}")
        if self.manifest.earlier:
            self.reporter.note(self._learns_from())
        return None

    def end(self, ended: StudyEnd) -> None:
        """Write how the study ended, and its page."""
        self.journal.end(ended, self.clock.elapsed_s())
        self._report()

    def _again(self, ended: StudyEnd) -> StudyEnd | None:
        """Show the result of a finished study; None if it has to be written again."""
        best = None
        if ended.code == Ending.FOUND:
            try:
                best = Best.read(self.folder.best)
            except UsageError as error:
                self.reporter.note(f"{error}; it is written again")
                return None
        self.reporter.started(self.space, self.clock.budget_s, self.folder.path)
        self.reporter.note(
            "this study had ended, so nothing is measured: --budget 10m beside --resume goes on"
        )
        if best is not None:
            self.reporter.finished(best, self.folder.best)
        return ended

    def _tell_of(self, past: Past, how: str) -> None:
        made = Counter(record.purpose for record in past.records)
        cut = self.journal.cut_bytes
        torn = f"; {cut} torn bytes were cut off" if cut else ""
        self.reporter.note(
            f"{how} after {minutes(past.spent_s)}: trials {made['search']},"
            f" finals {made['final']}{torn}"
        )

    def _learns_from(self) -> str:
        studies = self.manifest.earlier
        count = {timed: sum(len(each.seen) for each in studies if each.timed == timed)
                 for timed in (True, False)}  # fmt: skip
        words = {True: "measurement", False: "weighed peak"}
        seen = [f"{n} {words[timed]}{'s' * (n > 1)}" for timed, n in count.items() if n]
        names = ", ".join(study.folder for study in studies[:2])
        more = f" and {len(studies) - 2} more" if len(studies) > 2 else ""
        return f"learns from {' and '.join(seen)} of earlier studies: {names}{more}"

    @contextmanager
    def study(self) -> Iterator[Study]:
        """The study on its runners. No process of it is left afterwards."""
        with ExitStack() as stack:
            leaving = threading.Event()

            def stop() -> bool:
                return bool(self.stop) or leaving.is_set()

            neighbours = None
            if (beside := self.testbed.beside(self.space, self._slots)) > 1:
                neighbours = Neighbours(beside, stop, self.reporter)
            wiring = Wiring(
                logs=self.folder.logs,
                seed=self.options.search.seed,
                budget_s=self.clock.budget_s,
                stop=stop,
                on_phase=self.reporter.phase,
                note=self.reporter.note,
                on_lost=self._lose,
                turn=neighbours.turn if neighbours else nullcontext,
                rows=self._rows,
            )
            each = [partial(self.reporter.phase, slot=slot) for slot in range(self._slots)]
            runners = self.testbed.runners(
                self.space, [replace(wiring, on_phase=on_phase) for on_phase in each]
            )

            def close() -> None:
                for runner in runners:
                    runner.close()

            def leave() -> None:
                for runner in runners:
                    runner.kill()
                self.reporter.abandon()

            for _ in range(2):  # again if another interrupt comes in the first
                stack.callback(close)
            self.stop.kill = leave
            study = Study(
                options=self.options,
                space=self.space,
                device_kind=self.testbed.device.kind,
                clock=self.clock,
                journal=self.journal,
                runners=runners,
                reporter=self.reporter,
                stop=self.stop,
                publish=self._publish,
                earlier=self.manifest.earlier,
                neighbours=neighbours,
            )
            for _ in range(2):
                stack.callback(study.close)
            stack.callback(leaving.set)
            yield study

    def _lose(self, why: str) -> None:
        """Note that the study goes on without a node. Called by a thread."""
        self.journal.lost.append(Lost(round(self.clock.elapsed_s(), 3), why))
        self.reporter.note(why)

    @property
    def _rows(self) -> int | None:
        """The rows of each sample that a script's model got in the earlier run."""
        found = (record.outcome.measurement for record in self.journal.past.records)
        return max((each.ran.rows for each in found if each and each.ran), default=None)

    @cached_property
    def _slots(self) -> int:
        return self.testbed.slots(self.options, self.space)

    @cached_property
    def _device(self) -> Device:
        return self.testbed.device.shares(self._slots, self.space.workload.world_size)[0]

    def result(self, study: Study) -> StudyEnd:
        """Write what the study found. Raises UnreachableError if the storage did not take all of
        it."""
        best = self._publish(study.ledger, study.stopped_in)
        ended = self._ended(study, best)
        self._log(study.ledger)
        if study.away is not None:
            raise study.away
        return ended

    def _ended(self, study: Study, best: Best | None) -> StudyEnd:
        lost = study.lost
        if best is None:
            return why_nothing(
                study.ledger.all, self.space, self.stop.name, self.clock.budget_s,
                trials=self.options.search.trials, lost=lost,
            )  # fmt: skip
        if self.testbed.remark:
            self.reporter.note(self.testbed.remark)
        resume = quote(str(self.folder.path))
        self.reporter.finished(best, self.folder.best)
        shutil.rmtree(self.folder.exports, ignore_errors=True)  # of an earlier winner
        made = export.write(best, self.folder.exports)
        if best.command is not None:
            asked = self.space.asked_for(best.config.candidate) or best.config.candidate
            write_files(
                self.space, asked, best.device_kind, self.folder.exports,
                seed=self.options.search.seed, replicas=best.config.data_parallel,
            )  # fmt: skip
        without = export.left_out(best, made)
        self.reporter.note(
            f"Exports: {self.folder.exports}/ has {', '.join(made)}"
            f"{f'; {without}' if without else ''}"
            if made
            else f"Exports: {without}"
        )
        if untried := study.ledger.untried:
            self.reporter.note(_not_measured(untried, self.options.devices.recorded))
        if why := f"stopped by {self.stop.name}" if self.stop.name else lost:
            return StudyEnd(
                Ending.STOPPED,
                f"{why}; the best so far is written; go on with --resume {resume}",
            )
        for line in (study.next_step(resume) or "").splitlines():
            self.reporter.note(line)
        return StudyEnd(Ending.FOUND)

    def _report(self) -> None:
        """Write the page of the study. A failure does not change the exit code."""
        try:
            write_whole(self.folder.report, page(read(self.folder.path)))
        except Exception as error:  # noqa: BLE001 - what was measured is written, whatever it is
            self.reporter.note(
                f"{self.folder.report.name} could not be written: {type(error).__name__}: {error}"
            )
            return
        self.reporter.note(f"Report: {self.folder.report}")

    def _log(self, ledger: Ledger) -> None:
        """Write the trials for other trackers, if the user asked for it."""
        records, limits = ledger.records, self.space.limits
        for name in self.options.output.log or ():
            try:
                place = loggers.write(name, records, limits, self.folder.path)
                self.reporter.note(f"Log: {place.name}/ has the trials for {name}")
            except OSError as error:  # best.json is written all the same
                self.reporter.note(f"--log {name}: could not be written: {error}")

    def _command(self, record: Record) -> list[str] | None:
        """The command that starts the user's script as in `record`; None without a script."""
        if not self.space.workload.recipe.get("command"):
            return None
        kind = self.testbed.device.kind
        return shown_command(self.space, record, self.options, kind, self.folder.exports)

    def _publish(self, ledger: Ledger, stopped_in: str | None = None) -> Best | None:
        """Write best.json from `ledger`. None if nothing fits: an earlier best.json is deleted."""
        choice = ledger.choice()
        if choice is None:
            self.folder.best.unlink(missing_ok=True)
            shutil.rmtree(self.folder.exports, ignore_errors=True)
            return None
        manifest, records = self.manifest, ledger.all
        best = best_of(
            choice,
            records,
            self.space,
            self.options.search.objective,
            fingerprint=manifest.fingerprint | {"ranks": provenance.rank_versions(records)},
            environment=provenance.environment(self.testbed.variables(self.space, self._slots)),
            provenance={
                "argv": manifest.argv,
                "options": manifest.options,
                "folder": manifest.folder,
                "started_in": self.space.workload.recipe.get("folder"),
                "sessions": self.journal.sessions,
                "learned_from": [study.folder for study in manifest.earlier],
                "elapsed_s": round(self.clock.elapsed_s(), 3),
                "stopped_by": self.stop.name,
                "stopped_in": stopped_in,
                "lost_nodes": [asdict(each) for each in self.journal.lost],
            },
            command=self._command(choice.record),
        )
        if best.same_batch:
            share = update_share(choice.record, self.space.workload, manifest.earlier)
            best = replace(best, update_share=share)
        best.write(self.folder.best)
        return best
