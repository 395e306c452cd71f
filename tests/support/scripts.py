"""The scripts as modules, to test what they make of numbers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.support.programs import SCRIPTS


def rows(markdown: str) -> dict[str, list[str]]:
    """The other columns of a table by its first."""
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines()]
    assert {len(row) for row in table} == {len(table[0])}
    return {row[0]: row[1:] for row in table[2:]}


def load(name: str) -> ModuleType:
    """A script, or a module of one, which finds those beside it as it does when it is run."""
    for folder in (SCRIPTS, SCRIPTS / "bench"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(name)
