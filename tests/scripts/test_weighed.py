"""What other calculators are told of published runs, and what they answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.scripts import load

calculators: Any = load("published.calculators")
LLAMA = {"case": "titan", "gpus": "8", "name": "Llama3-8B", "how": "{}"}
GPT = {"case": "megatron", "gpus": "8", "name": "gpt3_mcore_tp2_pp2",
       "how": json.dumps({"vocab": "50256"})}  # fmt: skip


def test_sizes_are_those_of_the_models() -> None:
    run = calculators.run_of(GPT)
    assert run.parameters == 50432 * 512 + 1024 * 512 + 12 * 12 * 512**2
    assert (run.parts, run.stage) == (4, 0)
    run = calculators.run_of(LLAMA)
    assert (run.parameters, run.stage, run.ranks) == (8_030_261_248, 3, 8)
    assert calculators.run_of({"case": "liger"}) is None


def test_each_calculator_counts_a_card() -> None:
    run, llama = calculators.run_of(GPT), calculators.run_of(LLAMA)
    assert calculators.deepspeed(run) == pytest.approx(20 * run.parameters / 4, abs=8)
    assert calculators.deepspeed(llama) == pytest.approx(
        18 * llama.parameters / 8 + 4 * 128_256 * 4096
    )
    assert calculators.accelerate(llama) == llama.parameters  # 8 bytes over 8 cards
    assert calculators.guide(run) == 18 * run.parameters / 4


def test_errors_are_beside_ours() -> None:
    row = LLAMA | {"reserved": str(calculators.guide(calculators.run_of(LLAMA)) / 2**20)}
    told = {name: errors for name, _, errors in calculators.errors([(row, "reserved", -0.03)])}
    assert told["weighed here"] == [(True, -0.03)]
    assert told["Hugging Face's guide"] == [(True, pytest.approx(0.0))]
