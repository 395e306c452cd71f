"""A config that brings code of its own, run because that was said."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.support.programs import autotune

pytest.importorskip("transformers")

CONFIG = {
    "model_type": "brought",
    "architectures": ["BroughtForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_brought.BroughtConfig",
        "AutoModelForCausalLM": "modeling_brought.BroughtForCausalLM",
    },
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "vocab_size": 97,
}
CODE = {
    "configuration_brought.py": """
from transformers import PreTrainedConfig


class BroughtConfig(PreTrainedConfig):
    model_type = "brought"

    def __init__(self, num_hidden_layers=1, hidden_size=8, vocab_size=9, **more):
        self.num_hidden_layers = num_hidden_layers
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size
        super().__init__(**more)
""",
    "modeling_brought.py": """
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_brought import BroughtConfig


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + functional.gelu(self.inner(x))


class BroughtForCausalLM(PreTrainedModel):
    config_class = BroughtConfig
    _no_split_modules = ["Block"]

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(
            Block(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, labels=None, **more):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)
""",
}


@pytest.mark.slow
def test_code_that_a_config_brings_is_tuned_on_two_ranks_and_in_shards(tmp_path: Path) -> None:
    brought = tmp_path / "brought"
    brought.mkdir()
    (brought / "config.json").write_text(json.dumps(CONFIG))
    for name, text in CODE.items():
        (brought / name).write_text(text)
    ran = autotune(
        "--model", f"hf:{brought}", "--trust-remote-code",
        "--device", "cpu", "--world-size", "2", "--zero", "0,3", "--checkpointing", "none",
        "--micro-batch", "2", "--seq-len", "16", "--budget", "150s", "--finals", "1",
        "--out", "study", cwd=tmp_path, timeout=280, env={"HF_HOME": str(tmp_path / "hf")},
    )  # fmt: skip
    trials = pd.read_csv(tmp_path / "study" / "trials.csv")
    assert set(trials.zero_stage[trials.verdict.isin(["ok", "pruned"])]) == {0, 3}
    assert "outputs 97" in " ".join(ran.stdout.split())
