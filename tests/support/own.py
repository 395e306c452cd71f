"""Models as a user would write them, for `--model factory:`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autotune.factory import BuildSpec, OwnModel

WIDTH = 32


class Net(nn.Module):
    def __init__(self, spec: BuildSpec) -> None:
        super().__init__()
        self.checkpointing = spec.checkpointing != "none"
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(spec.depth))
        self.head = nn.Linear(WIDTH, 97)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            y = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
            x = x + functional.gelu(y)
        scores: Tensor = self.head(x.mean(dim=1))
        return scores


def small(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch, loss=loss)


def batch(micro_batch: int, seq_len: int, generator: torch.Generator | None) -> dict[str, Tensor]:
    x = torch.randn(micro_batch, seq_len, WIDTH, generator=generator)
    return {"x": x, "label": torch.randint(97, (micro_batch,), generator=generator)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).float(), batch["label"])


def known(spec: BuildSpec) -> OwnModel:
    """The same, with everything that may be left out."""
    module = Net(spec)
    return OwnModel(
        module=module, make_batch=batch, loss=loss, blocks=list(module.blocks),
        flops_per_token=lambda seq_len: 6.0 * 1000,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip


class Experts(nn.Linear):
    """Those of a mixture with a way of its own."""


def routed(spec: BuildSpec) -> OwnModel:
    module = Net(spec)
    module.blocks = nn.ModuleList(Experts(WIDTH, WIDTH) for _ in range(spec.depth))
    return OwnModel(module=module, make_batch=batch, loss=loss)


def nothing(spec: BuildSpec) -> object:
    return Net(spec)


def broken(spec: BuildSpec) -> OwnModel:
    raise RuntimeError("my own mistake")


def lost(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return loss(model, {"x": batch["y"], "label": batch["label"]})


def wrong_loss(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch, loss=lost)


def no_flops(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch, loss=loss, flops_per_token=lambda n: 0.0)


def unused(spec: BuildSpec) -> OwnModel:
    """A part of the module that the loss does not use."""
    module = Net(spec)
    module.more = nn.Linear(WIDTH, WIDTH)
    return OwnModel(module=module, make_batch=batch, loss=loss)


PLAIN = BuildSpec(depth=2, seq_len=8, dtype="fp32", checkpointing="none", device="cpu")


def unread(spec: BuildSpec) -> OwnModel:
    print("asked for", spec)
    return OwnModel(module=Net(PLAIN), make_batch=batch, loss=loss)


def without_blocks(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(PLAIN), make_batch=batch, loss=loss, blocks=[])


def reads_later(spec: BuildSpec) -> OwnModel:
    module = Net(PLAIN)
    module.spec = spec  # type: ignore[assignment]
    return OwnModel(module=module, make_batch=batch, loss=loss)


def no_argument() -> OwnModel:
    return small(PLAIN)


def no_loss(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch)  # type: ignore[call-arg]


def two_arguments(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=lambda size, generator: {}, loss=loss)  # type: ignore[arg-type, misc]


def a_class(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net, make_batch=batch, loss=loss)  # type: ignore[arg-type]


def of_batch(made: object) -> OwnModel:
    """With FLOPs of its own: nothing is counted on the batch."""
    return OwnModel(
        module=Net(PLAIN), make_batch=lambda size, seq_len, generator: made, loss=loss,  # type: ignore[arg-type, return-value]
        flops_per_token=lambda seq_len: 6.0,
    )  # fmt: skip


def a_tuple(spec: BuildSpec) -> OwnModel:
    return of_batch((torch.zeros(2, 8), torch.zeros(2)))


def a_list_in_it(spec: BuildSpec) -> OwnModel:
    return of_batch({"x": torch.zeros(2, 8), "label": [0, 1]})


def eight(spec: BuildSpec) -> OwnModel:
    return of_batch({"x": torch.zeros(8, 8), "label": torch.zeros(8)})


def of_eight(size: int, seq_len: int, generator: torch.Generator | None) -> dict[str, Tensor]:
    return batch(size, 8, generator)


def images(spec: BuildSpec) -> OwnModel:
    """Its samples have no length."""
    return OwnModel(module=Net(PLAIN), make_batch=of_eight, loss=loss)


def known_flops(spec: BuildSpec) -> OwnModel:
    return OwnModel(
        module=Net(PLAIN), make_batch=of_eight, loss=loss, flops_per_token=lambda seq_len: 6.0
    )


def no_list(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch, loss=loss, blocks=6)  # type: ignore[arg-type]


def names(spec: BuildSpec) -> OwnModel:
    return OwnModel(module=Net(spec), make_batch=batch, loss=loss, blocks="ab")  # type: ignore[arg-type]
