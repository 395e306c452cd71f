"""The scripts as modules, to test what they make of numbers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.support.programs import SCRIPTS


def load(name: str) -> ModuleType:
    """`scripts/<name>.py`, which finds the modules beside it as it does when it is run."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return importlib.import_module(name)
