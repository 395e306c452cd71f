"""Results of every engine, as studies would write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.result.best import Best
from autotune.result.choice import winner
from autotune.result.making import best_of
from autotune.space.candidate import Candidate
from autotune.space.models.defaults import parse_lora
from autotune.space.options import Options
from autotune.space.workload import GlobalBatch, Workload
from tests.support.records import WORKLOAD, record, space

DEVICES: dict[str, dict[str, Any]] = {
    "cpu": {"kind": "cpu", "devices": {"kind": "cpu", "name": "a processor", "cores": 2}},
    "cuda": {
        "kind": "cuda",
        "devices": {"devices": [{"name": "a GPU", "capacity_bytes": 80 * 2**30}] * 2},
    },
}


def result(
    engine: str,
    zero_stage: int,
    *,
    kind: str = "cpu",
    dtype: str = "fp32",
    model: str = "gpt",
    workload: Workload | None = None,
    world_size: int = 2,
    nodes: int = 1,
    lora: str | None = None,
    **axes: Any,
) -> Best:
    """A confirmed winner of micro_batch 2 and seq_len 64, with 4 micro-steps a step on 2 ranks."""
    of = workload or replace(
        WORKLOAD, engine=engine, dtype=dtype, model=model, world_size=world_size, nodes=nodes,
        global_batch=GlobalBatch(8 * world_size, "samples"),
    )  # fmt: skip
    candidate = Candidate(depth=2, seq_len=64, micro_batch=2, zero_stage=zero_stage, **axes)
    found = record(candidate)
    choice = winner([found], of, "flops")
    assert choice is not None
    among = replace(space(), workload=of)
    options = Options.of(lora=parse_lora(lora, "--lora") if lora else None)
    made = best_of(
        choice, [found], among, "flops",
        fingerprint=DEVICES[kind], environment={},
        provenance={"options": options.to_json()},
    )  # fmt: skip
    return replace(made, confirmed=True)
