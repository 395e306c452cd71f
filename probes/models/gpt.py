"""A GPT: rotary positions, RMSNorm, SDPA. Suffixes of names are shapes:

B: samples, T: seq_len, D: width, H: heads, K: channels of a head, V: vocab_size, M: of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.wire.ranks import ModelSpec, Rows
from autotune.wire.recipe import HEAD_DIM, mlp_width
from probes.models import Batch, FamilyModels, chunked, past, within
from probes.recompute import checkpointed, every


class GptModels(FamilyModels):
    """The built-in GPT."""

    def make(self, spec: ModelSpec) -> nn.Module:
        return GptModule(spec)

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """Token ids and the next ones, both int64 of shape (B, T)."""
        tokens = torch.randint(spec.vocab_size, (micro_batch, seq_len + 1), generator=generator)
        return {"ids_bt": tokens[:, :-1].contiguous(), "targets_bt": tokens[:, 1:].contiguous()}

    def masked(self, spec: ModelSpec, batch: Batch, lengths: Sequence[int]) -> Batch:
        """Positions past an end are no targets. Causal attention needs no mask."""
        targets_bt = batch["targets_bt"]
        past_bt = past(lengths, targets_bt.shape[1])
        return batch | {"targets_bt": targets_bt.masked_fill(past_bt, chunked.IGNORED)}

    def packed(self, spec: ModelSpec, batch: Batch, rows: Rows) -> Batch:
        """`batch` with the number of each token's sample. Rotary angles only tell distances, so
        they need not begin anew."""
        targets_bt = batch["targets_bt"]
        samples_bt, _, last_bt = within(rows, targets_bt.shape[1])
        targets_bt = targets_bt.masked_fill(last_bt, chunked.IGNORED)
        return batch | {"targets_bt": targets_bt, "samples_bt": samples_bt}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        mean: Tensor = model(**batch)
        return mean

    def sizes(self, spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
        return spec.width, spec.vocab_size

    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        """Blocks, embedding, norm and head. A tied head and embedding are no units."""
        assert isinstance(module, GptModule)
        shared = (module.embedding, module.head) if module.tied else ()
        for child in module.children():
            if child not in shared:
                yield from child if isinstance(child, nn.ModuleList) else [child]

    def blocks(self, module: nn.Module) -> Iterator[nn.Module]:
        assert isinstance(module, GptModule)
        yield from module.blocks

    def draw(self, module: nn.Module, unit: nn.Module, *, within: bool = True) -> None:
        """Draw weights in the same order as a model that is made at once."""
        for part in unit.modules() if within else [unit]:
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()

    def tie(self, module: nn.Module) -> None:
        assert isinstance(module, GptModule)
        module.tie_weights()

    def sharded(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        import deepspeed

        made: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=config)
        return made

    def is_block_weight(self, name: str) -> bool:
        return name.startswith("blocks.")


FAMILY = GptModels()


class Linear(nn.Linear):
    """A linear layer without a bias. Its weights are drawn at its making, or by
    `reset_parameters` in the same order on a meta model. They are the same either way."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Head(Linear):
    """Logits, or their mean cross-entropy. The loss is inside, since engines may hold its weights
    only while it runs."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.width, spec.vocab_size)
        self.softcap = spec.recipe.get("softcap")
        self.chunked = spec.loss == "chunked"

    def forward(self, x_nd: Tensor, targets_n: Tensor) -> Tensor:  # type: ignore[override]
        if self.chunked:
            return chunked.cross_entropy(self.logits, x_nd, targets_n)
        return F.cross_entropy(self.logits(x_nd).float(), targets_n)

    def logits(self, x_nd: Tensor) -> Tensor:
        logits_nv = super().forward(x_nd)
        if self.softcap is not None:
            logits_nv = self.softcap * torch.tanh(logits_nv.float() / self.softcap)
        return logits_nv


class Embedding(nn.Embedding):
    """An embedding whose weights are drawn likewise."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Mlp(nn.Module):
    """Squared ReLU in 4 x width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Linear(width, mlp_width(width, "relu2"))
        self.down = Linear(mlp_width(width, "relu2"), width)

    def forward(self, x_btd: Tensor) -> Tensor:
        y_btd: Tensor = self.down(F.relu(self.up(x_btd)).square())
        return y_btd


class SwiGlu(nn.Module):
    """A gated MLP of about as many parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, mlp_width(width, "swiglu"))
        self.up = Linear(width, mlp_width(width, "swiglu"))
        self.down = Linear(mlp_width(width, "swiglu"), width)

    def forward(self, x_btd: Tensor) -> Tensor:
        y_btd: Tensor = self.down(F.silu(self.gate(x_btd)) * self.up(x_btd))
        return y_btd


class Block(nn.Module):
    """Attention and MLP, each behind an RMSNorm."""

    def __init__(self, spec: ModelSpec, number: int) -> None:
        super().__init__()
        width, recipe = spec.width, spec.recipe
        self.again = None
        if spec.checkpointing != "none" and number % every(spec.checkpointing) == 0:
            self.again = checkpointed(spec.checkpointing)
        self.attend = _eager if spec.attention == "eager" else F.scaled_dot_product_attention
        self.head_dim = recipe.get("head_dim", HEAD_DIM)
        self.qk_norm = recipe.get("qk_norm", False)
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp = SwiGlu(width) if recipe.get("mlp") == "swiglu" else Mlp(width)

    def forward(
        self, x_btd: Tensor, cos_tk: Tensor, sin_tk: Tensor, seen_b1tt: Tensor | None
    ) -> Tensor:
        """Checkpointing is inside, as in layers of transformers, so compiled code has all of
        it."""
        if self.again is None:
            return self._forward(x_btd, cos_tk, sin_tk, seen_b1tt)
        y_btd: Tensor = self.again(self._forward, x_btd, cos_tk, sin_tk, seen_b1tt)
        return y_btd

    def _forward(
        self, x_btd: Tensor, cos_tk: Tensor, sin_tk: Tensor, seen_b1tt: Tensor | None
    ) -> Tensor:
        b, t, d = x_btd.shape
        qkv = self.qkv(self.attention_norm(x_btd)).view(b, t, 3, d // self.head_dim, self.head_dim)
        q_bhtk, k_bhtk, v_bhtk = qkv.permute(2, 0, 3, 1, 4)
        q_bhtk, k_bhtk = _rotate(q_bhtk, cos_tk, sin_tk), _rotate(k_bhtk, cos_tk, sin_tk)
        if self.qk_norm:
            q_bhtk, k_bhtk = (F.rms_norm(x, (self.head_dim,)) for x in (q_bhtk, k_bhtk))
        y_bhtk = self.attend(
            q_bhtk, k_bhtk, v_bhtk, attn_mask=seen_b1tt, is_causal=seen_b1tt is None
        )
        x_btd = x_btd + self.out(y_bhtk.transpose(1, 2).reshape(b, t, d))
        y_btd: Tensor = self.mlp(self.mlp_norm(x_btd))
        return x_btd + y_btd


class GptModule(nn.Module):
    """Token ids to mean next-token loss."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        recipe = spec.recipe
        self.head_dim = recipe.get("head_dim", HEAD_DIM)
        self.tied = recipe.get("tied", False)
        self.embedding = Embedding(spec.vocab_size, spec.width)
        self.blocks = nn.ModuleList(Block(spec, number) for number in range(spec.depth))
        self.norm = nn.RMSNorm(spec.width)
        self.head = Head(spec)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make one matrix of embedding and head, if they are tied."""
        if self.tied:
            self.head.weight = self.embedding.weight

    def forward(
        self, ids_bt: Tensor, targets_bt: Tensor, samples_bt: Tensor | None = None
    ) -> Tensor:
        """Mean cross-entropy; all inputs are int64 of shape (B, T). With numbers of samples,
        tokens only see their own sample."""
        x_btd = self.embedding(ids_bt)
        cos_tk, sin_tk = _rotary(ids_bt.shape[1], self.head_dim, x_btd.device)
        seen_b1tt = None if samples_bt is None else _seen(samples_bt)
        for block in self.blocks:
            x_btd = block(x_btd, cos_tk, sin_tk, seen_b1tt)
        mean: Tensor = self.head(self.norm(x_btd).flatten(0, 1), targets_bt.flatten())
        return mean


def _seen(samples_bt: Tensor) -> Tensor:
    """The tokens that each token sees: its sample up to itself; (B, 1, T, T)."""
    same_b1tt = samples_bt[:, None, :, None] == samples_bt[:, None, None, :]
    return same_b1tt.tril()


def _eager(
    q_bhtk: Tensor, k_bhtk: Tensor, v_bhtk: Tensor, *, attn_mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Attention by its definition, with all attention weights in memory."""
    t, head_dim = q_bhtk.shape[-2:]
    weights_bhtt = q_bhtk @ k_bhtk.transpose(-2, -1) * head_dim**-0.5
    if is_causal:
        later_tt = torch.ones(t, t, dtype=torch.bool, device=q_bhtk.device).triu(1)
        weights_bhtt = weights_bhtt.masked_fill(later_tt, float("-inf"))
    elif attn_mask is not None:
        weights_bhtt = weights_bhtt.masked_fill(~attn_mask, float("-inf"))
    shares_bhtt = weights_bhtt.softmax(dim=-1, dtype=torch.float32).to(v_bhtk.dtype)
    y_bhtk: Tensor = shares_bhtt @ v_bhtk
    return y_bhtk


def _rotary(seq_len: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the positions' angles, each (T, K/2). Source: arXiv 2104.09864."""
    steps_k = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32)
    angles_tk = torch.outer(
        torch.arange(seq_len, device=device, dtype=torch.float32), 10000.0 ** (-steps_k / head_dim)
    )
    return angles_tk.cos(), angles_tk.sin()


def _rotate(x_bhtk: Tensor, cos_tk: Tensor, sin_tk: Tensor) -> Tensor:
    left, right = x_bhtk.chunk(2, dim=-1)
    turned = torch.cat((left * cos_tk - right * sin_tk, left * sin_tk + right * cos_tk), dim=-1)
    return turned.to(x_bhtk.dtype)
