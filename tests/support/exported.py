"""Results of records and of every engine, as studies would write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.result.best import Best
from autotune.result.choice import winner
from autotune.result.making import best_of
from autotune.space.candidate import Candidate
from autotune.space.models.defaults import parse_lora
from autotune.space.options import Options
from autotune.space.outcome import Objective, Record
from autotune.space.space import Space
from autotune.space.workload import GlobalBatch, Workload
from tests.support.records import WORKLOAD, record, space

DEVICES: dict[str, dict[str, Any]] = {
    "cpu": {"kind": "cpu", "devices": {"kind": "cpu", "name": "a processor", "cores": 2}},
    "cuda": {
        "kind": "cuda",
        "devices": {"devices": [{"name": "a GPU", "capacity_bytes": 80 * 2**30}] * 2},
    },
}


def best(
    records: Sequence[Record],
    among: Space | None = None,
    objective: Objective = "flops",
    **known: dict[str, Any],
) -> Best:
    """What a study on a CPU that ended with these would write, if not otherwise `known`."""
    among = among or space()
    choice = winner(records, among.workload, objective)
    assert choice is not None
    nothing: dict[str, Any] = {"environment": {}, "provenance": {}}
    return best_of(
        choice, records, among, objective, **nothing | {"fingerprint": {"kind": "cpu"}} | known
    )


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
    among = replace(space(), workload=of)
    options = Options.of(lora=parse_lora(lora, "--lora") if lora else None)
    provenance = {"options": options.to_json()}
    made = best([record(candidate)], among, fingerprint=DEVICES[kind], provenance=provenance)
    return replace(made, confirmed=True)
