"""Measure every candidate of a space, several times, and write one CSV: a grid to replay.

    .venv/bin/python scripts/bench/record_grid.py results/grids/NAME.csv -- --depth 2,4 ...

After `--` come options of `python -m autotune` for the space and the devices. No ceiling applies,
so any smaller capacity can be replayed. Each pass measures every candidate once, in random order,
in groups of at most 16 candidates. The same command continues an interrupted recording (Ctrl-C or
SIGTERM; a running probe is lost). Measurements that other programs disturbed are repeated later.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter
from shared import probing, run, say, wiring

from autotune.commands.app import parsed
from autotune.commands.exits import ExitCode, one_line
from autotune.commands.tune import Tune
from autotune.device.idle import check_idle
from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.runner import Result, Runner, StopRequestedError
from autotune.measure.testbed import REPLAY, open_testbed
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import others_share
from autotune.space.space import Space
from autotune.study.prober import rule_for
from autotune.units import parse_duration_s, parse_share
from autotune.wire.budget import StopFlag
from autotune.wire.stopping import Rule

GROUP_CANDIDATES = 16
"""A group ends after so many candidates, so luck of one group is shared out."""
TRACE_LIMIT_S = 300.0
PROBE_LIMIT_S = 600.0
TRIES = 4
"""The most tries of a disturbed measurement; the last one is kept."""


class GridFile:
    """A file, and its missing measurements."""

    def __init__(self, path: Path, header: dict[str, Any], space: Space, repeats: int) -> None:
        """Open `path`, or continue it. Raises `UsageError` if it is another recording."""
        self._path = path
        self._space = space
        self._repeats = repeats
        self._done: Counter[Candidate] = Counter()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(grid.head(header))
            return
        found = grid.read(path)
        for name, value in header.items():
            if found.header.get(name) != value:
                raise UsageError(f"{path}: records another {name}; name a new file")
        path.write_bytes(grid.whole_lines(path.read_bytes()))
        self._done.update(row.candidate for row in found.rows)

    @property
    def missing(self) -> int:
        return sum(self._repeats - self._done[c] for c in self._space.candidates)

    def next_pass(self, rng: random.Random) -> list[list[Candidate]]:
        """The candidates with the fewest measurements, in groups of one build, in random order."""
        least = min(self._done[c] for c in self._space.candidates)
        of_build = defaultdict(list)
        for candidate in self._space.candidates:
            if self._done[candidate] == least < self._repeats:
                of_build[candidate.build].append(candidate)
        groups: list[list[Candidate]] = []
        for candidates in of_build.values():
            rng.shuffle(candidates)
            step = GROUP_CANDIDATES
            groups += [candidates[i : i + step] for i in range(0, len(candidates), step)]
        rng.shuffle(groups)
        return groups

    def add(self, candidate: Candidate, result: Result) -> None:
        row = grid.GridRow(
            candidate=candidate,
            repeat=self._done[candidate],
            verdict=result.verdict,
            group_start_s=result.group_start_s,
            report=result.report,
            reason=result.reason,
        )
        with self._path.open("a") as file:
            file.write(grid.row_line(row))
            file.flush()
            os.fsync(file.fileno())
        self._done[candidate] += 1


def record(
    file: GridFile,
    runner: Runner,
    space: Space,
    rule: Rule,
    calm: float,
    *,
    rng: random.Random,
    stop: StopFlag,
) -> None:
    """Make the missing measurements of `file`. Raises `StopRequestedError` on a signal.

    `calm` is the share of processor time that other programs may take of a probe.
    """
    tries: Counter[Candidate] = Counter()
    while file.missing:
        for group in file.next_pass(rng):
            runner.retire(time.monotonic() + PROBE_LIMIT_S)
            start_s = 0.0
            for candidate in group:
                if stop:
                    raise StopRequestedError
                accum = space.workload.micro_steps(candidate)
                job = probing(candidate, rule, grad_accum=accum)
                result = runner.run(job, time.monotonic() + PROBE_LIMIT_S)
                start_s = start_s or result.group_start_s
                share = 0.0
                if result.report is not None:
                    share = others_share(result.report.conditions)
                tries[candidate] += 1
                kept = share <= calm or tries[candidate] >= TRIES
                if kept:
                    file.add(candidate, replace(result, group_start_s=start_s))
                    start_s = 0.0
                    tries[candidate] = 0
                again = "" if kept else f"  disturbed {share:.0%}, to be made again"
                print(f"{file.missing:5} {candidate.key:36} {result.verdict}{again}")


def main(
    path: Path,
    *study: Annotated[str, Parameter(allow_leading_hyphen=True)],
    repeats: int = 3,
    limit: str = "1s",
    calm: str = "5%",
    seed: int = 0,
) -> int:
    """Warm-up and timed steps of a probe may take the time of `limit`, and other programs the
    share of `calm`."""
    try:
        request = parsed(list(study))
        if request is None:  # only --help or --version
            return ExitCode.FOUND
        if not isinstance(request, Tune):
            raise UsageError("after -- come the options of a study, and no other command")
        return recorded(
            path, request.options, repeats=repeats, seed=seed,
            limit_s=parse_duration_s(limit, "--limit"), calm=parse_share(calm, "--calm"),
        )  # fmt: skip
    except (UsageError, CycloptsError) as error:
        say(f"record_grid: {one_line(error)}")
        return ExitCode.USAGE


def recorded(
    path: Path, options: Options, *, repeats: int, limit_s: float, calm: float, seed: int
) -> int:
    """Begin the grid in `path`, or go on with it."""
    if options.devices.device.startswith(REPLAY):
        raise UsageError("--device: a recording is no device to record; use cpu or cuda")
    if options.space.length_mix is not None:
        raise UsageError(
            "--length-mix: a recording has steps of one length, which no mix can be made of; name"
            " several by --seq-len"
        )
    testbed = open_testbed(options)
    kind = testbed.device.kind
    check_idle(testbed.device, options.devices.allow_busy)
    space = testbed.space(options)
    rule = replace(rule_for(kind, options), warmup_limit_s=limit_s, timed_limit_s=limit_s)
    header = {
        "schema_version": grid.SCHEMA_VERSION,
        "kind": kind,
        "space": space.manifest(),
        "fingerprint": testbed.fingerprint(space),
        "settings": {"limit_s": limit_s, "calm": calm, "group_candidates": GROUP_CANDIDATES},
    }
    stop = StopFlag()
    with tempfile.TemporaryDirectory(prefix="autotune-grid-") as logs:
        wires = replace(
            wiring(Path(logs), math.inf), seed=options.search.seed, stop=lambda: bool(stop)
        )
        try:
            (runner,) = testbed.runners(space, [wires])
            stop.kill = runner.kill
            try:
                if not path.exists():
                    trace = runner.trace(space, TRACE_LIMIT_S, time.monotonic() + TRACE_LIMIT_S)
                    header |= {} if trace is None else {"trace": asdict(trace)}
                file = GridFile(path, header, space, repeats)
                print(f"{len(space.candidates)} candidates, {file.missing} measurements to make")
                rng = random.Random(seed + file.missing)
                record(file, runner, space, rule, calm, rng=rng, stop=stop)
            finally:
                runner.close()
        except StopRequestedError:
            print("stopped; the same command goes on with what is missing")
            return ExitCode.STOPPED
        finally:
            stop.restore()
    print(f"complete: {path}")
    return ExitCode.FOUND


if __name__ == "__main__":
    run(main)
