"""Options from a TOML file: `--config FILE`, or the nearest pyproject.toml's `[tool.autotune]`."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict

from autotune.errors import UsageError
from autotune.space.options import FLAGS, text_of

SWITCHES = ("dry-run",)
"""Entries of a file that are no options of a study."""
BESIDE_RESUME = ("--accept-changed", "--allow-busy", "--budget", "--interface", "--nodes")


def read_config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fills options that the command line left out from the TOML file, if there is one.

    Raises:
        UsageError: the file cannot be read, or has an unknown option; or the command line has
            options beside `--resume`.
    """
    if not any(argument.name == "--config" for argument in arguments):
        return  # the command has no options of a study
    given = {argument.name for argument in arguments if argument.tokens}
    if "--resume" in given and (others := sorted(given - {"--resume", *BESIDE_RESUME})):
        raise UsageError(
            f"{others[0]}: a resumed study keeps its options, and takes only"
            f" {', '.join(BESIDE_RESUME)}; to change one start a new study, with"
            " --learn-from and this folder"
        )
    if given & {"--resume", "--join"}:
        return  # the study has its own options
    named = [Path(argument.tokens[0].value) for argument in arguments
             if argument.name == "--config" and argument.tokens]  # fmt: skip
    path = named[0] if named else _nearest_pyproject()
    if path is None:
        return
    table = _read_table(path, () if named else ("tool", "autotune"))
    texts = {key: _text(path, key, value) for key, value in table.items()}
    Dict(texts, source=str(path), use_commands_as_keys=False)(app, commands, arguments)


def _nearest_pyproject() -> Path | None:
    here = Path.cwd()
    paths = (folder / "pyproject.toml" for folder in (here, *here.parents))
    return next((path for path in paths if path.is_file()), None)


def _read_table(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a TOML file with --config") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for key in keys:
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {key} must be a table, written [{'.'.join(keys)}]")
    return table


def _text(path: Path, key: str, value: object) -> str:
    """`value` of `key` in the file, as on the command line."""
    known = [*(flag.name.removeprefix("--") for flag in FLAGS.values()), *SWITCHES]
    if key.replace("_", "-") not in known:
        close = difflib.get_close_matches(key, known, 1) or ["budget"]
        raise UsageError(f"{path}: unknown key {key}; did you mean {close[0]}?")
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(item, bool | str | int | float) for item in parts):
        return text_of(value)
    raise UsageError(f"{path}: {key} must be text, a number, true, false or a list of them")
