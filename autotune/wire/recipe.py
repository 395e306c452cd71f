"""What study and ranks have to agree on of the step that is probed."""

# DeepSpeed reads these in the config that it is sent.
CLIP_NORM = 1.0
LEARNING_RATE = 3e-4
MUON_LEARNING_RATE = 2e-3
HEAD_DIM = 64
"""Channels of an attention head of the `gpt` family."""
