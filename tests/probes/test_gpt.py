"""The gpt model and the engine around it, on one rank, with real torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from autotune.wire.ranks import ModelSpec
from probes import engines
from probes.engines.ddp import DdpEngine
from probes.faults import UnsupportedError
from probes.models import Batch, family, gpt
from probes.world import World
from tests.support import defaults

ALONE = World(0, 1, torch.device("cpu"))


def spec(**fields: Any) -> ModelSpec:
    shape: dict[str, Any] = {
        "name": "gpt", "depth": 2, "width": 128, "vocab_size": 97, "checkpointing": "none",
    }  # fmt: skip
    return ModelSpec(**shape | fields)


def loss_of(model: gpt.GptModule, ids: torch.Tensor, targets: torch.Tensor) -> float:
    return float(model(ids, targets).detach())


def ddp(model: ModelSpec, **fields: Any) -> Any:
    return DdpEngine(defaults.start(model=model, **fields), ALONE)


def batch(tokens_bt: torch.Tensor) -> Batch:
    return {"ids_bt": tokens_bt[:, :-1], "targets_bt": tokens_bt[:, 1:]}


def losses(model: ModelSpec, steps: int, **fields: Any) -> list[float]:
    torch.manual_seed(0)
    engine = ddp(model, **fields)
    ids = torch.randint(97, (4, 33), generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(steps):
        found.append(float(engine.forward_backward(batch(ids), last=True)))
        engine.update()
    return found


def test_an_untrained_model_guesses_evenly() -> None:
    assert losses(spec(), 1)[0] == pytest.approx(math.log(97), rel=0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_steps_learn_the_batch(optimizer: str, dtype: str) -> None:
    first, *_, last = losses(spec(optimizer=optimizer), 20, dtype=dtype)
    assert last < 0.8 * first


def test_tokens_do_not_see_what_comes_after_them() -> None:
    torch.manual_seed(0)
    model = gpt.GptModule(spec())
    ids = torch.randint(97, (1, 16))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 97
    targets = torch.full((1, 16), -100)
    targets[0, :8] = 5  # cross_entropy leaves -100 out
    assert loss_of(model, ids, targets) == pytest.approx(
        loss_of(model, changed, targets), rel=1e-6
    )


def test_the_order_of_tokens_matters() -> None:
    torch.manual_seed(0)
    model = gpt.GptModule(spec())
    ids = torch.randint(97, (1, 16))
    swapped = ids[:, [1, 0, *range(2, 16)]]
    targets = torch.full((1, 16), -100)
    targets[0, -1] = 5
    assert loss_of(model, ids, targets) != pytest.approx(
        loss_of(model, swapped, targets), rel=1e-6
    )


def test_accumulated_micro_steps_add_their_gradients() -> None:
    torch.manual_seed(0)
    engine = ddp(spec())
    ids = torch.randint(97, (2, 9))
    module = engine._module
    engine.forward_backward(batch(ids), last=False)
    once = module.head.weight.grad.clone()
    engine.forward_backward(batch(ids), last=True)
    torch.testing.assert_close(module.head.weight.grad, 2 * once)


def test_two_halves_of_a_batch_have_the_gradient_of_the_whole() -> None:
    ids = torch.randint(97, (4, 9))
    gradients = []
    for parts in (1, 2):
        torch.manual_seed(0)
        engine = ddp(spec())
        engine.prepare(4 // parts, parts)
        for i, part in enumerate(ids.chunk(parts)):
            engine.forward_backward(batch(part), last=i == parts - 1)
        gradients.append(engine._module.head.weight.grad)
    torch.testing.assert_close(*gradients)


def test_preparing_for_a_candidate_leaves_no_gradients() -> None:
    engine = ddp(spec())
    ids = torch.randint(97, (2, 9))
    engine.forward_backward(batch(ids), last=True)
    engine.prepare(2, 1)
    assert all(p.grad is None for p in engine._module.parameters())


def test_unknown_models_and_engines_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="model bert"):
        family("bert")
    with pytest.raises(UnsupportedError, match="engine magic"):
        engines.load("magic")
