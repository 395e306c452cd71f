"""A model of your own, for `--model factory:package.module:function`.

`function` gets a `BuildSpec` and returns an `OwnModel`. It is called in every rank, where torch is
imported, and its module is importable from the folder that autotune is started in:

    from autotune.factory import BuildSpec, OwnModel

    def small(spec: BuildSpec) -> OwnModel:
        module = MyNet(layers=spec.depth, checkpoint=spec.checkpointing != "none")
        return OwnModel(module=module, make_batch=my_batch, loss=my_loss)

It is called with torch's default dtype and device set as the engine needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

EXAMPLE = (
    "def make(spec): return OwnModel(module=Net(), make_batch=lambda micro_batch, seq_len,"
    " generator: {...}, loss=lambda model, batch: ...)"
)
"""The least that a function is."""


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """What the module is to be like."""

    depth: int
    """As `--depth` has it; 1 where that was not given."""
    seq_len: int
    """The longest that will be asked of `make_batch`."""
    dtype: str
    """Of the matrix products: fp32, bf16 or fp16. The engine chooses what the weights are in."""
    checkpointing: str
    """none, or full: recompute in the backward pass what blocks would have to keep. Other values
    of `--checkpointing` only where they are asked for. A function that reads this applies it
    itself. Of one that does not, autotune checkpoints the `blocks`."""
    device: str
    """What it will train on: cpu or cuda."""
    attention: str = "auto"
    """As `--attention` has it; auto where that was not given."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A module, and how it is fed."""

    module: nn.Module
    make_batch: Callable[[int, int, torch.Generator | None], dict[str, Tensor]]
    """`micro_batch` samples of `seq_len`, on the CPU: each tensor's first axis is the sample. The
    generator is None where values do not matter."""
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    """The mean loss of a batch, on the module or on what an engine has wrapped around it."""
    flops_per_token: Callable[[int], float] | None = None
    """Model FLOPs, forward and backward, per sample and unit of `seq_len`, for a `seq_len`.
    Counted where it is not given."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None
    """In the place of AdamW. ZeRO gives it what it shards: one that looks at a parameter's shape
    finds a flat part of it there."""
    blocks: Iterable[nn.Module] | None = None
    """Parts that FSDP shards, and checkpointing recomputes, on their own; none within another.
    Without it: the members of the module's lists."""

    def __post_init__(self) -> None:
        if isinstance(self.module, type):
            name = self.module.__name__
            raise TypeError(f"OwnModel.module is the class {name}; call it, as in module={name}()")
        if not callable(getattr(self.module, "named_parameters", None)):
            raise TypeError(f"OwnModel.module is no torch module: {self.module!r:.80}")
        for name in ("make_batch", "loss", "flops_per_token", "optimizer"):
            given = getattr(self, name)
            needed = name in ("make_batch", "loss")
            if not callable(given) and (needed or given is not None):
                raise TypeError(f"OwnModel.{name} is no function: {given!r:.80}")
        _check_takes("make_batch", self.make_batch, "micro_batch", "seq_len", "generator")
        _check_takes("loss", self.loss, "model", "batch")
        if self.blocks is not None:  # to be gone through more than once
            object.__setattr__(self, "blocks", _listed(self.blocks))


def _listed(blocks: Any) -> list[Any]:
    found = list(blocks) if isinstance(blocks, Iterable) else [blocks]
    named = [callable(getattr(each, "named_parameters", None)) for each in found]
    if not isinstance(blocks, Iterable) or not all(named):
        raise TypeError(f"OwnModel.blocks is no list of modules: {blocks!r:.80}")
    return found


def _check_takes(name: str, function: Callable[..., Any], *arguments: str) -> None:
    try:
        of = signature(function)
    except ValueError:
        return  # of C code, which need not say
    try:
        of.bind(*arguments)
    except TypeError as error:
        called = f"{name}({', '.join(arguments)})"
        raise TypeError(f"OwnModel.{name} is called as {called}: {error}") from error
