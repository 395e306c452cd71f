"""ZeRO stages and offloads to search, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.space.candidate import Build
from autotune.space.engines import engine_for, stages_of, state_bytes
from autotune.space.options import Options
from autotune.space.space import Limits
from autotune.space.workload import Workload

STAGES_LEFT_OUT = "stages 1 to 3 are left out"


@dataclass(frozen=True)
class Chosen:
    stages: tuple[int, ...]
    offloads: tuple[str, ...]
    whys: dict[str, str]
    """Reasons by axis."""


def stages_and_offloads(
    options: Options, workload: Workload, limits: Limits, deepest: int, device_kind: str,
    *, here: bool,
) -> Chosen:  # fmt: skip
    """ZeRO stages and offloads to search.

    They matter where there are ranks to share with, or where stage 0 cannot hold the deepest
    model. On the CPU the host is the device, and an offload moves nothing. Raises UsageError if
    the engine of the requested ones is not installed.
    """
    asked, known = options.space.axes, stages_of(options.space.engine)
    without = _left_out(options) if here else ""
    offloads = asked.get("offload", ("none",))
    if "zero_stage" in asked:
        stages, why = asked["zero_stage"], "--zero"
    elif known in ((0,), tuple(stage for stage in known if stage)):
        stages, why = known, "all the engine has"  # nothing to choose from
    elif without:
        stages, why = (0,), without
    elif set(offloads) != {"none"}:
        stages, why = known, "--offload"
    else:
        offloads = asked.get("offload") or _offloads_for(workload, limits, deepest, device_kind)
        if workload.world_size > 1:
            stages, why = known, "several ranks can share"
        elif offloads == ("none",):
            stages, why = (0,), "one rank has nobody to share with"
        else:  # stage 2 shares all that stage 1 shares
            stages = tuple(s for s in known if s != 1)
            why = "stage 0 cannot hold the deepest model"
    return Chosen(
        stages,
        offloads,
        {"zero_stage": why, "offload": _offloads_why(options, device_kind, why)},
    )


def _offloads_why(options: Options, device_kind: str, stages_why: str) -> str:
    """Why only one offload is searched."""
    if options.space.axes.get("offload"):
        return "--offload"
    if device_kind == "cpu":
        return "on the CPU it moves nothing"
    if stages_why.startswith(STAGES_LEFT_OUT):
        return stages_why
    stages_asked = "zero_stage" in options.space.axes
    if stages_asked or options.space.engine != "auto":
        return f"default with {stages_why if stages_asked else '--engine'}"
    return "stage 0 holds the deepest model"


def _offloads_for(
    workload: Workload, limits: Limits, deepest: int, device_kind: str
) -> tuple[str, ...]:
    whole = state_bytes(workload, Build(depth=deepest))
    if device_kind == "cuda" and whole.device > limits.limit_bytes:
        return ("none", "optimizer", "all")
    return ("none",)


def _left_out(options: Options) -> str:
    """Why the stages that share state are left out; empty if they are not. Raises UsageError if
    the user asked for them."""
    engine, asked = options.space.engine, options.space.axes
    sharing = engine_for(engine, max(stages_of(engine)))
    missing = sharing.missing()
    if not missing:
        return ""
    moved = any(offload != "none" for offload in asked.get("offload", ()))
    if engine == sharing.name or moved:
        raise UsageError(f"--engine {sharing.name}: {missing}, or use --engine ddp")
    if any(asked.get("zero_stage", ())):
        stages = ",".join(map(str, asked["zero_stage"]))
        raise UsageError(f"--zero {stages}: {missing}, or use --zero 0, or --engine fsdp")
    return f"{STAGES_LEFT_OUT}: {missing}"
