"""A model of your own, for `--model factory:package.module:function`.

`function` gets a `BuildSpec` and returns an `OwnModel`. Every rank calls it, with torch imported.
Its module must be importable from the folder in which autotune starts:

    from autotune.factory import BuildSpec, OwnModel

    def small(spec: BuildSpec) -> OwnModel:
        module = MyNet(layers=spec.depth, checkpoint=spec.checkpointing != "none")
        return OwnModel(module=module, make_batch=my_batch, loss=my_loss)

torch's default dtype and device are set as the engine needs them.
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
"""The smallest possible function."""


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """The requested properties of the module."""

    depth: int
    """The value of `--depth`; 1 without it."""
    seq_len: int
    """The longest length for `make_batch`."""
    dtype: str
    """The dtype of matrix products: fp32, bf16 or fp16. The engine chooses that of weights."""
    checkpointing: str
    """none, or full: the backward pass recomputes activations of blocks. Other values of
    `--checkpointing` only if the user asks for them. A function that reads this field applies it
    itself. Else autotune checkpoints the `blocks`."""
    device: str
    """The device of training: cpu or cuda."""
    attention: str = "auto"
    """The value of `--attention`; auto without it."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A module with its batches and its loss."""

    module: nn.Module
    make_batch: Callable[[int, int, torch.Generator | None], dict[str, Tensor]]
    """Makes `micro_batch` samples of `seq_len`, on the CPU. Each tensor's first axis is the
    sample. The generator is None if values do not matter."""
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    """The mean loss of a batch. It gets the module, or an engine's wrapper of it."""
    flops_per_token: Callable[[int], float] | None = None
    """FLOPs, forward and backward, per sample and unit of `seq_len`; else they are counted."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None
    """Makes an optimizer instead of AdamW. ZeRO gives it flat shards, so shapes are lost."""
    blocks: Iterable[nn.Module] | None = None
    """Parts that FSDP shards, and checkpointing recomputes. Else: members of module lists."""

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
        if self.blocks is not None:  # an iterator would serve only once
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
        return  # C code may have no signature
    try:
        of.bind(*arguments)
    except TypeError as error:
        called = f"{name}({', '.join(arguments)})"
        raise TypeError(f"OwnModel.{name} is called as {called}: {error}") from error
