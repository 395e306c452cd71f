"""A training script of DeepSpeed with a pipeline of two stages: `deepspeed_pipeline.py CONFIG`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn

VOCAB, WIDTH, LENGTH = 256, 64, 32


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


config = json.loads(Path(sys.argv[1]).read_text())
deepspeed.init_distributed("nccl")
layers = [nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB)]
model = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
size = config["train_micro_batch_size_per_gpu"]
while True:
    batches = [torch.randint(VOCAB, (size, LENGTH)).cuda() for _ in range(engine.micro_batches)]
    engine.train_batch(iter([(ids, ids) for ids in batches]))
