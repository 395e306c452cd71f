"""`python -m autotune export`: a result as other tools' configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode, complain
from autotune.errors import refused
from autotune.units import parse_name

if TYPE_CHECKING:
    from autotune.result.export.format import Exported


def export(
    best: Annotated[Path, Parameter(help="best.json or its study folder.")],
    /,
    *,
    format: Annotated[
        str | None,
        Parameter(help="Formats, e.g. hf,launch (default: all that fit the result).",
                  show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(help="Folder to write to (default: exports, beside best.json).",
                  show_default=False),
    ] = None,
) -> Run:  # fmt: skip
    """Write a result as configuration files of other tools."""

    def run(argv: list[str], started: float) -> int:
        from autotune.result.best import Best
        from autotune.result.choice import UNCONFIRMED
        from autotune.result.export import ALSO, EXPORTS, FOLDER, write

        names = None
        if format is not None:
            parts = (part.strip() for part in format.split(","))
            given = dict.fromkeys(ALSO.get(part, part) for part in parts)
            names = tuple(parse_name(name, "--format", tuple(EXPORTS)) for name in given)
        path = best / "best.json" if best.is_dir() else best
        found = Best.read(path)
        folder = out or path.parent / FOLDER
        with refused(f"--out {folder}"):
            made = write(found, folder, names)
        show(made, folder, sys.stdout)
        for name, exported in made.items():
            for line in exported.warnings:
                print(f"{name}: {line}", file=sys.stderr)
            if exported.others:
                print(f"{name}: does not say {', '.join(exported.others)}", file=sys.stderr)
        if not found.confirmed:
            why = UNCONFIRMED[found.unconfirmed or "no finals"]
            complain(f"the result is not confirmed: {why}")
        return ExitCode.FOUND

    return run


def show(made: dict[str, Exported], folder: Path, file: TextIO) -> None:
    for name, exported in made.items():
        print(f"{name:14} {', '.join(exported.files)}", file=file)
    print(f"Written: {folder}", file=file)
