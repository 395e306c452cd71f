"""The result for people: every cell, the winner, what tied with it, what to be aware of."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.options import gib
from autotune.outcome import DISTURBED_SHARE, Verdict
from autotune.report.text import (
    LABELS,
    QUIET_AXES,
    counts_text,
    paragraph,
    print_lines,
    printable,
    si,
)
from autotune.space.space import AXES, Space

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


def cautions(document: dict[str, Any], space: Space) -> tuple[Caution, ...]:
    """The cautions that apply to `document`, the content of best.json."""
    micro_batches, trials = space.axes["micro_batch"], document["trials"]
    applies = {
        Caution.NOT_CONFIRMED: not document["confirmed"],
        Caution.STOPPED_BY_USER: bool(document["provenance"].get("stopped_by")),
        Caution.DISTURBED: document["measured"]["disturbed_share"]
        > DISTURBED_SHARE[document["fingerprint"]["kind"]],
        Caution.BROKEN_TRIALS: trials["crashed"] + trials["hung"] > 0,
        Caution.LARGEST_MICRO_BATCH: len(micro_batches) > 1
        and document["config"]["micro_batch"] == max(micro_batches),
    }
    return tuple(caution for caution, does in applies.items() if does)


def print_result(
    console: Console, document: dict[str, Any], path: Path, warn: tuple[Caution, ...]
) -> None:
    """The result for people: every cell, the winner, what tied with it, what to be aware of."""
    width = console.width
    finals = document["trials"].get("finals", 0)
    trials = {Verdict(name): n for name, n in document["trials"].items() if name != "finals"}
    best = Text("\n").join(paragraph(_config(document["config"]), width, "Best: "))
    best.stylize("bold")
    console.print()
    console.print(_cells_table(document))
    print_lines(console, Text(), best)
    for text in (_speed(document), _memory(document), *_ties(document)):
        print_lines(console, *paragraph(text, width, "      "))
    for caution in warn:
        print_lines(console, *paragraph(caution.value, width, "Warning: ", "yellow"))
    counts = f"{counts_text(trials)}; final rounds: {finals}"
    print_lines(console, Text(), *paragraph(counts, width, "Trials: "))
    error = document["prediction"]["peak_median_error"]
    if error is not None:
        seen = f"{document['prediction']['trials']} probes"
        print_lines(console, Text(f"Memory: peaks were predicted to {error:.1%} (median, {seen})"))
    print_lines(console, Text("Written: " + printable(str(path), console)))


def _cells_table(document: dict[str, Any]) -> Table:
    cells, best = document["cells"], document["config"]
    axes = [a for a in AXES if a not in QUIET_AXES or len({c["config"][a] for c in cells}) > 1]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("")
    for axis in axes:
        table.add_column(LABELS[axis], justify="left" if axis == "checkpointing" else "right")
    for name in ("tokens/s", "FLOP/s", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("measured")
    for cell in cells:
        config, measured = cell["config"], cell["measured"]
        table.add_row(
            ">" if config == best else "",
            *(str(config[axis]) for axis in axes),
            si(measured["tokens_per_s"]),
            si(measured["model_flops_per_s"], "FLOP/s"),
            f"{measured['share_of_capacity']:.0%}",
            _evidence(cell),
            style="bold" if config == best else "",
        )
    return table


def _evidence(cell: dict[str, Any]) -> str:
    if cell["confirmed"]:
        return "confirmed"
    return "stopped early" if cell["verdict"] == Verdict.PRUNED else "once"


def _config(config: dict[str, Any]) -> str:
    """A configuration in the names of its flags; what is switched off is left out."""
    names = ["depth", "seq_len", "micro_batch", "checkpointing"]
    names += ["zero_stage"] if config["zero_stage"] else []
    names += ["offload"] if config["offload"] != "none" else []
    ranks = "1 rank" if config["world_size"] == 1 else f"{config['world_size']} ranks"
    searched = ", ".join(f"{name} {config[name]}" for name in names)
    return f"{searched} ({config['dtype']}, {config['optimizer']}, {config['engine']}, {ranks})"


def _speed(document: dict[str, Any]) -> str:
    config, measured = document["config"], document["measured"]
    step = measured["step_s"]
    unit, scale = ("s", 1.0) if step["median"] >= 1 else ("ms", 1e3)
    median, low, high = (f"{step[name] * scale:.4g}" for name in ("median", "low", "high"))
    return (
        f"{si(measured['tokens_per_s'])} tokens/s, {si(measured['model_flops_per_s'], 'FLOP/s')}:"
        f" {median} {unit} a step ({low} to {high} in {step['steps']} steps) of"
        f" {config['global_batch_samples']} samples, {config['global_batch_tokens']} tokens,"
        f" grad_accum {config['grad_accum']}."
    )


def _memory(document: dict[str, Any]) -> str:
    measured, limits = document["measured"], document["limits"]
    return (
        f"Uses {measured['share_of_capacity']:.0%} of {gib(limits['capacity_bytes'])};"
        f" {gib(measured['headroom_bytes'])} under the ceiling of {limits['ceiling']:.0%}."
    )


def _ties(document: dict[str, Any]) -> list[str]:
    """What tied, as far as it fits in a few lines; best.json has all."""
    ties, config = document["ties"], document["config"]
    if not ties:
        return []
    lines = ["Within the noise of it, but with no less memory:"]
    for tie in ties[:SHOWN_TIES]:
        differs = [f"{a} {tie['config'][a]}" for a in AXES if tie["config"][a] != config[a]]
        measured = tie["measured"]
        rate, share = si(measured["tokens_per_s"]), measured["share_of_capacity"]
        lines.append(f"  {', '.join(differs)}: {rate} tokens/s, {share:.0%} of capacity")
    if len(ties) > SHOWN_TIES:
        lines.append(f"  and {len(ties) - SHOWN_TIES} more, see best.json")
    return lines
