"""The environment variables of a result's processes, beyond the machine's own."""

from __future__ import annotations

import re
from shlex import quote

from autotune.result.best import Best
from autotune.result.export.format import Exported, exported

_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_")
"""Prefixes of variables on which the speed of a host's processes depends."""
_SAFE = re.compile(r"[\w.,:+=@/-]+")


def thread_lines(best: Best) -> str:
    """Lines of shell that set the variables of threads, unless they are set."""
    return "".join(
        f'export {name}="${{{name}:-{value}}}"\n'
        for name, value in best.environment.get("variables", {}).items()
        if name.startswith(_THREADS) and _SAFE.fullmatch(str(value))
    )


def export(best: Best) -> Exported | None:
    """`env.sh`, to be sourced; None without variables."""
    variables = best.exports.get("env", {})
    lines = "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())
    lines += thread_lines(best)
    if not lines:
        return None
    return exported(best, ("allocator",), {"env.sh": f"# shellcheck shell=sh\n{lines}"})
