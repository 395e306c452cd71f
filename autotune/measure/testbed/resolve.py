"""The space that options mean for a model on a machine's devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.basis import Basis, limits_of
from autotune.measure.testbed.candidates import asked_axes, axes_of
from autotune.measure.testbed.counted import (
    CountModels,
    counted,
    of_one_length,
    remarks,
    routing_of,
)
from autotune.measure.testbed.facts import facts, usual_optimizer
from autotune.measure.testbed.lacking import check_machine
from autotune.measure.testbed.lengths import padded_longest, read_mix
from autotune.measure.testbed.ranks import (
    LayOut,
    capacity,
    chosen_world_size,
    on_one_machine,
    spread,
)
from autotune.measure.testbed.stages import stages_and_offloads
from autotune.measure.testbed.unlike import rank_capacities, with_vectors
from autotune.space.axes import AXES
from autotune.space.engines import AUTO, engine_for
from autotune.space.mix import RUN_STEPS, LengthMix
from autotune.space.models import FAMILIES, gpt
from autotune.space.models.defaults import Defaults, shown_sizes
from autotune.space.options import Options
from autotune.space.options.flag import listed
from autotune.space.space import Fixed, Space
from autotune.space.workload import Workload
from autotune.wire.helpers import Counted
from autotune.wire.ranks import padded_to


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
    """The space that `options` mean on `device`.

    Args:
        host_bytes: memory of the host, all processes together.
        cores: processor cores this process may use.
        count: counts models that have no closed form.
        known: the workload of a study that goes on; its model may be gone.
        here: whether it runs on this machine, with the packages installed on it.
        fused: whether to assume fused kernels that are not installed here.
        lay_out: how groups lie on several machines; without it they are on one.

    Raises:
        UsageError: no such model; more ranks than devices; a capacity above the device's; a global
            batch that no candidate divides; unreadable lengths.
    """
    if "micro_batch_per_rank" in options.space.axes and options.space.engine == AUTO:
        options = options.but(engine=engine_for(AUTO, 0).name)  # others have one for all ranks
    model = _model(options, device.kind, known, fused=fused)
    world_size, world_why = chosen_world_size(device, cores, options.devices.world_size)
    lay_out = lay_out or partial(on_one_machine, device, cores)
    layout = lay_out(world_size, options.devices.parallel)
    own_bytes, own_why = capacity(device, world_size, layout)
    limits, capacity_why = limits_of(options, own_bytes, own_why, host_bytes // layout.beside)
    capacities = rank_capacities(options, device, world_size, own_bytes)
    limits = replace(limits, rank_capacities=capacities)
    dtype, dtype_why = chosen_dtype(options, device)
    known_now = {"seq_len": max(model.seq_lens), "dtype": dtype, "device": device.kind}
    workload = Workload(
        model=options.model.name,
        width=options.model.width,
        vocab_size=options.model.vocab_size or model.defaults.vocab_size,
        dtype=dtype,
        engine=options.space.engine,
        world_size=world_size,
        global_batch=options.space.global_batch,
        recipe=model.recipe | {k: v for k, v in known_now.items() if k in model.recipe},
        length_mix=model.mix,
        nodes=layout.nodes,
        eval_batch=options.space.eval_batch or 0,
        save=options.space.save or "",
    )
    check_machine(options, workload, device, here=here)
    family, said, unread = FAMILIES[options.model.family], list[Fixed](), dict[str, str]()
    found: Counted | None = None
    if known is not None and not family.is_code:
        workload = replace(
            workload, shapes=known.shapes, vocab_size=known.vocab_size, routing=known.routing
        )
    elif family.counted:
        assert count is not None, "whoever offers such models can count them"
        workload, found = counted(workload, model.depths, model.seq_lens, count, device.kind)
        said, unread = remarks(options, found)
    if known is None or family.is_code:
        workload = replace(workload, routing=routing_of(options, found))
    seq_lens = model.seq_lens
    if "seq_len" in unread:
        workload, seq_lens = of_one_length(workload), (1,)
    chosen = stages_and_offloads(
        options, workload, limits, max(model.depths), device.kind, here=here
    )
    asked, whys = asked_axes(options, seq_lens), unread | chosen.whys
    batch = options.space.global_batch
    checkpointing = ("none",) if "checkpointing" in unread else ("none", "full")
    if options.model.preset and "optimizer" not in asked:
        asked["optimizer"] = (gpt.PRESETS[options.model.preset].optimizer,)
        whys["optimizer"] = "--preset"
    axes, points = with_vectors(
        axes_of(
            {"micro_batch": model.defaults.micro_batch, "checkpointing": checkpointing}
            | asked
            | {"depth": model.depths, "seq_len": seq_lens}
            | {"zero_stage": chosen.stages, "offload": chosen.offloads}
        ),
        device, world_size, limits.rank_capacities, model.defaults.micro_batch,
    )  # fmt: skip
    return Basis(
        workload=workload,
        limits=limits,
        capacity_why=capacity_why,
        axes=axes,
        points=points,
        device_kind=device.kind,
        facts=[
            *facts(options, workload, device, dtype_why),
            Fixed("world_size", str(world_size), world_why),
            *spread(layout),
        ],
        more=[
            *([Fixed("global_batch", str(batch), "--global-batch")] if batch else []),
            Fixed("engine", options.space.engine, "--engine"),
            *said,
            *_routing(options, workload),
            *([] if "optimizer" in axes else [usual_optimizer(workload, axes["depth"][0])]),
        ],
        whys={"optimizer": AXES["optimizer"].flag} | whys,
    ).space(options)


@dataclass(frozen=True, kw_only=True)
class _Model:
    recipe: dict[str, Any]
    defaults: Defaults
    depths: tuple[int, ...]
    seq_lens: tuple[int, ...]
    mix: LengthMix | None


def _model(options: Options, device_kind: str, known: Workload | None, *, fused: bool) -> _Model:
    """Raises `UsageError` for a depth or a length that the model lacks."""
    family = FAMILIES[options.model.family]
    recipe = known.recipe if known is not None else family.recipe(
        replace(options.model.asked, fused=fused)
    )  # fmt: skip
    if options.model.target_len is not None and "target_len" in recipe:
        _check_positions(options, "--target-len", options.model.target_len, recipe)
    defaults = family.defaults(recipe, device_kind)
    if options.space.length_mix is not None and (why := family.one_length(recipe)):
        raise UsageError(f"--length-mix {options.space.length_mix}: {why}; leave it out")
    mix = known.length_mix if known is not None else read_mix(options)
    depths = options.space.axes.get("depth", defaults.depth)
    seq_lens = _cut_to(options, None if recipe.get("images") else mix, recipe, defaults)
    for depth in depths:
        family.check_depth(recipe, depth)
    _check_positions(options, "--seq-len", max(seq_lens), recipe)
    if why := family.wrong_length(recipe, min(seq_lens)) or family.wrong_length(
        recipe, max(seq_lens)
    ):
        raise UsageError(f"--seq-len {listed(seq_lens)}: {options.model.name}: {why}")
    if found := family.mixed(recipe, max(seq_lens)):
        if len(seq_lens) > 1:
            raise UsageError(
                f"--seq-len {listed(seq_lens)}: with several sizes of images, name one: the"
                " length of a sample with the largest"
            )
        mix = LengthMix.of(
            shown_sizes(each["size"] for each in recipe["images"]),
            found,
            run_steps=options.space.run_steps or RUN_STEPS,
        )
        recipe = recipe | {"longest": max(seq_lens)}
    return _Model(recipe=recipe, defaults=defaults, depths=depths, seq_lens=seq_lens, mix=mix)


def _cut_to(
    options: Options, mix: LengthMix | None, recipe: dict[str, Any], defaults: Defaults
) -> tuple[int, ...]:
    """The lengths to search: with a `mix`, those that its samples are cut to.

    Raises:
        UsageError: a length is above the mix's longest, or no multiple that it pads to; or the
            model has too few positions.
    """
    asked = options.space.axes.get("seq_len")
    if mix is None:
        return asked or defaults.seq_len
    multiple = math.lcm(*options.space.axes.get("pad_to_multiple", (1,)))
    longest = padded_longest(options.space, mix)
    most = FAMILIES[options.model.family].most_seq_len(recipe)
    if asked is None and most is not None and longest > most:
        raise UsageError(
            f"--length-mix {mix.file}: its longest sample is padded to {longest} tokens, and"
            f" {options.model.name} has positions for {most}; truncate samples with --seq-len"
            f" {most // multiple * multiple}"
        )
    for length in asked or ():
        if length > longest:
            raise UsageError(
                f"--seq-len {length}: the longest sample of {mix.file} is padded to {longest};"
                " use that, or leave --seq-len out"
            )
        if length % multiple:
            raise UsageError(
                f"--seq-len {length}: is not a multiple of --pad-to-multiple {multiple}; use"
                f" --seq-len {padded_to(length, multiple)}"
            )
    return asked or (longest,)


def _check_positions(options: Options, flag: str, length: int, recipe: dict[str, Any]) -> None:
    most = FAMILIES[options.model.family].most_seq_len(recipe)
    if most is not None and length > most:
        raise UsageError(
            f"{flag} {length}: {options.model.name} has positions for {most} tokens; use {flag}"
            f" {most} or less"
        )


def _routing(options: Options, workload: Workload) -> list[Fixed]:
    why = "--routing" if options.space.routing else "the model has experts"
    return [Fixed("routing", workload.routed, why)] if workload.routing else []


def chosen_dtype(options: Options, device: Device) -> tuple[str, str]:
    if options.space.dtype != "auto":
        return options.space.dtype, "--dtype"
    if device.kind == "cpu":
        return "fp32", "auto: fastest on most CPUs"
    if all(info.bf16 for info in device.infos):
        return "bf16", "auto: the device has bf16"
    return "fp16", "auto: the device has no bf16"
