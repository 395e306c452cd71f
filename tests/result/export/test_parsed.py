"""The tools' own code reads the files of their exports.

scripts/test installs it, without what it depends on; what could not be installed is skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.result.best import Best
from autotune.result.export import write
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from tests.support.exported import result
from tests.support.programs import ROOT, python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SCRIPT = ROOT / "tests" / "support" / "parsers.py"
PARSERS = ROOT / ".parsers"
NAMES = {
    "axolotl": "axolotl", "llama-factory": "llamafactory", "torchtitan": "torchtitan",
    "megatron": "megatron", "ms-swift": "swift",
}  # fmt: skip


def of_gpus(engine: str, zero_stage: int, **given: Any) -> Best:
    return result(
        engine, zero_stage, **{"model": "llama-3-8b-tiny", "kind": "cuda", "dtype": "bf16"} | given
    )


# A single rank beside DeepSpeed, since its parser joins a process group.
RESULTS = {
    "ddp": result("ddp", 0, model="llama-3-8b-tiny"),
    "compiled": of_gpus("ddp", 0, checkpointing="full", attention="sdpa", compile="on"),
    "fp16": of_gpus("ddp", 0, dtype="fp16", checkpointing="host", attention="eager"),
    "muon": of_gpus("ddp", 0, optimizer="muon", attention="flash_attention_2"),
    "low": of_gpus("ddp", 0, optimizer="adamw8bit", param_dtype="bf16"),
    "lora": of_gpus("ddp", 0, lora="r=8"),
    "lora-of-some": of_gpus(
        "deepspeed", 3, world_size=1, lora="r=16,dropout=0.1,targets=q_proj+v_proj"
    ),
    "qlora": of_gpus("ddp", 0, lora="r=8", base="nf4", checkpointing="full"),
    "qlora-zero": of_gpus("deepspeed", 2, world_size=1, lora="r=8", base="int8"),
    "chunked": of_gpus("ddp", 0, loss="chunked"),
    "packed": of_gpus("ddp", 0, attention="flash_attention_2", pack="on"),
    "fp8": of_gpus("fsdp", 3, float8="rowwise", compile="on"),
    "fsdp-2": of_gpus("fsdp", 2, checkpointing="selective", attention="flex_attention"),
    "fsdp-3": of_gpus("fsdp", 3, checkpointing="full"),
    "zero-1": of_gpus("deepspeed", 1, world_size=1, param_dtype="fp32"),
    "zero-2": of_gpus("deepspeed", 2, world_size=1, optimizer="muon"),
    "zero-3": of_gpus("deepspeed", 3, world_size=1, offload="all", checkpointing="full"),
    "zero-3-low": of_gpus("deepspeed", 3, world_size=1, param_dtype="bf16"),
    "zero-1-fp16": of_gpus("deepspeed", 1, world_size=1, dtype="fp16"),
}
_ALL = {"r": 8, "alpha": 16, "dropout": 0.0, "targets": "all"}
LORA = {
    "lora": _ALL,
    "qlora": _ALL,
    "qlora-zero": _ALL,
    "lora-of-some": {"r": 16, "alpha": 32, "dropout": 0.1, "targets": ["q_proj", "v_proj"]},
}
"""What is to be read of these; nothing of the others."""
BNB = {"qlora": [4, "bnb", "nf4", True], "qlora-zero": [8, "bnb", "nf4", True]}
OPTIM = {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_torch_8bit", "muon": "muon"}


def parsed(tool: str, folder: Path, *names: str) -> dict[str, Any]:
    """What it read of these results' files, by name; of all where none is given."""
    beside = PARSERS / tool
    if not (beside / NAMES[tool]).is_dir():
        pytest.skip(f"no {tool} in {PARSERS}: scripts/test installs it where it can be had")
    for name in (chosen := names or tuple(RESULTS)):
        write(RESULTS[name], folder / name, [tool])
        RESULTS[name].write(folder / name / "best.json")
    environment = os.environ | {
        "PYTHONPATH": str(beside), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    # Without the script's folder on the path, whose files are called as packages are.
    folders = (folder / name for name in chosen)
    ran = python("-P", SCRIPT, tool, *folders, cwd=folder, env=environment, timeout=300)
    return dict(zip(chosen, json.loads(ran.stdout), strict=True))


def batches(best: Best) -> dict[str, int]:
    config = best.config
    return {
        "micro_batch": config.micro_batch, "grad_accum": config.grad_accum,
        "seq_len": config.seq_len,
    }  # fmt: skip


def dtype(best: Best) -> str:
    """Of a Trainer's autocast; fp32 where DeepSpeed casts."""
    config = best.config
    cast = config.engine == "deepspeed" and config.param_dtype == "fp32"
    return "fp32" if cast else config.dtype


def settings(best: Best, file: str) -> str | None:
    return file if best.config.engine == "deepspeed" else None


def test_axolotl_reads_its_file(tmp_path: Path) -> None:
    found = parsed("axolotl", tmp_path)
    for name, best in RESULTS.items():
        config, sharded = best.config, best.config.engine == "fsdp"
        own = config.engine == "deepspeed"
        assert found[name] == batches(best) | {
            "odd": [],
            "dtype": dtype(best),
            "checkpointing": config.checkpointing != "none",
            "offloaded": "hidden_states" if config.checkpointing == "host" else False,
            "compile": config.compile == "on",
            "attention": config.attention,
            "optimizer": OPTIM["adamw" if own else config.optimizer],
            "deepspeed": settings(best, "axolotl-deepspeed.json"),
            "reshard": config.zero_stage == 3 if sharded else None,
            "lora": LORA.get(name),
            "base": {"qlora": [4], "qlora-zero": [8]}.get(name, []),
            "chunked": True if name == "chunked" else None,
            "packs": name == "packed",
        }, name


def test_llama_factory_reads_its_file(tmp_path: Path) -> None:
    names = [name for name in RESULTS if name != "chunked"]  # which needs liger-kernel
    found = parsed("llama-factory", tmp_path, *names)
    attention = {"eager": "disabled", "flash_attention_2": "fa2", "flex_attention": "auto"}
    for name in names:
        best = RESULTS[name]
        config = best.config
        own = config.engine == "deepspeed"
        pure = config.stored_in(config.dtype) == "bf16" and not own
        assert found[name] == batches(best) | {
            "odd": [],
            "dtype": "fp32" if pure else dtype(best),
            "pure": pure,
            "checkpointing": config.checkpointing != "none",
            "compile": config.compile == "on",
            "attention": attention.get(config.attention, config.attention),
            "optimizer": OPTIM["adamw" if own else config.optimizer],
            "deepspeed": settings(best, "llama-factory-deepspeed.json"),
            "lora": LORA.get(name),
            "base": BNB.get(name),
            "packs": name == "packed",
        }, name


def test_ms_swift_reads_its_file(tmp_path: Path) -> None:
    names = [name for name in RESULTS if name != "chunked"]  # which needs liger-kernel
    found = parsed("ms-swift", tmp_path, *names)
    weights = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    compiled = {
        f"ACCELERATE_DYNAMO_USE_{name}": value
        for name, value in (("REGIONAL_COMPILATION", "true"), ("DYNAMIC", "false"))
    }
    for name in names:
        best = RESULTS[name]
        config, held = best.config, best.dtypes
        assert held is not None
        own = config.engine == "deepspeed"
        pure = config.stored_in(config.dtype) == "bf16" and not own
        adapters = LORA.get(name)
        assert found[name] == batches(best) | {
            "odd": [],
            "environment": {"NPROC_PER_NODE": str(config.world_size)}
            | (compiled if config.compile == "on" else {}),
            "dtype": "fp32" if pure else dtype(best),
            "weights": f"torch.{weights[held['weights']]}",
            "checkpointing": config.checkpointing != "none",
            "compile": config.compile == "on",
            "attention": config.attention,
            "optimizer": OPTIM["adamw" if own else config.optimizer],
            "stage": config.zero_stage if own else None,
            "reshard": config.zero_stage == 3 if config.engine == "fsdp" else None,
            "base": (base := BNB.get(name)) and [*base, "torch.bfloat16"],
            "lora": adapters and adapters | {"dtype": weights[held["weights"]]},
            "packs": config.seq_len if name == "packed" else None,
        }, name


def test_torchtitan_reads_its_file(tmp_path: Path) -> None:
    found = parsed("torchtitan", tmp_path, "ddp", "compiled", "fsdp-2", "fsdp-3")
    kinds = {"none": "none", "full": "FullAC", "selective": "SelectiveAC"}
    for name, read in found.items():
        config = RESULTS[name].config
        sharded = config.engine == "fsdp"
        assert read == {
            "micro_batch": config.micro_batch,
            "global_batch": config.global_batch_samples,
            "seq_len": config.seq_len,
            "dtype": {"bf16": "bfloat16", "fp32": "float32"}[config.dtype],
            "ranks": [1, config.world_size] if sharded else [config.world_size, 1],
            "split": [1, 1, 1, 1],
            "reshard": {0: "default", 2: "never", 3: "always"}[config.zero_stage],
            "checkpointing": kinds[config.checkpointing],
            "compile": ["model"] if config.compile == "on" else [],
            "graphs": False,
        }, name


def test_megatron_reads_its_flags(tmp_path: Path) -> None:
    found = parsed("megatron", tmp_path, "ddp", "compiled", "fp16", "zero-1", "muon")
    for name, read in found.items():
        config = RESULTS[name].config
        kept = ["full", "uniform", 1] if config.checkpointing == "full" else [None] * 3
        assert read == batches(RESULTS[name]) | {
            "shape": [config.depth, config.width],
            "dtype": {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}[
                config.dtype
            ],
            "optimizer": "muon" if config.optimizer == "muon" else "adam",
            "shared": config.zero_stage == 1,
            "split": [1, 1, 1, 1],
            "clip": 1.0,
            "recompute": kept,
        }, name


@pytest.mark.parametrize(
    ("preset", "tool", "start"),
    [
        ("torchtitan:mine:tuned --compile.enable", "torchtitan", "torchtitan.train"),
        ("megatron --num-layers 4 --hidden-size 64", "megatron", "pretrain_gpt.py"),
    ],
)
def test_the_commands_that_words_stand_for_are_read(
    preset: str, tool: str, start: str, tmp_path: Path
) -> None:
    command = Options.from_texts({"script": preset}).script.command
    best = RESULTS["ddp"]
    told = Candidate(depth=1, seq_len=128, micro_batch=4, pp=2)  # tp asks for a GPU
    _, words = command.filled(told, best.config.workload.over(1, told), 0, {"out": "x"})
    (tmp_path / "ddp").mkdir()
    own = words[words.index(start) + 1 :]
    (tmp_path / "ddp" / "words.json").write_text(json.dumps(own))
    found = parsed(tool, tmp_path, "ddp")["ddp"]
    assert "refused" not in found, found
    assert (found["micro_batch"], found["seq_len"]) == (4, 128)
    assert found["split"] == [1, 2, 1, 1]
