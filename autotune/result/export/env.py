"""The environment variables that a result's processes ran with, beyond the machine's own."""

from __future__ import annotations

from shlex import quote

from autotune.result.best import Best
from autotune.result.export.format import Exported, exported


def export(best: Best) -> Exported | None:
    """`env.sh`, to be sourced; None where there are none."""
    variables = best.exports.get("env")
    if variables is None:
        return None
    lines = "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())
    return exported(best, ("allocator",), {"env.sh": f"# shellcheck shell=sh\n{lines}"})
