"""Models that see images or hear: what their configs mean, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.space.models import hf
from autotune.space.models.defaults import ModelRequest, parse_sizes

HF = hf.Hf()


def asked(model: str, sizes: str | None = None, **how: Any) -> dict[str, Any]:
    image_size = None if sizes is None else parse_sizes(sizes, "--image-size")
    return HF.recipe(ModelRequest(model=model, image_size=image_size, **how))


@pytest.mark.parametrize(
    ("model", "task", "token", "lengths"),
    [
        ("vit-base", "image-classification", "a patch, 196 of an image of 224x224", (196,)),
        ("whisper-small", "speech-seq2seq",
         "a token of the transcript, beside 30 s of sound", (448,)),
        ("wav2vec2-base", "ctc", "20 ms of sound, 320 samples of it", (1024, 2048)),
        ("qwen2.5-vl-3b", "image-text", "one of text, or 28x28 pixels of an image", (512,)),
    ],
)  # fmt: skip
def test_a_config_tells_its_task_and_what_a_token_is(
    model: str, task: str, token: str, lengths: tuple[int, ...]
) -> None:
    recipe = asked(model)
    assert (recipe["task"], recipe["token"]) == (task, token)
    assert HF.defaults(recipe, "cuda").seq_len == lengths


def test_sizes_of_images_tell_their_tokens_and_the_lengths_of_samples() -> None:
    recipe = asked("qwen2.5-vl-3b", "1344x896,448x448")
    assert [each["tokens"] for each in recipe["images"]] == [256, 1536]
    assert HF.mixed(recipe, 2048) == {2048: 1, 768: 1}
    assert not HF.mixed(asked("qwen2.5-vl-3b", "448x448"), 512)


@pytest.mark.parametrize(
    ("kind", "more", "vision", "tokens"),
    [
        ("llava", {}, {"model_type": "clip_vision_model", "image_size": 336}, 576),
        ("llava", {"vision_feature_select_strategy": "full"},
         {"model_type": "siglip_vision_model", "image_size": 378}, 729),
        ("gemma3", {}, {"image_size": 896}, 256),
        ("smolvlm", {"scale_factor": 4}, {"image_size": 512, "patch_size": 16}, 64),
    ],
)  # fmt: skip
def test_an_image_takes_the_tokens_that_published_models_have_for_it(
    kind: str, more: dict[str, Any], vision: dict[str, Any], tokens: int, tmp_path: Path
) -> None:
    parts = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"patch_size": 14} | vision}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | parts | more))
    recipe = asked(f"hf:{tmp_path}")
    assert recipe["task"] == "image-text"
    assert [each["tokens"] for each in recipe["images"]] == [tokens]
    assert HF.defaults(recipe, "cuda").seq_len == (tokens + 256,)
    side = vision["image_size"]
    assert asked(f"hf:{tmp_path}", f"{side}x{side}") == recipe
    with pytest.raises(UsageError, match=f"its images have {side}x{side} pixels; leave it out"):
        asked(f"hf:{tmp_path}", "224x224")


def test_the_size_of_a_classifiers_images_can_be_set() -> None:
    recipe = asked("vit-base", "384x192")
    assert recipe["config"]["image_size"] == [192, 384]
    assert recipe["token"] == "a patch, 288 of an image of 384x192"


@pytest.mark.parametrize("nested", [True, False])
def test_the_depth_of_a_model_that_sees_is_that_of_its_text(nested: bool) -> None:
    recipe = asked("qwen2.5-vl-3b")
    if nested:
        text = {key: recipe["config"].pop(key) for key in ("num_hidden_layers", "hidden_size")}
        recipe["config"]["text_config"] = text
    assert HF.defaults(recipe, "cuda").depth == (36,)
    config = HF.at_depth(recipe, 3)["config"]
    assert config.get("text_config", config)["num_hidden_layers"] == 3
    assert config["vision_config"]["depth"] == 32


def test_the_convolutions_of_sound_are_no_blocks() -> None:
    assert len(HF.at_depth(asked("wav2vec2-base"), 7)["config"]["conv_dim"]) == 7
    assert len(HF.at_depth(HF.at_depth(asked("wav2vec2-base"), 7), 2)["config"]["conv_dim"]) == 7


def test_lengths_are_the_users_where_samples_are_text_alone() -> None:
    assert not HF.one_length(asked("t5-small"))
    for model in ("vit-base", "whisper-small", "wav2vec2-base", "qwen2.5-vl-3b"):
        assert HF.one_length(asked(model))


def test_images_for_an_unknown_kind_of_model_are_refused() -> None:
    with pytest.raises(UsageError, match="images for a gpt2 are not known; known: qwen2_vl"):
        asked("gpt2", task="image-text")
