"""This machine's devices, and a script of the user's own that is launched on them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.device.cpu import cores, host_memory_bytes
from autotune.errors import UsageError
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.script.files import Files
from autotune.measure.script.launches import Launches
from autotune.measure.testbed.lacking import check_energy
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.resolve import (
    capacity,
    check_size,
    chosen_dtype,
    chosen_world_size,
    dividing,
    holding,
    micro_batches,
)
from autotune.space.axes import ASKED_AXES, AXES
from autotune.space.candidate import Candidate
from autotune.space.command import Command, combined
from autotune.space.engines import AUTO, engine_for, stages_of
from autotune.space.models.counted import CountedShape
from autotune.space.models.defaults import MICRO_BATCHES
from autotune.space.options import Options
from autotune.space.space import Fixed, Limits, Space
from autotune.space.workload import Workload
from autotune.units import gib

_STATE_SHARE, _OVER_SHARE = 0.15, 0.25
"""Of the capacity, that state and a middling batch are taken for: nobody knows before a launch."""
_STATE_BYTES = 16
"""Of a parameter: weights, gradients and Adam's state in fp32."""
_BLOCK_FLOATS = 34
_NOT_SAID: dict[str, tuple[Any, ...]] = {"depth": (1,), "seq_len": (1,)}
"""Of numbers that the script is not told."""


class Scripted(Machine):
    """The `Testbed` whose results are measured now, in a script that is not ours."""

    learns = False

    def slots(self, options: Options, space: Space) -> int:
        return 1

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        ours = visible(self.spec, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        return command_of(space.workload).assigned | ours

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        (wiring,) = wirings
        command = command_of(space.workload)
        launches = Launches(
            command=command,
            device=self.device,
            environment=self.variables(space, 1),
            space=space,
            files=Files(command, space, self.device.kind),
            wiring=wiring,
        )
        return [launches]

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """What `options` have the script try.

        Raises:
            UsageError: it is not told of an axis that is to be searched, or of values that nobody
                named; more ranks than devices; a capacity above the device's; energy that cannot
                be measured.
        """
        check_energy(options, self.device)
        command = options.script.command if known is None else command_of(known)
        axes = _axes(options, command, self.device.kind)
        check_size(axes)
        ranks = options.devices.world_size or command.ranks
        if options.devices.world_size and command.ranks not in (None, options.devices.world_size):
            raise UsageError(
                f"--world-size {options.devices.world_size}: the command starts {command.ranks}"
                " ranks; write {world_size} in their place"
            )
        world_size, _ = chosen_world_size(self.device, cores(), ranks or 1)
        capacity_bytes, capacity_why = capacity(options, self.device, world_size)
        dtype, dtype_why = chosen_dtype(options, self.device)
        if dtype_why == "--dtype" and not command.says("dtype"):
            raise UsageError(_untold("--dtype", "dtype"))
        limits = Limits(
            capacity_bytes,
            options.limits.ceiling,
            host_memory_bytes(),
            options.limits.host_ceiling,
        )
        named = {name: values for name, values in axes.items() if values}
        points = [
            Candidate(**dict(zip(named, point, strict=True)))
            for point in itertools.product(*named.values())
        ]
        points = holding([c for c in points if c.exists], options)
        told = [name for name in axes if name != "allocator" and command.says(name)]
        by_tokens = "tokens_per_batch" in command.placeholders
        if len(points) == 1 and not (told or by_tokens or command.own):
            raise UsageError(
                "--script: nothing of it is to be searched; write {micro_batch} where its value"
                " goes, or have it read AUTOTUNE_MICRO_BATCH"
            )
        workload = Workload(
            model=f"script:{command.name}",
            width=None,
            vocab_size=0,
            dtype=dtype,
            engine=_engine(options, command),
            world_size=world_size,
            global_batch=options.space.global_batch,
            recipe=_recipe(command),
            shapes=[_guess(depth, axes, points, limits) for depth in axes["depth"]],
        )
        candidates, undivided = dividing(points, workload)
        if options.space.global_batch is not None:
            for name in ("grad_accum", "micro_batch"):
                if not command.says(name) and "tokens_per_batch" not in command.placeholders:
                    raise UsageError(
                        f"--global-batch {options.space.global_batch}: the script is not told how"
                        f" to make it; write {{{name}}} where its value goes"
                    )
        fixed = [
            Fixed("script", command.template, "--script"),
            *([Fixed("dtype", dtype, dtype_why)] if command.says("dtype") else []),
            Fixed("device", self.device.infos[0].name, self.device.why),
            Fixed("world_size", str(world_size), _ranks_why(options, command)),
            Fixed("capacity", f"{gib(capacity_bytes)} a rank", capacity_why),
            Fixed("ceiling", f"{options.limits.ceiling:.0%}", "--ceiling"),
            *(
                Fixed(name, str(values[0]), "the only value")
                for name, values in axes.items()
                if len(values) == 1 and command.says(name)
            ),
            *undivided,
        ]
        return Space(
            workload=workload,
            limits=limits,
            axes=axes,
            candidates=tuple(sorted(candidates)),
            fixed=tuple(fixed),
        )


def shown_command(
    space: Space, candidate: Candidate, options: Options, device_kind: str, exports: Path
) -> list[str]:
    """Words that start the script of `space` with `candidate`; its files are in `exports`."""
    command = command_of(space.workload)
    paths = Files(command, space, device_kind).paths(exports.absolute())
    return command.shown(candidate, space.workload, options.search.seed, paths)


def write_files(space: Space, candidate: Candidate, device_kind: str, exports: Path) -> None:
    """Write the files that `shown_command` names. Raises OSError."""
    Files(command_of(space.workload), space, device_kind).write(candidate, exports.absolute())


def visible(spec: str, before: str) -> dict[str, str]:
    """Variables that leave a script the devices of `spec`, of those that it was to see `before`.

    Numbers, as they were written: UUIDs are more than some libraries read.
    """
    if spec == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"}
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # in which this study has them, too
    named = re.fullmatch(r"cuda:(\d+(?:,\d+)*)", spec)
    if named is None:
        return order
    were = before.split(",") if before else None
    chosen = [were[int(n)] if were else n for n in named[1].split(",")]
    return order | {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def _recipe(command: Command) -> dict[str, Any]:
    return {
        "command": command.template,
        "own": {name: list(values) for name, values in command.own.items()},
        "set": dict(command.given),
        "folder": str(command.folder),
    }


def command_of(workload: Workload) -> Command:
    """The command that the study of `workload` launches."""
    recipe: Mapping[str, Any] = workload.recipe
    own = {name: tuple(values) for name, values in recipe["own"].items()}
    return Command(recipe["command"], own, recipe["set"], Path(recipe["folder"]))


def _axes(options: Options, command: Command, device_kind: str) -> dict[str, tuple[Any, ...]]:
    """The values of every axis that the space has.

    Raises:
        UsageError: the script is not told of one that was asked for, or the other way round.
    """
    asked: dict[str, tuple[Any, ...] | None] = {
        name: options.space.axes.get(name) for name in AXES if name != "own"
    }
    if options.space.tokens_per_batch is not None:
        if "tokens_per_batch" not in command.placeholders:
            raise UsageError(_untold("--tokens-per-batch", "tokens_per_batch"))
        lengths = options.space.axes.get("seq_len", _NOT_SAID["seq_len"])
        asked["micro_batch"] = micro_batches(options, lengths)
    for name, values in asked.items():
        told = command.says(name) or (name == "micro_batch" and options.space.tokens_per_batch)
        if values is not None and not told:
            raise UsageError(_untold(AXES[name].flag, name))
        if values is None and (name in command.named or (name == "micro_batch" and told)):
            asked[name] = _default(name, options.space.engine, device_kind)
    for name in command.own:
        if not command.says(name):
            raise UsageError(_untold("--axis", name))
    for name, value in command.given.items():
        of_engine = name == "lr" and command.has_engine  # its configuration has it
        if not command.says(name) and not of_engine:
            raise UsageError(_untold("--set", name))
        if of_engine and not _is_number(value):
            raise UsageError(f"--set lr={value}: DeepSpeed takes a number, e.g. --set lr=1e-4")
    axes = {
        name: asked[name] or _NOT_SAID.get(name) or (AXES[name].plain,)
        for name in AXES
        if name not in ASKED_AXES and name != "micro_batch"
    }
    axes["micro_batch"] = asked["micro_batch"] or (1,)
    axes = {name: axes[name] for name in AXES if name in axes}
    for name in ASKED_AXES:
        values = combined(command.own) if name == "own" else asked[name]
        if values and values != (AXES[name].plain,):
            axes[name] = values
    return axes


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _untold(flag: str, name: str) -> str:
    return (
        f"{flag}: the script is not told of it; write {{{name}}} where its value goes, or have the"
        f" script read AUTOTUNE_{name.upper()}"
    )


def _default(name: str, engine: str, device_kind: str) -> tuple[Any, ...]:
    """Values of an axis that the script is told of, and of which nothing else is said."""
    if name == "micro_batch":
        return MICRO_BATCHES[device_kind]
    if name == "checkpointing":
        return ("none", "full")
    if name == "zero_stage":
        return stages_of(engine)
    flag, example = AXES[name].flag, AXES[name].example or (AXES[name].words or ("512",))[-1]
    raise UsageError(f"{flag}: say which values {{{name}}} is to have, e.g. {flag} {example}")


def _engine(options: Options, command: Command) -> str:
    """DeepSpeed's configuration is one of DeepSpeed in stage 0, too."""
    if command.has_engine and options.space.engine == AUTO:
        return engine_for(AUTO, max(stages_of(AUTO))).name
    return options.space.engine


def _ranks_why(options: Options, command: Command) -> str:
    if options.devices.world_size:
        return "--world-size"
    return "as the command says" if command.ranks else "nothing else is said"


def _guess(
    depth: int, axes: Mapping[str, tuple[Any, ...]], points: list[Candidate], limits: Limits
) -> CountedShape:
    """A shape to expect by until something was measured: an order of magnitude."""
    tokens = sorted(c.tokens for c in points)[len(points) // 2]
    parameters = max(1, int(limits.capacity_bytes * _STATE_SHARE / _STATE_BYTES))
    width = max(1, int(limits.capacity_bytes * _OVER_SHARE / tokens / (_BLOCK_FLOATS * 4)))
    return CountedShape(
        depth=depth,
        width=width,
        vocab_size=1,
        parameters=parameters,
        trainable=parameters,
        block_matrices=parameters,
        largest_block=parameters,
        seq_lens=list(axes["seq_len"]),
        flops=[6.0 * parameters for _ in axes["seq_len"]],
    )
