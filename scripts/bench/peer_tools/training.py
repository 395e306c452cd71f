"""The training of all peers: the GPT on random tokens, under the study's memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peer_tools.task import Task
from torch import nn
from torch.utils.data import TensorDataset

from autotune.wire.ranks import ModelSpec
from autotune.wire.stopping import Phase
from probes import worker  # noqa: F401 - so that this process holds what a rank holds
from probes.faults import fault
from probes.memory import CpuMeter, status_bytes
from probes.models import family

FAMILY = family("gpt")
STEPS = 3
"""Optimizer steps of a tried micro_batch: Lightning's default."""
SAMPLES = 1024
BASE_BYTES = status_bytes("VmRSS")
"""Memory of a rank before it builds anything: tools are imported after this module."""


def limit(task: Task) -> None:
    """Leave this process the room of a rank.

    On a GPU a tool's own libraries would take no device memory, so they do not count here, either.
    """
    task.count("launch")
    libraries_bytes = max(0, status_bytes("VmRSS") - BASE_BYTES)
    CpuMeter().limit(task.capacity_bytes + libraries_bytes)
    torch.manual_seed(0)


def build(task: Task) -> nn.Module:
    return FAMILY.make(
        ModelSpec(
            name="gpt",
            depth=task.depth,
            width=task.width,
            vocab_size=task.vocab_size,
            checkpointing="none",
        )
    )


def tokens(task: Task) -> TensorDataset:
    """Pairs of token ids and targets, each int64 of shape (T,)."""
    ids_nt = torch.randint(task.vocab_size, (SAMPLES, task.seq_len + 1))
    return TensorDataset(ids_nt[:, :-1], ids_nt[:, 1:])


@contextmanager
def ooms_counted(task: Task) -> Iterator[None]:
    """Count an out-of-memory error on its way to the tool."""
    try:
        yield
    except Exception as error:
        if fault(error, Phase.WARMUP, "cpu", None).cause == "oom":
            task.count("oom")
        raise
