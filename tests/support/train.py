"""One rank of a training job on the CPU: prints the mean loss of each of its steps.

`python train.py RANK PORT JSON`, where the JSON holds `start` (fields of wire.Start), `steps`,
`global_batch`, `micro_batch` and `seq_len`. Every engine sees the same tokens in the same order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autotune.wire.messages import ModelSpec, Start
from probes import engines
from probes.memory import CpuMeter
from probes.models import factory
from probes.world import LOOPBACK, join


def watch_building(meter: CpuMeter) -> list[int]:
    """Gets the peak at the moment the model stands, before its optimizer is made."""
    build, peaks = factory.build, []

    def watched(spec: ModelSpec) -> Any:
        module = build(spec)
        peaks.append(meter.peaks().device_bytes)
        return module

    factory.build = watched
    return peaks


def main() -> None:
    rank, asked = int(sys.argv[1]), json.loads(sys.argv[2])
    ready = Path(asked["folder"]) / "store"
    fields = asked["start"] | {"model": ModelSpec(**asked["start"]["model"])}
    if rank and asked["start"]["world_size"] > 1:
        while not ready.exists():
            os.sched_yield()
        fields |= {"store_host": LOOPBACK, "store_port": int(ready.read_text())}
    start = Start(**fields)

    def opened(store: object) -> None:
        ready.with_suffix(".new").write_text(str(store.port))  # type: ignore[attr-defined]
        ready.with_suffix(".new").replace(ready)

    world = join(rank, start, opened)
    torch.manual_seed(start.seed)
    meter = CpuMeter()
    meter.reset()
    model_bytes = watch_building(meter)
    engine = engines.load(start.engine)(start, world)
    building_bytes = meter.peaks().device_bytes
    meter.reset()
    mine = asked["global_batch"] // world.size
    micro_steps = mine // asked["micro_batch"]
    engine.prepare(asked["micro_batch"], micro_steps)
    generator = torch.Generator().manual_seed(7)
    shape = (asked["global_batch"], asked["seq_len"] + 1)
    ids = torch.randint(start.model.vocab_size, shape, generator=generator)
    ids = ids[rank * mine : (rank + 1) * mine]
    losses = []
    for _ in range(asked["steps"]):
        total = torch.zeros(())
        for i in range(micro_steps):
            micro = ids[i * asked["micro_batch"] : (i + 1) * asked["micro_batch"]]
            last = i == micro_steps - 1
            total += engine.forward_backward(micro[:, :-1], micro[:, 1:], last=last).float()
        engine.update()
        total /= micro_steps
        if world.size > 1:
            dist.all_reduce(total)
        losses.append(float(total) / world.size)
    found = {
        "losses": losses,
        "parameters": engine.parameters,
        "model_bytes": model_bytes[-1],
        "building_bytes": building_bytes,
        "peak_bytes": meter.peaks().device_bytes,
    }
    Path(asked["folder"], f"rank{rank}.json").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
