"""Rows of several samples: what a model makes of them is what it makes of each by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from autotune.space.candidate import Build
from autotune.wire.ranks import ModelSpec
from probes.compiling import Compiler
from probes.faults import UnsupportedError
from probes.models import Batch, chunked, family, within
from tests.support.models import SMALL, uncounted, usual_depth

GPT = ModelSpec(name="gpt", depth=2, width=128, vocab_size=512)
ROWS = [[5, 9, 2], [16], [3, 11]]
SEQ_LEN = 16
PACKING = ("gemma-3-1b-tiny", "gemma-3-27b-tiny", "gpt2-tiny", "llama-3-8b-tiny", "mixtral-tiny",
           "qwen3-8b-tiny")  # fmt: skip
"""Models that keep samples apart by their positions."""


def test_positions_of_rows_know_their_sample_and_its_end() -> None:
    numbers, places, last = within([[2, 3]], 6)
    assert numbers.tolist() == [[0, 0, 1, 1, 1, 2]]
    assert places.tolist() == [[0, 1, 0, 1, 2, 0]]
    assert last.tolist() == [[False, True, False, False, True, True]]


def alone(spec: ModelSpec, batch: Batch, ids: str, targets: str) -> list[Batch]:
    """Each sample of `ROWS` as a batch of one."""
    found = []
    for place, row in enumerate(ROWS):
        begin = 0
        for length in row:
            part = slice(begin, begin + length)
            one = {ids: batch[ids][place : place + 1, part]}
            one[targets] = batch[targets][place : place + 1, part].clone()
            if spec.name == "gpt":  # whose targets are shifted already
                one[targets][:, -1] = chunked.IGNORED
            found.append(one)
            begin += length
    return found


def losses(spec: ModelSpec) -> tuple[float, float]:
    """Of packed samples, and of each by itself."""
    torch.manual_seed(3)
    made = family(spec.name)
    module = made.make(spec).eval()
    batch = made.batch(spec, len(ROWS), SEQ_LEN, torch.Generator().manual_seed(5))
    packed = made.packed(spec, batch, ROWS)
    ids, targets = ("ids_bt", "targets_bt") if spec.name == "gpt" else ("input_ids", "labels")
    sums, tokens = 0.0, 0
    for one in alone(spec, batch, ids, targets):
        if (length := one[ids].shape[1]) > 1:
            sums += float(made.loss(module, one)) * (length - 1)
            tokens += length - 1
    return float(made.loss(module, packed)), sums / tokens


@pytest.mark.parametrize("attention", ["auto", "eager"])
@pytest.mark.parametrize("loss", ["whole", "chunked"])
def test_packed_samples_see_nothing_of_each_other(attention: str, loss: str) -> None:
    packed, each = losses(replace(GPT, attention=attention, loss=loss))
    assert packed == pytest.approx(each, rel=1e-5)


def of_transformers(name: str) -> ModelSpec:
    pytest.importorskip("transformers")
    of = uncounted(name)
    return of.spec(usual_depth(of), Build(depth=usual_depth(of)))


@pytest.mark.parametrize("name", PACKING)
def test_models_of_transformers_keep_samples_apart(name: str) -> None:
    packed, each = losses(of_transformers(name))
    assert packed == pytest.approx(each, rel=1e-4)


@pytest.mark.parametrize("name", sorted({*SMALL} - {*PACKING}))
def test_models_that_cannot_keep_samples_apart_are_refused(name: str) -> None:
    made, spec = family("hf"), of_transformers(name)
    made.make(spec)
    with pytest.raises(UnsupportedError, match="takes no packed samples") as caught:
        made.packed(spec, {}, ROWS)
    assert caught.value.axes == ("pack",)


def test_flash_attention_gets_one_row() -> None:
    pytest.importorskip("transformers")
    of = uncounted("llama-3-8b-tiny")
    made = family("hf")
    made.make(of.spec(2))
    spec = of.spec(2, Build(depth=2, attention="flash_attention_2"))
    batch = made.batch(spec, len(ROWS), SEQ_LEN, torch.Generator())
    packed = made.packed(spec, batch, ROWS)
    assert {tuple(each.shape) for each in packed.values()} == {(1, len(ROWS) * SEQ_LEN)}


def test_the_compiler_s_work_is_counted() -> None:
    torch._dynamo.reset()
    compiler = Compiler()

    @partial(torch.compile, backend="eager", dynamic=False)
    def double(x: Tensor) -> Tensor:
        return 2 * x

    for size in (3, 4, 3, 4, 5):
        double(torch.ones(size))
    assert compiler.times == 3
    assert compiler.seconds > 0
