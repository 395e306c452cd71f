"""`python -m autotune plan`: what fits, before the GPUs are there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Group

from autotune.commands import Run
from autotune.commands.exits import ExitCode, complain
from autotune.commands.tune import own_flag, take_options
from autotune.device.cards import parse_gpus
from autotune.errors import UsageError, refused
from autotune.measure.testbed.counted import FLOPS
from autotune.measure.testbed.lengths import at_longest
from autotune.result.files import create_folder
from autotune.space.models.hf import FUSED, replaced_kernels
from autotune.space.options import GROUPS, Options, text_of
from autotune.units import gib, parse_bytes

if TYPE_CHECKING:
    from autotune.advise.plan.answers import Answer
    from autotune.advise.plan.expected import Helpers, PlanRequest, Weighed
    from autotune.device.cards import Card, Gpus
    from autotune.measure.runner.helper import Start
    from autotune.wire.helpers import Count, Counted, Describe, Described

TRACE_S = 120.0
"""The most seconds to trace a model; then closed forms are used."""
MOST_NAMED = 4
"""The most lengths to name while they are traced."""
WIDTH = 140
"""Default width of a table, in characters."""
_OWN = Group("Plan", sort_key=0)
_OF_A_STUDY = {
    group: {name: flag for name, flag in flags.items()
            if group in ("model", "space", "script")
            or name in ("ceiling", "host_ceiling", "objective")}
    for group, flags in GROUPS.items()
}  # fmt: skip
"""Options of a study that a plan takes, too."""
Quantity = Literal["micro_batch", "seq_len", "gpus"]


_own = partial(own_flag, group=_OWN)


def plan(
    *,
    gpus: Annotated[str, _own(
        "GPUs, by memory or name: 4x80GiB, 8xH100, or several numbers: 1,2,4,8x32GiB.", "GPUS")],
    host_ram: Annotated[str | None, _own(
        "Memory of the host, e.g. 512GiB (default: host memory is not checked).", "SIZE")] = None,
    solve: Annotated[Quantity | None, _own(
        "Find the largest micro_batch or seq_len that fits, or the fewest gpus.")] = None,
    learn_from: Annotated[Path | None, _own(
        "Study, or folder of studies, on GPUs. Its measurements improve the predictions.",
        "DIR")] = None,
    kernels: Annotated[Literal["fused", "installed"], _own(
        "Kernels of state-space models: the fused ones of mamba-ssm, or the installed ones.")
    ] = "fused",
    write: Annotated[Path | None, _own(
        "Write configuration files and a launch script to this new folder. They say that the"
        " values are predicted, not measured.", "DIR")] = None,
    formulas: Annotated[bool, _own(
        "Answer by formulas alone, in seconds. By default real ranks on emulated GPUs then weigh"
        " each printed row.")] = False,
    rows: Annotated[int, _own("Rows to print and weigh. Formulas choose them.", "N")] = 20,
    json: Annotated[bool, _own("Print everything as JSON.")] = False,
    csv: Annotated[bool, _own("Print everything as CSV.")] = False,
    **options: Any,
) -> Run:  # fmt: skip
    """Predict which configurations fit on GPUs that you do not have yet."""
    named = parse_gpus(gpus)
    host_bytes = None if host_ram is None else parse_bytes(host_ram, "--host-ram")
    if json and csv:
        raise UsageError("--csv: not with --json; leave one of them out")
    if rows < 1:
        raise UsageError(f"--rows {rows}: must be at least 1")
    for flag, value in (("--solve", solve), ("--write", write)):
        if value is not None and len(named.counts) > 1:
            raise UsageError(f"--gpus {gpus}: {flag} takes one number of GPUs, e.g. 8x80GiB")
    if write is not None and write.exists() and not (write.is_dir() and not any(write.iterdir())):
        raise UsageError(f"--write {write}: already exists; name a new folder")
    asked = Options.from_texts({name: text_of(value) for name, value in options.items()})
    if solve in ("micro_batch", "seq_len") and asked.space.tokens_per_batch is not None:
        raise UsageError(f"--tokens-per-batch: not with --solve {solve}; leave one of them out")
    if solve == "seq_len" and asked.space.length_mix is not None:
        raise UsageError("--length-mix: not with --solve seq_len; leave one of them out")
    if solve in ("micro_batch", "seq_len") and solve in asked.space.axes:
        flag = f"--{solve.replace('_', '-')}"
        raise UsageError(f"{flag}: --solve {solve} computes it; leave one of them out")
    if solve == "gpus" and named.counts != (1,):
        raise UsageError(
            f"--gpus {gpus}: --solve gpus computes their number; name the GPU alone, e.g. 80GiB"
            " or H100"
        )
    if asked.script.template is not None:
        _refuse_of_models({"--solve": solve, "--write": write, "--learn-from": learn_from,
                           "--formulas": formulas or None})  # fmt: skip
        how = "json" if json else "csv" if csv else "table"
        return lambda argv, started: _script(asked, named, host_bytes, rows, how)
    asked = at_longest(asked)

    def run(argv: list[str], started: float) -> int:
        from autotune.advise.plan.answers import answer, why_not
        from autotune.advise.plan.expected import PlanRequest
        from autotune.advise.plan.show import as_csv, as_json, print_answer
        from autotune.measure.runner import counting

        with _made(write), counting.forked(asked.model.family) as start:
            what = PlanRequest(
                options=asked, card=named.card, host_bytes=host_bytes, fused=kernels == "fused"
            )
            if learn_from is not None:
                what = _learnt(what, learn_from)
            helpers = _helpers(asked, start)
            found = answer(what, named.counts, solve, helpers)
            if not formulas:
                found = _weighed(
                    found,
                    lambda by: answer(replace(what, weighed=by), named.counts, solve, helpers),
                    named.card, rows, learn_from,
                )  # fmt: skip
            for line in _remarks(what, found):
                complain(line)
            if json or csv:
                with suppress(BrokenPipeError):  # whoever read it has seen enough
                    print(as_json(found) if json else as_csv(found), end="")
            else:
                print_answer(_console(), found, rows)
            if not found.to_set:
                if not found.counts:  # else the table says it
                    complain(why_not(found.plans[0]))
                return ExitCode.NOTHING_FITS
            if write is not None:
                _write(found, asked, write, sys.stderr if json or csv else sys.stdout)
            return ExitCode.FOUND

    return run


take_options(plan, _OF_A_STUDY)


def _refuse_of_models(given: Mapping[str, object]) -> None:
    """Raises `UsageError` if one of the flags, with their values, is given."""
    for flag, value in given.items():
        if value is not None:
            raise UsageError(f"{flag}: not with --script, which is weighed; leave it out")


def _script(asked: Options, gpus: Gpus, host_bytes: int | None, most: int, how: str) -> int:
    """Plan a script on each number of GPUs; returns the exit code."""
    from autotune.advise.plan import show_scripts
    from autotune.advise.plan.scripts import script_scale
    from autotune.space.space import NO_LIMIT

    plans = []
    with script_scale(gpus.card, max(gpus.counts), complain) as scale, _bar() as told:
        for count in gpus.counts:
            options = asked.but(world_size=count)
            plans.append(scale.plan(options, count, host_bytes or NO_LIMIT, told))
            if scale.stop:
                break
    rows = [row for plan in plans for row in plan.rows]
    with suppress(BrokenPipeError):  # the reader closed the pipe
        if how == "table":
            if rows:
                told_of = [plan for plan in plans if plan.rows]
                show_scripts.print_plans(_console(), told_of, most)
        else:
            as_text = show_scripts.as_json if how == "json" else show_scripts.as_csv
            print(as_text(plans), end="")
    for row in rows:
        if not row.outcome.verdict.fits:
            complain(f"{row.candidate.key}: {row.outcome.reason or row.outcome.verdict}")
    if any(row.outcome.verdict.fits for row in rows):
        return ExitCode.FOUND
    return ExitCode.STOPPED if scale.stop else ExitCode.NOTHING_FITS


def _helpers(asked: Options, start: Start) -> Helpers:
    """Helpers in processes that `start` makes. A terminal shows their slow work."""
    from autotune.advise.plan.expected import Helpers
    from autotune.measure.runner import counting

    name = asked.model.name

    def count(wanted: Count) -> Counted:
        with _waiting(f"counting the parameters of {name}"):
            return counting.count(wanted, name, start)

    def describe(wanted: Describe) -> Described | str:
        lengths = wanted.seq_lens
        few = len(lengths) <= MOST_NAMED
        at = ", ".join(map(str, lengths)) if few else f"{lengths[0]} to {lengths[-1]}"
        with _waiting(f"tracing {name} at seq_len {at}"):
            return counting.describe(wanted, TRACE_S, start)

    return Helpers(count, describe)


def _weighed(
    found: Answer,
    again: Callable[[Weighed], Answer],
    card: Card,
    most: int,
    learn_from: Path | None,
) -> Answer:
    """The answer with weighed peaks; by formulas if no card can be emulated here."""
    from autotune.advise.plan import weighing
    from autotune.result.folder.earlier import context_bytes

    known = context_bytes(learn_from, str(learn_from)) if learn_from is not None else {}
    try:
        with weighing.scale(card, complain, context=known) as scale, _bar() as told:
            return weighing.weighed(found, again, scale, most, told)
    except UsageError as error:
        complain(f"not weighed, expected by formulas alone: {error}")
        return found


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar: the number of weighed rows, of all rows, and the next candidate."""
    from rich.progress import Progress

    from autotune.show.report.console import console_for

    console = console_for(sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("weighing")

        def told(done: int, of: int, key: str) -> None:
            bar.update(shown, completed=done, total=of, description=f"weighing {key}")

        yield told


def _write(found: Answer, asked: Options, folder: Path, file: TextIO) -> None:
    from autotune.advise.plan.write import README, start, write
    from autotune.commands.export import show

    [row] = found.to_set
    with refused(f"--write {folder}"):
        made = write(row, found.plans[0], asked, folder)
    show(made, folder, file)
    print(start(row, folder), file=file)
    complain(
        "these files are a prediction, not a measurement; a study may find that they do not fit;"
        f" {folder / README} has what each leaves to you"
    )


@contextmanager
def _made(folder: Path | None) -> Iterator[None]:
    """Make `folder` before planning; remove a new one if nothing is written."""
    new = folder is not None and not folder.exists()
    if folder is not None:
        create_folder(folder, "--write")
    try:
        yield
    finally:
        if folder is not None and new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _waiting(what: str) -> AbstractContextManager[object]:
    """Show on a terminal `what` takes so long, until it is done."""
    from autotune.show.report.console import console_for

    console = console_for(sys.stderr)
    return console.status(what) if console.is_terminal else nullcontext()


def _remarks(asked: PlanRequest, found: Answer) -> Iterator[str]:
    """Assumptions of the plan, and facts that it did not check."""
    space = found.plans[-1].space
    recipe = space.workload.recipe
    if (kernels := recipe.get("kernels")) == FUSED:
        yield (
            f"assumes {FUSED}'s kernels; without them it needs more memory: see --kernels"
            " installed"
        )
    elif kernels:
        yield f"assumes {kernels}'s own kernels: {FUSED} is not installed here"
    elif others := replaced_kernels(recipe):
        yield (
            f"assumes transformers' own code; the kernels of {' and '.join(others)} may need less"
            " memory"
        )
    if untraced := found.plans[-1].untraced:
        yield (
            f"the memory of activations is a rough guess, as the model was not traced: {untraced}"
        )
    yield from (f"FLOPs are {of.value}, {of.why}" for of in space.fixed if of.name == FLOPS)
    moved = [row for row in found.to_set if row.candidate.offload != "none"]
    if moved and asked.host_bytes is None:
        most = max(moved, key=lambda row: row.host_bytes)
        enough_gib = int(most.host_bytes / asked.options.limits.host_ceiling) >> 30
        yield (
            f"host memory was not checked: {most.candidate.key} needs {gib(most.host_bytes)} of"
            f" it; give the host's memory, e.g. --host-ram {1 << enough_gib.bit_length()}GiB"
        )


def _console() -> Any:
    from autotune.show.report.console import console_for

    said = sys.stdout.isatty() or "COLUMNS" in os.environ
    return console_for(sys.stdout, None if said else WIDTH, WIDTH)


def _learnt(asked: PlanRequest, place: Path) -> PlanRequest:
    from autotune.advise.plan.learning import learn

    learnt, said = learn(asked, place)
    for line in said:
        complain(line)
    return learnt
