"""A study from Python: `autotune.tune(budget="10m", depth=(12, 16))`."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.result.best import Best


class NothingFoundError(Exception):
    """A study without a result: its exit code is `code`, and the reason is on stderr."""

    def __init__(self, code: int, folder: Path) -> None:
        super().__init__(f"no result in {folder} (exit code {code})")
        self.code = code
        self.folder = folder


def tune(**options: Any) -> Best:
    """Find the fastest training configuration that fits in memory, by running real steps.

    Takes the options of `python -m autotune` by their names, with underscores: strings as on the
    command line, numbers, or sequences of values, e.g. `tune(budget="10m", depth=(12, 16),
    micro_batch="1:64")`. Training runs in other processes; this one touches no device. Prints its
    progress. Ctrl-C (a notebook's interrupt) ends it with the best so far. A second one ends it at
    once, with KeyboardInterrupt. In a thread, only the budget ends it.

    Raises:
        UsageError: an option is unknown or impossible.
        NothingFoundError: nothing fits, or nothing could be measured.
    """
    from autotune.commands.exits import ExitCode
    from autotune.commands.tune import tune as asked
    from autotune.result.best import Best
    from autotune.result.files import default_folder
    from autotune.space.options import FLAGS

    started = time.monotonic()
    fields = {flag.name.removeprefix("--").replace("-", "_"): name for name, flag in FLAGS.items()}
    texts = {_known(name, fields): value for name, value in options.items() if value is not None}
    folder = Path(texts.get("out") or default_folder(str(texts.get("model", "gpt")), "python"))
    lists = {name: list(value) for name, value in texts.items()
             if isinstance(value, tuple | range | set)}  # fmt: skip
    given = texts | lists | {"out": str(folder)}
    code = replace(asked(**given), embedded=True)(["autotune.tune"], started)
    if code not in (ExitCode.FOUND, ExitCode.STOPPED):
        raise NothingFoundError(code, folder)
    return Best.read(folder / "best.json")


def _known(name: str, fields: Mapping[str, str]) -> str:
    """The field of `Options` with the name `name` on the command line."""
    if name not in fields:
        near = difflib.get_close_matches(name, fields, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{name}: unknown option{hint}")
    return fields[name]
