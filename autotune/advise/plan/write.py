"""A row of a plan as configurations that other tools take; they say that nothing was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote

from autotune.advise.plan.expected import KIND, Expected, Plan
from autotune.result import export
from autotune.result.export.format import Exported, remark
from autotune.result.files import write_whole
from autotune.result.making import unmeasured
from autotune.space.options import Options
from autotune.units import gib

COMMENT = "_comment"
"""A key that an engine and those who read its file pass over, at the top alone. Arguments of a
Trainer have no room for one: README.txt speaks for these."""
README = "README.txt"


def write(row: Expected, found: Plan, options: Options, folder: Path) -> dict[str, Exported]:
    """Write the formats that fit to `folder`, and a README.txt. Returns what was written, by
    format.

    Raises:
        OSError: they cannot be written.
    """
    expected = (
        f"expected by a plan, not measured: a peak of {gib(row.peak.bytes)} of"
        f" {gib(found.space.limits.capacity_bytes)} a GPU, which fits with a chance of"
        f" {row.chance:.0%}; {gib(row.host_bytes)} of host memory"
    )
    best = unmeasured(
        row.candidate, found.space, KIND, options=options.to_json(), expected=expected
    )
    note = {COMMENT: f"From autotune: {expected}"}
    marked = {name: body if name == "env" else note | body for name, body in best.exports.items()}
    best = replace(best, exports=marked)
    made = export.write(best, folder)
    files = [
        f"{name}: {', '.join(each.files)}"
        + (f"; does not say {', '.join(each.unexpressed)}" if each.unexpressed else "")
        for name, each in made.items()
    ]
    lines = [remark(best, (), "").strip(), "", start(row, folder.absolute()), "", *files]
    write_whole(folder / README, "\n".join(lines) + "\n")
    return made


def start(row: Expected, folder: Path) -> str:
    """How a training script is started."""
    ranks = "1 rank" if row.gpus == 1 else f"all {row.gpus} ranks"
    return f"Start, {ranks} on one machine: {quote(str(folder / 'launch.sh'))} train.py"
