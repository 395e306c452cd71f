"""Parameters and FLOPs of models, counted on the modules themselves, without data.

Parameters come from a module on the meta device, FLOPs from a step on tensors without data
(`dataless`). Meta tensors fail if a model looks at a mask.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autotune.wire.helpers import Count, Counted, Parameters
from autotune.wire.ranks import ModelSpec
from probes import routing
from probes.dataless import DEVICE_OF, dataless
from probes.faults import UnsupportedError
from probes.models import FamilyModels, family

SAMPLES = 2
"""A single sample would run other operations."""


def count(request: Count) -> Counted:
    """The counts for `request`.

    Raises:
        UnsupportedError: a model cannot be built.
    """
    made = family(request.models[0].name)
    alike = not made.on_meta and _batches_are_alike(made, request)
    counts = [_parameters(spec) for spec in request.models]
    parameters = [each[0] for each in counts]
    uncounted = ""
    try:
        shares = _shares(request, parameters)
        flops = _by_depth(request, shares) if request.seq_lens else []
        if not all(math.isfinite(value) and value > 0 for of in flops for value in of):
            raise ValueError(f"FLOPs of a sample came out as {flops[0][0]!r}")
    except Exception as error:  # noqa: BLE001 - a user's model and its ops may raise whatever they like
        traceback.print_exc()
        uncounted = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if uncounted:
        if not made.on_meta:
            _one_step(request.shallow[0], min(request.seq_lens))  # raises the user's own error
        flops = [
            [6.0 * of.parameters * seq_len for seq_len in request.seq_lens] for of in parameters
        ]
    return Counted(
        parameters=parameters,
        flops_per_sample=flops,
        uncounted=uncounted,
        unread=sorted(
            frozenset.intersection(*(unread for _, unread, *_ in counts))
            - (frozenset() if alike else {"seq_len"})
        ),
        blocks=counts[-1][2],
        routing=counts[-1][3],
    )


def _batches_are_alike(made: FamilyModels, request: Count) -> bool:
    """Whether the user's batches have the same shapes for all lengths. Raises `UnsupportedError`
    for unusable batches."""
    spec, shapes = request.shallow[0], []
    try:
        with dataless():
            made.make(spec)
            for seq_len in (min(request.seq_lens), max(request.seq_lens)):
                batch = made.batch(spec, SAMPLES, seq_len, None)
                shapes.append({name: tensor.shape for name, tensor in batch.items()})
            return shapes[0] == shapes[1] and made.flops_per_sample(spec, seq_len) is None
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001 - of the user's code, and perhaps only without data
        traceback.print_exc()
        return False


def _shares(request: Count, parameters: Sequence[Parameters]) -> list[list[float]]:
    """The shares of `request` that give the right parameters from shallow models. A model may have
    other blocks, which no list in its config names: it has none."""
    if not request.shares:
        return [[] for _ in request.models]
    shallow = [_parameters(spec)[0].parameters for spec in request.shallow]
    return [
        shares if math.isclose(of.parameters, _mixed(shares, shallow), rel_tol=1e-9) else []
        for of, shares in zip(parameters, request.shares, strict=True)
    ]


def _by_depth(request: Count, shares: Sequence[Sequence[float]]) -> list[list[float]]:
    """FLOPs of a sample of each model at each length: by `shares` of the shallow ones, or counted
    without."""
    lengths = request.seq_lens
    of_shallow = [_flops(spec, lengths) for spec in request.shallow] if any(shares) else []
    return [
        [_mixed(each, at) for at in zip(*of_shallow, strict=True)]
        if each
        else _flops(spec, lengths)
        for spec, each in zip(request.models, shares, strict=True)
    ]


def _mixed(shares: Sequence[float], values: Sequence[float]) -> float:
    return sum(share * value for share, value in zip(shares, values, strict=True))


def _one_step(spec: ModelSpec, seq_len: int) -> None:
    """A step with data, on the CPU. Raises the errors of the user's code."""
    made = family(spec.name)
    module = made.make(spec)
    batch = made.batch(spec, SAMPLES, seq_len, torch.Generator().manual_seed(0))
    made.loss(module, batch).backward()  # type: ignore[no-untyped-call]


def _parameters(spec: ModelSpec) -> tuple[Parameters, frozenset[str], int, str]:
    """Parameters of a model, and the settings that its function did not read. Then the number of
    its units, and the routing of its experts by `routing.of`."""
    made = family(spec.name)
    with torch.device("meta"):
        module = made.make(spec)
    blocks = {
        n: p for n, p in module.named_parameters() if made.is_block_weight(n) and p.dim() >= 2
    }
    units = [
        sum(p.numel() for p in unit.parameters() if p.dim() >= 2) for unit in made.units(module)
    ]
    width, vocab_size = made.sizes(spec, module)
    counted = Parameters(
        width=width,
        vocab_size=vocab_size,
        parameters=sum(p.numel() for p in module.parameters()),
        trainable=sum(p.numel() for p in module.parameters() if p.requires_grad),
        block_matrices=sum(p.numel() for p in blocks.values() if p.dim() == 2),
        largest_block=max(units, default=sum(p.numel() for p in blocks.values())),
        linear=made.linear,
        own_optimizer=made.optimizer() is not None,
    )
    return counted, made.unread, len(units), routing.of(module)


def _flops(spec: ModelSpec, seq_lens: Sequence[int]) -> list[float]:
    """FLOPs of forward and backward of one sample of each length."""
    try:
        return _flops_in(torch.float32, spec, seq_lens)
    except RuntimeError:  # kernels of mixtures of experts have a fake one only for bf16
        return _flops_in(torch.bfloat16, spec, seq_lens)


def _flops_in(dtype: torch.dtype, spec: ModelSpec, seq_lens: Sequence[int]) -> list[float]:
    made, before = family(spec.name), torch.get_default_dtype()

    def at(seq_len: int) -> float:
        if (known := made.flops_per_sample(spec, seq_len)) is not None:
            return known
        batch = made.batch(spec, SAMPLES, seq_len, None)
        counter = _Flops()
        with counter:
            made.loss(module, batch).backward()  # type: ignore[no-untyped-call]
        return counter.total / SAMPLES

    with dataless():
        torch.set_default_dtype(dtype)
        try:
            module = made.make(spec)
        finally:
            torch.set_default_dtype(before)
        return [at(seq_len) for seq_len in seq_lens]


class _Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """FLOPs by the formulas of torch's FlopCounterMode. It also attributes them to modules, and
    takes twice as long."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of = FlopCounterMode(display=False, custom_mapping=_formulas()).flop_registry
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: no code is compiled here, and torch's wrapper of every operation takes time."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF:  # called twice as often as tensors are made
            return args[0].fake_device
        formula = self._of.get(func._overloadpacket)
        if formula is None and torch.is_inference_mode_enabled():  # nothing else takes it apart
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        made = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=made)
        return made


def _formulas() -> dict[Any, Any]:
    """Formulas for operations that torch's counter, made for GPUs, does not know."""
    aten = torch.ops.aten
    found: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        # For a convolution of single channels, torch counts as if each saw all channels.
        aten.convolution_backward: _convolution_backward,
    }
    with suppress(AttributeError):
        found[aten._grouped_mm] = _grouped_mm
    return found


Shape = Sequence[int]


def _attention(
    q: Shape, k: Shape, v: Shape, *rest: Any, out_shape: Any = None, **more: Any
) -> int:
    """Two products of all queries with all keys."""
    b, h, t, c = q
    return 2 * b * h * t * k[-2] * (c + v[-1])


def _attention_backward(
    grad: Shape, q: Shape, k: Shape, v: Shape, *rest: Any, out_shape: Any = None, **more: Any
) -> int:
    """Four products. Recomputation of the scores does not count."""
    return 2 * _attention(q, k, v)


def _grouped_mm(a: Shape, b: Shape, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """Each row of `a` meets one matrix of `b`; in the backward pass both are stacks of rows."""
    return 2 * a[-2] * a[-1] * b[-1]


def _convolution_backward(
    grad: Shape, x: Shape, weight: Shape, *rest: Any, out_shape: Any = None, **more: Any
) -> int:
    """Twice the forward pass: each output value is a product with one row of weights."""
    return 4 * math.prod(grad) * math.prod(weight[1:])
