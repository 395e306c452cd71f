"""`python -m autotune check`: configurations before an expensive launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError


def check(
    *configs: Annotated[Path, Parameter(help="Configuration files of one launch.")],
    against: Annotated[
        Path | None,
        Parameter(help="best.json or study folder to compare with.", show_default=False),
    ] = None,
    world_size: Annotated[
        int | None, Parameter(help="Ranks of the launch.", show_default=False)
    ] = None,
    json: Annotated[bool, Parameter(help="Print findings as JSON.")] = False,
) -> Run:
    """Check configuration files before a launch, alone or against a result."""

    def run(argv: list[str], started: float) -> int:
        import json as writer
        from dataclasses import asdict

        from autotune.advise.check import against as compare
        from autotune.advise.check import findings, of_command, read, with_inner
        from autotune.advise.check.against import not_compared, read_trials
        from autotune.result.best import Best

        if not configs:
            raise UsageError("check: no file given; write autotune check CONFIG...")
        if world_size is not None and world_size < 1:
            raise UsageError(f"--world-size {world_size}: must be at least 1")
        readings = [read(path) for path in configs]
        every = with_inner([*of_command(world_size), *readings])
        found = findings(every)
        left = []
        if against is not None:
            path = against / "best.json" if against.is_dir() else against
            best = Best.read(path)
            found += compare(every, best, read_trials(path))
            left = not_compared(every, best)
        if json:
            print(writer.dumps([asdict(each) for each in found], indent=2))
        else:
            for reading in readings:
                print(f"{reading.name}: read as {reading.tool}")
            for each in found:
                print(f"{each.level}: {each.where}: {each.what}")
            if left:
                print(f"not compared, since no file says it: {', '.join(left)}")
            print(f"{len(found)} finding{'' if len(found) == 1 else 's'}")
        return ExitCode.FOUND if not found else ExitCode.FINDINGS

    return run
