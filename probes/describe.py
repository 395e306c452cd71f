"""Traces the memory of models in a training step: the engine's own code on tensors without data.

Under `FakeTensorMode` a tensor has a shape and no memory, and nothing is computed. The tensors
claim to be on the CPU, since fake CUDA tensors need a CUDA build and make a context.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.wire.helpers import Describe, Described, Traced
from autotune.wire.ranks import ModelSpec, Start
from probes import recompute
from probes.dataless import DEVICE_OF, dataless
from probes.engines import FirstStep
from probes.engines.ddp import DdpEngine
from probes.growth import Shape, Timeline, grown
from probes.memory import status_bytes
from probes.models import family
from probes.world import World

Peaks = tuple[int, int]
"""The early and the late peak."""
_UNKNOWN: Peaks = (-1, -1)
MOST_TRACED = 32
"""The most lengths to trace. Further ones without a form of growth are left out."""
_APART = 8
"""If the shortest length runs other operations than the longest, one so many times as long is
tried next."""


def describe(request: Describe) -> Described:
    """Trace every model of `request` at every shape. Call it in a fresh process: `base_bytes` is
    its memory at the call."""
    torch.ones(2**20).add_(1)  # starts OpenMP's threads, as in a rank before its model
    base_bytes = status_bytes("VmRSS")
    gc.freeze()  # torch's own objects, so collecting between traces is cheap
    gc.disable()  # no collection within a trace
    traced = [_trace(spec, request) for spec in request.models]
    return Described(base_bytes=base_bytes, models=traced)


class StorageLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of live storages that were made in this mode, and every change of them.

    torch's MemTracker (torch.distributed._tools.mem_tracker) counts the same bytes; it also
    attributes them to modules, and takes four times as long.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held_bytes = 0
        self._changes: list[int] = []
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._early: int | None = None
        self._late: int | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: no code is compiled here, and torch's wrapper of every operation takes time."""
        return False

    def timeline(self, run: Callable[[], object]) -> NDArray[np.int64]:
        """Bytes held before `run` and after each change within it."""
        before, start = self._held_bytes, len(self._changes)
        run()
        return before + np.cumsum([0, *self._changes[start:]])

    def step(self, run: Callable[[], object]) -> Timeline:
        """The same for a forward and a backward pass."""
        start = len(self._changes)
        self._early, self._late = None, None
        found = self.timeline(run)
        late = None if self._late is None else self._late - start
        return Timeline(found, late if self._early is None else self._early - start, late)

    def enters(self, _: torch.Tensor) -> None:
        """A hook: a gradient comes to the first blocks."""
        if self._late is None:
            self._late = len(self._changes)

    def leaves(self, _: torch.Tensor) -> None:
        """A hook: the gradient has passed the last blocks."""
        if self._early is None:
            self._early = len(self._changes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is DEVICE_OF:  # called twice as often as tensors are made
            return args[0].fake_device
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._enter(leaf.untyped_storage())
        return made

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key not in self._living:
            self._living[key] = weakref.ref(storage, lambda _: self._leave(key, size))
            self._change(size)

    def _leave(self, key: int, size: int) -> None:
        del self._living[key]
        self._change(-size)

    def _change(self, size: int) -> None:
        self._held_bytes += size
        self._changes.append(size)


class _Engine(DdpEngine):
    def tell(self, ledger: StorageLedger, spec: ModelSpec) -> None:
        """Tell `ledger` when the backward pass comes to the first block, and leaves the last. If
        every n-th block is checkpointed, these are the first n and the last n blocks."""
        every = recompute.every(spec.checkpointing)
        blocks = list(family(spec.name).blocks(self._module))
        if len(blocks) < every:
            return

        def enters(block: object, inputs: object, output: object) -> None:
            _hook(output, ledger.enters)

        def leaves(block: object, inputs: object, output: object) -> None:
            _hook(inputs, ledger.leaves)

        blocks[every - 1].register_forward_hook(enters)
        if every > 1:
            blocks[-every].register_forward_hook(leaves)
        elif spec.depth == 1:
            blocks[0].register_forward_hook(leaves)

    def keep_state(self) -> None:
        """Have no later step make the optimizer's state: peaks are told over it."""
        self._first_step = FirstStep(())

    def hold_gradients(self) -> None:
        """Make a gradient for every parameter, as after a backward pass."""
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)


def _hook(values: object, told: Callable[[torch.Tensor], None]) -> None:
    """Call `told` with the gradient of the first tensor in `values`."""
    first = next((leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)), None)
    if first is not None and first.requires_grad:
        first.register_hook(told)  # type: ignore[no-untyped-call]


def _trace(spec: ModelSpec, request: Describe) -> Traced:
    """One model at every shape; -1 everywhere if it cannot run on tensors without data."""
    try:
        with (
            dataless(),
            StorageLedger() as ledger,
            patch.object(functional, "grouped_mm", _grouped, create=True),
        ):
            return _steps(ledger, _Engine(_start(spec, request), _ALONE), spec, request)
    except Exception:  # noqa: BLE001 - a user's model and its ops may raise whatever they like
        traceback.print_exc()
        return Traced.failed(request)


def _steps(ledger: StorageLedger, engine: _Engine, spec: ModelSpec, request: Describe) -> Traced:
    def update() -> NDArray[np.int64]:
        engine.hold_gradients()
        return ledger.timeline(engine.update)

    def forward_backward(seq_len: int, micro_batch: int) -> Timeline:
        engine.prepare(micro_batch, 1)
        if request.gradients_stay:
            engine.hold_gradients()
        gc.collect()
        with _attention_of(request.device_kind):
            return ledger.step(lambda: _forward_backward(engine, spec, seq_len, micro_batch))

    engine.tell(ledger, spec)
    update()  # the first one makes the optimizer's state
    engine.keep_state()
    updating = update()
    found = _peaks(request, cache(forward_backward))
    peaks = [
        [found.get((seq_len, size), _UNKNOWN) for size in request.micro_batches]
        for seq_len in request.seq_lens
    ]
    held_bytes = int(updating[0] if request.gradients_stay else updating[-1])
    return Traced(
        parameters=engine.parameters,
        held_bytes=held_bytes,
        update_bytes=int(updating.max()),
        early_bytes=[[early for early, _ in of] for of in peaks],
        late_bytes=[[late for _, late in of] for of in peaks],
    )


def _attention_of(device_kind: str) -> AbstractContextManager[object]:
    """A context with a GPU's attention, which keeps no scores: the CPU's keeps them for dropout,
    a trained mask, or values of another width than keys."""
    if device_kind == "cpu":
        return nullcontext()
    fused = functional.scaled_dot_product_attention

    def of_gpu(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **how: Any
    ) -> torch.Tensor:
        trained = getattr(attn_mask, "requires_grad", False)
        if "enable_gqa" in how or not (trained or value.shape[-1] != key.shape[-1]):
            return fused(query, key, value, attn_mask, **how)
        if attn_mask is not None:
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
        attend = torch.ops.aten._scaled_dot_product_efficient_attention
        found = attend(query, key, value, attn_mask, compute_log_sumexp=True, **how)
        return cast(torch.Tensor, found[0])

    return patch.object(functional, "scaled_dot_product_attention", of_gpu)


class _GroupedProduct(torch.autograd.Function):
    """The tensors that `functional.grouped_mm` keeps and makes, for any dtype. Without data it
    only takes bf16. Under autocast, which ignores it, experts' weights are fp32."""

    @staticmethod
    def forward(ctx: Any, rows_sk: torch.Tensor, experts_ekn: torch.Tensor) -> torch.Tensor:
        of_rows, of_experts = ctx.needs_input_grad
        ctx.like = (rows_sk.shape, rows_sk.dtype), (experts_ekn.shape, experts_ekn.dtype)
        # Each one's gradient needs the other.
        ctx.save_for_backward(*([rows_sk] * of_experts), *([experts_ekn] * of_rows))
        return rows_sk.new_empty(len(rows_sk), experts_ekn.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[torch.Tensor | None, ...]:
        return tuple(
            torch.empty(shape, dtype=dtype) if needed else None
            for needed, (shape, dtype) in zip(ctx.needs_input_grad, ctx.like, strict=True)
        )


def _grouped(rows_sk: torch.Tensor, experts_ekn: torch.Tensor, **_: Any) -> torch.Tensor:
    apply: Any = _GroupedProduct.apply
    made: torch.Tensor = apply(rows_sk, experts_ekn)
    return made


def _forward_backward(engine: _Engine, spec: ModelSpec, seq_len: int, micro_batch: int) -> None:
    batch = family(spec.name).batch(spec, micro_batch, seq_len, None)
    engine.forward_backward(batch, last=True)


def _peaks(request: Describe, trace: Callable[[int, int], Timeline]) -> dict[Shape, Peaks]:
    """The early and late peaks at each length and micro_batch, from a few traces. Of many lengths,
    those with other operations than the longest are left out."""
    lengths, sizes = sorted(set(request.seq_lens)), sorted(set(request.micro_batches))
    found: dict[Shape, Peaks] = {}
    shortest = 0
    while not found and shortest < len(lengths) - 1:
        found = _by_growth(lengths[shortest:], sizes, trace)
        longer = _APART * lengths[shortest]
        shortest = bisect_left(lengths, longer, shortest + 1)
    missing = [seq_len for seq_len in lengths if (seq_len, sizes[0]) not in found]
    for seq_len in missing if len(lengths) <= MOST_TRACED else missing[:1]:
        found |= _at_length(seq_len, sizes, trace)
    return found


def _by_growth(
    lengths: Sequence[int], sizes: Sequence[int], trace: Callable[[int, int], Timeline]
) -> dict[Shape, Peaks]:
    """Peaks from traces at both ends; one between them has to agree. Empty without a form of
    growth.

    If the smallest micro_batch runs other operations, as 1 does, it stands for itself, and the
    next one is tried.
    """
    found: dict[Shape, Peaks] = {}
    for place, low in enumerate(sizes):
        least, most = (lengths[0], low), (lengths[-1], sizes[-1])
        several = sizes[place:]
        if not trace(*least).is_like(trace(*most)):
            several, most = [low], (lengths[-1], low)
        grid = list(product(lengths, several))
        known = grown([(end, trace(*end)) for end in (most, least)], grid)
        # Padding shows best at a length with few factors of two.
        odd = min(lengths[1:-1], key=lambda n: (n & -n, -n), default=lengths[0])
        if known is None or not np.array_equal(known((odd, low)).held, trace(odd, low).held):
            return {}
        found |= {shape: known(shape).peaks() for shape in grid}
        if len(several) > 1:
            break
    return found


def _at_length(
    seq_len: int, sizes: Sequence[int], trace: Callable[[int, int], Timeline]
) -> dict[Shape, Peaks]:
    """Peaks from traces of the smallest and the largest micro_batch. Every tensor's size is affine
    in micro_batch, so memory at any moment is, too."""
    largest = sizes[-1]
    at_largest = trace(seq_len, largest)
    peaks = {(seq_len, largest): at_largest.peaks()}
    for place, low in enumerate(sizes[:-1]):
        at_low = trace(seq_len, low)
        if at_low.is_like(at_largest):
            slope = (at_largest.held - at_low.held) / (largest - low)
            peaks |= {
                (seq_len, size): replace(at_low, held=at_low.held + slope * (size - low)).peaks()
                for size in sizes[place:-1]
            }
            break
        peaks[seq_len, low] = at_low.peaks()
    return peaks


_ALONE = World(0, 1, torch.device("cpu"))


def _start(spec: ModelSpec, request: Describe) -> Start:
    return Start(
        world_size=1,
        device_kind="cpu",
        capacity_bytes=0,
        model=replace(spec, optimizer=request.optimizer),
        engine="",
        # The same sizes as fp16, whose loss scaler would read values.
        dtype="bf16" if request.dtype == "fp16" else request.dtype,
    )
