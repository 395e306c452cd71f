"""Requests for plans of the runs that rows describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from autotune.device.cards import Card
from autotune.space.options import Options
from published.configs import NotComparableError, config_of, is_empty

CEILING = 0.8
_ENGINES = {"single": "ddp", "ddp": "ddp", "fsdp1": "fsdp", "fsdp2": "fsdp",
            "deepspeed": "deepspeed"}  # fmt: skip
_DTYPES = {
    "bf16-mixed": ("bf16", "auto"), "fp16-mixed": ("fp16", "auto"), "fp32": ("fp32", "auto"),
    "bf16-params": ("bf16", "bf16"), "bf16-params + bf16 autocast": ("bf16", "bf16"),
}  # fmt: skip
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "adam8bit": "adamw8bit",
               "adamw8bit": "adamw8bit"}  # fmt: skip
_MIB = {"GB": 1024, "GiB": 1024}


def asked_of(row: dict[str, Any], folder: Path) -> tuple[Options, int, Card]:
    """The request for a plan of that run."""
    texts, gpus = texts_of(row, folder)
    return Options.from_texts(texts), gpus, card_of(row["gpu"])


def texts_of(row: dict[str, Any], folder: Path) -> tuple[dict[str, str], int]:
    """The options that describe that run, and its number of GPUs."""
    for name in ("micro_batch", "seq_len", "checkpointing", "dtype", "optimizer", "gpus"):
        if is_empty(row[name]):
            raise NotComparableError(f"{name} unknown")
    if row["tp"] > 1 or row["pp"] > 1 or row["engine"] not in _ENGINES:
        raise NotComparableError("another kind of parallelism")
    if row["optimizer"] not in _OPTIMIZERS or row["dtype"] not in _DTYPES:
        raise NotComparableError(f"{row['dtype']}, {row['optimizer']}")
    if row["checkpointing"] == "selective" and row["id"].startswith(("titan", "torchao")):
        # torchtitan keeps every second product; `selective` here keeps all of them.
        raise NotComparableError("torchtitan's own selective checkpointing")
    if row["checkpointing"] not in ("none", "full", "selective"):
        raise NotComparableError(str(row["checkpointing"]))
    lora = "" if is_empty(row["lora_rank"]) else f"r={int(row['lora_rank'])}"
    if not lora and "LoRA" in f"{row['quote']} {row['note']}":
        raise NotComparableError("LoRA of unknown rank")
    engine, (dtype, weights) = _ENGINES[row["engine"]], _DTYPES[row["dtype"]]
    stage = int(row["zero_stage"])
    gpus = int(row["gpus"])
    if gpus == 1 and engine == "fsdp":
        engine, stage = "fsdp", 3
    texts: dict[str, str] = {
        "model": f"hf:{config_of(row, folder)}",
        "seq_len": str(int(row["seq_len"])),
        "micro_batch": str(int(row["micro_batch"])),
        "engine": engine,
        "zero": str(stage),
        "offload": {"optimizer+param": "all"}.get(row["offload"], row["offload"]),
        "checkpointing": row["checkpointing"],
        "dtype": dtype,
        "param_dtype": weights,
        "optimizer": _OPTIMIZERS[row["optimizer"]],
        "compile": "on" if row["compile"] == "yes" else "off",
        "loss": "chunked" if row["loss"] in ("chunked", "fused") else "whole",
        "attention": "eager" if row["attention"] == "eager" else "auto",
        "ceiling": str(CEILING),
    }
    if row["family"] == "t5" and not is_empty(row["target_len"]):
        texts["target_len"] = str(int(row["target_len"]))
    if lora:
        texts["lora"] = lora
    return texts, gpus


def card_of(gpu: str) -> Card:
    """The card by the memory in its name."""
    match = re.search(r"(\d+)(GB|GiB)$", gpu)
    if match is None:
        raise NotComparableError("GPU without its memory")
    return Card(name=gpu, memory_bytes=int(match[1]) * _MIB[match[2]] * 2**20)
