"""A rank after torch's import: it joins the others, builds the engine, and probes."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata

import torch
import torch._dynamo  # optimizers import it on first use: a second that belongs to this phase
import torch._inductor.config as inductor_config

from autotune.wire.ranks import Entered, Fault, ModelSpec, Progress, Start, Store
from autotune.wire.stopping import Phase
from probes import faults
from probes.compiling import Compiler
from probes.conditions import Watch, counters
from probes.engines import ENGINES, load
from probes.faults import UnsupportedError
from probes.measure import Compiles, Live
from probes.memory import CpuMeter, CudaMeter, Meter
from probes.world import join

Send = Callable[[Entered | Progress | Store], None]
MOST_COMPILERS = 8
"""The most compilers of one rank at once."""


def meter_for(start: Start) -> Meter:
    """The memory meter of this rank's device, before anything is allocated there."""
    if start.device_kind == "cpu":
        return CpuMeter()
    return CudaMeter(start.device_uuid, start.world_size)


def set_up(start: Start, rank: int, meter: Meter, send: Send) -> Live:
    """Join the other ranks and build the engine under the memory limit."""
    send(Entered(Phase.BUILD))
    if conf := start.model.alloc_conf:
        _settle_allocator(conf)
    # On the CPU, compilers beside the ranks would exceed their capacity.
    threads = int(os.environ.get("OMP_NUM_THREADS", "1")) if start.device_kind == "cuda" else 1
    inductor_config.compile_threads = min(threads, MOST_COMPILERS)
    row = ENGINES.get(start.engine)
    world = join(rank, start, send, needs_group=row is None or row.needs_group)
    engine = load(start.engine)  # before the limit: the library is not the model's state
    meter.limit(start.capacity_bytes)
    torch.manual_seed(start.seed)
    send(Entered(Phase.ENGINE))
    live = Live(
        engine=engine(start, world),
        world=world,
        meter=meter,
        model=start.model,
        watch=partial(
            Watch,
            start.device_uuid if start.device_kind == "cuda" else None,
            counters(start.energy, start.device_uuid),
        ),
        compiles=(compiles := _compiles(start.model)),
        compiler=Compiler() if compiles else None,
    )
    meter.built()
    gc.collect()
    gc.freeze()  # torch's own objects, so collecting between probes is cheap
    return live


def _compiles(model: ModelSpec) -> Compiles:
    if model.compile == "on" or model.attention == "flex_attention":
        return "model"
    return "optimizer" if model.optimizer == "adamw8bit" else ""


def _settle_allocator(settings: str) -> None:
    """Apply `settings`. Raises `UnsupportedError` if torch's allocator does not know them.

    The environment has them, too, but a forked rank may get it too late.
    """
    try:
        torch.cuda.memory._set_allocator_settings(settings)
    except (RuntimeError, ValueError) as error:
        reason = f"PYTORCH_ALLOC_CONF {settings}: {str(error).splitlines()[0]}"
        raise UnsupportedError(reason, "allocator") from error


def fault(error: BaseException, phase: Phase, device_kind: str, meter: Meter) -> Fault:
    """`error` as a message, with the peaks so far. Lifts the limit to have room for it."""
    meter.lift()
    try:
        peaks = meter.peaks()
    except Exception:  # noqa: BLE001 - the error that is being reported is the one that counts
        peaks = None
    found = faults.fault(error, phase, device_kind, peaks)
    if found.cause == "oom" and found.requested_bytes is not None:
        with suppress(Exception):  # as above
            found = replace(found, foreign_bytes=meter.taken_bytes(found.requested_bytes))
    return found


def versions() -> dict[str, str]:
    """Software that affects measurements: interpreter, torch, CUDA and other packages."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    found["float32_matmul_precision"] = torch.get_float32_matmul_precision()  # "highest": no TF32
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn_allow_tf32"] = str(torch.backends.cudnn.allow_tf32).lower()
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    for package in filter(None, [*(row.package for row in ENGINES.values()), "numpy"]):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
