"""Tensors without data, on which models are counted and traced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.nn import init

DEVICE_OF = torch.ops.prim.device.default
"""The operation that asks a tensor for its device."""


@contextmanager
def dataless() -> Iterator[None]:
    """Tensors that are made in this context have a shape, but no values. Models may bring tensors
    from their import.

    A truncated normal draws values again that are too far off, so it is replaced.
    """

    def nothing(tensor: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        return tensor

    # A private name of torch, which another version may not have.
    drawing = patch.object(init, "_no_grad_trunc_normal_", nothing, create=True)
    with drawing, patch.object(torch, "split", _split), Dataless(allow_non_fake_inputs=True):
        yield


class Lengths(list[int]):
    """Lengths of sequences that lie in one row of a tensor."""


_apart = torch.split


def _split(tensor: torch.Tensor, sizes: Any, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """As torch.split. Qwen-VL attends to each window of an image alone: windows of one length in
    (1, heads, windows x length, width) become a batch here. One call takes as much memory."""
    if isinstance(sizes, Lengths) and dim == 2 and len(set(sizes)) == 1:
        return (torch.unflatten(tensor, 2, (len(sizes), -1)).transpose(0, 2).squeeze(2),)
    return _apart(tensor, sizes, dim)


class _NotOnlySizesError(Exception):
    """An argument has values, not only sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The single result of an operation, on the device of its first argument."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    shares: bool
    """Whether it has the first argument's storage."""
    is_first: bool
    """Whether it is the first argument itself."""


_RESULTS: dict[object, _Result | None] = {}
"""Results by operation and arguments; None if torch has to compute it each time."""


class Dataless(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode, with a cache of its own. torch's own cache supports symbolic sizes, and its
    keys take most of the time of a trace."""

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            key = func, torch.get_default_dtype(), _sizes(args), _sizes(kwargs.items())
        except _NotOnlySizesError:
            return super().dispatch(func, types, args, kwargs)
        if (known := _RESULTS.get(key)) is not None:
            return self._made(known, args[0])
        result = super().dispatch(func, types, args, kwargs)
        if key not in _RESULTS:
            _RESULTS[key] = _known(func, result, args[0] if args else None)
        return result

    def _made(self, known: _Result, first: FakeTensor) -> FakeTensor:
        if known.is_first:
            return first
        with in_kernel_invocation_manager(self):
            made = torch.empty_strided(known.size, known.stride, dtype=known.dtype, device="meta")
            if known.shares:
                made.set_(first.untyped_storage(), known.offset, known.size, known.stride)
        return FakeTensor(self, made, first.fake_device)


def _sizes(values: Iterable[Any]) -> tuple[object, ...]:
    """Arguments as a key. A tensor counts by its sizes; 1 and 1.0 differ by their types."""
    found: list[object] = []
    for value in values:
        kind = type(value)
        if kind is FakeTensor and value.constant is None:
            found += (value.shape, value.stride(), value.storage_offset(), value.dtype)
        elif kind in (list, tuple):
            found.append(_sizes(value))
        elif isinstance(value, torch.Tensor):
            raise _NotOnlySizesError
        else:
            found += (kind, value)
    return tuple(found)


def _known(func: Any, result: Any, first: Any) -> _Result | None:
    """`result` of `func`, whose first argument is `first`."""
    if type(first) is not FakeTensor or type(result) is not FakeTensor:
        return None
    if result.constant is not None or result.fake_device != first.fake_device:
        return None
    shares = result.untyped_storage()._cdata == first.untyped_storage()._cdata
    # A view has the storage of an argument. Unless that is the first, it is unknown.
    if (func.is_view and not shares) or torch.Tag.inplace_view in func.tags:
        return None
    return _Result(
        size=tuple(result.shape),
        stride=result.stride(),
        offset=int(result.storage_offset()),
        dtype=result.dtype,
        shares=shares,
        is_first=result is first,
    )
