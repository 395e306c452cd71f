"""Constants of the probed step that study and ranks share."""

# DeepSpeed reads these from its config.
CLIP_NORM = 1.0
LEARNING_RATE = 3e-4
MUON_LEARNING_RATE = 2e-3
HEAD_DIM = 64
"""Channels of an attention head of the `gpt` family."""
LOSS_CHUNKS = 8
"""Chunks of a micro-batch for a chunked loss: torchtune's (CEWithChunkedOutputLoss)."""
LORA_ALPHA = 2
"""Alpha of low-rank adapters, as a multiple of their rank."""


def mlp_width(width: int, mlp: str) -> int:
    """Channels of a SwiGLU, whose three matrices have the parameters of two of 4 x width."""
    return 4 * width if mlp == "relu2" else -(-8 * width // (3 * HEAD_DIM)) * HEAD_DIM
