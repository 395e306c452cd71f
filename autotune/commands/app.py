"""The command line: argv -> one command -> its exit code."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time

from cyclopts import App, CycloptsError, Parameter

from autotune.commands import COMMANDS, DEFAULT, Run
from autotune.commands.config import read_config
from autotune.commands.exits import ExitCode, complain, one_line
from autotune.errors import ModelError, NoNodesError, UsageError
from autotune.installed import VERSION


def main(argv: list[str], started: float | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code. The
    budget counts from `started`, a reading of `time.monotonic`; None for now."""
    started = time.monotonic() if started is None else started
    try:
        run = parsed(argv)
        # --help and --version leave nothing to run.
        return ExitCode.FOUND if run is None else run(argv, started)
    except (UsageError, CycloptsError) as error:
        complain(one_line(error))
        return ExitCode.USAGE
    except ModelError as error:
        if error.traceback:
            print(error.traceback, file=sys.stderr)
        complain(str(error))
        return ExitCode.NO_MEASUREMENT
    except NoNodesError as error:
        complain(str(error))
        return ExitCode.NO_MEASUREMENT
    except _nvml_error() as error:
        complain(f"the NVIDIA driver fails: {str(error).rstrip('.')}; see what nvidia-smi says")
        return ExitCode.NO_MEASUREMENT
    except KeyboardInterrupt:  # before the study, which handles signals itself
        complain("stopped before anything was measured")
        return ExitCode.NO_MEASUREMENT


def _nvml_error() -> type[Exception]:
    """NVML's error class, imported only after an error: most commands need no NVML."""
    import pynvml

    return pynvml.NVMLError  # type: ignore[no-any-return]


def entry(started: float) -> None:
    """Runs the process's own command line and ends it; for `started` see `main`."""
    code = main(sys.argv[1:], started)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # else Python tries again at its end, and exits with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    gc.freeze()  # else Python collects all objects at its end: seconds on a busy machine
    sys.exit(code)


def parsed(argv: list[str]) -> Run | None:
    """The run that `argv` asks for; None if the answer was printed already.

    Raises:
        UsageError: or CycloptsError: wrong input.
    """
    run: Run | None = app(
        argv, exit_on_error=False, print_error=False, result_action="return_value"
    )
    return run


def _make_app() -> App:
    module, _, function = COMMANDS[DEFAULT].path.partition(":")
    made = App(
        name="autotune",
        usage="Usage: python -m autotune [OPTIONS]",
        version=f"autotune {VERSION}",
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        config=read_config,
        default_command=getattr(importlib.import_module(module), function),
    )
    for name, row in COMMANDS.items():
        made.command(row.path, name=name, help=row.help)
    return made


app = _make_app()
