"""Models of transformers on every engine: the right weights, the right numbers, no whole model."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from autotune.space.candidate import Build, Candidate
from autotune.space.engines import ENGINES
from autotune.space.models.counted import CountedShape
from autotune.space.models.defaults import Lora
from autotune.space.workload import Workload
from autotune.wire.helpers import Count, Describe
from probes.count import count
from probes.describe import describe
from probes.faults import UnsupportedError
from probes.models import family
from tests.support.choice import campaign
from tests.support.jobs import Trained, train
from tests.support.models import SMALL, counted, uncounted, usual_depth

pytest.importorskip("transformers")

FEW = ["llama-3-8b-tiny", "t5-small-tiny", "gemma-3-1b-tiny", "mamba2-tiny"]
"""What differs most in how it is built: plain, encoder and decoder, windows, no attention."""
SENSES = ["vit-base-tiny", "whisper-small-tiny", "wav2vec2-base-tiny", "qwen2.5-vl-3b-tiny"]
"""What has images or sound."""
ALL = [pytest.param(n, marks=[] if n in (*FEW, *SENSES) else pytest.mark.campaign) for n in SMALL]


@cache
def workload(name: str) -> Workload:
    found = counted(name, (usual_depth(uncounted(name)),), (32,))
    if "mask_time_prob" in found.recipe["config"]:
        found.recipe["config"]["mask_time_prob"] = 0.0  # transformers draws masks by no seed
    return found


def trained(name: str, engine: str, of: Workload | None = None, **how: Any) -> Trained:
    of = of or workload(name)
    folder = Path(mkdtemp()) / "job"
    return train(folder, engine, workload=of, depth=usual_depth(of), **how)


@cache
def reference(name: str) -> Trained:
    return trained(name, "ddp", copy=True)


def refused_when_sharded(name: str, engine: str, stage: int) -> None:
    """Skip what transformers itself cannot make."""
    if name.startswith("wav2vec2") and (engine, stage) == ("deepspeed", 3):
        with pytest.raises(AssertionError, match="cannot draw its weights where DeepSpeed shards"):
            trained(name, engine, stage=stage, steps=0)
        pytest.skip("transformers cannot draw its weights")


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [("deepspeed", 3), ("fsdp", 3), *campaign((("deepspeed", 0),))], ids=str
)
@pytest.mark.parametrize("name", ALL)
def test_losses_agree_with_plain_data_parallelism(name: str, engine: tuple[str, int]) -> None:
    refused_when_sharded(name, *engine)
    plain = reference(name)
    found = trained(name, engine[0], stage=engine[1], copy=True)
    assert found.losses == pytest.approx(plain.losses, rel=1e-4)
    assert found.parameters == plain.parameters
    assert plain.losses[-1] < plain.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["deepspeed", "fsdp"])
@pytest.mark.parametrize("name", ALL)
def test_weights_are_drawn_as_in_a_model_that_is_made_whole(name: str, engine: str) -> None:
    """However they are sharded as they are made."""
    refused_when_sharded(name, engine, 3)
    of = workload(name)
    drawn = trained(name, engine, stage=3, statistics=True, steps=0).drawn
    torch.manual_seed(0)
    whole = family("hf").make(of.spec(usual_depth(of)))
    assert drawn.keys() == {name for name, _ in whole.named_parameters()}
    for parameter, weights in whole.named_parameters():
        if weights.numel() < 1000:
            continue  # few numbers say little of what they are drawn from
        mean, deviation = float(weights.mean()), float(weights.std())
        assert drawn[parameter][1] == pytest.approx(deviation, rel=0.15), parameter
        assert drawn[parameter][0] == pytest.approx(mean, abs=0.15 * deviation + 1e-6), parameter


@pytest.mark.slow
def test_torchao_is_imported_by_who_needs_it_alone() -> None:
    """It asks a GPU what it can as it is imported, after which no rank can be forked."""
    pytest.importorskip("torchao")
    script = (
        "import sys; from probes.models import family; family('hf').import_library();"
        "import transformers.modeling_utils; assert 'torchao' not in sys.modules;"
        "from torchao.optim import AdamW8bit"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("loss", ["whole", "chunked"])
@pytest.mark.parametrize("name", [*FEW, "bert-large-tiny"])
def test_a_padded_sample_says_what_it_says_alone(name: str, loss: str) -> None:
    of, found = uncounted(name), family("hf")
    spec = of.spec(usual_depth(of), Build(depth=usual_depth(of), loss=loss))
    torch.manual_seed(0)
    model = found.make(spec).eval()
    padded = found.batch(spec, 1, 32, torch.Generator().manual_seed(1))
    said = 20 if padded["labels"].shape[1] == 32 else 5
    alone = {"input_ids": padded["input_ids"][:, :20], "labels": padded["labels"][:, :said]}
    masked = found.masked(spec, padded, [20])
    assert masked["attention_mask"].sum() == 20
    with torch.no_grad():
        assert found.loss(model, masked) == pytest.approx(
            float(found.loss(model, alone)), rel=1e-4
        )


@cache
def large() -> Workload:
    """Of 100 M parameters, of which there is enough to weigh."""
    whole = uncounted("llama-3-8b-tiny")
    whole.recipe["config"] |= {
        "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
        "num_key_value_heads": 4, "vocab_size": 4096,
    }  # fmt: skip
    found = count(Count(models=[whole.spec(16)], shallow=[], seq_lens=[]))
    [counted_once] = found.parameters
    shape = CountedShape(**asdict(counted_once), depth=16, seq_lens=[32], flops=[1.0])
    return replace(whole, shapes=[shape], vocab_size=shape.vocab_size)


@cache
def made_bytes(engine: str, *, whole: bool) -> int:
    """By which the large model needs more than a small one to be made."""

    def made(of: Workload, depth: int) -> int:
        how: dict[str, Any] = {"workload": of, "depth": depth, "steps": 0}
        job = train(Path(mkdtemp()) / "job", engine, stage=0 if whole else 3, **how)
        # FSDP's module is made on the meta device, and filled as it is sharded.
        return job.building_bytes if engine == "fsdp" else job.model_bytes

    return made(large(), 16) - made(workload("llama-3-8b-tiny"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["deepspeed", "fsdp"])
def test_a_model_that_is_sharded_is_whole_nowhere(engine: str) -> None:
    whole = made_bytes("ddp", whole=True)
    assert (parameters := large().shape(16).parameters) > 100e6
    assert whole > 0.9 * 4 * parameters
    assert made_bytes(engine, whole=False) < 0.85 * whole


@pytest.mark.parametrize("name", SMALL)
def test_the_units_of_a_family_are_its_blocks_and_share_nothing(name: str) -> None:
    of = uncounted(name)
    depth = usual_depth(of)
    made = family("hf")
    module = made.make(of.spec(depth))
    units = list(made.units(module))
    blocks = [unit for unit in units if not re.search("Embed|Conv", type(unit).__name__)]
    assert len(blocks) in (depth, 2 * depth)
    held = [id(p) for unit in units for p in unit.parameters()]
    assert len(held) == len(set(held))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"model_type": "no_such_model"}, "no_such_model"), ({"pad_token_id": 10**6}, "Padding_idx")],
)
def test_what_transformers_does_not_know_is_unsupported_in_its_words(
    changes: dict[str, Any], said: str
) -> None:
    of = uncounted("llama-3-8b-tiny")
    of.recipe["config"] = of.recipe["config"] | changes
    with pytest.raises(UnsupportedError, match=f"transformers: .*{said}"):
        family("hf").make(of.spec(2))


def test_a_misspelled_name_is_not_ignored_with_its_value() -> None:
    of = uncounted("llama-3-8b-tiny")
    size = of.recipe["config"].pop("hidden_size")
    of.recipe["config"]["hidden_sise"] = size
    with pytest.raises(UnsupportedError, match=r"has no field hidden_sise; .* hidden_size\?"):
        family("hf").make(of.spec(2))


def test_a_config_without_hidden_size_has_the_width_of_its_first_matrix() -> None:
    of = uncounted("bert-large-tiny")
    sizes = {"max_position_embeddings": 16, "d_latents": 48, "d_model": 32}
    of.recipe["config"] = {"model_type": "perceiver", "num_latents": 8, **sizes}
    found = count(Count(models=[of.spec(1)], shallow=[], seq_lens=[16]))
    assert found.parameters[0].width == 32


def test_a_bf16_config_says_nothing_of_the_weights() -> None:
    of = uncounted("llama-3-8b-tiny")
    of.recipe["config"] = of.recipe["config"] | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    module = family("hf").make(of.spec(2))
    assert {p.dtype for p in module.parameters()} == {torch.float32}


@cache
def adapted() -> Workload:
    return counted("llama-3-8b-tiny", (2,), (32,), Lora(8))


def test_adapters_are_what_is_trained_and_what_counts() -> None:
    plain, lora = workload("llama-3-8b-tiny").shape(2), adapted().shape(2)
    assert plain.trainable == plain.parameters
    # Two matrices of rank 8 at each of 7 linear modules of a block.
    widths = [(128, 128), (128, 64), (128, 64), (128, 128), (128, 256), (128, 256), (256, 128)]
    assert lora.trainable == 2 * sum(8 * (a + b) for a, b in widths)
    assert lora.parameters == plain.parameters + lora.trainable
    assert lora.flops_per_token(32) < plain.flops_per_token(32)
    of = Candidate(depth=2, seq_len=32, micro_batch=1)
    ddp = ENGINES["ddp"]
    assert ddp.state(adapted(), of).optimizer == 8 * lora.trainable
    assert ddp.state(adapted(), of).weights == 4 * lora.parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [("deepspeed", 2), ("fsdp", 3), *campaign((("deepspeed", 3),))], ids=str
)
def test_adapters_train_alike_on_every_engine(engine: tuple[str, int]) -> None:
    plain = trained("llama-3-8b-tiny", "ddp", adapted(), copy=True)
    found = trained("llama-3-8b-tiny", engine[0], adapted(), stage=engine[1], copy=True)
    assert found.losses == pytest.approx(plain.losses, rel=1e-4)
    assert plain.losses[-1] < plain.losses[0]


def test_adapters_drop_their_inputs() -> None:
    module = family("hf").make(uncounted("llama-3-8b-tiny", Lora(8, ("q_proj",), 0.1)).spec(2))
    assert {each.p for each in module.modules() if isinstance(each, torch.nn.Dropout)} == {0.1}


def test_adapters_for_what_is_not_there_are_unsupported() -> None:
    of = uncounted("llama-3-8b-tiny", Lora(8, ("no_such_module",)))
    with pytest.raises(UnsupportedError, match=r"peft: .*no_such_module"):
        family("hf").make(of.spec(2))


def test_a_transformers_that_is_missing_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    of = uncounted("llama-3-8b-tiny")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match="transformers cannot be imported"):
        family("hf").make(of.spec(2))


def test_on_emulated_devices_positions_make_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing computes them there: they would look like samples of one token."""
    from transformers import masking_utils

    from probes.models import hf

    positions = torch.zeros(2, 8, dtype=torch.long)
    masks = []
    for emulated in (False, True):
        if emulated:
            monkeypatch.setenv("AUTOTUNE_EMULATED", "here")
        with hf._as_with_data({"input_ids": positions}):
            masks.append(masking_utils.find_packed_sequence_indices(positions))
    assert masks[0] is not None
    assert masks[1] is None


BASES = ("nf4", "int8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "engine"),
    [
        ("nf4", ("deepspeed", 2)), ("int8", ("ddp", 0)),
        *campaign(("nf4", ("ddp", 0)), ("int8", ("deepspeed", 2))),
    ],
)  # fmt: skip
def test_adapters_learn_on_a_quantized_base(base: str, engine: tuple[str, int]) -> None:
    """From the same draws, rounded: it learns nearly as much."""
    how: dict[str, Any] = {"stage": engine[1], "dtype": "bf16"}
    plain = trained("llama-3-8b-tiny", engine[0], adapted(), base="bf16", **how)
    found = trained("llama-3-8b-tiny", engine[0], adapted(), base=base, **how)
    assert found.losses[-1] < found.losses[0]
    assert found.losses[0] == pytest.approx(plain.losses[0], rel=0.02)
    assert found.parameters == plain.parameters == adapted().shape(2).parameters
    of = replace(adapted(), dtype="bf16", engine=engine[0], world_size=2)
    builds = [Build(depth=2, zero_stage=engine[1], base=each) for each in ("bf16", base)]
    counted_bytes = [ENGINES[engine[0]].state(of, build).weights for build in builds]
    # A table of 256 numbers for each of 14 matrices, and scales of rows, are not in the formula.
    assert plain.state_bytes - found.state_bytes == pytest.approx(
        counted_bytes[0] - counted_bytes[1], abs=20_000
    )


@pytest.mark.parametrize("base", BASES)
def test_a_quantized_base_is_all_linear_layers_but_the_head(base: str) -> None:
    of = adapted()
    module = family("hf").make(of.spec(2, Build(depth=2, base=base)))
    packed = {n: p for n, p in module.named_parameters() if not p.is_floating_point()}
    assert len(packed) == 2 * 7
    assert not any(p.requires_grad for p in packed.values())
    assert {n for n in packed if "head" in n or "embed" in n} == set()
    assert not any(p.is_meta for p in module.state_dict().values())
    held = sum(each.numel() for each in packed.values())
    assert held == of.shape(2).linear / (2 if base == "nf4" else 1)
    others = {p.dtype for n, p in module.named_parameters() if n not in packed}
    assert others == {torch.float32}


@pytest.mark.parametrize("base", BASES)
def test_no_two_matrices_are_whole_while_a_base_is_quantized(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = []
    draw = type(family("hf")).draw

    def watched(self: Any, module: Any, unit: Any, **how: Any) -> None:
        sizes = [
            p.numel() for n, p in module.named_parameters()
            if "base_layer" in n and p.is_floating_point() and not p.is_meta
        ]  # fmt: skip
        whole.append(len(sizes))
        draw(self, module, unit, **how)

    monkeypatch.setattr(type(family("hf")), "draw", watched)
    family("hf").make(adapted().spec(2, Build(depth=2, base=base)))
    assert max(whole) == 1


@pytest.mark.parametrize("base", BASES)
def test_a_trace_of_a_quantized_base_holds_what_a_step_holds(base: str) -> None:
    of, build = adapted(), Build(depth=2, base=base)
    request = Describe(
        models=[of.spec(2, each) for each in (Build(depth=2), build)], seq_lens=[32],
        micro_batches=[2], dtype="fp32", optimizer="adamw", device_kind="cuda",
        gradients_stay=False,
    )  # fmt: skip
    plain, found = describe(request).models
    ddp = ENGINES["ddp"]
    less = ddp.state(of, Build(depth=2)).weights - ddp.state(of, build).weights
    assert plain.held_bytes - found.held_bytes == pytest.approx(less, abs=20_000)
    assert found.peak_bytes[0][0] > found.held_bytes
