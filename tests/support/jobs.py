"""Whole training jobs of several CPU ranks, run to their losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.engines import ENGINES
from autotune.space.candidate import Candidate
from autotune.space.workload import Workload
from tests.support.programs import TESTS

SCRIPT = TESTS / "support" / "train.py"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What one job came to; bytes are the largest of any rank's."""

    losses: list[float]
    parameters: int
    model_bytes: int
    """While the model was made."""
    building_bytes: int
    """While model and optimizer were made."""
    peak_bytes: int
    state_bytes: int
    """Of tensors, between steps."""
    drawn: dict[str, list[float]]
    """Mean and standard deviation of each parameter at first, where that was asked for."""


def train(
    folder: Path,
    engine: str = "ddp",
    *,
    stage: int = 0,
    offload: str = "none",
    checkpointing: str = "none",
    world_size: int = 2,
    micro_batch: int = 2,
    global_batch: int = 8,
    steps: int = 5,
    optimizer: str = "adamw",
    dtype: str = "fp32",
    depth: int = 2,
    width: int = 128,
    vocab_size: int = 97,
    workload: Workload | None = None,
    copy: bool = False,
    statistics: bool = False,
    **axes: str,
) -> Trained:
    """Train the same tokens from the same weights, whatever the engine.

    A `workload` is of any model; its weights are the same where they are to be `copy`d. `axes` are
    further ones of the candidate.
    """
    folder.mkdir(parents=True)
    candidate = Candidate(
        depth=depth,
        seq_len=32,
        micro_batch=micro_batch,
        zero_stage=stage,
        offload=offload,
        checkpointing=checkpointing,
        optimizer=optimizer,
        **axes,
    )
    workload = (
        replace(workload, dtype=dtype, engine=engine, world_size=world_size)
        if workload
        else Workload(
            model="gpt",
            width=width,
            vocab_size=vocab_size,
            dtype=dtype,
            engine=engine,
            world_size=world_size,
            global_batch=None,
        )
    )
    start: dict[str, Any] = {
        "world_size": world_size, "device_kind": "cpu", "device_uuid": "cpu",
        "capacity_bytes": 2**36, "store_host": "", "store_port": 0,
        "model": asdict(workload.spec(depth, candidate.build)),
        "engine": engine, "zero_stage": stage, "offload": offload, "dtype": dtype,
        "param_dtype": candidate.param_dtype, "optimizer": optimizer, "allocator": "", "seed": 0,
        "engine_config": ENGINES[engine].config(candidate, workload, "cpu"),
    }  # fmt: skip
    asked = {"start": start, "steps": steps, "global_batch": global_batch,
             "micro_batch": micro_batch, "seq_len": 32, "folder": str(folder),
             "copy": copy, "statistics": statistics}  # fmt: skip
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    ranks = []
    for rank in range(world_size):
        with (folder / f"rank{rank}.log").open("wb") as log:
            command = [sys.executable, str(SCRIPT), str(rank), json.dumps(asked)]
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    codes = [rank.wait() for rank in ranks]
    assert codes == [0] * world_size, (folder / "rank0.log").read_text()[-3000:]
    found = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(world_size)]
    return Trained(
        losses=found[0]["losses"],
        parameters=found[0]["parameters"],
        model_bytes=max(each["model_bytes"] for each in found),
        building_bytes=max(each["building_bytes"] for each in found),
        peak_bytes=max(each["peak_bytes"] for each in found),
        state_bytes=max(each["state_bytes"] for each in found),
        drawn=found[0]["drawn"],
    )
