"""Whole training jobs of several CPU ranks, run to their losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES
from autotune.space.workload import Workload
from tests.support import defaults
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


class Server:
    """A process that has imported what ranks of one engine and family need, and forks them."""

    def __init__(self, engine: str, family: str) -> None:
        environment = os.environ | {
            "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), engine, family], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, asked: dict[str, Any]) -> list[int]:
        """Exit codes of the ranks of a job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


KEPT: dict[tuple[str, str], Server] = {}
"""By engine and family, for all tests of a module."""


def end_kept_servers() -> None:
    while KEPT:
        KEPT.popitem()[1].close()


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
    kept: bool = True,
    **axes: Any,
) -> Trained:
    """Train the same tokens from the same weights, whatever the engine.

    A `workload` may be of any model; `copy` gives it the same weights. `axes` are further axes of
    the candidate. A server forks the ranks. It is `kept` for the next job, or has this test's
    environment.
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
    gpt = defaults.workload(width=width, vocab_size=vocab_size)
    workload = replace(workload or gpt, dtype=dtype, engine=engine, world_size=world_size)
    start: dict[str, Any] = {
        "world_size": world_size, "device_kind": "cpu", "device_uuid": "cpu",
        "capacity_bytes": 2**36, "model": asdict(workload.spec(depth, candidate.build)),
        "engine": engine, "dtype": dtype,
        "engine_config": ENGINES[engine].config(candidate, workload, "cpu"),
    }  # fmt: skip
    asked = {"start": start, "steps": steps, "global_batch": global_batch,
             "micro_batch": micro_batch, "vector": candidate.vector, "seq_len": 32,
             "folder": str(folder), "copy": copy, "statistics": statistics}  # fmt: skip
    needs = (engine, workload.family)
    if kept:
        KEPT[needs] = KEPT.get(needs) or Server(*needs)
        codes = KEPT[needs].run(asked)
    else:
        with closing(Server(*needs)) as server:
            codes = server.run(asked)
    assert codes == [0] * world_size, (folder / "rank0.log").read_text()[-3000:]
    found = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(world_size)]
    sizes = (name for name in found[0] if name.endswith("_bytes"))
    return Trained(**found[0] | {name: max(each[name] for each in found) for name in sizes})
