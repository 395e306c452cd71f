"""Published peaks of QLoRA, beside those of its probes on emulated GPUs.

    .venv-cuda/bin/python scripts/bench/qlora.py [--only fms]

Needs torch's CUDA build, and no GPU. Each row of results/public/qlora.csv is built and makes two
steps as in a probe. They are in bf16 with full checkpointing and AdamW. torch, bitsandbytes and
peft are real, kernels do nothing. Nothing is fitted to a row. The exit code is always 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from shared import ROOT, machine, rows_in, run, say, table, versions

from autotune.device.emulated.emulation import Emulation
from autotune.space.models import FAMILIES
from autotune.space.models.defaults import ModelRequest, parse_lora
from autotune.wire.ranks import ModelSpec, Start

ROWS = ROOT / "results" / "public" / "qlora.csv"
CARD = "A100-80GB"
HEAD = "row | model | rest in | micro | seq | figure | published MiB | weighed MiB | error"


def spec_of(row: dict[str, str]) -> ModelSpec:
    """The model, whose blocks are those of Llama 3 8B in all rows."""
    lora = parse_lora(row["lora"], "lora")
    recipe = FAMILIES["hf"].recipe(ModelRequest(model="llama-3-8b", lora=lora))
    recipe["config"] = recipe["config"] | {"vocab_size": int(row["vocab"])}
    return ModelSpec(
        name="hf", depth=32, width=4096, vocab_size=int(row["vocab"]), checkpointing="full",
        base=row["base"], param_dtype=row["rest"], recipe=recipe,
    )  # fmt: skip


def weigh(row: dict[str, str]) -> dict[str, int]:
    """Bytes at the peak of two steps, in this process."""
    with Emulation(f"1x{CARD}"):
        import torch

        from probes.engines.ddp import DdpEngine
        from probes.models import family
        from probes.world import World

        spec = spec_of(row)
        world = World(0, 1, torch.device("cuda", 0))
        start = Start(
            world_size=1, device_kind="cuda", capacity_bytes=0, model=spec, engine="ddp",
            dtype="bf16",
        )  # fmt: skip
        engine = DdpEngine(start, world)
        built = torch.cuda.memory_allocated()
        micro_batch, seq_len = int(row["micro_batch"]), int(row["seq_len"])
        engine.prepare(micro_batch, 1)
        for _ in range(2):
            batch = family("hf").batch(spec, micro_batch, seq_len, None)
            engine.forward_backward({k: v.cuda() for k, v in batch.items()}, last=True)
            engine.update()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.max_memory_reserved()
        return {
            "built": built,
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": reserved,
            "device": total - free - torch.cuda.memory_reserved() + reserved,
        }


def weighed(row: dict[str, str]) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--row", row["id"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(done.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lines(rows: list[dict[str, str]]) -> Iterator[list[str]]:
    for row in rows:
        say(row["id"])
        found = weighed(row)
        published, mib = float(row["peak_mib"]), found.get(row["figure"], 0) / 2**20
        told = [f"{mib:,.0f}", f"{mib / published - 1:+.1%}"] if found else ["failed", ""]
        what = (row["id"], row["model"], row["rest"], row["micro_batch"], row["seq_len"])
        yield [*what, row["figure"], f"{published:,.0f}", *told]


def main(only: str = "", row: str = "") -> None:
    """Print the table of the rows whose ids begin with `only`; of one `row` its bytes."""
    rows = [each for each in rows_in(ROWS) if each["id"].startswith(only)]
    if row:
        print(json.dumps(weigh(next(each for each in rows if each["id"] == row))))
        return
    print(f"{machine()}; {versions('torch', 'transformers', 'peft', 'bitsandbytes')}.\n")
    print(table(HEAD, lines(rows)))


if __name__ == "__main__":
    run(main)
