"""`python -m autotune diagnose`: why a run ended, or how this machine is used."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError


def diagnose(
    *logs: Annotated[
        str, Parameter(help='Logs of one or several ranks, or "-". Default: look at this machine.',
                       allow_leading_hyphen=True)
    ],
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
    watch: Annotated[bool, Parameter(help="Without logs: look again every 2 s.")] = False,
) -> Run:  # fmt: skip
    """Explain from its logs why a training run ended, and what to do about it."""

    def run(argv: list[str], started: float) -> int:
        import json as writer

        from autotune.advise.diagnose import diagnose as read
        from autotune.advise.diagnose import machine, show

        if watch and (logs or json):
            raise UsageError("--watch: looks at this machine; leave logs and --json out")
        with suppress(BrokenPipeError):  # the reader closed the pipe
            if watch:
                machine.watch()
                return ExitCode.FOUND
            if logs:
                report = read(logs)
                said, body = show.lines(report), show.body(report)
            else:
                state = machine.look()
                said, body = machine.lines(state), machine.body(state)
            print(writer.dumps(body, indent=2) if json else "\n".join(said), flush=True)
        return ExitCode.FOUND

    return run
