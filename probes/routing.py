"""Which experts a token goes to, in mixtures of experts: forced, since a router with random
weights says nothing of a trained one.

Experts that are called with the tokens' choices, as those of transformers are, get others in
their place. These follow from shapes alone, so a checkpoint recomputes the same. The weights of
the choices stay the router's, which gets its gradient. In all layers the last expert is the
hottest. It is the worst case where experts run one after the other: the backward pass begins with
it, while the activations of all others are held.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autotune.wire.emulated import emulating
from autotune.wire.ranks import BALANCED, ROUTINGS

SKEW = 0.8
"""With a hot expert, the share of the expert of rank r falls as r to the power of -SKEW. Source:
TensorRT-LLM, pull request 19148, whose value gives the shares of traces of trained models."""
_INDEX = ("top_k_index", "router_indices")
"""Names of the parameter that has the choices (N, k), the second of an experts' `forward`.
Source: transformers.integrations.moe.use_experts_implementation."""
_now = [BALANCED]


def force(routing: str) -> None:
    """From now on, spread tokens by the row `routing` of `ROUTINGS`."""
    assert routing in ROUTINGS
    _now[:] = [routing]
    _choices.cache_clear()


def of(module: nn.Module) -> str:
    """Of a model: "forced" if its routing can be, "own" if it has experts of another kind, or
    else empty."""
    if any(_forced(module)):
        return "forced"
    names = (f"{path} {type(part).__name__}" for path, part in module.named_modules())
    return "own" if any("expert" in name.lower() for name in names) else ""


def install(module: nn.Module) -> None:
    """Have the experts of `module` get forced choices."""
    for experts, name in _forced(module):
        # Where nothing is computed, loops over experts go by choices that the host knows.
        on_host = emulating() and _run_in_turn(experts)
        hook = partial(_forward_pre, name=name, on_host=on_host)
        experts.register_forward_pre_hook(hook, with_kwargs=True)
        if on_host:
            experts.forward = partial(_by_host, experts.forward)


def shares(routing: str, experts: int, chosen: int) -> list[float]:
    """Of all tokens, that go to each expert if each token goes to so many: the hottest first, and
    none above 1."""
    skew = 0.0 if routing == BALANCED else SKEW
    weights = [rank**-skew for rank in range(1, experts + 1)]
    found, left = list[float](), float(chosen)
    for place, weight in enumerate(weights):
        found.append(min(1.0, left * weight / sum(weights[place:])))
        left -= found[-1]
    return found


def _forced(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Its experts whose choices can be forced, with the name of the parameter that has them."""
    for part in module.modules():
        names = list(inspect.signature(type(part).forward).parameters)[2:3]
        if names and names[0] in _INDEX and isinstance(getattr(part, "num_experts", None), int):
            yield part, names[0]


def _run_in_turn(experts: nn.Module) -> bool:
    """Whether each runs on its own, on as many rows as tokens chose it."""
    config = getattr(experts, "config", None)
    return getattr(config, "_experts_implementation", "eager") == "eager"


def _forward_pre(
    experts: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str, on_host: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def forced(index_nk: Tensor) -> Tensor:
        found: Tensor = _chosen(index_nk.cpu() if on_host else index_nk, experts.num_experts)
        return found

    if name in kwargs:
        return args, kwargs | {name: forced(kwargs[name])}
    hidden, index_nk, *more = args
    return (hidden, forced(index_nk), *more), kwargs


def _by_host(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _HostIndices():
        return forward(*args, **kwargs)


class _HostIndices(TorchFunctionMode):
    """Takes indices of the host where torch takes those of the device alone."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.index_add_:
            into, dim, index, *more = args
            args = (into, dim, index.to(into.device), *more)
        return func(*args, **(kwargs or {}))


@torch.library.custom_op("autotune::chosen", mutates_args=())
def _chosen(index_nk: Tensor, experts: int) -> Tensor:
    """In the place of a router's choices; opaque to torch.compile, whose code stays the same."""
    tokens, chosen = index_nk.shape
    return _choices(_now[0], tokens, experts, chosen, index_nk.device).to(index_nk.dtype)


@_chosen.register_fake
def _like(index_nk: Tensor, experts: int) -> Tensor:
    return torch.empty_like(index_nk)


@lru_cache(maxsize=64)
def _choices(routing: str, tokens: int, experts: int, chosen: int, device: torch.device) -> Tensor:
    """Choices (N, k), int16: distinct experts for each token, and for each expert its share.

    By systematic sampling: shares laid end to end are `chosen` long. Each token takes the experts
    at its place and at whole steps from there. Fibonacci hashing spreads the places.
    """
    ends = list(accumulate(shares(routing, experts, chosen)))[:-1]
    place_n = (torch.arange(tokens) * 2654435769 % 2**32).double() / 2**32
    at_nk = place_n[:, None] + torch.arange(chosen)
    rank_nk = torch.bucketize(at_nk, torch.tensor(ends, dtype=torch.float64), right=True)
    return (experts - 1 - rank_nk).to(torch.int16).to(device)
