"""What Megatron-LM's pretrain_gpt.py does, from megatron-core's release, which has no script.

It trains on random ids.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import typing_extensions
from torch.utils.data import Dataset

vars(typing).setdefault("override", typing_extensions.override)  # the release is for Python 3.12

from megatron.core import mpu  # noqa: E402
from megatron.core.datasets import utils  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.utils import get_batch_on_this_tp_rank  # noqa: E402
from megatron.training import get_args, pretrain  # noqa: E402
from megatron.training.argument_utils import (  # noqa: E402
    gpt_config_from_args,
    pretrain_cfg_container_from_args,
)
from megatron.training.arguments import parse_and_validate_args  # noqa: E402

Batch = dict[str, Any]


class Texts(Dataset[Batch]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Batch:
        length, source = get_args().seq_length, torch.Generator().manual_seed(index)
        ids = torch.randint(get_args().vocab_size, (length + 1,), generator=source)
        return {
            "tokens": ids[:-1], "labels": ids[1:], "loss_mask": torch.ones(length),
            "position_ids": torch.arange(length),
        }  # fmt: skip


def batch_of(data: Iterator[Batch]) -> Batch:
    args, rank = get_args(), mpu.get_tensor_model_parallel_rank()
    batch: Batch = get_batch_on_this_tp_rank(
        {name: each.cuda() for name, each in next(data).items()} if rank == 0 else {},
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=False,
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        cp_size=1,
        tp_rank=rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    return batch


def forward_step(data: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    batch = batch_of(data)
    mask, labels = batch["loss_mask"], batch["labels"]
    ids, positions = batch["tokens"], batch["position_ids"]
    losses = model(ids, positions, None, labels=labels, loss_mask=mask)
    return losses, partial(loss_of, mask)


def loss_of(mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, Any, Batch]:
    loss, tokens = (losses.flatten() * mask.flatten()).sum(), mask.sum().int()
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens])}


def datasets(samples: object) -> tuple[Texts, None, None]:
    return Texts(), None, None


if __name__ == "__main__":
    utils.compile_helpers = lambda: None  # they read files of texts; the release has no Makefile
    parsed = parse_and_validate_args()
    config = pretrain_cfg_container_from_args(parsed, gpt_config_from_args(parsed))
    pretrain(config, datasets, ModelType.encoder_or_decoder, forward_step)
