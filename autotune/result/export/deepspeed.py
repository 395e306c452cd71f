"""The DeepSpeed config of a result, exactly as in its probes."""

from __future__ import annotations

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, OF_DEEPSPEED, Exported, exported

SAYS = (*BATCHES, *OF_DEEPSPEED, "world_size", "dtype", "param_dtype", "optimizer")


def export(best: Best) -> Exported | None:
    """`deepspeed.json`, for `deepspeed.initialize` or a script. None without DeepSpeed."""
    config = best.exports.get("deepspeed")
    if config is None:
        return None
    return exported(best, SAYS, {"deepspeed.json": config})
