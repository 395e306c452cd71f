"""A row of a plan as other tools' configurations, with a note that nothing was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote

from autotune.advise.plan.expected import KIND, Expected, Plan
from autotune.result import export
from autotune.result.export import deepspeed
from autotune.result.export.format import Exported, remark, unexpressed
from autotune.result.files import write_whole
from autotune.result.making import unmeasured
from autotune.space.options import Options
from autotune.units import gib

COMMENT = "_comment"
"""A key that engines and readers of their files ignore at the top level. A Trainer's arguments
cannot have it: README.txt has the note for them."""
README = "README.txt"
_OF_TRAINER = (
    "A Trainer of transformers takes hf.py: the DeepSpeed config in it leaves the learning rate to"
    " the Trainer. deepspeed.json is for deepspeed.initialize."
)


def write(row: Expected, found: Plan, options: Options, folder: Path) -> dict[str, Exported]:
    """Write the formats that fit to `folder`, and a README.txt; returns them by format. Raises
    OSError if the files cannot be written."""
    expected = (
        f"expected by a plan, not measured: a peak of {gib(row.peak.bytes)} of"
        f" {gib(found.space.limits.capacity_bytes)} a GPU, which fits with a chance of"
        f" {row.chance:.0%}; {gib(row.host_bytes)} of host memory"
    )
    best = unmeasured(
        row.candidate, found.space, KIND, options=options.to_json(), expected=expected
    )
    lacks = Exported(files={}, unexpressed=unexpressed(best, deepspeed.SAYS))
    note = {COMMENT: " ".join((*lacks.warnings, f"From autotune: {expected}"))}
    marked = {name: body if name == "env" else note | body for name, body in best.exports.items()}
    best = replace(best, exports=marked)
    made = export.write(best, folder)
    files = [
        f"{name}: {', '.join(each.files)}"
        + "".join(f"\n  {line}" for line in each.warnings)
        + (f"\n  Does not say {', '.join(each.others)}." if each.others else "")
        for name, each in made.items()
    ]
    written = {file for each in made.values() for file in each.files}
    of_trainer = [_OF_TRAINER, ""] if {"deepspeed.json", "hf.py"} <= written else []
    begin = start(row, Path())
    lines = [remark(best).removeprefix("#").strip(), "", begin, "", *of_trainer, *files]
    write_whole(folder / README, "\n".join(lines) + "\n")
    return made


def start(row: Expected, folder: Path) -> str:
    """The command that starts a training script with the files in `folder`."""
    ranks = "1 rank" if row.gpus == 1 else f"all {row.gpus} ranks"
    path = folder / "launch.sh"
    at = f"{path}" if len(path.parts) > 1 else f"./{path}"
    return f"Start, {ranks} on one machine: {quote(at)} train.py"
