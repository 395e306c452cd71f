"""Tables of a result's cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.table import Table

from autotune.result.best import Best, Cell, Config, Measured
from autotune.show.report.objective import has_no_tokens
from autotune.show.report.text import shown_axes, si, visible, wrapped
from autotune.space.axes import AXES
from autotune.space.outcome import Verdict
from autotune.space.workload import SCRIPTS
from autotune.units import gib
from autotune.wire.settings import Axis

_Columns = Mapping[str, Callable[[Cell], str]]
_LEFT = {"candidate", "measured", *(axis.label for axis in AXES.values() if axis.words)}
"""Columns of words; all others are right-aligned numbers."""


def cells_table(best: Best, width: int) -> Table:
    """A row for each cell. If `width` is small, one column has all its axes."""
    candidates = [cell.config.candidate for cell in best.cells]
    values = {name: {getattr(c, name) for c in candidates} for name in AXES}
    axes = shown_axes(values, of_script=best.config.model.startswith(SCRIPTS))
    measured: _Columns = {
        "samples/s": partial(_samples, best=best),
        "tokens/s": _tokens,
        "FLOP/s": lambda cell: si(cell.measured.model_flops_per_s, "FLOP/s"),
        "peak": lambda cell: f"{cell.measured.share_of_capacity:.0%}",
        "J/token": lambda cell: joules(cell.measured),
        "measured": evidence,
    }
    candidate: _Columns = {axis.label: partial(_value, name=axis.name) for axis in axes}
    room = width - 1 - _width(best.cells, measured)
    if _width(best.cells, candidate) > room:
        candidate = {"candidate": partial(_named, axes=axes, width=room - 2)}
    return _table(best, best.cells, {**candidate, **measured})


def _texts(cells: Sequence[Cell], columns: _Columns) -> dict[str, list[str]]:
    texts = {name: [text(cell) for cell in cells] for name, text in columns.items()}
    return {name: column for name, column in texts.items() if any(column)}


def _width(cells: Sequence[Cell], columns: _Columns) -> int:
    texts = _texts(cells, columns)
    return sum(2 + max(map(len, (name, *column))) for name, column in texts.items())


def _table(
    best: Best, cells: Sequence[Cell], columns: _Columns, title: str | None = None
) -> Table:
    """A row for each of `cells`; the winner is marked."""
    table = Table(
        title=title, title_justify="left", title_style="", box=None, pad_edge=False,
        padding=(0, 1), header_style="dim",
    )  # fmt: skip
    texts = _texts(cells, columns)
    table.add_column("")
    for name in texts:
        table.add_column(name, justify="left" if name in _LEFT else "right", overflow="fold")
    for cell, *row in zip(cells, *texts.values(), strict=True):
        won = cell.config == best.config
        table.add_row(">" if won else "", *row, style="bold" if won else "")
    return table


def joules(measured: Measured) -> str:
    """Joules of a token, as text; empty if unknown."""
    return f"{measured.joules_per_token:.3g}" if measured.joules_per_token else ""


def same_batch_table(best: Best) -> Table:
    """The best result of every micro_batch, if all make the same batch."""
    cells, config = best.same_batch, best.config
    most = max(cell.measured.tokens_per_s for cell in cells)
    replicas = "ranks" if config.replicas == config.world_size else "replicas"
    several = f" x {replicas}" if config.replicas > 1 else ""
    differing = [
        axis for name, axis in AXES.items()
        if name != "micro_batch" and len({getattr(cell.config, name) for cell in cells}) > 1
    ]  # fmt: skip
    columns: _Columns = {
        "micro x accum" + several: lambda cell: product(cell.config),
        **{axis.label: partial(_value, name=axis.name) for axis in differing},
        "samples/s": partial(_samples, best=best),
        "tokens/s": _tokens,
        "of best": lambda cell: f"{cell.measured.tokens_per_s / most:.1%}",
        "peak": lambda cell: (
            f"{gib(cell.measured.peak_bytes.device)} {cell.measured.share_of_capacity:.0%}"
        ),
        "J/token": lambda cell: joules(cell.measured),
        "waits": lambda cell: _waits(cell.measured),
        "measured": evidence,
    }
    title = (
        f"The same batch of {config.global_batch_samples} samples,"
        f" {config.global_batch_tokens} tokens"
    )
    return _table(best, cells, columns, title)


def product(config: Config) -> str:
    replicas = [config.replicas] if config.replicas > 1 else []
    return " x ".join(map(str, [config.micro_batch, config.grad_accum, *replicas]))


def _named(cell: Cell, axes: Sequence[Axis], width: int) -> str:
    """The values of `axes`, with their names."""
    parts = [f"{axis.label} {_value(cell, axis.name)}" for axis in axes]
    return "\n".join(wrapped(parts, width))


def _value(cell: Cell, name: str) -> str:
    return visible(str(getattr(cell.config, name)))


def evidence(cell: Cell) -> str:
    """The quality of its measurement, in a word or two."""
    if cell.confirmed:
        return "confirmed"
    return "stopped early" if cell.verdict == Verdict.PRUNED else "unconfirmed"


def _samples(cell: Cell, best: Best) -> str:
    """Its samples/s, if they are the objective, or there are no tokens."""
    shown = best.objective == "samples_per_s" or has_no_tokens(cell.measured)
    return si(cell.measured.samples_per_s) if shown else ""


def _tokens(cell: Cell) -> str:
    return "" if has_no_tokens(cell.measured) else si(cell.measured.tokens_per_s)


def _waits(measured: Measured) -> str:
    return "" if measured.waiting_share is None else f"{measured.waiting_share:.0%}"
