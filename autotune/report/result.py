"""The result for people: every cell, the winner, what tied with it, what to be aware of."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.outcome import DISTURBED_SHARE, Verdict
from autotune.report.text import (
    counts_text,
    paragraph,
    print_lines,
    printable,
    shown_axes,
    si,
)
from autotune.result.best import FINALS, Best, Cell, Config
from autotune.space.axes import AXES
from autotune.space.space import Space
from autotune.units import gib

SHOWN_TIES = 4


class Caution(Enum):
    """What a reader of the result should know; the text says what to do about it."""

    NOT_CONFIRMED = (
        "Not confirmed: no final measured this configuration again and found it ok; finals of"
        " others, if there were any, came out far slower. Run again with a longer --budget, on a"
        " quiet machine."
    )
    STOPPED_BY_USER = (
        "Stopped by you before the search had ended: something faster may not have been tried."
    )
    DISTURBED = (
        "Other processes took much of the processor during the timing: the rates may be too low."
        " Run again on a quiet machine."
    )
    BROKEN_TRIALS = (
        "Some trials crashed or hung, so what they would have shown is missing:"
        " see trials.csv and logs/ beside best.json."
    )
    LARGEST_MICRO_BATCH = (
        "The winner has the largest micro_batch that was searched: a larger one may be faster."
        " Raise the end of --micro-batch."
    )


def cautions(best: Best, space: Space) -> tuple[Caution, ...]:
    """The cautions that apply to `best`."""
    micro_batches, trials = space.axes["micro_batch"], best.trials
    applies = {
        Caution.NOT_CONFIRMED: not best.confirmed,
        Caution.STOPPED_BY_USER: bool(best.stopped_by),
        Caution.DISTURBED: (best.measured.disturbed_share or 0.0)
        > DISTURBED_SHARE[best.device_kind],
        Caution.BROKEN_TRIALS: trials["crashed"] + trials["hung"] > 0,
        Caution.LARGEST_MICRO_BATCH: len(micro_batches) > 1
        and best.config.micro_batch == max(micro_batches),
    }
    return tuple(caution for caution, does in applies.items() if does)


def print_result(console: Console, best: Best, path: Path, warn: tuple[Caution, ...]) -> None:
    """The result for people: every cell, the winner, what tied with it, what to be aware of."""
    width = console.width
    finals = best.trials.get(FINALS, 0)
    trials = {Verdict(name): n for name, n in best.trials.items() if name != FINALS}
    winner = Text("\n").join(paragraph(_config(best.config), width, "Best: "))
    winner.stylize("bold")
    console.print()
    console.print(_cells_table(best))
    print_lines(console, Text(), winner)
    for text in (_speed(best), _memory(best), *_sure(best), *_ties(best)):
        print_lines(console, *paragraph(text, width, "      "))
    for caution in warn:
        print_lines(console, *paragraph(caution.value, width, "Warning: ", "yellow"))
    counts = f"{counts_text(trials)}; final rounds: {finals}"
    print_lines(console, Text(), *paragraph(counts, width, "Trials: "))
    known = best.prediction
    if known is not None and known.peak_median_error is not None:
        off, seen = f"{known.peak_median_error:.1%}", f"{known.trials} probes"
        print_lines(console, Text(f"Memory: peaks were predicted to {off} (median, {seen})"))
    print_lines(console, Text("Written: " + printable(str(path), console)))


def _cells_table(best: Best) -> Table:
    candidates = [cell.config.candidate for cell in best.cells]
    axes = shown_axes({name: {getattr(c, name) for c in candidates} for name in AXES})
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("")
    for axis in axes:
        table.add_column(axis.label, justify="left" if axis.words else "right")
    for name in ("tokens/s", "FLOP/s", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("measured")
    for cell in best.cells:
        table.add_row(
            ">" if cell.config == best.config else "",
            *(str(getattr(cell.config, axis.name)) for axis in axes),
            si(cell.measured.tokens_per_s),
            si(cell.measured.model_flops_per_s, "FLOP/s"),
            f"{cell.measured.share_of_capacity:.0%}",
            _evidence(cell),
            style="bold" if cell.config == best.config else "",
        )
    return table


def _evidence(cell: Cell) -> str:
    if cell.confirmed:
        return "confirmed"
    return "stopped early" if cell.verdict == Verdict.PRUNED else "once"


def _config(config: Config) -> str:
    """A configuration in the names of its flags; what is switched off is left out."""
    always = ("depth", "seq_len", "micro_batch", "checkpointing")
    after = ("optimizer",)
    names = [
        name for name, axis in AXES.items()
        if name in always or (getattr(config, name) != axis.plain and name not in after)
    ]  # fmt: skip
    ranks = "1 rank" if config.world_size == 1 else f"{config.world_size} ranks"
    searched = ", ".join(f"{name} {getattr(config, name)}" for name in names)
    return f"{searched} ({config.dtype}, {config.optimizer}, {config.engine}, {ranks})"


def _speed(best: Best) -> str:
    config, measured, step = best.config, best.measured, best.measured.step_s
    unit, scale = ("s", 1.0) if step.median >= 1 else ("ms", 1e3)
    median, low, high = (f"{value * scale:.4g}" for value in (step.median, step.low, step.high))
    return (
        f"{si(measured.tokens_per_s)} tokens/s, {si(measured.model_flops_per_s, 'FLOP/s')}:"
        f" {median} {unit} a step ({low} to {high} in {step.steps} steps) of"
        f" {config.global_batch_samples} samples, {best.tokens_per_step:.0f} tokens,"
        f" grad_accum {config.grad_accum}."
        + (
            f" Batches are padded to their longest sample: {measured.real_share:.0%} of what is"
            " computed are tokens of samples, and these alone are counted."
            if measured.real_share is not None
            else ""
        )
        + (
            f" Compiling took {measured.compile_s:.0f} s before that."
            if measured.compile_s
            else ""
        )
    )


def _memory(best: Best) -> str:
    limits = best.limits
    headroom_bytes = limits.limit_bytes - best.measured.peak_bytes.device
    return (
        f"Uses {best.measured.share_of_capacity:.0%} of {gib(limits.capacity_bytes)};"
        f" {gib(headroom_bytes)} under the ceiling of {limits.ceiling:.0%}."
    )


def _sure(best: Best) -> list[str]:
    """How sure it is that nothing else that fitted is faster."""
    sure = best.sure
    if sure is None:
        return []
    text = f"The fastest of what fitted with {sure.best:.0%}"
    if sure.best < 0.995:
        text += f", within 1% of it with {sure.within_1_percent:.0%}"
    return [f"{text}; next: {_differs(sure.next, best)}." if sure.next else f"{text}."]


def _differs(config: Config, best: Best) -> str:
    """The axes in which `config` is not the winner."""
    one, winner = config.candidate, best.config.candidate
    return ", ".join(
        f"{axis} {getattr(one, axis)}"
        for axis in AXES
        if getattr(one, axis) != getattr(winner, axis)
    )


def _ties(best: Best) -> list[str]:
    """What tied, as far as it fits in a few lines; best.json has all."""
    if not best.ties:
        return []
    lines = ["Within the noise of it, but with no less memory:"]
    for tie in best.ties[:SHOWN_TIES]:
        rate, share = si(tie.measured.tokens_per_s), tie.measured.share_of_capacity
        lines.append(f"  {_differs(tie.config, best)}: {rate} tokens/s, {share:.0%} of capacity")
    if len(best.ties) > SHOWN_TIES:
        lines.append(f"  and {len(best.ties) - SHOWN_TIES} more, see best.json")
    return lines
