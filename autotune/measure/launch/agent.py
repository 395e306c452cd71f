"""The command that is an agent."""

from __future__ import annotations

import os
import sys

from autotune.measure.runner.local import module_path

MODULE = "autotune.agent"
_FORWARDED = (
    "NCCL_", "GLOO_", "UCX_", "TORCH_", "PYTHON", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
"""What variables begin with that agents need, also where they inherit none."""


def command(driver: str, key_file: str = "-", node: str | None = None) -> list[str]:
    """An agent that dials `driver`, which is HOST:PORT. It reads its key from a file or stdin."""
    # -P: a folder named like a module in the user's working directory must not stand in for it.
    named = [] if node is None else ["--node", node]
    return [sys.executable, "-P", "-m", MODULE, "--driver", driver, "--key-file", key_file, *named]


def forwarded() -> dict[str, str]:
    """Variables for an agent on a node that knows nothing of this process's."""
    return {n: v for n, v in os.environ.items() if n.startswith(_FORWARDED)} | module_path()
