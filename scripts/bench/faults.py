"""Disturbs studies in many ways, and counts losses: the long form of tests/faults.

    .venv/bin/python scripts/bench/faults.py [--kills 200] [--disks 40] [--studies 4]
        [--groups 500] [--fuzz 100000] [--workers 2] [--seed 0]

Studies are whole processes of the command line. Their ranks answer from formulas, so an
interrupted study can be compared with another one. Prints a table, and exits with 1 if anything
was lost. A count of 0 leaves a part out. Needs the extra `dev`.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from shared import ROOT, run, say, table

sys.path.insert(0, str(ROOT))

import psutil

from autotune.commands.app import parsed
from autotune.commands.tune import Tune
from autotune.errors import UsageError
from autotune.measure.runner import local
from autotune.measure.testbed import open_testbed
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import Journal
from autotune.result.folder.journal_file import JournalFile
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from tests.support.fuzz import PARSERS, fuzz
from tests.support.hostile import (
    QUICK_SPACE,
    Findings,
    HostileStudy,
    Trials,
    kill_and_resume,
    run_out_and_resume,
)
from tests.support.many import descend
from tests.support.pools import SMALL, Started
from tests.support.programs import QUICK_RANK

WIDE = ["--device", "cpu", "--depth", "1,2,3,4", "--seq-len", "64,128", "--micro-batch", "1:8"]
FAULTS = "hang:0.02,stop:0.01,killed:0.09,leave:0.09,garbage:0.09"
BUDGET_S = 60.0
LATE_S = 5.0
FUZZ_SHARES = {
    "options": 0.3, "wire": 0.2, "journal repair": 0.15, "grid CSV": 0.15, "best.json": 0.08,
    "manifest.json": 0.06, "command line": 0.06,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one kind of fault."""

    what: str
    injected: int
    lost: int = 0
    """Told trials that were lost."""
    twice: int = 0
    """Candidates that were told twice."""
    torn: int = 0
    """Times that best.json could not be read."""
    differs: int = 0
    """Studies that ended with other trials."""
    residue: int = 0
    """Left processes, shared memory, temporary files and open files."""
    failed: int = 0
    """Tracebacks, studies that could not go on, budgets exceeded by more than 5 s."""
    note: str = ""

    @property
    def bad(self) -> int:
        return self.lost + self.twice + self.torn + self.differs + self.residue + self.failed


def row(what: str, found: Sequence[Findings], note: str = "") -> Row:
    for each in found:
        if not each.sound:
            say(f"{each}")
    return Row(
        what=what, injected=len(found), note=note,
        lost=sum(f.lost for f in found), twice=sum(f.twice for f in found),
        torn=sum(f.torn_best for f in found), differs=sum(f.differs for f in found),
        residue=sum(f.residue for f in found), failed=sum(bool(f.error) for f in found),
    )  # fmt: skip


class Campaign:
    """The parts, in `folder`."""

    def __init__(self, folder: Path, workers: int, seed: int) -> None:
        self._folder = folder
        self._workers = workers
        self._seed = seed
        self._random = random.Random(seed)
        self._studies = 0

    def study(self, *arguments: str, **environment: str) -> HostileStudy:
        self._studies += 1
        return HostileStudy(self._folder / f"{self._studies}", *arguments, **environment)

    def whole(self) -> tuple[Trials, float]:
        """Trials of an undisturbed study, and its seconds."""
        study = self.study(*QUICK_SPACE)
        began = time.monotonic()
        process = study.begin()
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        return study.trials(), time.monotonic() - began

    def kills(self, count: int) -> Row:
        """SIGKILL at moments spread over a whole study; each is then resumed."""
        trials, length_s = self.whole()
        length_s *= 1.3  # several at once are slower
        moments = [length_s * (i + self._random.random()) / count for i in range(count)]
        studies = [self.study(*QUICK_SPACE) for _ in moments]

        def one(pair: tuple[HostileStudy, float]) -> Findings:
            return kill_and_resume(*pair, trials)

        found = self._map(one, list(zip(studies, moments, strict=True)))
        places = Counter(f.when for f in found)
        note = ", ".join(f"{times} {place}" for place, times in sorted(places.items()))
        return row("study killed (SIGKILL) and resumed", found, note)

    def disks(self, count: int) -> Row:
        """Limits on the size of files, from 0 to more than the largest file has."""
        trials, _ = self.whole()
        sizes = [int(10 ** self._random.uniform(2, 5.2)) for _ in range(count)]
        studies = [self.study(*QUICK_SPACE) for _ in sizes]

        def one(pair: tuple[HostileStudy, int]) -> Findings:
            return run_out_and_resume(*pair, trials)

        found = self._map(one, list(zip(studies, sizes, strict=True)))
        return row("disk full while writing, and resumed", found, "limits of 0.1 to 160 KB a file")

    def cuts(self) -> Row:
        """Optuna's journal cut at every byte of its last two lines."""
        study = self.study(*QUICK_SPACE)
        process = study.begin()
        while process.poll() is None and len(study.told()) < 12:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        folder, space = Folder(study.out), _space()

        def told() -> int:
            storage = JournalFile(folder.optuna_log)
            return len(Journal.open(folder, space, storage, "flops").past.records)

        data = folder.optuna_log.read_bytes()
        start = data.rfind(b"\n", 0, data.rstrip(b"\n").rfind(b"\n")) + 1
        folder.optuna_log.write_bytes(data[:start])
        whole = told()
        lost = failed = 0
        for size in range(start, len(data) + 1):
            folder.optuna_log.write_bytes(data[:size])
            try:
                lost += told() < whole
            except UsageError as error:
                say(f"{error}")
                failed += 1
        return Row(
            what="journal cut at each byte of its end",
            injected=len(data) + 1 - start,
            lost=lost,
            failed=failed,
        )

    def faulty(self, count: int) -> Row:
        """Studies in which three of ten probes hang or break."""
        studies = [
            self.study(
                *WIDE, "--sampler", "random", "--seed", str(self._seed + i),
                "--budget", f"{BUDGET_S:.0f}s", QUICK_FAULTS=FAULTS, QUICK_SEED=str(i),
            )
            for i in range(count)
        ]  # fmt: skip
        late_s, residue, failed, verdicts = [], 0, 0, Counter[str]()
        for study in studies:
            began = time.monotonic()
            process = study.begin()
            process.communicate()
            late_s.append(time.monotonic() - began - BUDGET_S)
            failed += process.returncode not in (0, 5) or late_s[-1] > LATE_S
            residue += len(study.residue())
            verdicts += Counter(verdict for _, _, verdict, *_ in study.trials())
        broken = verdicts["hung"] + verdicts["crashed"]
        note = f"{verdicts['hung']} hung; ended {max(late_s):+.1f} s from the budget's end at most"
        return Row(
            what="probes that hang or crash, 3 of 10",
            injected=broken,
            residue=residue,
            failed=failed,
            note=note,
        )

    def trials(self, side: int = 8) -> Row:
        """Trials in a row that run out of memory, with ranks of formulas."""
        began = time.monotonic()
        verdicts = descend(self._folder / "many", side)
        note = f"{(time.monotonic() - began) / side**3:.2f} s each of the study's own"
        failed = int(verdicts["oom"] != side**3 - 1)
        return Row(
            what="trials in a row that run out of memory",
            injected=verdicts["oom"],
            failed=failed,
            note=note,
        )

    def groups(self, count: int) -> Row:
        """Worker groups in a row that all run out of memory."""
        real, local.WORKER = local.WORKER, QUICK_RANK
        logs = self._folder / "logs"
        logs.mkdir()
        started = Started(logs)
        large = replace(SMALL, micro_batch=512, seq_len=512)
        me = psutil.Process()
        try:
            verdicts = [started.run(large).verdict for _ in range(3)]
            before, before_bytes = (me.num_fds(), len(me.children())), me.memory_info().rss
            verdicts += [started.run(large).verdict for _ in range(count)]
            after, grown = (me.num_fds(), len(me.children())), me.memory_info().rss - before_bytes
        finally:
            started.pool.close()
            local.WORKER = real
        left = sum(b - a for a, b in zip(before, after, strict=True))
        failed = sum(verdict != Verdict.OOM for verdict in verdicts)
        return Row(
            what="groups in a row that run out of memory",
            injected=count,
            residue=left,
            failed=failed,
            note=f"the study's process grew by {grown / 2**20:.1f} MiB",
        )

    def fuzz(self, count: int) -> Iterator[Row]:
        for name in PARSERS:
            tried, failed = 0, 0
            try:
                tried = fuzz(name, max(1, int(count * FUZZ_SHARES[name])), self._seed)
            except Exception as error:  # noqa: BLE001 - counted, and shown
                say(f"{name}: {error!r}")
                failed = 1
            yield Row(what=f"wrong input: {name}", injected=tried, failed=failed)

    def _map(self, one: Callable[[Any], Findings], over: Sequence[Any]) -> list[Findings]:
        with ThreadPoolExecutor(self._workers) as threads:
            return list(threads.map(one, over))


def _space() -> Space:
    request = parsed(QUICK_SPACE)
    assert isinstance(request, Tune)
    return open_testbed(request.options).space(request.options)


def report(rows: Sequence[Row]) -> str:
    head = (
        "fault | injected | told trials lost | tried twice | best.json torn | other trials"
        " | residue | failed | "
    )
    return table(head, ((r.what, f"{r.injected:,}", *astuple(r)[2:]) for r in rows))


def main(
    *, kills: int = 200, disks: int = 40, studies: int = 4, groups: int = 500,
    fuzz: int = 100_000, workers: int = os.cpu_count() or 1, seed: int = 0,
) -> int:  # fmt: skip
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="autotune-campaign-") as folder:
        campaign = Campaign(Path(folder), workers, seed)
        parts = {
            campaign.kills: kills,
            campaign.disks: disks,
            campaign.faulty: studies,
            campaign.groups: groups,
        }
        for part, count in parts.items():
            if count:
                rows.append(part(count))
                say(f"{rows[-1]}")
        if kills:
            rows.append(campaign.cuts())
        if groups >= 500:
            rows.append(campaign.trials())
        rows += campaign.fuzz(fuzz) if fuzz else []
    print(f"{platform.system()}, {os.cpu_count()} cores; seed {seed}.\n")
    print(report(rows))
    return int(any(r.bad for r in rows))


if __name__ == "__main__":
    run(main)
