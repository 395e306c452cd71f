"""Arithmetic of the model: dimensions, parameter counts and FLOPs, without building it."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 64


@dataclass(frozen=True)
class GptShape:
    """Dimensions of the `gpt` model: `depth` blocks of `width` channels, heads of 64."""

    depth: int
    width: int
    vocab_size: int

    @property
    def heads(self) -> int:
        return self.width // HEAD_DIM

    @property
    def block_matrices(self) -> int:
        """Parameters of the blocks' matrices: 12·d² each."""
        return 12 * self.depth * self.width**2

    @property
    def matmul_parameters(self) -> int:
        """Parameters that multiply activations: the blocks' matrices and the untied head."""
        return self.block_matrices + self.vocab_size * self.width

    @property
    def parameters(self) -> int:
        """All parameters: also the embedding, two norms a block and the last norm."""
        return (
            self.matmul_parameters
            + self.vocab_size * self.width
            + (2 * self.depth + 1) * self.width
        )

    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of forward and backward per token: 6·N + 12·L·d·T.

        N counts the parameters that multiply activations; recomputation under activation
        checkpointing is not counted. Source: PaLM (arXiv 2204.02311), appendix B.
        """
        return 6.0 * self.matmul_parameters + 12.0 * self.depth * self.width * seq_len


def gpt_shape(depth: int, width: int | None, vocab_size: int) -> GptShape:
    """The shape at `depth`; the width is 64 x depth unless it is given."""
    return GptShape(depth, width or HEAD_DIM * depth, vocab_size)
