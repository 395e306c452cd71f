"""`python -m autotune loader`: how many workers a data loader needs to keep up with training."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from autotune.commands import Run
from autotune.commands.exits import ExitCode, complain
from autotune.commands.tune import own_flag
from autotune.errors import UsageError
from autotune.units import parse_duration_s, parse_ints, parse_name, parse_share

if TYPE_CHECKING:
    from autotune.advise.loader.asked import LoaderProbe
    from autotune.advise.loader.measuring import MeasuredSettings

WIDTH = 120
"""Default width of a table, in characters."""


def loader(
    function: Annotated[str, own_flag(
        "MODULE:FUNCTION, importable from this folder. It returns a DataLoader. Let it take"
        " num_workers, pin_memory and prefetch_factor, or autotune makes a copy of the loader.")],
    /,
    *,
    data_workers: Annotated[str | None, own_flag(
        "Numbers of workers (default: 0 and the powers of two up to a rank's number of cores).",
        "INTS")] = None,
    prefetch: Annotated[str, own_flag("Batches that a worker loads ahead (default: 2,4).",
        "INTS")] = "2,4",
    pin_memory: Annotated[str, own_flag("off, on or both (default: both; on needs a GPU).",
        "WORDS")] = "off,on",
    best: Annotated[Path | None, own_flag(
        "best.json or study folder: the result that the loader has to feed.", "PATH")] = None,
    needs: Annotated[str | None, own_flag(
        "Tokens per second that all ranks need, instead of --best.", "N")] = None,
    micro_batch: Annotated[str | None, own_flag(
        "Samples of a batch, for a function that takes micro_batch or batch_size (default:"
        " --best's).", "N")] = None,
    seq_len: Annotated[str | None, own_flag(
        "Tokens of a sample, for a function that takes seq_len (default: --best's).", "N")] = None,
    ranks: Annotated[str | None, own_flag(
        "Loaders side by side on this host (default: --best's ranks, else 1).", "N")] = None,
    budget: Annotated[str, own_flag("Wall-clock time for everything (default: 60s).",
        "TIME")] = "60s",
    host_ceiling: Annotated[str, own_flag(
        "Share of the host's memory for training and loaders (default: 90%).", "SHARE")] = "90%",
    json: Annotated[bool, own_flag("Print JSON.")] = False,
) -> Run:  # fmt: skip
    """Find how many workers a data loader needs to keep up with training."""
    counts = None if data_workers is None else parse_ints(data_workers, "--data-workers", least=0)
    ahead = parse_ints(prefetch, "--prefetch")
    words = {parse_name(part.strip(), "--pin-memory", ("off", "on"))
             for part in pin_memory.split(",")}  # fmt: skip
    pins = tuple(sorted(word == "on" for word in words))
    sizes = {flag: None if text is None else _one(text, flag) for flag, text in (
        ("--micro-batch", micro_batch), ("--seq-len", seq_len), ("--ranks", ranks))}  # fmt: skip
    budget_s = parse_duration_s(budget, "--budget")
    share = parse_share(host_ceiling, "--host-ceiling")
    if needs is not None and best is not None:
        raise UsageError(f"--needs {needs}: --best sets it too; leave one of them out")
    tokens_per_s = None if needs is None else _rate(needs)

    def run(argv: list[str], started: float) -> int:
        from autotune.advise.loader.asked import LoaderProbe, Need, settings, worker_counts
        from autotune.device.cpu import cores, host_memory_bytes
        from autotune.result.best import Best
        from autotune.space.models.factory import module_and_function

        named = module_and_function(function)
        if named is None:
            raise UsageError(
                f"loader {function}: write module:function, importable from this folder"
            )
        found = None
        if best is not None:
            found = Best.read(best / "best.json" if best.is_dir() else best)
        need = None if tokens_per_s is None else Need(tokens_per_s, None)
        rank_count = sizes["--ranks"] or (found.config.ranks_on_a_node if found else 1)
        usable, left_out = _usable(pins)
        asked = LoaderProbe(
            module=named[0],
            function=named[1],
            folder=str(Path.cwd()),
            settings=settings(counts or worker_counts(cores(), rank_count), ahead, usable),
            ranks=rank_count,
            micro_batch=sizes["--micro-batch"] or (found.config.micro_batch if found else None),
            seq_len=sizes["--seq-len"] or (found.config.seq_len if found else None),
            need=Need.of(found) if found else need,
            training_bytes=found.measured.peak_bytes.host if found else 0,
            limit_bytes=int(share * host_memory_bytes()),
            budget_s=budget_s,
        )
        return _measure(asked, started, [left_out] if left_out else [], json=json)

    return run


def _measure(asked: LoaderProbe, started: float, said: list[str], *, json: bool) -> int:
    from autotune.advise.loader.measuring import Measuring
    from autotune.measure.runner import StopRequestedError
    from autotune.wire.budget import Clock, StopFlag

    stop = StopFlag()
    try:
        measured = Measuring(asked, Clock(asked.budget_s, started), lambda: bool(stop)).run()
    except StopRequestedError:
        complain("stopped before anything was measured")
        return ExitCode.NO_MEASUREMENT
    finally:
        stop.restore()
    code = _print(measured, asked, said, json=json)
    return ExitCode.STOPPED if stop and code == ExitCode.FOUND else code


def _print(measured: MeasuredSettings, asked: LoaderProbe, said: list[str], *, json: bool) -> int:
    """Print everything; returns the exit code."""
    from autotune.advise.loader import show
    from autotune.advise.loader.choice import choose
    from autotune.device.cpu import cores
    from autotune.show.report.console import console_for

    sound = [row for row in measured.rows if row.rounds]
    choice = choose(sound, asked) if sound else None
    said = [*said, *show.notes(measured, asked, cores())]
    if json:
        with suppress(BrokenPipeError):  # the reader closed the pipe
            print(show.as_json(measured, choice, asked, said))
    else:
        console = console_for(sys.stdout, None if sys.stdout.isatty() else WIDTH, WIDTH)
        show.print_table(console, measured, choice, asked)
        show.lines(console, said)
        if choice is not None:
            show.lines(console, [show.sentence(choice, asked)])
    if choice is None:
        complain(f"nothing could be measured: {measured.rows[0].failed}")
        return ExitCode.NO_MEASUREMENT
    return ExitCode.FOUND if choice.enough else ExitCode.NOTHING_FITS


def _usable(pins: tuple[bool, ...]) -> tuple[tuple[bool, ...], str]:
    """The possible ones of `pins` on this machine, and why another is left out."""
    from autotune.device.cuda import NoCuda, open_cuda

    if True not in pins or not isinstance(device := open_cuda(), NoCuda):
        return pins, ""
    why = f"--pin-memory on: needs a GPU, and {device.reason}"
    if pins == (True,):
        raise UsageError(f"{why}; use --pin-memory off")
    return (False,), f"{why}; left out"


def _one(text: str, flag: str) -> int:
    found = parse_ints(text, flag)
    if len(found) > 1:
        raise UsageError(f"{flag} {text}: takes one value, e.g. {found[0]}")
    return found[0]


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"--needs {text}: not a number of tokens per second; write it as 12000")
    return rate
