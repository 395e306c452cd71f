"""Other calculators of memory on rows of `weighed.py`: whole training runs of known sizes.

None of them counts activations, logits, or unused memory of the allocator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accelerate.commands.estimate import estimate_training_usage  # type: ignore[import-untyped]
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

Row = dict[str, str]
_MIB = 2**20
_LLAMA_3_8B, _LLAMA_3_EMBEDDING = 8_030_261_248, 128_256 * 4096
_GUIDE = 18
"""Bytes a parameter: 6 of weights in two types, 8 of AdamW, 4 of gradients. Source: "Anatomy of
model's memory", huggingface.co/docs/transformers/model_memory_anatomy."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The input of a calculator."""

    parameters: int
    largest_layer: int
    parts: int = 1
    """Cards that share a model by tensor and pipeline parallelism."""
    stage: int = 0
    """The ZeRO stage."""
    ranks: int = 1
    """Ranks that share state by ZeRO."""


def run_of(row: Row) -> Run | None:
    """The run of a row; None unless it trains a whole model of known size."""
    if row["case"] == "titan":
        return Run(
            parameters=_LLAMA_3_8B, largest_layer=_LLAMA_3_EMBEDDING, stage=3,
            ranks=int(row["gpus"]),
        )  # fmt: skip
    if row["case"] != "megatron":
        return None
    split = re.search(r"_tp(\d)_pp(\d)", row["name"])
    assert split is not None
    tensor, pipeline = int(split[1]), int(split[2])
    unit = 128 * tensor
    words = -(-(int(json.loads(row["how"])["vocab"]) + 1) // unit) * unit
    if row["name"].startswith("t5"):
        width, positions, blocks = 768, 512, 12 * (12 + 16)
    else:
        width, positions, blocks = 512, 1024, 12 * 12
    embedding = words * width
    shared = "dist_optimizer" in row["name"]
    return Run(
        parameters=embedding + positions * width + blocks * width**2, largest_layer=embedding,
        parts=tensor * pipeline, stage=2 if shared else 0, ranks=8 if shared else 1,
    )  # fmt: skip


def deepspeed(run: Run) -> float:
    """`estimate_zero3_...` for stage 3, else `estimate_zero2_...`, for the ranks that share."""
    own = run.parameters // run.parts
    if run.stage == 3:
        return float(estimate_zero3_model_states_mem_needs(
            own, run.largest_layer, num_gpus_per_node=run.ranks, cpu_offload=False,
            cpu_offload_params=False)[1])  # fmt: skip
    return float(estimate_zero2_model_states_mem_needs(
        own, num_gpus_per_node=run.ranks, cpu_offload=False)[1])  # fmt: skip


def accelerate(run: Run) -> float:
    """`accelerate estimate-memory`, also used by the Space hf-accelerate/model-memory-usage; for a
    card that shares the model evenly with others."""
    usage = estimate_training_usage(4 * run.parameters, "bfloat16")
    return float(max(usage.values())) / (run.parts * run.ranks)


def guide(run: Run) -> float:
    """Hugging Face's guide, shared evenly."""
    return _GUIDE * run.parameters / (run.parts * run.ranks)


CALCULATORS: dict[str, tuple[Callable[[Run], float], str]] = {
    "DeepSpeed `estimate_zero*`": (deepspeed, "states, and the largest layer of stage 3"),
    "`accelerate estimate-memory`": (accelerate, "the largest of weights, gradients and step"),
    "Hugging Face's guide": (guide, f"states, {_GUIDE} bytes a parameter"),
}  # fmt: skip
ABOUT = """## Beside other calculators

On the runs of torchtitan and Megatron-LM above, {rows} figures. Each is told what it asks for.
None counts activations, which are most of what Megatron-LM's small models hold. So the four
figures of Llama 3 8B stand alone, too. None knows tensor or pipeline parallelism: a card has its
even share. DeepSpeed has no estimate for stage 1, where that for stage 2 stands in. Hugging
Face's Space for a model's memory counts as `accelerate estimate-memory` does. torchtitan's
own estimator, in fake mode, was tried by hand on one row alone, where it was far too low."""


Errors = list[tuple[bool, float]]
"""Errors, each with whether it is of Llama 3 8B."""


def errors(found: Sequence[tuple[Row, str, float]]) -> list[tuple[str, str, Errors]]:
    """Name, scope and errors, for ours and each other calculator."""
    some = [(run, float(row[kind]), ours) for row, kind, ours in found if (run := run_of(row))]
    told = [("weighed here", "all that torch holds", [(r.stage == 3, e) for r, _, e in some])]
    for name, (bytes_of, scope) in CALCULATORS.items():
        theirs = [(r.stage == 3, bytes_of(r) / _MIB / mib - 1) for r, mib, _ in some]
        told.append((name, scope, theirs))
    return told
