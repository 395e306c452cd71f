"""Studies in processes of their own, which tests disturb; and their leftovers.

All processes of a study inherit a mark in their environment, so none can hide. Its home and its
temporary folder are its own, and empty at its start.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from tests.support.programs import ROOT, TESTS

QUICK = str(TESTS / "support" / "quick_study.py")
MARK = "AUTOTUNE_TEST_MARK"
SHARED_MEMORY = Path("/dev/shm")
GONE_S = 10.0
"""Seconds in which all processes of a killed study have to be gone."""

WATCH_S = 0.02
"""Seconds between looks at shared memory while a study runs."""

Trials = list[tuple[str, ...]]

QUICK_SPACE = [
    "--device", "cpu", "--depth", "1,2", "--seq-len", "64,96,256", "--micro-batch", "1,2,4",
    "--gpt", "vocab_size=512", "--capacity", "230MiB", "--ceiling", "95%", "--sampler", "grid",
    "--finals", "2",
]  # fmt: skip
"""36 candidates for quick ranks, of which some run out of memory or are over the ceiling."""


class HostileStudy:
    """A study in `folder`/study, run as often as it takes."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.out = folder / "study"
        self.mark = uuid.uuid4().hex
        self._home, self._temporary = folder / "home", folder / "temporary"
        for each in (self._home, self._temporary):
            each.mkdir(parents=True)
        self._arguments = arguments
        self.environment = {
            "HOME": str(self._home), "TMPDIR": str(self._temporary), MARK: self.mark,
            "PYTHONPATH": str(ROOT),
        } | environment  # fmt: skip
        self._marked = f"{MARK}={self.mark}".encode()
        self.others = _segments()
        """Shared memory that is not of this study."""

    def start(
        self, *arguments: str, prepare: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        """The process of `python -m autotune`, in which `prepare` was called first."""
        process = subprocess.Popen(
            [sys.executable, *self._program, *arguments],
            cwd=self.folder, env=os.environ | self.environment, preexec_fn=prepare,  # noqa: PLW1509
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        return process

    _program: Sequence[str] = (QUICK,)

    def begin(self, *arguments: str, **how: Any) -> subprocess.Popen[str]:
        return self.start("--out", str(self.out), *self._arguments, *arguments, **how)

    def resume(self, *arguments: str, **how: Any) -> subprocess.Popen[str]:
        """Goes on, or begins where nothing was begun."""
        if (self.out / "manifest.json").exists():
            return self.start("--resume", str(self.out), *arguments, **how)
        return self.begin(*arguments, **how)

    def told(self) -> dict[str, str]:
        """Candidate to verdict, of every trial in Optuna's journal that was told with one."""
        return {key: verdict for key, verdict in self._outcomes() if verdict != "skipped"}

    def told_twice(self) -> list[str]:
        """Candidates that were told with a verdict more than once."""
        counts = Counter(key for key, verdict in self._outcomes() if verdict != "skipped")
        return [key for key, times in counts.items() if times > 1]

    def trials(self) -> Trials:
        """trials.csv in an order of its own, without its times."""
        import pandas as pd

        table = pd.read_csv(self.out / "trials.csv", dtype=str, keep_default_na=False)
        stays = ["kind", "key", "verdict", "tokens_per_s", "peak_device_bytes", "witness"]
        return sorted(map(tuple, table[stays].to_numpy().tolist()))

    def best(self) -> dict[str, Any] | None:
        """best.json, checked; None where there is none yet."""
        path = self.out / "best.json"
        return Best.read(path).to_json() if path.exists() else None

    def processes(self) -> list[int]:
        """Processes of this study that are alive."""
        return [pid for pid in _pids() if self._is_ours(pid)]

    def residue(self, *, within_s: float = GONE_S) -> list[str]:
        """Leftovers beside the study's folder after its process ended."""
        deadline = time.monotonic() + within_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        # Semaphores of a stranger that died go with its resource tracker, a moment later.
        while self._left_segments() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [f"process {pid}" for pid in self.processes()]
        left += map(str, self._left_segments())
        return left + [str(p) for home in (self._home, self._temporary) for p in home.iterdir()]

    def end(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def _watch(self, process: subprocess.Popen[str]) -> None:
        """While `process` runs, look at who holds the shared memory that appears.

        A segment does not name its maker, who may be gone when the study has ended.
        """
        seen = set(self.others)
        while process.poll() is None:
            if new := _segments() - seen:
                self._give_to_strangers(new)
                seen |= new
            time.sleep(WATCH_S)

    def _left_segments(self) -> set[Path]:
        """Shared memory that appeared since the beginning and is nobody else's."""
        if new := _segments() - self.others:
            self._give_to_strangers(new)
        return {each for each in new - self.others if each.exists()}

    def _give_to_strangers(self, segments: set[Path]) -> None:
        """Note which of `segments` another user owns, or a stranger has open or mapped."""
        held = {path for pid in _pids() for path in self._held_by_stranger(pid)}
        self.others |= {each for each in segments if str(each) in held or _is_anothers(each)}

    def _held_by_stranger(self, pid: int) -> set[str]:
        """Files that `pid` has open or mapped; none where it is of the study, or ending."""
        held = set(_held(pid))
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            has_memory = bool(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            return set()
        return held if has_memory and self._marked not in environment else set()

    def _is_ours(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return self._marked in environment and state != "Z"

    def _outcomes(self) -> Iterator[tuple[str, str]]:
        """Key and verdict of the trials that were told, in their order."""
        with suppress(UsageError, OSError, KeyError):  # there is no study yet
            for record in records_in(Folder(self.out)):
                if record.purpose == "search":
                    yield record.candidate.key, record.outcome.verdict


class SqliteStudy(HostileStudy):
    """A study with its trials in a database beside its folder."""

    def begin(self, *arguments: str, **how: Any) -> subprocess.Popen[str]:
        return super().begin("--storage", f"sqlite:///{self.folder}/a.db", *arguments, **how)


class RealStudy(HostileStudy):
    """With real ranks."""

    _program = ("-m", "autotune")


def _segments() -> set[Path]:
    """Shared memory of all programs; folders in the same place are none."""
    return {path for path in SHARED_MEMORY.iterdir() if not path.is_dir()}


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _is_anothers(path: Path) -> bool:
    """Whether `path` is there and belongs to another user."""
    try:
        return path.stat().st_uid != os.getuid()
    except FileNotFoundError:
        return False


def _held(pid: int) -> Iterator[str]:
    """Files that a process has open or mapped, as far as this user may know."""
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line.split(maxsplit=5)[-1]
        for each in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                yield str(each.readlink())


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a study that was killed and resumed."""

    when: str
    """The moment of the kill, in words."""
    told: int
    """Number of trials that were told before."""
    lost: int
    twice: int
    torn_best: bool
    differs: bool
    """The trials of the end are not those of an uninterrupted study."""
    residue: int
    error: str
    """Of the study that was to go on."""

    @property
    def sound(self) -> bool:
        return not (
            self.lost or self.twice or self.torn_best or self.differs or self.residue or self.error
        )


def kill_and_resume(study: HostileStudy, after_s: float, whole: Trials) -> Findings:
    """Kill `study` so many seconds after its start, and go on with it to its end."""
    process = study.begin()
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    process.kill()
    process.communicate()
    return _gone_on_with(study, whole)


def run_out_and_resume(study: HostileStudy, size: int, whole: Trials) -> Findings:
    """Let no file of `study` grow beyond `size` bytes; then lift that, and go on with it."""
    process = study.begin(prepare=limited(size))
    _, stderr = process.communicate()
    found = _gone_on_with(study, whole)
    known = process.returncode == 0 or stderr.count("\n") == 1
    return found if known else replace(found, error=stderr)


def limited(size: int) -> Callable[[], None]:
    """Has the kernel refuse to let any file grow beyond `size` bytes."""

    def limit() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    return limit


def _gone_on_with(study: HostileStudy, whole: Trials) -> Findings:
    """The state of the ended `study`, and its result after it is resumed."""
    residue = study.residue()
    told = study.told()
    try:
        study.best()
        torn = False
    except UsageError:
        torn = True
    when = _place(study, len(told))
    resumed = study.resume()
    _, stderr = resumed.communicate()
    error = stderr.strip() if resumed.returncode else ""
    residue += study.residue()
    lost = told.items() - study.told().items()
    differs = not error and study.trials() != whole
    return Findings(
        when=when,
        told=len(told),
        lost=len(lost),
        twice=len(study.told_twice()),
        torn_best=torn,
        differs=differs,
        residue=len(residue),
        error=error,
    )


def _place(study: HostileStudy, told: int) -> str:
    """The place at which the study in the folder stopped, in words."""
    journal = study.out / "optuna.log"
    text = journal.read_text(errors="replace") if journal.exists() else ""
    if not text:
        return "before the first trial"
    if '"ended":{' in text:
        return "after the end"
    if '"final-' in text:
        return "finals"
    return "search" if told else "first trial"
