"""Bytes of model state per rank: weights, gradients, optimizer, by engine, stage and offload.

Source: ZeRO (arXiv 1910.02054), table 1 and section 3.1, in which Adam with mixed precision takes
2 bytes a parameter for weights, 2 for gradients and 12 for the optimizer, and each stage divides
one more of them by the number of ranks. The rest is the same count for what the engines keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.models.gpt import GptShape


@dataclass(frozen=True)
class StateBytes:
    """Per rank. On the CPU host and device are the same memory: add them."""

    weights: float
    gradients: float
    optimizer: float
    host: float
    """Of the three, what offload moved to the host; the others hold what is left on the device."""
    passing: float
    """What the engine keeps on the host beside that, of what passes between it and the device."""

    @property
    def device(self) -> float:
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    shape: GptShape,
    *,
    engine: str,
    zero_stage: int,
    offload: str,
    dtype: str,
    optimizer: str,
    world_size: int,
) -> StateBytes:
    """Model state of one rank of `world_size`, buffers and activations not counted."""
    n = shape.parameters
    # DDP and FSDP keep fp32 weights in every dtype and compute under autocast or a cast copy.
    half = engine == "deepspeed" and dtype != "fp32"
    weights = gradients = n * (2.0 if half else 4.0)
    muon = shape.block_matrices if optimizer == "muon" else 0
    moments = 8.0 * (n - muon) + 4.0 * muon
    # ZeRO steps on an fp32 copy of its partition; only plain fp32 training steps on the weights.
    copies = engine == "deepspeed" and (half or zero_stage > 0)
    state = moments + (4.0 * n if copies else 0.0)
    weights /= world_size if zero_stage == 3 else 1
    gradients /= world_size if zero_stage >= 2 else 1
    state /= world_size if zero_stage >= 1 else 1
    host = passing = 0.0
    if offload != "none":
        # DeepSpeed also keeps what passes through: stages 1 and 2 the updated weights' partition,
        # stage 3 the fp32 gradients' (stage_1_and_2.py and stage3.py of its runtime/zero).
        passing = n * (4.0 if zero_stage == 3 or not half else 2.0) / world_size
        host, state = state, 0.0
    if offload == "all":
        host, weights = host + weights, 0.0
    return StateBytes(weights, gradients, state, host, passing)
