"""Versions of the installed software that affects measurements."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from autotune.space.engines import ENGINES


def software() -> dict[str, str]:
    """Versions, without importing it."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    engines = (engine.package for engine in ENGINES.values() if engine.package)
    for package in ("torch", *engines, "optuna", "numpy", "autotune"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
