"""What a config of transformers means, read without transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.space.models import FAMILIES, family_name, hf
from autotune.space.models.defaults import Lora, ModelRequest
from autotune.space.options import Options

HF = hf.Hf()
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4,
    "max_position_embeddings": 96,
}  # fmt: skip


def recipe(**config: Any) -> dict[str, Any]:
    return {
        "config": LLAMA | config,
        "task": "causal",
        "target_len": None,
        "code": "",
        "lora": None,
        "left_out": [],
    }


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Writes a config and gives its `--model`."""

    def saved(**config: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | config))
        return f"hf:{tmp_path}"

    return saved


def asked(model: str, **more: Any) -> dict[str, Any]:
    return HF.recipe(ModelRequest(model=model, **more))


def test_a_folder_and_the_file_in_it_are_the_same_model(saved: Any, tmp_path: Path) -> None:
    found = asked(saved())
    assert found == asked(f"hf:{tmp_path / 'config.json'}")
    assert (found["config"], found["task"], found["code"]) == (LLAMA, "causal", "")


def test_numbers_that_are_not_finite_are_read_as_transformers_saves_them(saved: Any) -> None:
    model = saved(time_step_limit=[0.0, {"__float__": "Infinity"}], rope={"theta": 1.0})
    config = asked(model)["config"]
    assert config == LLAMA | {"time_step_limit": [0.0, math.inf], "rope": {"theta": 1.0}}


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("hf:google/t5-base", "nothing is downloaded; save the config first: python -c"),
        ("hf:", "no path given; write hf:PATH"),
        ("hf:.", "there is no config.json in ."),
        ("gpt:3", "unknown model; known: gpt, hf:PATH"),
        ("meta-llama/Llama-3.1-8B", "nothing is downloaded; save the config first: python -c"),
        ("t5-huge", "unknown model; known: gpt, hf:PATH"),
        ("bert-large-tiny-tiny", "unknown model"),
    ],
)
def test_no_model(model: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        asked(model) if family_name(model) == "hf" else Options.of(model=model)
    assert what in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_type": 3}', "\\u0000", "{" * 99])
def test_a_file_that_is_no_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"is not JSON|is not a config of transformers"):
        asked(f"hf:{tmp_path}")


def test_of_a_config_for_several_media_the_text_model_is_taken(saved: Any) -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 2}
    parts = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "num_hidden_layers": None,
        "tie_word_embeddings": False,
        "quantization_config": {"bits": 4},
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    taken = asked(saved(**parts, text_config=text))
    assert taken["config"] == text | {
        "architectures": ["ForCausalLM"], "tie_word_embeddings": False,
    }  # fmt: skip
    assert taken["left_out"] == ["vision_config"]
    assert taken["task"] == "causal"
    assert asked(saved())["left_out"] == []
    with pytest.raises(UsageError, match="is tuned without images, its text model alone"):
        asked(saved(**parts, text_config=text), image_size=((56, 56),))


@pytest.mark.parametrize("more", [{}, {"auto_map": {}}])
def test_a_text_model_without_a_type_says_its_name(saved: Any, more: dict[str, Any]) -> None:
    text = {"num_hidden_layers": 2} | ({"model_type": "llama"} if more else {})
    model = saved(model_type="gemma3", text_config=text, num_hidden_layers=None, **more)
    with pytest.raises(UsageError, match=r"images or sound; .*text_config.*--model hf:FILE"):
        asked(model, trust_remote_code=True)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "causal"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "seq2seq"),
        ({"architectures": None, "is_encoder_decoder": True}, "seq2seq"),
        ({"architectures": ["BertForPreTraining"]}, "masked"),
        ({"architectures": ["BertModel", "BertForMaskedLM"]}, "masked"),
        ({"architectures": ["RobertaForSequenceClassification"]}, "classification"),
    ],
)
def test_the_architecture_says_the_task(saved: Any, config: dict[str, Any], task: str) -> None:
    assert asked(saved(**config))["task"] == task
    assert asked(saved(**config), task="masked")["task"] == "masked"


def test_a_config_that_does_not_say_its_task_asks_for_it(saved: Any) -> None:
    with pytest.raises(UsageError, match="pass --task, one of causal, seq2seq"):
        asked(saved(architectures=["LlamaModel"]))


def test_code_of_others_is_run_only_if_that_was_said(saved: Any, tmp_path: Path) -> None:
    remote = saved(auto_map={"AutoModelForCausalLM": "modeling.Own"})
    with pytest.raises(UsageError, match="comes with Python code; read it, then pass"):
        asked(remote)
    assert asked(remote, trust_remote_code=True)["code"] == str(tmp_path)


def test_a_target_length_is_for_decoders_alone(saved: Any) -> None:
    with pytest.raises(UsageError, match="--target-len 3: only for seq2seq"):
        asked(saved(), target_len=3)
    assert asked("t5-small", target_len=3)["target_len"] == 3


def test_every_kept_model_has_a_twin_of_the_same_structure() -> None:
    names = [name for name in hf.ready() if not name.endswith(hf.TINY)]
    assert len(names) == 14
    for name in names:
        whole, small = asked(name), asked(name + hf.TINY)
        assert whole["config"].keys() == small["config"].keys() | whole["config"].keys()
        assert whole["task"] == small["task"]
        same = ("model_type", "architectures", "tie_word_embeddings", "is_encoder_decoder")
        assert all(whole["config"].get(key) == small["config"].get(key) for key in same)


def test_depth_is_the_configs_and_can_be_set() -> None:
    assert HF.defaults(recipe(), "cpu").depth == (4,)
    assert HF.at_depth(recipe(), 9)["config"]["num_hidden_layers"] == 9
    assert HF.at_depth(recipe(), 4) == recipe()
    t5 = asked("t5-small")
    deep = HF.at_depth(t5, 3)["config"]
    assert (deep["num_layers"], deep["num_decoder_layers"]) == (3, 3)


def test_lists_by_layer_are_cut_and_go_on_as_they_began() -> None:
    kinds = ["sliding", "sliding", "full", "sliding"]
    of = recipe(layer_types=["sliding", "sliding", "full", "sliding"], eos_token_id=[1, 2, 3])
    assert HF.at_depth(of, 2)["config"]["layer_types"] == kinds[:2]
    assert HF.parts(of) == [(0,), (2,)]
    assert HF.kinds(of, 5) == [0, 0, 2, 0, 0]
    assert HF.of_blocks(of, [0, 2, 2])["config"]["layer_types"] == ["sliding", "full", "full"]
    again = recipe(layer_types=["sliding", "full"] * 2)
    assert HF.at_depth(again, 5)["config"]["layer_types"] == ["sliding", "full"] * 2 + ["sliding"]
    assert HF.parts(again) == [(0, 1)]
    assert HF.parts(recipe()) == [(0,)]
    assert HF.at_depth(of, 2)["config"]["eos_token_id"] == [1, 2, 3]


def test_values_of_single_blocks_go_with_them_and_the_first_share_nothing() -> None:
    of = recipe(
        per_layer_config={"1": {"head_dim": 512}, "3": {"head_dim": 256}}, num_kv_shared_layers=2
    )
    shallow = HF.of_blocks(of, [1, 2])["config"]
    assert shallow["per_layer_config"] == {"0": {"head_dim": 512}}
    assert shallow["num_kv_shared_layers"] == 0
    assert HF.at_depth(of, 3)["config"]["num_kv_shared_layers"] == 2


def test_a_model_whose_depth_cannot_be_set_says_so() -> None:
    of = recipe(num_hidden_layers=None)
    HF.check_depth(of, 1)
    with pytest.raises(UsageError, match="--depth 2: the depth of a llama cannot be set"):
        HF.check_depth(of, 2)


def test_no_length_over_the_models_positions_is_searched() -> None:
    assert HF.defaults(recipe(), "cpu").seq_len == (64,)
    assert HF.defaults(recipe(), "cuda").seq_len == (96,)
    assert HF.most_seq_len(asked("t5-small")) is None
    assert HF.most_seq_len(asked("gpt2")) == 1024
    assert HF.defaults(asked("gpt2"), "cuda").seq_len == (1024,)


def test_options_of_gpt_are_no_options_of_others() -> None:
    for name, value in (("gpt", "width=64"), ("preset", "nanochat")):
        with pytest.raises(UsageError, match="gpt2 has its own; leave"):
            Options.from_texts({"model": "gpt2", name: value})
    for given in ({"task": "causal"}, {"target_len": 3}, {"trust_remote_code": True}):
        asked_of_gpt = ModelRequest(model="gpt", **given)
        with pytest.raises(UsageError, match="gpt has none"):
            FAMILIES["gpt"].recipe(asked_of_gpt)


@pytest.mark.parametrize(
    "text", ["", "16", "r=0", "r=x", "r=4,targets=", "r=4,dropout=1", "r=4,alpha=2", "r=4;r=5"]
)
def test_adapters_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="write r=16 or r=16,dropout"):
        Options.from_texts({"model": "gpt2", "lora": text})


def test_adapters_are_for_models_of_transformers() -> None:
    given = Options.from_texts({"model": "gpt2", "lora": "r=4,targets=a+b.c"}).model.asked
    assert HF.recipe(given)["lora"] == {"rank": 4, "targets": ("a", "b.c")}
    for model in ("gpt", "factory:a:b"):
        with pytest.raises(UsageError, match=r"--lora r=4: .* has none"):
            FAMILIES[family_name(model)].recipe(ModelRequest(model=model, lora=Lora(4)))


def test_positions_that_begin_after_the_paddings_are_fewer() -> None:
    of = recipe(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert HF.most_seq_len(of) == 512


def test_a_depth_by_encoder_and_decoder_is_set_in_both() -> None:
    of = recipe(num_hidden_layers=None, encoder_layers=2, decoder_layers=3)
    assert HF.defaults(of, "cpu").depth == (2,)
    assert HF.at_depth(of, 2) == of
    deep = HF.at_depth(of, 5)["config"]
    assert (deep["encoder_layers"], deep["decoder_layers"]) == (5, 5)


def test_the_depth_of_an_encoder_and_a_decoder_with_own_configs_is_set_in_both() -> None:
    part = {"num_hidden_layers": 4, "layer_types": ["sliding", "full"] * 2}
    of = recipe(num_hidden_layers=None, encoder={"text_config": part}, decoder=part)
    assert HF.defaults(of, "cpu").depth == (4,)
    assert HF.parts(of) == [(0, 1)]
    deep = HF.at_depth(of, 3)["config"]
    assert deep["encoder"]["text_config"] == deep["decoder"]
    assert deep["decoder"]["layer_types"] == ["sliding", "full", "sliding"]
    assert deep["decoder"]["num_hidden_layers"] == 3


def test_blocks_without_experts_are_a_kind_of_their_own() -> None:
    first = recipe(num_hidden_layers=61, first_k_dense_replace=3)
    some = recipe(num_hidden_layers=48, moe_layers=list(range(1, 48, 2)))
    every = recipe(num_hidden_layers=48, moe_layers=list(range(48)))
    assert [HF.parts(each) for each in (first, some, every)] == [[(0,), (3,)], [(0, 1)], [(0,)]]
    shallow = [HF.of_blocks(first, places)["config"] for places in ([0, 3], [0, 3, 3], [3])]
    assert [each["first_k_dense_replace"] for each in shallow] == [1, 1, 0]
    assert HF.of_blocks(some, [0, 1, 1])["config"]["moe_layers"] == [1, 2]
    assert HF.at_depth(first, 2)["config"]["first_k_dense_replace"] == 2
    assert HF.at_depth(every, 60)["config"]["moe_layers"] == list(range(60))


@pytest.mark.parametrize("depth", [None, 4])
def test_blocks_may_stand_in_a_list_or_a_pattern_alone(depth: int | None) -> None:
    kinds = ["mamba", "mlp", "mamba", "attention"]
    of = recipe(num_hidden_layers=depth, layers_block_type=kinds, hybrid_override_pattern="M-M*")
    assert HF.defaults(of, "cpu").depth == (4,)
    assert HF.parts(of) == [(0, 1, 2, 3)]
    shallow = HF.of_blocks(of, [1, 3])["config"]
    assert shallow["layers_block_type"] == ["mlp", "attention"]
    assert shallow["hybrid_override_pattern"] == "-*"
    assert shallow["num_hidden_layers"] == (depth and 2)


def test_bitsandbytes_is_needed_for_a_quantized_base_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.installed.importlib.util.find_spec", lambda name: None)
    for base in ("nf4", "int8"):
        why = HF.lacks(recipe(), "base", base)
        assert why.startswith("bitsandbytes is not installed; run ")
        assert "[qlora]" in why
    assert HF.lacks(recipe(), "base", "bf16") == ""
