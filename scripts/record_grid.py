"""Measure every candidate of a space, several times, and write one CSV: a grid to replay.

    .venv/bin/python scripts/record_grid.py results/grids/NAME.csv [--repeats 3] -- --depth 2,4 ...

What follows `--` are the options of `python -m autotune` that describe the space and the devices.
No ceiling is applied, so that any smaller capacity can be replayed. Each pass measures every
candidate once, in random order, in groups that take at most 16 candidates. The same command
continues a recording that was interrupted (Ctrl-C or SIGTERM; a probe that runs is lost). A
measurement that other programs disturbed is made again, later.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclopts import CycloptsError

from autotune.budget import StopFlag
from autotune.commands import app as cli
from autotune.device import Device, check_idle, open_device
from autotune.device.cpu import cores, host_memory_bytes
from autotune.folder import provenance
from autotune.options import UsageError, parse_duration_s, parse_share
from autotune.outcome import others_share
from autotune.predict.trace import Activations
from autotune.replay import grid
from autotune.replay.device import ReplayDevice
from autotune.runner import Job, Result, StopRequestedError
from autotune.runner.describe import Trace
from autotune.runner.pool import Pool
from autotune.space.space import Candidate, Space, resolve
from autotune.study.study import rule_for
from autotune.wire.messages import Rule

GROUP_CANDIDATES = 16
"""A group is ended after so many, so that what favours one group is shared out."""
PROBE_LIMIT_S = 600.0
TRIES = 4
"""Of one measurement that the machine keeps disturbing; the last one is kept as it is."""


class Recording:
    """One file, and what it still lacks."""

    def __init__(self, path: Path, header: dict[str, Any], space: Space, repeats: int) -> None:
        """Open `path`, or continue it. Raises `UsageError` where it is another recording."""
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
        """Candidates that were measured least often, in groups of one build, in random order."""
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
        row = grid.Row(
            candidate, self._done[candidate], result.verdict, result.group_start_s,
            result.report, result.reason,
        )  # fmt: skip
        with self._path.open("a") as file:
            file.write(grid.row_line(row))
            file.flush()
            os.fsync(file.fileno())
        self._done[candidate] += 1


def record(
    recording: Recording, runner: Pool, space: Space, rule: Rule, *,
    calm: float, rng: random.Random, stop: StopFlag,
) -> None:  # fmt: skip
    """Measure what `recording` lacks. Raises `StopRequestedError` on a signal."""
    tries: Counter[Candidate] = Counter()
    while recording.missing:
        for group in recording.next_pass(rng):
            runner.retire(time.monotonic() + PROBE_LIMIT_S)
            start_s = 0.0
            for candidate in group:
                if stop:
                    raise StopRequestedError
                accum = space.workload.grad_accum(candidate)
                assert accum is not None
                job = Job(candidate, accum, accum, rule, None, fresh=False)
                result = runner.run(job, time.monotonic() + PROBE_LIMIT_S)
                start_s = start_s or result.group_start_s
                share = 0.0
                if result.report is not None:
                    share = others_share(result.report.conditions)
                tries[candidate] += 1
                kept = share <= calm or tries[candidate] >= TRIES
                if kept:
                    recording.add(candidate, replace(result, group_start_s=start_s))
                    start_s = 0.0
                    tries[candidate] = 0
                again = "" if kept else f"  disturbed {share:.0%}, to be made again"
                print(f"{recording.missing:5} {candidate.key:36} {result.verdict}{again}")


def traced(space: Space, device: Device) -> Activations | None:
    """The trace that a study starts from, so that a replay can start from it too."""
    with tempfile.TemporaryDirectory(prefix="autotune-grid-") as logs:
        failures: list[str] = []
        trace = Trace(space, device, Path(logs), failures.append)
        try:
            while (found := trace.poll()) is None and not failures:
                time.sleep(0.1)
        finally:
            trace.close()
    for failure in failures:
        print(failure, file=sys.stderr)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", default="1s", help="time of a probe's warm-up and timed steps")
    parser.add_argument("--calm", default="5%", help="what other programs may take of a probe")
    parser.add_argument("--seed", type=int, default=0)
    split = list(arguments).index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:split])
    try:
        return _record(asked, list(arguments[split + 1 :]))
    except (UsageError, CycloptsError) as error:
        print(f"record_grid: {cli.one_line(error)}", file=sys.stderr)
        return cli.ExitCode.USAGE


def _record(asked: argparse.Namespace, space_arguments: list[str]) -> int:
    request = cli.app(
        space_arguments, exit_on_error=False, print_error=False, result_action="return_value"
    )
    device = open_device(request.options.device)
    if isinstance(device, ReplayDevice):
        raise UsageError("--device: a recording is no device to record; use cpu or cuda")
    check_idle(device, request.options.allow_busy)
    space = resolve(request.options, device, host_memory_bytes(), cores())
    limit_s = parse_duration_s(asked.limit, "--limit")
    calm = parse_share(asked.calm, "--calm")
    rule = replace(rule_for(device.kind, 0), warmup_limit_s=limit_s, timed_limit_s=limit_s)
    header = {
        "schema_version": grid.SCHEMA_VERSION,
        "kind": device.kind,
        "space": space.manifest(),
        "fingerprint": provenance.fingerprint(device, space),
        "settings": {"limit_s": limit_s, "calm": calm, "group_candidates": GROUP_CANDIDATES},
    }
    if not asked.path.exists():
        trace = traced(space, device)
        header |= {} if trace is None else {"trace": grid.trace_header(trace)}
    recording = Recording(asked.path, header, space, asked.repeats)
    print(f"{len(space.candidates)} candidates, {recording.missing} measurements to make")
    stop = StopFlag()
    with tempfile.TemporaryDirectory(prefix="autotune-grid-") as logs:
        runner = Pool(
            device=device, workload=space.workload, limits=space.limits, logs=Path(logs),
            seed=request.options.seed, stop=lambda: bool(stop), on_phase=lambda phase, steps: None,
            note=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
        stop.kill = runner.kill
        rng = random.Random(asked.seed + recording.missing)
        try:
            record(recording, runner, space, rule, calm=calm, rng=rng, stop=stop)
        except StopRequestedError:
            print(
                f"stopped; {recording.missing} measurements are missing: the same command goes on"
            )
            return cli.ExitCode.STOPPED
        finally:
            runner.close()
            stop.restore()
    print(f"complete: {asked.path}")
    return cli.ExitCode.FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
