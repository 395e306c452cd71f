"""The DeepSpeed config of a result: the very one that its probes were built from."""

from __future__ import annotations

from typing import Any

from autotune.engines import ENGINES
from autotune.result.best import Best


def export(best: Best) -> dict[str, Any] | None:
    """None where DeepSpeed was not the engine."""
    engine, config = ENGINES[best.config.engine], best.config
    if engine.package != "deepspeed":
        return None
    return engine.config(config.candidate, config.workload, best.device_kind)
