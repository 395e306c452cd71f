"""`python -m autotune compare`: studies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError, refused


def compare(
    *folders: Annotated[Path, Parameter(help="Study folders. The first one is the reference.")],
    html: Annotated[Path | None, Parameter(
        help="Also write the comparison to this HTML file.", show_default=False)] = None,
) -> Run:  # fmt: skip
    """Compare studies: winners, and differences beyond the noise."""

    def run(argv: list[str], started: float) -> int:
        if len(folders) < 2:
            raise UsageError("compare: needs two folders or more, e.g. results/a results/b")
        import sys

        from autotune.show.report.console import console_for
        from autotune.show.view.compare import compare_page, print_compared
        from autotune.show.view.study import read

        studies = [read(folder) for folder in folders]
        print_compared(console_for(sys.stdout, most=160), studies)
        if html is not None:
            from autotune.result.files import write_whole

            with refused(f"--html {html}"):
                write_whole(html, compare_page(studies))
            print(f"Written: {html}")
        return ExitCode.FOUND

    return run
