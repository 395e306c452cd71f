"""The summary of a study as a table of Markdown, for a pull request or a paper's notes."""

from __future__ import annotations

import re

from autotune.result.best import Cell
from autotune.show.report.cells import evidence
from autotune.show.report.objective import of_objective
from autotune.show.report.result import configuration
from autotune.show.report.text import counts_text, minutes, si
from autotune.show.view.baseline import compared
from autotune.show.view.study import Shown
from autotune.units import gib


def markdown(study: Shown) -> str:
    """A table of the cells with their winners, the best in bold; and the devices."""
    lines = [f"### {_plain(study.title)}", ""]
    best = study.best
    if best is None:
        lines += [f"No result: {_plain(study.lack)}", ""]
    else:
        lines += [
            f"| configuration | {study.unit} | tokens/s | peak | of capacity | measured |",
            "|---|--:|--:|--:|--:|---|",
            *(_row(study, cell, strong=cell.config == best.config) for cell in best.cells),
            "",
        ]
        if told := compared(study):
            lines += [_plain(told), ""]
    finals = int((study.ran["kind"] == "final").sum())
    software = study.manifest.fingerprint.get("software") or {}
    versions = ", ".join(f"{name} {version}" for name, version in software.items())
    lines += [
        f"Ceiling {study.limits.ceiling:.0%} of {gib(study.limits.capacity_bytes)};"
        f" {minutes(study.elapsed_s)} of {minutes(study.budget_s)};"
        f" trials: {counts_text(study.counts)}; final rounds: {finals}.",
        f"Measured on {_plain(study.devices)}; {_plain(versions)}.",
    ]
    return "\n".join(lines) + "\n"


def _row(study: Shown, cell: Cell, *, strong: bool) -> str:
    measured, mark = cell.measured, "**" if strong else ""
    words = [
        f"{mark}{_plain(configuration(cell.config))}{mark}",
        si(of_objective(measured, study.objective)),
        si(measured.tokens_per_s),
        gib(measured.peak_bytes.device),
        f"{measured.share_of_capacity:.0%}",
        evidence(cell),
    ]
    return f"| {' | '.join(words)} |"


def _plain(text: str) -> str:
    """`text` with Markdown's special characters escaped."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>#|&~!])", r"\\\1", line)
