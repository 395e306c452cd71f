"""A user's functions, by their names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from probes.faults import UnsupportedError


def function_of(folder: str, module: str, function: str) -> Callable[..., Any]:
    """The function of that name in a module that is importable from `folder`. Raises also the
    errors of the module's import.

    Raises:
        UnsupportedError: there is no such function.
    """
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"{module}:{function}"
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise  # the user's module needs something else
        raise UnsupportedError(f"{name}: {error}, looked for in {folder}") from error
    except AttributeError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    if not callable(found):
        raise UnsupportedError(f"{name}: is no function")
    return found  # type: ignore[no-any-return]
