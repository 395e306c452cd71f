"""Models that a function of the user's makes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from autotune.factory import EXAMPLE
from autotune.space.candidate import Build
from autotune.wire.helpers import Count
from probes.count import count
from probes.faults import UnsupportedError
from probes.models import family
from tests.support.models import uncounted
from tests.support.own import PLAIN
from tests.support.programs import ROOT

SAMPLES, LENGTH = 3, 8


def stepped(function: str, checkpointing: str) -> tuple[int, list[Tensor]]:
    """Floats that a forward pass keeps, and the gradients of its parameters."""
    workload = uncounted(f"factory:tests.support.own:{function}")
    spec = workload.spec(2, Build(depth=2, checkpointing=checkpointing))
    made, kept = family("factory"), list[int]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(0)
    module = made.make(spec)
    batch = made.batch(spec, SAMPLES, LENGTH, torch.Generator().manual_seed(1))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = made.loss(module, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return sum(kept), [p.grad for p in module.parameters() if p.grad is not None]


def test_blocks_are_recomputed_for_a_function_that_does_not_read_of_it() -> None:
    (plain, expected), (kept, gradients) = stepped("unread", "none"), stepped("unread", "full")
    assert kept < plain
    torch.testing.assert_close(gradients, expected)


def test_every_second_block_is_recomputed() -> None:
    workload = uncounted("factory:tests.support.own:unread")
    module = family("factory").make(workload.spec(2, Build(depth=2, checkpointing="1/2")))
    again = [name for name, part in module.named_modules() if "forward" in vars(part)]
    assert again == ["blocks.0"]


@pytest.mark.parametrize("function", ["small", "reads_later", "without_blocks"])
def test_what_a_function_may_do_itself_is_not_done_again(function: str) -> None:
    workload = uncounted(f"factory:tests.support.own:{function}")
    made = family("factory")
    module = made.make(workload.spec(2, Build(depth=2, checkpointing="full")))
    assert all("forward" not in vars(block) for block in module.modules())


@pytest.mark.parametrize(
    ("function", "unread", "blocks"),
    [
        ("unread", True, 2),
        ("without_blocks", True, 0),
        ("small", False, 2),
        ("reads_later", False, 2),
    ],
)
def test_what_a_function_does_not_read_is_counted(
    function: str, unread: bool, blocks: int
) -> None:
    spec = uncounted(f"factory:tests.support.own:{function}").spec(2)
    found = count(Count(models=[spec], shallow=[spec], seq_lens=[LENGTH]))
    assert {"depth", "checkpointing"}.issubset(found.unread) == unread
    assert found.blocks == blocks


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("no_argument", "no_argument is called with one argument, a BuildSpec: too many"),
        ("no_loss", "missing 1 required keyword-only argument: 'loss'"),
        ("two_arguments", "is called as make_batch(micro_batch, seq_len, generator): too many"),
        ("a_class", "OwnModel.module is the class Net; call it, as in module=Net()"),
        ("no_list", "OwnModel.blocks is no list of modules: 6"),
        ("names", "OwnModel.blocks is no list of modules: 'ab'"),
        ("nothing", "returned Net, and not an autotune.factory.OwnModel"),
    ],
)
def test_a_wrong_function_is_told_what_a_right_one_is(function: str, what: str) -> None:
    spec = uncounted(f"factory:tests.support.own:{function}").spec(2)
    with pytest.raises(UnsupportedError) as caught:
        family("factory").make(spec)
    assert what in str(caught.value)
    assert str(caught.value).endswith(f"; write {EXAMPLE}")


def test_the_readme_has_a_function_that_works() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (text,) = [each for each in blocks if "OwnModel" in each]
    given: dict[str, Any] = {
        "torch": torch, "Net": lambda: nn.Linear(8, 1)
    }  # fmt: skip
    exec(text, given)
    found = given["make"](PLAIN)
    assert found.loss(found.module, found.make_batch(SAMPLES, LENGTH, None)).ndim == 0


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("a_tuple", "make_batch returned tuple; return a dict of tensors"),
        ("a_list_in_it", "make_batch returned list as 'label'; return a dict of tensors"),
        (
            "eight",
            "returned tensors whose first axes are {'x': 8, 'label': 8}",
        ),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_told_as_it_is_counted(
    function: str, what: str
) -> None:
    spec = uncounted(f"factory:tests.support.own:{function}").spec(2)
    with pytest.raises(UnsupportedError) as caught:
        count(Count(models=[spec], shallow=[spec], seq_lens=[LENGTH]))
    assert what in str(caught.value)
