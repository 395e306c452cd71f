"""Samples of images and sound: batches that models take, with data and without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from autotune.space.models import FAMILIES
from autotune.space.models.defaults import ModelRequest
from autotune.space.workload import Workload
from autotune.wire.helpers import Describe
from autotune.wire.ranks import ModelSpec
from probes.dataless import Lengths, _split
from probes.describe import describe
from probes.models import family
from tests.support.models import counted, uncounted, usual_depth

pytest.importorskip("transformers")

NAMES = ["vit-base-tiny", "whisper-small-tiny", "wav2vec2-base-tiny", "qwen2.5-vl-3b-tiny"]
T = 32
_SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
_TEXT = {**_SMALL, "num_key_value_heads": 1, "vocab_size": 128, "max_position_embeddings": 256}
ONE_SIZE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llava": ("llama", "clip_vision_model", {"image_token_index": 100}),
    "gemma3": ("gemma3_text", "siglip_vision_model", {
        "image_token_index": 100, "boi_token_index": 101, "eoi_token_index": 102,
        "mm_tokens_per_image": 4,
    }),
    "idefics3": ("llama", "idefics3_vision", {"image_token_id": 100}),
    "smolvlm": ("llama", "smolvlm_vision", {"image_token_id": 100}),
}  # fmt: skip
"""Types of text and vision, and more of their configs, of models whose images have one size."""


def model(name: str, folder: Path) -> str:
    """What `--model` takes for it."""
    if name not in ONE_SIZE:
        return name
    text, vision, more = ONE_SIZE[name]
    parts = {
        "text_config": _TEXT | {"model_type": text, "head_dim": 16},
        "vision_config": _SMALL
        | {"model_type": vision, "image_size": 56, "patch_size": 14, "vision_use_head": False},
    }
    (folder / "config.json").write_text(json.dumps({"model_type": name} | parts | more))
    return f"hf:{folder}"


def spec_of(of: Workload) -> ModelSpec:
    return of.spec(usual_depth(of))


@pytest.mark.parametrize("name", [*NAMES, *ONE_SIZE])
def test_a_model_learns_its_samples(name: str, tmp_path: Path) -> None:
    """Each parameter has a gradient, which data parallelism needs."""
    spec, made = spec_of(uncounted(model(name, tmp_path))), family("hf")
    torch.manual_seed(0)
    module = made.make(spec)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    batch = made.batch(spec, 2, T, torch.Generator().manual_seed(0))
    losses = []
    for _ in range(4):
        loss = made.loss(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_convolutions_make_of_sound_as_many_frames_as_asked() -> None:
    spec, made = spec_of(uncounted("wav2vec2-base-tiny")), family("hf")
    module = made.make(spec)
    for frames in (11, 50):
        batch = made.batch(spec, 1, frames, None)
        assert module(batch["input_values"]).logits.shape[1] == frames


def test_ctc_is_that_of_transformers() -> None:
    spec, made = spec_of(uncounted("wav2vec2-base-tiny")), family("hf")
    module = made.make(spec).eval()
    batch = made.batch(spec, 3, T, torch.Generator().manual_seed(0))
    assert made.loss(module, batch).item() == pytest.approx(module(**batch).loss.item())


def seeing(sizes: tuple[tuple[int, int], ...]) -> ModelSpec:
    asked = ModelRequest(model="qwen2.5-vl-3b-tiny", image_size=sizes)
    of = uncounted("qwen2.5-vl-3b-tiny")
    return spec_of(replace(of, recipe=FAMILIES["hf"].recipe(asked) | {"longest": 40}))


def test_a_samples_length_tells_which_image_it_has() -> None:
    spec, made = seeing(((224, 112), (448, 448))), family("hf")
    batch = made.batch(spec, 3, 40, None)
    assert batch["image_grid_thw"].tolist() == [[1, 8, 8]] * 3
    module, mixed = made.make(spec), made.masked(spec, batch, [40, 26, 40])
    assert mixed["image_grid_thw"].tolist() == [[1, 8, 8], [1, 2, 4], [1, 8, 8]]
    assert mixed["attention_mask"].sum(1).tolist() == [40, 26, 40]
    assert mixed["mm_token_type_ids"].sum(1).tolist() == [16, 2, 16]
    assert made.loss(module, mixed).isfinite()


@pytest.mark.parametrize("name", [*NAMES, "gemma3", "smolvlm"])
def test_a_step_without_data_is_counted_and_traced(name: str, tmp_path: Path) -> None:
    of = counted(model(name, tmp_path), (2,), (T,))
    request = Describe(
        models=[spec_of(of), replace(spec_of(of), checkpointing="full")], seq_lens=[T],
        micro_batches=[2, 4], dtype="fp32", optimizer="adamw", device_kind="cpu",
        gradients_stay=False,
    )  # fmt: skip
    plain, kept = describe(request).models
    assert plain.held_bytes == pytest.approx(12 * of.shape(2).parameters, rel=0.01)
    assert plain.held_bytes < kept.early_bytes[0][1] < plain.early_bytes[0][1]


@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_a_vision_tower_is_drawn_as_a_model_of_its_own(name: str, tmp_path: Path) -> None:
    """As FSDP makes it: else its positions are what memory held before."""
    models = family("hf")
    with torch.device("meta"):
        module = models.make(spec_of(counted(model(name, tmp_path), (2,), (T,))))
    module.to_empty(device="cpu")
    positions = [each for key, each in module.named_buffers() if key.endswith("position_ids")]
    for each in positions:
        each.fill_(-1)
    models.draw(module, module)
    assert positions
    assert all(each.flatten().tolist() == [*range(each.numel())] for each in positions)


def test_windows_of_an_image_in_one_call_are_those_of_many() -> None:
    whole = torch.randn(1, 2, 12, 4)
    parts = [attention(each, each, each) for each in torch.split(whole, [3] * 4, dim=2)]
    [windows] = _split(whole, Lengths([3] * 4), dim=2)
    at_once = attention(windows, windows, windows)
    in_a_row = at_once.transpose(0, 1).reshape(1, 2, 12, 4)
    torch.testing.assert_close(in_a_row, torch.cat(parts, dim=2))


def test_images_cost_flops_beside_text() -> None:
    small, large = (counted_of(((side, side),)) for side in (112, 448))
    assert large > 1.5 * small


def counted_of(sizes: tuple[tuple[int, int], ...]) -> float:
    from probes.count import _flops

    [flops] = _flops(seeing(sizes), [40])
    return flops
