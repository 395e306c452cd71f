"""The candidates of a space: the combinations of its axes that can run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.errors import UsageError
from autotune.space import degrees
from autotune.space.axes import AXES, DEGREES
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_of
from autotune.space.models.described import Description
from autotune.space.options import Options
from autotune.space.space import LEFT_OUT, Fixed
from autotune.space.workload import Workload

MAX_POINTS = 200_000
_SHOWN = 8
"""The most values to list."""


def asked_axes(options: Options, seq_lens: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    """The requested values by axis; --tokens-per-batch asks for micro-batches. Raises UsageError
    if the tokens of a batch are fewer than a sample has."""
    tokens, asked = options.space.tokens_per_batch, dict(options.space.axes)
    if tokens is not None:
        if max(seq_lens) > min(tokens):
            raise UsageError(
                f"--tokens-per-batch {min(tokens)}: holds no sample of {max(seq_lens)} tokens;"
                f" use --tokens-per-batch {max(seq_lens)} or more"
            )
        asked["micro_batch"] = tuple(sorted({n // length for n in tokens for length in seq_lens}))
    return asked


def axes_of(values: Mapping[str, tuple[Any, ...] | None]) -> dict[str, tuple[Any, ...]]:
    """The axes of a space with these values, in their order."""
    return {
        name: found
        for name, axis in AXES.items()
        if (found := values.get(name)) and (axis.always or found != (axis.plain,))
    }


def points_of(axes: Mapping[str, tuple[Any, ...]]) -> list[Candidate]:
    """Every combination of the values of `axes`. Raises UsageError if there are too many to
    list."""
    _check_size(axes)
    return [
        Candidate(**dict(zip(axes, point, strict=True)))
        for point in itertools.product(*axes.values())
    ]


def valid(
    points: Collection[Candidate], options: Options, workload: Workload, device_kind: str | None
) -> tuple[list[Candidate], list[Fixed]]:
    """The `points` that can run, for engines on a `device_kind`, and why others are left out.
    Raises UsageError if no point can run."""
    # Packed rows are full: one kind of padding stands for all.
    plain = min(((c.pad_to_multiple, c.buckets) for c in points), default=None)
    kept = [c for c in points if c.exists]
    kept = [c for c in kept if c.pack == "off" or (c.pad_to_multiple, c.buckets) == plain]
    left_out = _not_there(points)
    kept, odd = _for_fp8(kept)
    left_out += odd
    if (tokens := options.space.tokens_per_batch) is not None:
        kept = [c for c in kept if any(c.micro_batch == n // c.seq_len for n in tokens)]
    if device_kind is not None:
        kept, lacking = _possible(kept, workload, device_kind)
        left_out += lacking
    kept, impossible = _of_degrees(kept, workload)
    left_out += impossible
    kept, undivided = _dividing(kept, workload)
    return kept, left_out + undivided


def _check_size(axes: Mapping[str, tuple[Any, ...]]) -> None:
    size = math.prod(len(values) for values in axes.values())
    if size > MAX_POINTS:
        name, values = max(axes.items(), key=lambda axis: len(axis[1]))
        flag = AXES[name].flag
        raise UsageError(
            f"{flag}: {len(values)} values make a space of {size} points, at most {MAX_POINTS}"
            f" are searched; name fewer values or give a step, e.g. {flag} 1:64:8"
        )


def _possible(
    points: Sequence[Candidate], workload: Workload, device_kind: str
) -> tuple[list[Candidate], list[Fixed]]:
    """The `points` that their engines can run, and why others are left out. Raises UsageError if
    no engine runs any of them."""
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
        raise UsageError(f"{what}: {name} cannot do that: {why}")
    return possible, [
        Fixed(LEFT_OUT, f"{what} on {name}", why) for name, what, why in sorted(said)
    ]


def _for_fp8(points: Sequence[Candidate]) -> tuple[list[Candidate], list[Fixed]]:
    """The `points` whose tokens torch can multiply in fp8, and why others are left out. Raises
    UsageError if there is none."""
    odd = {c for c in points if c.float8 in ("tensorwise", "rowwise") and c.tokens % 16}
    if not odd:
        return list(points), []
    sizes = _listed(sorted({c.tokens for c in odd}))
    what, why = "--float8", f"micro_batch x seq_len is {sizes}, and no multiple of 16"
    if len(odd) == len(points):
        raise UsageError(f"{what}: {why}")
    return [c for c in points if c not in odd], [Fixed(LEFT_OUT, what, why)]


def _of_degrees(
    points: Sequence[Candidate], workload: Workload
) -> tuple[list[Candidate], list[Fixed]]:
    """The `points` with possible degrees of parallelism, and why others are left out. Raises
    UsageError if there is none."""
    if not workload.of_script or workload.recorded:
        return list(points), []
    model = degrees.description(workload)
    possible = dict[tuple[Candidate, int], Candidate]()
    said = dict[str, dict[str, None]]()
    for c in sorted(points, key=lambda c: c.dp_shard != AXES["dp_shard"].plain):
        if (found := degrees.impossible(workload, c, model)) is None:
            same = possible.setdefault((replace(c, dp_shard="auto"), workload.shard(c)), c)
            if same is c:
                continue
            found = degrees.Impossible((*DEGREES, "dp_shard"), "--dp-shard auto is the same")
        axes = [name for name in found.axes if getattr(c, name) != AXES[name].plain]
        if not said:
            instead = _instead(c, axes, workload, model)
        said.setdefault(found.reason, {})[_flags(c, axes)] = None
    lost = {why: list(each) for why, each in said.items()}
    if not possible:
        why, each = next(iter(lost.items()))
        raise UsageError(f"{each[0]}: {why}; no candidate is left, so try {instead}")
    left_out = [Fixed(LEFT_OUT, _listed(each, ", "), why) for why, each in lost.items()]
    return list(possible.values()), left_out


def _instead(
    c: Candidate, axes: Sequence[str], workload: Workload, model: Description | None
) -> str:
    """Values with which one of `axes` would make `c` possible; plain ones where none does."""
    for name in reversed(axes):
        numbers = range(1, workload.world_size + 1)
        values: Sequence[Any] = ["auto", *map(str, numbers)] if name == "dp_shard" else numbers
        fits = [
            v
            for v in values
            if degrees.impossible(workload, replace(c, **{name: v}), model) is None
        ]
        if fits:
            return f"{AXES[name].flag} {_listed(fits)}"
    return " ".join(f"{AXES[name].flag} {AXES[name].plain}" for name in axes)


def _not_there(points: Collection[Candidate]) -> list[Fixed]:
    """Facts about combinations of stage and offload that `points` lack."""
    stages: dict[str, set[int]] = {}
    for c in points:
        if not c.exists:
            stages.setdefault(c.offload, set()).add(c.zero_stage)
    what = [
        f"--offload {offload} at --zero {','.join(map(str, sorted(of)))}"
        for offload, of in sorted(stages.items(), reverse=True)
    ]
    why = "the optimizer's state needs stage 1 or more, parameters need stage 3"
    return [Fixed(LEFT_OUT, ", ".join(what), why)] if what else []


def _flags(build: Build | Candidate, axes: Sequence[str]) -> str:
    return " ".join(f"{AXES[name].flag} {getattr(build, name)}" for name in axes)


def _dividing(
    points: Sequence[Candidate], workload: Workload
) -> tuple[list[Candidate], list[Fixed]]:
    """The `points` that reach the global batch in whole micro-steps, and why others are left out.
    Raises UsageError if there is none."""
    candidates = [c for c in points if workload.grad_accum(c) is not None]
    batch = workload.global_batch
    if batch is None:
        return candidates, []
    length = " x seq_len" if batch.unit == "tokens" else ""
    by_dp: dict[int, list[Candidate]] = {}
    for c in points:
        by_dp.setdefault(workload.replicas(c), []).append(c)
    degrees_matter = set(by_dp) != {workload.world_size}
    if not candidates:
        ranks = "1 rank" if workload.world_size == 1 else f"{workload.world_size} ranks"
        samples = f"micro_batch{length} x {'dp' if degrees_matter else ranks}"
        if any(c.vector for c in points):
            samples = f"the sum of micro_batch_per_rank{length}"
        raise UsageError(
            f"--global-batch {batch}: no candidate divides it"
            f" ({samples} x grad_accum); the nearest that works is"
            f" --global-batch {workload.nearest_global_batch(list(points))}"
        )
    left_out = []
    for dp, of in sorted(by_dp.items()):
        ranks = f" x dp {dp}" if degrees_matter else " x ranks" * (workload.world_size > 1)
        ranks = " in sum" if of[0].vector else ranks
        if what := _undivided(of, workload):
            why = f"--global-batch {batch} is no multiple of these{length}{ranks}"
            name = "micro_batch_per_rank" if of[0].vector else "micro_batch"
            left_out.append(Fixed(LEFT_OUT, f"{name} {what}", why))
    return candidates, left_out


def _undivided(points: Sequence[Candidate], workload: Workload) -> str:
    """Micro-batches of `points`, of equal replicas, that do not divide the global batch."""
    lost = {
        (c.seq_len, c.micro_batch_per_rank if c.vector else c.micro_batch)
        for c in points if workload.grad_accum(c) is None
    }  # fmt: skip
    lengths: dict[tuple[int | str, ...], list[int]] = {}
    for each in sorted({c.seq_len for c in points}):
        sizes = tuple(sorted(size for of, size in lost if of == each))
        lengths.setdefault(sizes, []).append(each)
    return "; ".join(
        _listed(sizes) + (f" at seq_len {_listed(at)}" if len(lengths) > 1 else "")
        for sizes, at in lengths.items() if sizes
    )  # fmt: skip


def _listed(values: Sequence[int | str], between: str = ",") -> str:
    """All `values` if they are few, else the first ones and their number."""
    shown = between.join(map(str, values[:_SHOWN]))
    return shown if len(values) <= _SHOWN else f"{shown}{between}... ({len(values)} values)"
