"""The environment variables that a result's processes ran with, beyond the machine's own."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Best
from autotune.space.axes import alloc_conf


def export(best: Best) -> dict[str, Any] | None:
    """None where there are none."""
    conf = alloc_conf(best.config.allocator)
    return {"PYTORCH_ALLOC_CONF": conf} if conf else None
