"""The space that options mean for a script of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.basis import Basis, limits_of
from autotune.measure.testbed.candidates import asked_axes, axes_of, points_of
from autotune.measure.testbed.lacking import check_energy
from autotune.measure.testbed.ranks import capacity, chosen_world_size
from autotune.measure.testbed.resolve import chosen_dtype
from autotune.measure.testbed.unlike import rank_capacities, with_vectors
from autotune.space import degrees
from autotune.space.axes import AXES, DEGREES
from autotune.space.command import Command, combined
from autotune.space.engines import AUTO, engine_for, stages_of
from autotune.space.models import where
from autotune.space.models.counted import guessed
from autotune.space.models.defaults import MICRO_BATCHES
from autotune.space.models.described import Description, described
from autotune.space.options import Options
from autotune.space.space import Fixed, Space
from autotune.space.workload import OWN, Workload

_UNTOLD: dict[str, tuple[Any, ...]] = {
    name: (1 if axis.plain is None else axis.plain,) for name, axis in AXES.items() if axis.always
}
"""The values of axes that the command does not name."""


def resolve_script(
    options: Options, device: Device, host_bytes: int, cores: int, known: Workload | None
) -> Space:
    """The space that `options` mean for their script, or for the `known` one.

    Raises:
        UsageError: the command does not name an axis to search, or nobody named its values; more
            ranks than devices; a capacity above the device's; energy that cannot be measured.
    """
    check_energy(options, device)
    command = options.script.command if known is None else command_of(known)
    if known is None:
        command.check_file()
    model = _described(options, known)
    axes = _axes(options, command, device.kind, model)
    ranks, ranks_why = _ranks(options, command)
    world_size, _ = chosen_world_size(device, cores, ranks)
    own_bytes, own_why = capacity(device, world_size)
    limits, capacity_why = limits_of(options, own_bytes, own_why, host_bytes)
    capacities = rank_capacities(options, device, world_size, own_bytes)
    limits = replace(limits, rank_capacities=capacities)
    axes, points = with_vectors(axes, device, world_size, capacities, MICRO_BATCHES[device.kind])
    points = points or points_of(axes)
    dtype, dtype_why = chosen_dtype(options, device)
    _check_told(options, command, axes)
    if "micro_batch_per_rank" in axes and command.has_engine:
        raise UsageError(
            "--micro-batch-per-rank: {deepspeed_config} has one micro-batch for all ranks; leave"
            " it out of --script"
        )
    tokens = sorted(c.tokens for c in points)[len(points) // 2]
    workload = Workload(
        model=f"script:{command.name}",
        width=None,
        vocab_size=0,
        dtype=dtype,
        engine=_engine(options, command),
        world_size=world_size,
        global_batch=options.space.global_batch,
        recipe=_recipe(command) | ({"described": asdict(model)} if model else {}),
        shapes=[
            model.shape(depth, list(axes["seq_len"]))
            if model
            else guessed(depth, axes["seq_len"], tokens, limits.capacity_bytes)
            for depth in axes["depth"]
        ],
        routing=[OWN] if command.says("ep") or (model and model.experts) else [],
    )
    return Basis(
        workload=workload,
        limits=limits,
        capacity_why=capacity_why,
        axes=axes,
        points=points,
        facts=[
            Fixed("script", command.template, "--script"),
            *([Fixed("dtype", dtype, dtype_why)] if command.says("dtype") else []),
            Fixed("device", device.infos[0].name, device.why),
            Fixed("world_size", str(world_size), ranks_why),
        ],
        whys={name: None for name in axes if not command.says(name)},
    ).space(options)


def _described(options: Options, known: Workload | None) -> Description | None:
    """The script's model, if the user named its config. Raises UsageError for a bad one."""
    if known is not None:
        return degrees.description(known)
    path = options.script.model_config
    return None if path is None else described(where.folder() / path, "--model-config")


def _recipe(command: Command) -> dict[str, Any]:
    return {
        "command": command.template,
        "own": {name: list(values) for name, values in command.own.items()},
        "set": dict(command.given),
        "folder": str(command.folder),
    } | ({"phase_args": command.phase_args} if command.phase_args else {})


def command_of(workload: Workload) -> Command:
    """The command that the study of `workload` launches."""
    recipe: Mapping[str, Any] = workload.recipe
    own = {name: tuple(values) for name, values in recipe["own"].items()}
    return Command(
        template=recipe["command"], own=own, given=recipe["set"], folder=Path(recipe["folder"]),
        phase_args=recipe.get("phase_args", ""),
    )  # fmt: skip


def _axes(
    options: Options, command: Command, device_kind: str, model: Description | None
) -> dict[str, tuple[Any, ...]]:
    """The values of every axis of the space. Raises UsageError if an axis has values but no place
    in the command, or a place but no values."""
    asked = asked_axes(options, options.space.axes.get("seq_len", _UNTOLD["seq_len"]))
    by_tokens = "tokens_per_batch" in command.placeholders
    if options.space.tokens_per_batch is not None and not by_tokens:
        raise UsageError(_untold("--tokens-per-batch", "tokens_per_batch"))
    told = {name for name in AXES if command.says(name)}
    if command.says("dp_replicate"):  # the other factor of the replicas
        told.add("dp_shard")
    if options.space.tokens_per_batch is not None:
        told.add("micro_batch")
    for name in AXES:
        if name in asked and name not in told:
            raise UsageError(_untold(AXES[name].flag, name))
        searched = name in command.named or (name == "micro_batch" and name in told)
        if name not in asked and searched:
            asked[name] = _default(name, options.space.engine, device_kind)
    untold = _UNTOLD if model is None else _UNTOLD | {"depth": (model.layers,)}
    return axes_of(untold | asked | {"own": combined(command.own)})


def _check_told(options: Options, command: Command, axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises `UsageError` if the command has no place for a value, or nothing to search."""
    for name in command.own:
        if not command.says(name):
            raise UsageError(_untold("--axis", name))
    for name, value in command.given.items():
        of_engine = name == "lr" and command.has_engine  # the engine's configuration has it
        if not command.says(name) and not of_engine:
            raise UsageError(_untold("--set", name))
        if of_engine and not _is_number(value):
            raise UsageError(f"--set lr={value}: DeepSpeed takes a number, e.g. --set lr=1e-4")
    if options.space.dtype != "auto" and not command.says("dtype"):
        raise UsageError(_untold("--dtype", "dtype"))
    by_tokens = "tokens_per_batch" in command.placeholders
    told = [name for name in axes if name != "allocator" and command.says(name)]
    searched = any(len(values) > 1 for values in axes.values())
    if not (searched or told or by_tokens or command.own):
        raise UsageError(
            "--script: the command has nothing to search; write {micro_batch} in it or in its"
            " configuration, named as {file:PATH}, or read AUTOTUNE_MICRO_BATCH in the script"
        )
    batch = options.space.global_batch
    if batch is not None and batch.unit == "tokens" and not (command.says("seq_len") or by_tokens):
        raise UsageError(
            f"--global-batch {batch}: the script is not told its length; write {{seq_len}} where"
            " that goes, or give samples, e.g. --global-batch 64"
        )
    for name in ("grad_accum", "micro_batch") if options.space.global_batch else ():
        if not command.says(name) and not by_tokens:
            raise UsageError(
                f"--global-batch {options.space.global_batch}: the command does not pass it on;"
                f" write {{{name}}} where its value goes"
            )


def _ranks(options: Options, command: Command) -> tuple[int | None, str]:
    """Ranks that the command starts, and why so many; None for one on each device."""
    asked = options.devices.world_size
    if asked is None and command.ranks is None and "world_size" in command.placeholders:
        return None, "one on each device"
    if asked is None:
        return (
            command.ranks or 1,
            "as the command says" if command.ranks else "the command names no number of ranks",
        )
    if command.ranks not in (None, asked):
        raise UsageError(
            f"--world-size {asked}: the command starts {command.ranks} ranks; write"
            f" {{world_size}} instead"
        )
    return asked, "--world-size"


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _untold(flag: str, name: str) -> str:
    return (
        f"{flag}: the script is not told of it; write {{{name}}} in the command or in its"
        f" configuration, named as {{file:PATH}}, or read AUTOTUNE_{name.upper()} in the script"
    )


def _default(name: str, engine: str, device_kind: str) -> tuple[Any, ...]:
    """Default values of an axis that the command names."""
    if name == "micro_batch":
        return MICRO_BATCHES[device_kind]
    if name == "checkpointing":
        return ("none", "full")
    if name == "zero_stage":
        return stages_of(engine)
    if name in (*DEGREES, "dp_shard"):
        return (AXES[name].plain,)
    flag, example = AXES[name].flag, AXES[name].example or (AXES[name].words or ("512",))[-1]
    raise UsageError(f"{flag}: give values for {{{name}}}, e.g. {flag} {example}")


def _engine(options: Options, command: Command) -> str:
    """The engine. A DeepSpeed configuration means DeepSpeed in stage 0, too."""
    if command.has_engine and options.space.engine == AUTO:
        return engine_for(AUTO, max(stages_of(AUTO))).name
    return options.space.engine
