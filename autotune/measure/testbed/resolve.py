"""The space that options mean on a machine's devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.lacking import check_machine
from autotune.measure.testbed.lengths import read_mix
from autotune.space.axes import ASKED_AXES, AXES
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_for, engine_of, stages_of, state_bytes
from autotune.space.mix import LengthMix
from autotune.space.models import FAMILIES, gpt, hf
from autotune.space.models.counted import CountedShape
from autotune.space.models.defaults import Defaults, GptTraits
from autotune.space.options import Options, Parallel
from autotune.space.space import LEFT_OUT, Fixed, Limits, Space
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.helpers import Count, Counted

RANKS_PER_CORE = 2
MAX_POINTS = 200_000
_SHOWN = 8
"""Values that are listed, at most."""


CountModels = Callable[[Count], Counted]
"""Has models counted; raises what `runner.counting.count` does."""


def resolve(
    options: Options,
    device: Device,
    host_bytes: int,
    cores: int,
    *,
    count: CountModels | None = None,
    known: Workload | None = None,
    here: bool = True,
    fused: bool = False,
    lay_out: LayOut | None = None,
) -> Space:
    """The space that `options` means on `device`.

    Args:
        host_bytes: memory of the host, all processes together.
        cores: processor cores this process may use.
        count: for models that have no closed form.
        known: what a study has found of its model before, which may have gone since.
        here: whether it is to run on this machine, with what is installed on it.
        fused: whether fused kernels are there that are not installed here.
        lay_out: how groups lie on several machines; without it they are on one.

    Raises:
        UsageError: there is no such model, more ranks than devices, a capacity above the device's,
            a global batch that no candidate divides, or lengths that cannot be read.
    """
    family = FAMILIES[options.model.family]
    recipe = known.recipe if known is not None else family.recipe(
        replace(options.model.asked, fused=fused)
    )  # fmt: skip
    if options.model.target_len is not None and "target_len" in recipe:
        _check_positions(options, "--target-len", options.model.target_len, recipe)
    defaults = family.defaults(recipe, device.kind)
    mix = known.length_mix if known is not None else read_mix(options.space)
    depths = options.space.axes.get("depth", defaults.depth)
    seq_lens = _cut_to(options, mix, recipe, defaults)
    _check_model(options, recipe, depths, seq_lens)
    world_size, world_why = chosen_world_size(device, cores, options.devices.world_size)
    lay_out = lay_out or partial(on_one_machine, device, cores)
    layout = lay_out(world_size, options.devices.parallel)
    capacity_bytes, capacity_why = capacity(options, device, world_size, layout)
    dtype, _ = chosen_dtype(options, device)
    preset = gpt.PRESETS[options.model.preset] if options.model.preset else None
    known_now = {"seq_len": max(seq_lens), "dtype": dtype, "device": device.kind}
    workload = Workload(
        model=options.model.name,
        width=options.model.width,
        vocab_size=options.model.vocab_size or defaults.vocab_size,
        dtype=dtype,
        engine=options.space.engine,
        world_size=world_size,
        global_batch=options.space.global_batch,
        recipe=recipe | {name: value for name, value in known_now.items() if name in recipe},
        length_mix=mix,
        nodes=layout.nodes,
    )
    check_machine(options, workload, device, here=here)
    remarks: list[Fixed] = []
    if known is not None and not family.is_code:
        workload = replace(workload, shapes=known.shapes, vocab_size=known.vocab_size)
    elif family.counted:
        assert count is not None, "whoever offers such models can count them"
        workload, remarks = _counted(workload, depths, seq_lens, count, device.kind)
    limits = Limits(
        capacity_bytes,
        options.limits.ceiling,
        host_bytes // layout.beside,
        options.limits.host_ceiling,
    )
    stages, offloads, stages_why = _stages(
        options, workload, limits, max(depths), device.kind, here=here
    )
    axes: dict[str, tuple[Any, ...]] = {
        "depth": depths,
        "seq_len": seq_lens,
        "micro_batch": micro_batches(options, seq_lens) or defaults.micro_batch,
        "zero_stage": stages,
        "offload": offloads,
        "checkpointing": options.space.axes.get("checkpointing", ("none", "full")),
    }
    asked = {name: options.space.axes.get(name) for name in ASKED_AXES}
    if preset:
        asked["optimizer"] = asked["optimizer"] or (preset.optimizer,)
    axes |= {
        name: values for name, values in asked.items() if values and values != (AXES[name].plain,)
    }
    check_size(axes)
    combined = [
        Candidate(**dict(zip(axes, point, strict=True)))
        for point in itertools.product(*axes.values())
    ]
    points, left_out = _possible([c for c in combined if c.exists], options, workload, device.kind)
    candidates, undivided = dividing(points, workload)
    fixed = [
        *_shared(options, workload, device),
        Fixed("world_size", str(world_size), world_why),
        *_spread(device, layout),
        Fixed("capacity", f"{gib(capacity_bytes)} a rank", capacity_why),
        Fixed("ceiling", f"{options.limits.ceiling:.0%}", "--ceiling"),
    ]
    if options.space.global_batch is not None:
        fixed.append(Fixed("global_batch", str(options.space.global_batch), "--global-batch"))
    fixed.append(Fixed("engine", options.space.engine, "--engine"))
    fixed += [*remarks, *_not_there(combined), *left_out, *undivided]
    if "optimizer" not in axes:
        fixed.append(_optimizer(workload, axes["depth"][0]))
    for name, values in axes.items():
        if len(values) == 1:
            why = {
                "zero_stage": stages_why,
                "offload": _offloads_why(options, device.kind, stages_why),
            }.get(name, "the only value")
            if name == "optimizer":
                why = AXES[name].flag if options.space.axes.get("optimizer") else "--preset"
            fixed.append(Fixed(name, str(values[0]), why))
    return Space(
        workload=workload,
        limits=limits,
        axes=axes,
        candidates=tuple(sorted(candidates)),
        fixed=tuple(fixed),
    )


def _cut_to(
    options: Options, mix: LengthMix | None, recipe: dict[str, Any], defaults: Defaults
) -> tuple[int, ...]:
    """The lengths to search: with a `mix`, those that its samples are cut to.

    Raises:
        UsageError: those asked for are above its longest or none that it pads to, or the model has
            no positions for it.
    """
    asked = options.space.axes.get("seq_len")
    if mix is None:
        return asked or defaults.seq_len
    multiple = mix.pad_to_multiple
    most = FAMILIES[options.model.family].most_seq_len(recipe)
    if asked is None and most is not None and mix.longest > most:
        raise UsageError(
            f"--length-mix {mix.file}: its longest sample is padded to {mix.longest} tokens, and"
            f" {options.model.name} has positions for {most}; cut it by --seq-len"
            f" {most // multiple * multiple}"
        )
    for length in asked or ():
        if length > mix.longest:
            raise UsageError(
                f"--seq-len {length}: the longest sample of {mix.file} is padded to {mix.longest};"
                " use that, or leave --seq-len out"
            )
        if length % multiple:
            raise UsageError(
                f"--seq-len {length}: is no multiple of --pad-to-multiple {multiple}; use"
                f" --seq-len {mix.padded(length)}"
            )
    return asked or (mix.longest,)


def _mix(mix: LengthMix) -> Fixed:
    first, last = mix.lengths[0], mix.lengths[-1]
    what = f"{mix.samples} samples of {first} to {last} tokens, {mix.mean(last):.0f} in the mean"
    return Fixed("lengths", what, f"--length-mix {mix.file}")


def micro_batches(options: Options, seq_lens: Sequence[int]) -> tuple[int, ...] | None:
    """What was asked for, in samples.

    Raises:
        UsageError: a length that not one sample of has room in the tokens of a batch.
    """
    budgets = options.space.tokens_per_batch
    if budgets is None:
        return options.space.axes.get("micro_batch")
    if max(seq_lens) > min(budgets):
        raise UsageError(
            f"--tokens-per-batch {min(budgets)}: holds no sample of"
            f" {max(seq_lens)} tokens; use --tokens-per-batch {max(seq_lens)} or more"
        )
    sizes = {tokens // length for tokens in budgets for length in seq_lens}
    return tuple(sorted(sizes))


def holding(points: Sequence[Candidate], options: Options) -> list[Candidate]:
    """Those of `points` that hold the asked number of tokens, where one is asked for."""
    if options.space.tokens_per_batch is None:
        return list(points)
    held = {(n // length, length) for n in options.space.tokens_per_batch
            for length in {c.seq_len for c in points}}  # fmt: skip
    return [c for c in points if (c.micro_batch, c.seq_len) in held]


def dividing(
    points: Sequence[Candidate], workload: Workload
) -> tuple[list[Candidate], list[Fixed]]:
    """Those of `points` of which whole micro-steps make up the global batch, and what has to be
    said of the others.

    Raises:
        UsageError: there is none.
    """
    candidates = [c for c in points if workload.grad_accum(c) is not None]
    batch = workload.global_batch
    if batch is None:
        return candidates, []
    length = " x seq_len" if batch.unit == "tokens" else ""
    if not candidates:
        ranks = "1 rank" if workload.world_size == 1 else f"{workload.world_size} ranks"
        raise UsageError(
            f"--global-batch {batch}: no candidate divides it (micro_batch{length} x {ranks} x"
            " grad_accum); the nearest that works is --global-batch"
            f" {workload.nearest_global_batch(list(points))}"
        )
    lost = {(c.seq_len, c.micro_batch) for c in points}
    lost -= {(c.seq_len, c.micro_batch) for c in candidates}
    lengths: dict[tuple[int, ...], list[int]] = {}
    for each in sorted({c.seq_len for c in points}):
        sizes = tuple(sorted(size for of, size in lost if of == each))
        lengths.setdefault(sizes, []).append(each)
    what = [
        _listed(sizes) + (f" at seq_len {_listed(at)}" if len(lengths) > 1 else "")
        for sizes, at in lengths.items() if sizes
    ]  # fmt: skip
    ranks = " x ranks" if workload.world_size > 1 else ""
    why = f"--global-batch {batch} is no multiple of these{length}{ranks}"
    return candidates, [Fixed(LEFT_OUT, f"micro_batch {'; '.join(what)}", why)] if what else []


def _listed(values: Sequence[int]) -> str:
    """All of a few, else the first of them and their number."""
    shown = ",".join(map(str, values[:_SHOWN]))
    return shown if len(values) <= _SHOWN else f"{shown},... ({len(values)} values)"


def _possible(
    points: Sequence[Candidate], options: Options, workload: Workload, device_kind: str
) -> tuple[list[Candidate], list[Fixed]]:
    """Those of `points` that hold the asked number of tokens and that their engines run, and what
    has to be said of the others.

    Raises:
        UsageError: no engine runs any of them.
    """
    points = holding(points, options)
    builds = sorted({c.build for c in points})
    lacking = {
        build: lack for build in builds
        if (lack := engine_of(workload, build).lacks(build, device_kind)) is not None
    }  # fmt: skip
    said = {
        (engine_of(workload, build).name, _flags(build, lack.axes), lack.reason)
        for build, lack in lacking.items()
    }
    possible = [c for c in points if c.build not in lacking]
    if not possible:
        name, what, why = min(said)
        raise UsageError(f"{what}: {name} does not do that: {why}")
    return possible, [
        Fixed(LEFT_OUT, f"{what} on {name}", why) for name, what, why in sorted(said)
    ]


def _not_there(points: Sequence[Candidate]) -> list[Fixed]:
    """What has to be said of those of `points` whose stage and offload do not go together."""
    stages: dict[str, set[int]] = {}
    for c in points:
        if not c.exists:
            stages.setdefault(c.offload, set()).add(c.zero_stage)
    what = [
        f"--offload {offload} at --zero {','.join(map(str, sorted(of)))}"
        for offload, of in sorted(stages.items(), reverse=True)
    ]
    why = "the optimizer's state moves from stage 1 on, parameters at stage 3"
    return [Fixed(LEFT_OUT, ", ".join(what), why)] if what else []


def _flags(build: Build, axes: Sequence[str]) -> str:
    """The values of `build` on `axes` as they are written."""
    return " ".join(f"{AXES[name].flag} {getattr(build, name)}" for name in axes)


def _check_model(
    options: Options, recipe: dict[str, Any], depths: Sequence[int], seq_lens: Sequence[int]
) -> None:
    family = FAMILIES[options.model.family]
    for depth in depths:
        family.check_depth(recipe, depth)
    _check_positions(options, "--seq-len", max(seq_lens), recipe)


def _check_positions(options: Options, flag: str, length: int, recipe: dict[str, Any]) -> None:
    most = FAMILIES[options.model.family].most_seq_len(recipe)
    if most is not None and length > most:
        raise UsageError(
            f"{flag} {length}: {options.model.name} has positions for {most} tokens; use {flag}"
            f" {most} or less"
        )


def _counted(
    workload: Workload,
    depths: Sequence[int],
    seq_lens: Sequence[int],
    count: CountModels,
    device_kind: str,
) -> tuple[Workload, list[Fixed]]:
    """`workload` with the counts of its model, and what has to be said of them."""
    if (mix := workload.length_mix) is not None:
        seq_lens = sorted({*seq_lens, *map(mix.weighted_mean, seq_lens)})
    family = FAMILIES[workload.family]
    looked_at = family.looked_at(workload.recipe, seq_lens)
    found = count(Count(
        models=[workload.spec(depth) for depth in depths],
        shallow=workload.shallow(),
        shares=[workload.shares(depth) for depth in depths],
        seq_lens=list(looked_at),
    ))  # fmt: skip
    shapes = [
        CountedShape(
            **asdict(each),
            depth=depth,
            seq_lens=list(seq_lens),
            flops=_by_length(flops, looked_at, seq_lens),
            block_floats=family.block_floats(workload.recipe, device_kind),
        )
        for depth, each, flops in zip(
            depths, found.parameters, found.flops_per_sample, strict=True
        )
    ]
    remarks = [Fixed("FLOPs", "6 a parameter and token", f"not counted: {found.uncounted}")]
    return replace(
        workload, shapes=shapes, vocab_size=shapes[0].vocab_size
    ), remarks if found.uncounted else []


def _by_length(
    of_samples: Sequence[float], looked_at: Sequence[int], seq_lens: Sequence[int]
) -> list[float]:
    """FLOPs per token at each length, where samples of those `looked_at` take `of_samples`."""
    per_token = {n: of / n for n, of in zip(looked_at, of_samples, strict=True)}
    # Where others were looked at, a token takes the same in all of them.
    return [per_token.get(n, per_token[looked_at[-1]]) for n in seq_lens]


def _shared(options: Options, workload: Workload, device: Device) -> list[Fixed]:
    """What all candidates share of model, arithmetic and device."""
    if workload.shapes:
        sizes = [
            Fixed("width", str(workload.shapes[0].width), "the model's"),
            Fixed("outputs", str(workload.vocab_size), "the model's"),
            Fixed("parameters", ", ".join(_count(s) for s in workload.shapes), "counted"),
            *_task(options, workload, device.kind),
        ]  # fmt: skip
    else:
        width_rule = f"{options.model.traits.aspect_ratio} x depth"
        width_why = "--gpt" if options.model.width else f"{width_rule}, the gpt family's rule"
        vocabulary_why = f"default on {device.kind}"
        if options.model.vocab_size:
            vocabulary_why = "--gpt" if "vocab_size" in options.model.said else "--preset"
        sizes = [
            Fixed("width", str(options.model.width or width_rule), width_why),
            Fixed("vocab_size", str(workload.vocab_size), vocabulary_why),
            *(Fixed(name, str(value), "--gpt" if name in options.model.said else "--preset")
              for name, value in workload.recipe.items()
              if name != "aspect_ratio" and value != asdict(GptTraits())[name]),
        ]  # fmt: skip
    return [
        Fixed("model", options.model.name, "--model"),
        *sizes,
        Fixed("dtype", *chosen_dtype(options, device)),
        *([] if workload.length_mix is None else [_mix(workload.length_mix)]),
        Fixed("device", device.infos[0].name, device.why),
    ]


def _count(shape: CountedShape) -> str:
    n = shape.parameters
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.3g} M"


def _optimizer(workload: Workload, depth: int) -> Fixed:
    """Where nobody chose one."""
    if workload.shape(depth).own_optimizer:
        return Fixed("optimizer", "own", "the model's")
    return Fixed("optimizer", AXES["optimizer"].plain, "default")


def _task(options: Options, workload: Workload, device_kind: str) -> list[Fixed]:
    if "task" not in workload.recipe:
        return []
    task_why = "--task" if options.model.task else "the model's"
    fixed = [Fixed("task", workload.recipe["task"], task_why)]
    if workload.recipe["task"] == "seq2seq":
        said = options.model.target_len
        fixed.append(
            Fixed("target_len", str(said), "--target-len") if said
            else Fixed("target_len", "a quarter of seq_len", "default, as T5's; --target-len")
        )  # fmt: skip
    if kernels := workload.recipe.get("kernels"):
        why = "installed, or assumed to be"
        if device_kind == "cpu":
            kernels, why = "torch", "a CPU has no others"
        elif kernels != hf.FUSED:
            why = f"{hf.FUSED} is not installed, whose kernels hold less and are faster"
        fixed.append(Fixed("kernels", kernels, why))
    if options.model.lora is not None:
        stepped = ", ".join(f"{shape.trainable / 1e6:.2f} M" for shape in workload.shapes)
        fixed.append(Fixed("lora", f"{options.model.lora}: {stepped} trained", "--lora"))
    if left_out := workload.recipe.get("left_out"):
        fixed.append(Fixed(LEFT_OUT, ", ".join(left_out), "only the text model is tuned"))
    return fixed


def check_size(axes: dict[str, tuple[Any, ...]]) -> None:
    size = math.prod(len(values) for values in axes.values())
    if size > MAX_POINTS:
        name, values = max(axes.items(), key=lambda axis: len(axis[1]))
        flag = AXES[name].flag
        raise UsageError(
            f"{flag}: {len(values)} values make a space of {size} points, at most {MAX_POINTS}"
            f" are searched; name fewer values or give a step, e.g. {flag} 1:64:8"
        )


def _stages(
    options: Options, workload: Workload, limits: Limits, deepest: int, device_kind: str,
    *, here: bool,
) -> tuple[tuple[int, ...], tuple[str, ...], str]:  # fmt: skip
    """Stages and offloads to search, and why these.

    They matter where there are ranks to share with, or where stage 0 cannot hold the deepest
    model. On the CPU the host is the device, and an offload moves nothing.
    """
    known, asked = stages_of(options.space.engine), options.space.axes
    without = _left_out(options) if here else ""
    offloads = asked.get("offload", ("none",))
    if "zero_stage" in asked:
        return asked["zero_stage"], offloads, "--zero"
    if known in ((0,), tuple(stage for stage in known if stage)):
        return known, offloads, "all the engine has"  # there is nothing to choose from
    if without:
        return (0,), offloads, without
    if set(offloads) != {"none"}:
        return known, offloads, "--offload"
    offloads = asked.get("offload") or _offloads_for(workload, limits, deepest, device_kind)
    if workload.world_size > 1:
        return known, offloads, "several ranks can share"
    if offloads == ("none",):
        return (0,), offloads, "one rank has nobody to share with"
    # What stage 1 shares, stage 2 shares, too.
    return tuple(s for s in known if s != 1), offloads, "stage 0 cannot hold the deepest model"


def _offloads_why(options: Options, device_kind: str, stages_why: str) -> str:
    """Why one value of it alone is searched."""
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
    """Why the stages that share state are left out; empty where they are not.

    Raises:
        UsageError: they were asked for.
    """
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


def chosen_world_size(device: Device, cores: int, asked: int | None) -> tuple[int, str]:
    """Ranks of a group, `asked` where that is said, and why so many.

    Raises:
        UsageError: more than there are devices for.
    """
    if device.kind == "cpu":
        machines = len(device.infos)
        available, all_of_it = machines * cores * RANKS_PER_CORE, machines
        several = f"{machines} nodes of " if machines > 1 else ""
        what = f"{several}{cores} cores, {RANKS_PER_CORE} ranks a core"
    elif any(info.uuid.startswith("MIG-") for info in device.infos):
        # CUDA gives a process one MIG instance, and NCCL does not join several.
        available, all_of_it, what = 1, 1, "a MIG instance trains alone"
    else:
        available = all_of_it = len(device.infos)
        what = "devices"
    if asked is None:
        return all_of_it, f"default on {device.kind}"
    if asked > available:
        raise UsageError(
            f"--world-size {asked}: at most {available} here ({what});"
            f" use --world-size {available}"
        )
    return asked, "--world-size"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How groups lie on machines."""

    slots: int = 1
    """Groups that run at once."""
    nodes: int = 1
    """Machines that a group is on."""
    beside: int = 1
    """Groups on one machine."""
    ranks: int | None = None
    """Of a group on one machine, the most; None for an even part."""

    def ranks_on_a_node(self, world_size: int) -> int:
        """That share its memory."""
        return (self.ranks or math.ceil(world_size / self.nodes)) * self.beside


LayOut = Callable[[int, Parallel], Layout]
"""By the ranks of a group, and how many groups are asked for. Raises UsageError."""


def on_one_machine(device: Device, cores: int, world_size: int, asked: Parallel) -> Layout:
    """Groups that share the devices of one."""
    slots = chosen_slots(device, cores, world_size, asked)
    return Layout(slots=slots, beside=slots)


def _spread(device: Device, layout: Layout) -> list[Fixed]:
    """What is said of groups that share machines, or span some."""
    said = []
    if layout.nodes > 1:
        said.append(Fixed("nodes", str(layout.nodes), "a group's ranks are on so many"))
    if layout.slots > 1:
        said.append(Fixed("parallel", str(layout.slots), "--parallel"))
    return said


def chosen_slots(device: Device, cores: int, world_size: int, asked: Parallel) -> int:
    """Groups of `world_size` ranks that run at once, on devices of their own.

    Raises:
        UsageError: more than there is room for.
    """
    if device.kind == "cpu":
        most = max(1, min(cores, cores * RANKS_PER_CORE // world_size))
        auto, what = max(1, cores // world_size), f"{cores} cores"
    else:
        most = auto = max(1, len(device.infos) // world_size)
        what = f"{len(device.infos)} devices"
    if asked == "auto":
        return auto
    if asked > most:
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        fewer = f", or --world-size {fits}" if (fits := len(device.infos) // asked) else ""
        raise UsageError(
            f"--parallel {asked}: {what} hold at most {most} of {ranks} each;"
            f" use --parallel {most}{fewer}"
        )
    return asked


STAGES_LEFT_OUT = "stages 1 to 3 are left out"
SAID_BYTES = 64 * 2**20
"""What others hold of a device is said from here on."""


def capacity(
    options: Options, device: Device, world_size: int, layout: Layout = Layout()
) -> tuple[int, str]:
    """Bytes a rank may call its device's, and where they come from."""
    on_cpu = device.kind == "cpu"
    free = [
        (info.capacity_bytes - held, held)
        for info, held in zip(device.infos, device.in_use_bytes(), strict=True)
    ]
    smallest, others = min(free)
    own = smallest // layout.ranks_on_a_node(world_size) if on_cpu else smallest
    if options.limits.capacity_bytes is None:
        if on_cpu:
            several = f" of {layout.beside} groups" if layout.beside > 1 else ""
            return own, f"the host's memory over its ranks{several}"
        less = f", less {gib(others)} that others hold" if others >= SAID_BYTES else ""
        return own, f"the smallest device{less}"
    if options.limits.capacity_bytes > own:
        raise UsageError(
            f"--capacity {gib(options.limits.capacity_bytes)}: the device has {gib(own)} a rank;"
            f" use --capacity {own // 2**20}MiB or less"
        )
    return options.limits.capacity_bytes, "--capacity"


def chosen_dtype(options: Options, device: Device) -> tuple[str, str]:
    if options.space.dtype != "auto":
        return options.space.dtype, "--dtype"
    if device.kind == "cpu":
        return "fp32", "auto: fastest on most CPUs"
    if all(info.bf16 for info in device.infos):
        return "bf16", "auto: the device has bf16"
    return "fp16", "auto: the device has no bf16"
