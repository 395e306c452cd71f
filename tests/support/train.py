"""A process that the CPU ranks of training jobs are forked from: `python train.py ENGINE FAMILY`.

It imports what these need once. Each line of its stdin is a job: `start` (fields of wire.Start),
`steps`, `global_batch`, `micro_batch` or a `vector`, `seq_len`, `folder`, `copy` and `statistics`.
Each line of its stdout has the exit codes of that job's ranks; what they found is in the folder.
Every engine sees the same tokens in the same order.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autotune.wire.ranks import ModelSpec, Start, Store, loss_scale
from probes import engines, forkserver
from probes.memory import CpuMeter
from probes.models import family
from probes.world import join


def watch_building(meter: CpuMeter, start: Start, weights: dict[str, Tensor] | None) -> list[int]:
    """Gets the peak at the moment the model stands, before its optimizer is made."""
    peaks: list[int] = []
    made: Any = family(start.model.name)
    make = made.make

    def watched(spec: ModelSpec) -> nn.Module:
        module: nn.Module = make(spec)
        peaks.append(meter.peaks().device_bytes)
        if weights is not None:
            copy(weights, module)
        return module

    made.make = watched
    return peaks


def whole_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """Of a model that is made whole."""
    torch.manual_seed(11)
    return family(spec.name).make(spec).state_dict()


def copy(weights: dict[str, Tensor], module: nn.Module) -> None:
    """Into a module that is whole, or whose parameters DeepSpeed has sharded already."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            return  # FSDP draws them later
        if hasattr(parameter, "ds_id"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(weights[name])
        else:
            parameter.data.copy_(weights[name])


def copy_sharded(weights: dict[str, Tensor], engine: Any) -> None:
    """Into a module that FSDP has sharded."""
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(engine._model, dict(weights), options=options)


def statistics(engine: Any) -> dict[str, list[float]]:
    """Mean and standard deviation of each parameter as it was drawn."""
    found = {}
    module = getattr(engine, "_module", None) or getattr(engine, "_model", None)
    module = module if module is not None else engine._engine.module
    for name, parameter in module.named_parameters():
        whole = parameter.detach()
        if hasattr(parameter, "ds_id"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter]):
                whole = parameter.detach().clone()
        elif hasattr(whole, "full_tensor"):
            whole = whole.full_tensor()
        flat = whole.float()
        found[name] = [float(flat.mean()), float(flat.std()) if flat.numel() > 1 else 0.0]
    return found


def keep_gradients(engine: Any, folder: Path) -> None:
    """The gradients of the whole model, in a file of rank 0."""
    whole = {
        name: getattr(parameter.grad, "full_tensor", lambda of=parameter.grad: of)()
        for name, parameter in engine._module.named_parameters()
    }
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(whole, folder / "gradients.pt")


def tensor_bytes() -> int:
    """Of all tensors that live; what a shard was cut from counts as a whole.

    A wrapper (DTensor, a quantized state) is counted by the tensors in it, which live too. What
    torch.compile traced with has no bytes.
    """
    gc.collect()
    tensors = [each for each in gc.get_objects() if isinstance(each, Tensor)]
    plain = [
        each
        for each in tensors
        if not (each.is_meta or is_fake(each) or is_traceable_wrapper_subclass(each))
    ]
    storages = [each.untyped_storage() for each in plain]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def main() -> None:
    """Import, and run one job after the other, until stdin is closed."""
    # torchao compiles its optimizers for each shape, which takes a minute.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    forkserver.import_libraries(*sys.argv[1:])
    if "deepspeed" in sys.argv:  # imports torch's compiler with it, as it first builds a stage
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        assert not forkserver.why_not()
        ranks = [fork(rank, asked) for rank in range(asked["start"]["world_size"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        print(json.dumps(codes), flush=True)


def fork(rank: int, asked: dict[str, Any]) -> int:
    """The process id of a new rank, whose output goes to a log in the job's folder."""
    pid = os.fork()
    if pid == 0:
        try:
            with Path(asked["folder"], f"rank{rank}.log").open("wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            train(rank, asked)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing may return to the server's loop
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def train(rank: int, asked: dict[str, Any]) -> None:
    """Be one rank: train, and write what was found."""
    ready = Path(asked["folder"]) / "store"
    fields = asked["start"] | {"model": ModelSpec(**asked["start"]["model"])}
    if rank and asked["start"]["world_size"] > 1:
        while not ready.exists():
            os.sched_yield()
        fields |= {"store_host": "127.0.0.1", "store_port": int(ready.read_text())}
    start = Start(**fields)

    def opened(store: Store) -> None:
        ready.with_suffix(".new").write_text(str(store.port))
        ready.with_suffix(".new").replace(ready)

    row = engines.ENGINES[start.engine]
    world = join(rank, start, opened, needs_group=row.needs_group)
    torch.manual_seed(start.seed)
    meter = CpuMeter()
    meter.reset()
    weights = whole_weights(start.model) if asked["copy"] else None
    model_bytes = watch_building(meter, start, weights)
    engine = engines.load(start.engine)(start, world)
    building_bytes = meter.peaks().device_bytes
    drawn = statistics(engine) if asked["statistics"] else {}
    if weights is not None and start.engine == "fsdp":
        copy_sharded(weights, engine)
    meter.reset()
    vector = asked["vector"] or [asked["micro_batch"]] * world.size
    micro_batch, micro_steps = vector[rank], asked["global_batch"] // sum(vector)
    before, weight = sum(vector[:rank]) * micro_steps, loss_scale(vector, rank)
    engine.prepare(micro_batch, micro_steps, weight)
    generator = torch.Generator().manual_seed(7)
    whole = family(start.model.name).batch(
        start.model, asked["global_batch"], asked["seq_len"], generator
    )
    losses = []
    for step in range(asked["steps"]):
        total = torch.zeros(())
        for i in range(micro_steps):
            first = before + i * micro_batch
            # An image has a row for each of its patches.
            rows = {name: len(each) // asked["global_batch"] for name, each in whole.items()}
            batch = {
                name: tensor[n * first : n * (first + micro_batch)]
                for (name, tensor), n in zip(whole.items(), rows.values(), strict=True)
            }
            total += engine.forward_backward(batch, last=i == micro_steps - 1).float()
        if step == 0 and asked["vector"]:
            keep_gradients(engine, Path(asked["folder"]))
        engine.update()
        total *= weight / micro_steps
        if world.size > 1:
            dist.all_reduce(total)
        losses.append(float(total) / world.size)
    with patch.object(engines.FirstStep, "come"):  # the optimizer's state stays
        engine.prepare(micro_batch, micro_steps)  # drops the gradients
    found = {
        "losses": losses,
        "parameters": engine.parameters,
        "model_bytes": model_bytes[-1],
        "building_bytes": building_bytes,
        "peak_bytes": meter.peaks().device_bytes,
        "state_bytes": tensor_bytes(),
        "drawn": drawn,
    }
    Path(asked["folder"], f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
