"""Facts about each training engine for the study. One file and one row of `ENGINES` each.

The rows have the names of those in `probes.engines`, which run the engines.

A probe runs the configuration that is exported: `probes` builds an engine from `Engine.config`,
and `best_of` writes the same one into best.json.
"""

from __future__ import annotations

from autotune.space.axes import ZERO_STAGES
from autotune.space.candidate import Build, Candidate
from autotune.space.engines.ddp import Ddp
from autotune.space.engines.deepspeed import DeepSpeed
from autotune.space.engines.engine import BYTES, EngineFacts, StateBytes
from autotune.space.engines.fsdp import Fsdp
from autotune.space.workload import Workload

__all__ = [
    "AUTO", "BYTES", "ENGINES", "NAMES", "EngineFacts", "StateBytes", "engine_for", "engine_of",
    "stages_of", "state_bytes",
]  # fmt: skip

ENGINES: dict[str, EngineFacts] = {engine.name: engine for engine in (Ddp(), DeepSpeed(), Fsdp())}
AUTO = "auto"
"""Chooses the engine: torch's own if every rank holds all, DeepSpeed if ranks share."""
NAMES = (AUTO, *ENGINES)


def stages_of(name: str) -> tuple[int, ...]:
    """The ZeRO stages of the engine `name`, which may be `AUTO`."""
    return ZERO_STAGES if name == AUTO else ENGINES[name].stages


def engine_for(name: str, zero_stage: int) -> EngineFacts:
    """The engine for `zero_stage`, if `name` was requested."""
    if name == AUTO:
        name = "deepspeed" if zero_stage else "ddp"
    return ENGINES[name]


def engine_of(workload: Workload, of: Candidate | Build) -> EngineFacts:
    return engine_for(workload.engine, of.zero_stage)


def state_bytes(workload: Workload, of: Candidate | Build) -> StateBytes:
    """Model state of one rank."""
    return engine_of(workload, of).state(workload, of)
