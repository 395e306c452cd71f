"""Rules for configurations of every tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from autotune.advise.check.reading import AUTO, Finding, Reading

_SHARED = ("micro_batch", "grad_accum", "world_size", "seq_len", "zero_stage", "offload", "dtype")


def alone(reading: Reading, beside: Sequence[Reading]) -> Iterator[Finding]:
    """Findings about one file, used together with those `beside` it."""
    yield from reading.findings
    yield from _autos(reading, beside)
    ranks = next((each.world_size for each in beside if each.world_size), None)
    yield from _formula(reading, ranks)


def agree(readings: Sequence[Reading]) -> Iterator[Finding]:
    """Findings about facts on which two files differ."""
    for name in _SHARED:
        said = [(each, getattr(each, name)) for each in readings]
        said = [(each, value) for each, value in said if value not in (None, AUTO)]
        for (first, one), (second, other) in pairwise(said):
            if one != other:
                yield Finding(
                    "error", second.called(name),
                    f"is {other}, and {first.called(name)} is {one}; which one counts depends on"
                    " the tool: make them equal",
                )  # fmt: skip


def _autos(reading: Reading, beside: Sequence[Reading]) -> Iterator[Finding]:
    if reading.autos and not any(each.fills_auto for each in beside):
        shown = ", ".join(reading.autos[:4]) + (" and more" if len(reading.autos) > 4 else "")
        yield Finding(
            "error", f"{reading.name}: {shown}",
            "nobody fills in auto here: transformers' Trainer and accelerate do, but"
            " deepspeed.initialize does not; write numbers, or check it together with theirs",
        )  # fmt: skip


def _formula(reading: Reading, world_size: int | None) -> Iterator[Finding]:
    micro, accum, whole = reading.micro_batch, reading.grad_accum, reading.global_batch
    if not isinstance(whole, int) or not isinstance(micro, int):
        return
    accum = accum if isinstance(accum, int) else None
    where = reading.called("global_batch")
    if world_size is None:
        if accum is not None and whole % (micro * accum):
            yield Finding("error", where, f"{whole} is no multiple of {micro} x {accum}")
        return
    if accum is None:
        if whole % (micro * world_size):
            yield Finding(
                "error", where, f"{whole} is no multiple of {micro} x {world_size} ranks"
            )
    elif whole != micro * accum * world_size:
        fits = micro * accum * world_size
        yield Finding(
            "error", where,
            f"{whole} is not {micro} x {accum} x {world_size} ranks, which is {fits}; DeepSpeed"
            " refuses it",
        )  # fmt: skip
