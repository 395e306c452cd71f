"""Parameter and FLOP counts of the gpt family against numbers worked out by hand."""

from __future__ import annotations

import pytest

from autotune.models import gpt as counts
from autotune.models.gpt import GptShape


def test_width_is_64_times_depth_unless_it_is_given() -> None:
    assert counts.FAMILY.shape(4, None, 4096).width == 256
    assert counts.FAMILY.shape(4, 512, 4096).width == 512


def test_a_head_has_64_channels() -> None:
    assert counts.FAMILY.shape(3, None, 100).width == 192


@pytest.mark.parametrize(
    ("shape", "matmul", "total"),
    [
        # One block: qkv 3·64², output 64², MLP 2·4·64²; head 100·64. Then embedding and 3 norms.
        (GptShape(1, 64, 100), 49_152 + 6_400, 49_152 + 2 * 6_400 + 3 * 64),
        (GptShape(2, 128, 1000), 393_216 + 128_000, 393_216 + 256_000 + 640),
        # The matrices of GPT-2 small are 12·12·768² = 84 934 656.
        (GptShape(12, 768, 50_257), 84_934_656 + 38_597_376, 84_934_656 + 77_194_752 + 19_200),
    ],
)
def test_parameters_are_those_counted_by_hand(shape: GptShape, matmul: int, total: int) -> None:
    assert (shape.matmul_parameters, shape.parameters) == (matmul, total)


def test_flops_per_token_are_six_per_parameter_and_the_attention_scores() -> None:
    assert GptShape(2, 128, 1000).flops_per_token(64) == 6 * 521_216 + 12 * 2 * 128 * 64


def test_flops_per_token_grow_with_the_length_by_attention_alone() -> None:
    shape = GptShape(4, 256, 4096)
    grown = shape.flops_per_token(2048) - shape.flops_per_token(1024)
    assert grown == 12 * 4 * 256 * 1024
