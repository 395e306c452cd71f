"""The command of an agent."""

from __future__ import annotations

import os
import sys

from autotune.measure.runner.local import module_path

MODULE = "autotune.agent"
_FORWARDED = (
    "NCCL_", "GLOO_", "UCX_", "TORCH_", "PYTHON", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
"""Prefixes of variables that agents need, even if they inherit none."""


def command(driver: str, key_file: str = "-", node: str | None = None) -> list[str]:
    """An agent that dials `driver`, which is HOST:PORT. It reads its key from a file or stdin."""
    # -P: a folder in the user's working directory must not hide a module of that name.
    named = [] if node is None else ["--node", node]
    return [sys.executable, "-P", "-m", MODULE, "--driver", driver, "--key-file", key_file, *named]


def forwarded() -> dict[str, str]:
    """Variables for an agent that does not inherit this process's."""
    return {n: v for n, v in os.environ.items() if n.startswith(_FORWARDED)} | module_path()
