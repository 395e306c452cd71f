"""`python -m autotune report`: a study's folder as a page, as pictures, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode, complain
from autotune.errors import UsageError, refused

if TYPE_CHECKING:
    from autotune.show.view.study import Shown


def report(
    folder: Annotated[Path, Parameter(help="The study's folder.")],
    /,
    *,
    serve: Annotated[bool, Parameter(
        help="Serve the page on 127.0.0.1, also while the study runs. Ctrl+C ends it.",
        show_default=False)] = False,
    port: Annotated[int | None, Parameter(
        help="Port of --serve (default: a free one).", show_default=False)] = None,
    png: Annotated[Path | None, Parameter(
        help="Write the charts, and a card to share, to this folder as PNG and SVG.",
        show_default=False)] = None,
    markdown: Annotated[bool, Parameter(
        help="Print only the summary, as a Markdown table.",
        show_default=False)] = False,
    log: Annotated[str | None, Parameter(
        help="Write the trials for these trackers, e.g. tensorboard,wandb-offline.",
        show_default=False)] = None,
    out: Annotated[Path | None, Parameter(
        help="File of the page (default: report.html in the study's folder).",
        show_default=False)] = None,
) -> Run:  # fmt: skip
    """Show a study as a page, as pictures or as a table, also while it runs."""

    def run(argv: list[str], started: float) -> int:
        others = (png, markdown, log, out)
        if serve and any(others):
            raise UsageError(
                "--serve: not with other outputs; run autotune report again for those"
            )
        if port is not None and not serve:
            raise UsageError(f"--port {port}: only with --serve")
        from autotune.result.folder.folder import Folder
        from autotune.show.view.study import read

        study = read(folder)
        if serve:
            return _serve(folder, port or 0)
        if markdown:
            from autotune.show.view.markdown import markdown as summary

            print(summary(study), end="")
        if png is not None:
            _pictures(study, png)
        if log is not None:
            _log(study, log)
        if out is not None or not any(others):
            _page(study, out or Folder(folder).report)
        return ExitCode.FOUND

    return run


def _page(study: Shown, path: Path) -> None:
    from autotune.result.files import write_whole
    from autotune.show.view.page import page

    with refused(str(path), "; name another file with --out"):
        write_whole(path, page(study))
    print(f"Written: {path}")


def _pictures(study: Shown, folder: Path) -> None:
    from autotune.show.view.pictures import write

    with refused(f"--png {folder}"):
        names = write(study, folder)
    print(f"Written: {folder}: {', '.join(names)}")


def _log(study: Shown, names: str) -> None:
    from autotune.result import loggers
    from autotune.result.folder.journal import records_in
    from autotune.space.choices import parse_loggers

    for name in parse_loggers(names, "--log"):
        try:
            records = records_in(study.folder)
            place = loggers.write(name, records, study.limits, study.folder.path)
        except OSError as error:
            raise UsageError(f"--log {name}: {error.filename}: {error.strerror}") from error
        print(f"Written: {place}")


def _serve(folder: Path, port: int) -> int:
    from autotune.show.view.serve import HOST, server

    with server(folder, port, complain) as serving:
        print(f"http://{HOST}:{serving.server_port}/ shows {folder}; Ctrl+C ends it", flush=True)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print()
    return ExitCode.FOUND
