"""Tensors without data: the cache of results changes none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from probes import dataless
from probes.dataless import Dataless


def laid_out(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    """How each lies in memory, and which ones share it."""
    storages = [each.untyped_storage()._cdata for each in tensors]
    return [
        (each.shape, each.stride(), each.storage_offset(), each.dtype, storages.index(storage))
        for each, storage in zip(tensors, storages, strict=True)
    ]


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "new": lambda x: x @ x.t(),
    "view": lambda x: x[1:, 2:].t(),
    "another view": lambda x: x[2:, 2:].t(),
    "copy": lambda x: x.t().reshape(-1),
    "no copy": lambda x: x.reshape(-1),
    "in place": lambda x: x.add_(1),
    "sizes in place": lambda x: x.unsqueeze_(0),
    "out": lambda x: torch.add(x, 1, out=x),
    "integer": lambda x: torch.ones_like(x, dtype=torch.int64) * 2,
    "float": lambda x: torch.ones_like(x, dtype=torch.int64) * 2.0,
    "of two": lambda x: x.expand_as(torch.ones(3, *x.shape)),
    "several": lambda x: torch.chunk(x, 2)[1],
    "fills": lambda x: x.new_zeros(7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operations_return_the_same_again(
    operation: Callable[[Tensor], Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataless, "_RESULTS", {})
    found = []
    for mode in (FakeTensorMode(), Dataless(), Dataless()):  # the last one remembers
        with mode:
            first = torch.empty(4, 6, dtype=dtype)
            second = torch.empty(4, 6, dtype=dtype)
            found.append(laid_out([first, operation(first), second, operation(second)]))
    assert found[0] == found[1] == found[2]


def test_what_was_computed_once_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataless, "_RESULTS", {})
    asked = []
    compute = FakeTensorMode.dispatch

    def counted(mode: FakeTensorMode, func: object, *rest: object) -> object:
        asked.append(func)
        return compute(mode, func, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    with Dataless():
        x = torch.empty(4, 6)
        for _ in range(3):
            x.t() * 2
    assert asked.count(torch.ops.aten.t.default) == asked.count(torch.ops.aten.mul.Tensor) == 1
