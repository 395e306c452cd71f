"""A quantized base on emulated cards: what it holds, and what building it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.emulated.conftest import Emulate, begin, end
from tests.support.on_cards import study

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PROGRAM = """
import json, sys, torch
from autotune.space.models import FAMILIES
from autotune.space.models.defaults import Lora, ModelRequest
from autotune.wire.ranks import ModelSpec, Start
from probes.engines import count
from probes.engines.ddp import DdpEngine
from probes.models import family
from probes.world import World

asked = ModelRequest(model="llama-3-8b", lora=Lora(16))
recipe = FAMILIES["hf"].at_depth(FAMILIES["hf"].recipe(asked), 2)
spec = ModelSpec(name="hf", depth=2, width=4096, vocab_size=128256, base=sys.argv[1],
                 checkpointing="full", recipe=recipe)
start = Start(world_size=1, device_kind="cuda", capacity_bytes=0, model=spec, engine="ddp",
              dtype="bf16")
engine = DdpEngine(start, World(0, 1, torch.device("cuda", 0)))
built, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
engine.prepare(1, 1)
for _ in range(2):
    batch = {k: v.cuda() for k, v in family("hf").batch(spec, 1, 512, None).items()}
    engine.forward_backward(batch, last=True)
    engine.update()
print(json.dumps([engine.parameters, built, most - built, torch.cuda.max_memory_allocated()]))
"""
MATRIX = 4096 * 14336
"""Parameters of the largest that is quantized."""


@pytest.mark.parametrize(("base", "bytes_each"), [("nf4", 0.5159), ("int8", 1.0)])
def test_a_quantized_base_is_built_and_stepped(
    emulate: Emulate, base: str, bytes_each: float
) -> None:
    said = end(begin(emulate("1x24GiB"), PROGRAM, base))
    parameters, built, over, peak = json.loads(said.splitlines()[-1])
    linear = 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * MATRIX)
    others = parameters - linear
    assert built == pytest.approx(bytes_each * linear + 2 * others, rel=0.005)
    # One matrix in bf16, and for int8 in fp16 beside it; never all of them.
    assert over < 2 * 2.2 * MATRIX < 2 * linear / 3
    assert peak > built + over


def test_a_study_finds_that_fewer_bits_hold_more(tmp_path: Path) -> None:
    rows = study(
        tmp_path / "study", "--device", "emulated:1x24GiB", "--model", "llama-3-8b-tiny",
        "--depth", "2", "--seq-len", "256", "--micro-batch", "2", "--checkpointing", "none",
        "--lora", "r=4", "--base", "bf16,nf4,int8",
    )  # fmt: skip
    peaks = {
        row["base"]: int(row["peak_allocated_bytes"]) for row in rows if row["kind"] == "search"
    }
    assert {row["verdict"] for row in rows} <= {"ok", "pruned"}
    assert peaks["nf4"] < peaks["bf16"]
    assert peaks["int8"] < peaks["bf16"]
