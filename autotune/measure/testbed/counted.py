"""Counts of a model that has no closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from autotune.errors import UsageError
from autotune.space.axes import AXES
from autotune.space.models import FAMILIES
from autotune.space.models.counted import CountedShape
from autotune.space.options import Options
from autotune.space.space import Fixed
from autotune.space.workload import OWN, Workload
from autotune.wire.helpers import Count, Counted
from autotune.wire.ranks import ROUTINGS

CountModels = Callable[[Count], Counted]
"""Counts models; raises the errors of `runner.counting.count`."""
FLOPS = "FLOPs"
"""Names the fact that they were not counted."""


def counted(
    workload: Workload,
    depths: Sequence[int],
    seq_lens: Sequence[int],
    count: CountModels,
    device_kind: str,
) -> tuple[Workload, Counted]:
    """`workload` with the counts of its model, and the counts."""
    if (mix := workload.length_mix) is not None:
        of_mix = mix.lengths if "images" in workload.recipe else map(mix.weighted_mean, seq_lens)
        seq_lens = sorted({*seq_lens, *of_mix})
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
    return replace(workload, shapes=shapes, vocab_size=shapes[0].vocab_size), found


def remarks(options: Options, found: Counted) -> tuple[list[Fixed], dict[str, str]]:
    """Facts about the counts `found`; and by axis, why it has only its plain value. Raises
    UsageError if the options ask for other values."""
    said, whys = list[Fixed](), dict[str, str]()
    if found.uncounted:
        said.append(Fixed(FLOPS, "6 a parameter and token", f"not counted: {found.uncounted}"))
    for name in ("depth", "checkpointing", "attention"):
        if name not in found.unread:
            continue
        why = f"the factory never reads spec.{name}"
        if name == "checkpointing" and found.blocks:
            blocks = f"{found.blocks} blocks" if found.blocks > 1 else "1 block"
            said.append(Fixed("recomputed", blocks, f"{why}: autotune applies it to them"))
            continue
        if name == "checkpointing":
            why += ", and OwnModel names no blocks: none and full are the same training"
        whys[name] = why
        values = options.space.axes.get(name, ())
        if set(values) - {AXES[name].plain}:
            flag = AXES[name].flag
            raise UsageError(f"{flag} {','.join(map(str, values))}: {why}; leave {flag} out")
    lengths = options.space.axes.get("seq_len", ())
    if "seq_len" in found.unread and options.space.length_mix is None:
        if len(lengths) > 1:
            raise UsageError(
                f"--seq-len {','.join(map(str, lengths))}: make_batch makes the same batch for"
                " each; name one, or leave --seq-len out"
            )
        if not lengths:
            whys["seq_len"] = "make_batch does not use it: a token is a sample here"
    return said, whys


def routing_of(options: Options, found: Counted | None) -> list[str]:
    """That of a model that was `found`, or has a closed form and no experts. Raises UsageError if
    another was asked for."""
    asked, how = options.space.routing, found.routing if found else ""
    if how == "forced":
        return asked.split(",") if asked else [*ROUTINGS]
    if asked:
        why = "its own routers alone send tokens to its experts" if how else "has no experts"
        raise UsageError(f"--routing {asked}: {options.model.name}: {why}; leave it out")
    return [OWN] if how else []


def of_one_length(workload: Workload) -> Workload:
    """`workload` with samples of one token."""
    shapes = [
        replace(each, seq_lens=[1], flops=[each.flops[0] * each.seq_lens[0]])
        for each in workload.shapes
    ]
    return replace(workload, shapes=shapes, recipe=dict(workload.recipe) | {"seq_len": 1})


def _by_length(
    of_samples: Sequence[float], looked_at: Sequence[int], seq_lens: Sequence[int]
) -> list[float]:
    """FLOPs per token at each length; `of_samples` are FLOPs of samples of lengths `looked_at`."""
    per_token = {n: of / n for n, of in zip(looked_at, of_samples, strict=True)}
    # At other lengths a token takes as many as at the last one.
    return [per_token.get(n, per_token[looked_at[-1]]) for n in seq_lens]
