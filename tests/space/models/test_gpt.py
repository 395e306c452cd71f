"""Parameter and FLOP counts of the gpt family against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autotune.errors import UsageError
from autotune.space.models import gpt as counts
from autotune.space.models.defaults import GptTraits, ModelRequest
from autotune.space.models.gpt import GptShape, shape_of
from autotune.space.options import Options
from autotune.space.workload import Workload
from autotune.wire.helpers import Count
from probes.count import count
from probes.models import family
from tests.support.records import WORKLOAD

PLAIN = GptTraits()


@pytest.mark.parametrize(
    ("shape", "matmul", "total"),
    [
        # One block: qkv 3·64², output 64², MLP 2·4·64²; head 100·64. Then embedding and 3 norms.
        (shape_of(1, 64, 100, PLAIN), 49_152 + 6_400, 49_152 + 2 * 6_400 + 3 * 64),
        (shape_of(2, 128, 1000, PLAIN), 393_216 + 128_000, 393_216 + 256_000 + 640),
        # The matrices of GPT-2 small are 12·12·768² = 84 934 656.
        (
            shape_of(12, 768, 50_257, PLAIN),
            84_934_656 + 38_597_376,
            84_934_656 + 77_194_752 + 19_200,
        ),
    ],
)
def test_parameters_are_those_counted_by_hand(shape: GptShape, matmul: int, total: int) -> None:
    assert (shape.matmul_parameters, shape.parameters) == (matmul, total)


def test_flops_per_token_are_six_per_parameter_and_the_attention_scores() -> None:
    assert shape_of(2, 128, 1000, PLAIN).flops_per_token(64) == 6 * 521_216 + 12 * 2 * 128 * 64
    shape = shape_of(4, 256, 4096, PLAIN)
    grown = shape.flops_per_token(2048) - shape.flops_per_token(1024)
    assert grown == 12 * 4 * 256 * 1024


TRAITS = GptTraits(aspect_ratio=48, head_dim=32, mlp="swiglu", qk_norm=True, tied=True, softcap=9)


def workload(traits: GptTraits) -> Workload:
    recipe = counts.FAMILY.recipe(ModelRequest(model="gpt", gpt=traits))
    return replace(WORKLOAD, vocab_size=97, recipe=recipe)


@pytest.mark.parametrize(
    "traits",
    [TRAITS, GptTraits(mlp="swiglu"), GptTraits(tied=True), GptTraits(head_dim=128), GptTraits()],
)
def test_a_closed_form_is_what_is_counted_whatever_the_traits(traits: GptTraits) -> None:
    of = workload(traits)
    spec, shape = of.spec(3), of.shape(3)
    found = count(Count(models=[spec], shallow=[spec, of.spec(5)], seq_lens=[16, 64]))
    [parameters] = found.parameters
    assert parameters.parameters == parameters.trainable == shape.parameters
    assert parameters.block_matrices == shape.block_matrices
    assert parameters.largest_block == shape.largest_block
    assert found.flops_per_sample == [[n * shape.flops_per_token(n) for n in (16, 64)]]
    assert not found.uncounted


def test_the_width_follows_from_the_depth_in_whole_heads() -> None:
    assert counts.FAMILY.shape(4, 512, 4096).width == 512  # unless it is given
    assert counts.FAMILY.shape(3, None, 4096).width == 192
    assert workload(TRAITS).shape(3).width == 160  # 144 in heads of 32
    assert workload(GptTraits(aspect_ratio=64, head_dim=128)).shape(3).width == 256


def test_each_trait_does_something() -> None:
    torch.manual_seed(0)
    plain = family("gpt").make(workload(GptTraits()).spec(1))
    batch = family("gpt").batch(workload(GptTraits()).spec(1), 2, 8, None)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(20)  # so that logits reach the cap
    for traits in (GptTraits(qk_norm=True), GptTraits(softcap=1), GptTraits(head_dim=32)):
        other = family("gpt").make(workload(traits).spec(1))
        other.load_state_dict(plain.state_dict())
        loss, same = (family("gpt").loss(m, batch) for m in (other, plain))
        assert abs(float(loss - same)) > 1e-3, traits
    tied = family("gpt").make(workload(GptTraits(tied=True)).spec(1))
    assert tied.get_parameter("head.weight") is tied.get_parameter("embedding.weight")


def test_what_is_said_goes_before_the_preset() -> None:
    asked = Options.of(preset="nanochat", gpt="head_dim=64,softcap=30,qk_norm=false")
    assert asked.model.traits == GptTraits(head_dim=64, softcap=30)
    assert asked.model.asked.gpt == asked.model.traits
    assert (asked.model.width, asked.model.vocab_size) == (None, 65536)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("head_dim=0", "--gpt head_dim=0: .* at least 1, e.g. --gpt head_dim=64"),
        ("head_dim=33", "--gpt head_dim=33: must be even"),
        ("softcap=x", "--gpt softcap=x: .* e.g. --gpt softcap=15"),
        ("width", "--gpt width: .* e.g. --gpt width=512"),
        ("", "--gpt : unknown; write --gpt width=512; known: width, vocab_size,"),
        ("depth=2", "--gpt depth=2: unknown"),
        ("mlp=gelu", "--gpt mlp=gelu: write --gpt mlp=relu2 or --gpt mlp=swiglu"),
        ("tied", "--gpt tied: write --gpt tied=true"),
        ("width=128,aspect_ratio=32", "give one of them"),
        ("width=100", "--gpt width=100: must be a multiple of 64, .* e.g. --gpt width=128"),
        ("width=96,head_dim=32,mlp=swiglu", ""),
    ],
)
def test_traits_that_no_gpt_has_are_refused(text: str, says: str) -> None:
    if not says:
        assert Options.from_texts({"gpt": text}).model.width == 96
        return
    with pytest.raises(UsageError, match=says):
        Options.from_texts({"gpt": text})


def test_traits_are_no_options_of_other_models() -> None:
    for wrong in ({"model": "gpt2", "gpt": "tied=true"},
                  {"model": "gpt2", "preset": "nanochat"}):  # fmt: skip
        with pytest.raises(UsageError, match="has its own"):
            Options.from_texts(wrong)
