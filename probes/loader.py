"""A user's data loader, measured alone: `python -m probes.loader`, a helper of the study.

Its batches are dropped at once, so its rate is the highest possible.
"""

from __future__ import annotations

import inspect
import math
import multiprocessing
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from autotune.wire.helpers import Begin, Load, Loaded, Slice
from autotune.wire.messages import Message, WireError, decode_dial
from autotune.wire.ranks import Entered, Fault
from autotune.wire.stopping import Phase
from probes import faults
from probes.__main__ import Rank, run
from probes.faults import UnsupportedError
from probes.held import memory_bytes, shared_bytes
from probes.own import function_of

SLICES = 20
"""Approximate number of slices in a timing."""
AHEAD_S = 1.0
"""The most seconds to wait for workers to load ahead."""
LEAVE_S = 2.0
"""Workers that have not left after so many seconds are killed."""
_END = object()
_OWN_BATCH = ("micro_batch", "batch_size")
_PICKLES = "multiprocessing/reduction.py"
_WANTS_WORKERS = re.compile(
    r"persistent_workers option needs num_workers > 0"
    r"|(?:prefetch_factor|timeout) option could only be specified in multiprocessing"
    r"|can only be used with multi-process loading"
)
_KILLED = re.compile(r"killed by signal: Killed|exit code -9")
_SHM_FULL = re.compile(
    r"killed by signal: Bus error|exit code -7"
    r"|unable to (?:write to|mmap|resize|open) .*(?:torch_|shared mem)"
    r"|No space left on device: '?/(?:dev/shm|torch_|psm_)"
)
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n(?P<told>.*)", re.DOTALL)
"""Texts of torch/csrc/DataLoader.cpp, torch/_utils.py and torch/utils/data/dataloader.py, 2.13."""


def main() -> None:
    """Serve the study that the first line on stdin names."""
    run(decode_dial(sys.stdin.buffer.readline()), serve)


def serve(rank: Rank) -> None:
    """Measure one loader in one setting, once."""
    rank.explain = fault
    request = rank.link.receive()
    if not isinstance(request, Load):
        raise WireError(f"expected Load, got {type(request).__name__}")
    rank.send(load(request, rank.send, rank.link.receive))


def fault(error: BaseException, phase: Phase) -> Fault:
    """The fault for `error`. An error of a worker is told in its own words."""
    found = faults.fault(error, phase, "cpu", None)
    if (match := _IN_WORKER.search(str(error))) is None:
        return found
    told = match["told"].strip()
    return replace(found, error=f"{told.splitlines()[-1]} (in a worker)", traceback=told)


def load(request: Load, send: Callable[[Message], None], receive: Callable[[], Message]) -> Loaded:
    """The loader's output in `request.timed_s`, from the study's signal on. Raises also the errors
    of the user's code.

    Raises:
        UnsupportedError: there is no such loader, or it cannot have this setting.
    """
    send(Entered(Phase.BUILD))
    epochs: list[int] = []
    try:
        given = batches(made(request), epochs)
        began = time.perf_counter()
        first = next(given, _END)
        first_batch_s = time.perf_counter() - began
        if first is _END:
            raise UnsupportedError(f"{_name(request)} returned an empty loader, without a batch")
        del first
        send(Entered(Phase.WARMUP))
        if not isinstance(begin := receive(), Begin):
            raise WireError(f"expected Begin, got {type(begin).__name__}")
        slices, shape = timed(given, request)
        if not slices:
            raise UnsupportedError(
                f"{_name(request)} returned a loader that ended after {sum(epochs)} batches and"
                " cannot be iterated again: too few to measure; return a DataLoader, or more"
            )
        _wait_ahead(slices, request)
        workers = [each.pid for each in multiprocessing.active_children() if each.pid is not None]
        return Loaded(
            slices=slices,
            first_batch_s=first_batch_s,
            shape=shape,
            loader_bytes=memory_bytes("self"),
            worker_bytes=[memory_bytes(pid) for pid in workers],
            shm_bytes=shared_bytes(["self", *workers]),
            epochs=epochs,
            left=_left(given),
        )
    except Exception as error:
        if why := _alone(error):
            return Loaded(failed=why)
        raise


def made(request: Load) -> Any:
    """The loader in the setting of `request`."""
    asked: dict[str, Any] = {
        "num_workers": request.workers,
        "pin_memory": request.pin_memory,
        "prefetch_factor": request.prefetch,
    }
    name = _name(request)
    function = function_of(request.folder, request.module, request.function)
    taken = _taken(function, asked)
    loader = function(**{key: asked[key] for key in taken}, **_batch_of(function, request))
    if not hasattr(loader, "__iter__"):
        raise UnsupportedError(
            f"{name} returned {type(loader).__name__}, which is not iterable; return a DataLoader"
        )
    missing = asked.keys() - taken
    if isinstance(loader, DataLoader):
        if not missing:
            return loader
        return rebuilt(loader, {key: asked[key] for key in missing}, name)
    if request.workers and "num_workers" in missing:
        raise UnsupportedError(
            f"{name} takes no num_workers, and the workers of its {type(loader).__name__} cannot"
            " be changed: add the parameter num_workers, or pass --data-workers 0"
        )
    return loader


def rebuilt(loader: DataLoader[Any], changes: Mapping[str, Any], name: str) -> DataLoader[Any]:
    """`loader` anew with `changes` of num_workers, prefetch_factor and pin_memory.

    Raises:
        UnsupportedError: it has a class of its own, which may need other arguments.
    """
    if type(loader).__init__ is not DataLoader.__init__:
        raise UnsupportedError(
            f"{name} returned {type(loader).__name__}, which cannot be made again with other"
            f" workers: take {', '.join(sorted(changes))}"
        )
    kept = {key: getattr(loader, key) for key in ("num_workers", "pin_memory", "prefetch_factor")}
    setting = kept | dict(changes)
    works = setting["num_workers"] > 0
    if not works:
        setting["prefetch_factor"] = None
    return type(loader)(
        loader.dataset,
        **_drawn(loader),
        **setting,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        in_order=loader.in_order,
        timeout=loader.timeout if works else 0,
        persistent_workers=loader.persistent_workers and works,
        multiprocessing_context=loader.multiprocessing_context if works else None,
    )


def batches(loader: Any, epochs: list[int]) -> Iterator[Any]:
    """Batches of a loader, epoch after epoch; `epochs` gets the number of batches of each ended
    one."""
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            return
        epochs.append(count)


def timed(given: Iterator[Any], request: Load) -> tuple[list[Slice], list[int]]:
    """Slices of about the requested time, and the shape of the largest batch. The last batch of an
    epoch may be smaller.

    Workers deliver batches in turn, and often at once, so a slice ends after a whole round.
    """
    in_turn = max(1, request.workers)
    ahead = in_turn * (1 + (request.prefetch or 0))  # batches from before the timing
    deadline = time.perf_counter() + request.timed_s
    while ahead and time.perf_counter() < deadline and next(given, _END) is not _END:
        ahead -= 1
    slices: list[Slice] = []
    largest: list[int] = []
    began = since = time.perf_counter()
    count = samples = tokens = 0
    while (batch := next(given, _END)) is not _END:
        shape = shape_of(batch)
        largest = max(largest, shape)
        del batch
        now = time.perf_counter()
        count, samples = count + 1, samples + shape[0]
        tokens += shape[0] * shape[1] if len(shape) > 1 else 0
        if count % in_turn == 0 and now - since >= request.timed_s / SLICES:
            slices.append(Slice(now - since, count, samples, tokens))
            since, count, samples, tokens = now, 0, 0, 0
            if now - began >= request.timed_s:
                break
    if not slices and count:
        slices.append(Slice(time.perf_counter() - since, count, samples, tokens))
    return slices, largest


def shape_of(batch: Any) -> list[int]:
    """(B, T) of the largest integer tensor with two axes in a batch, or (B,) without one."""
    arrays = list(_arrays(batch))
    tokens = [list(a.shape) for a in arrays if len(a.shape) == 2 and _is_integer(a)]
    if tokens:
        return max(tokens, key=math.prod)
    sizes = [len(a) for a in arrays if len(a.shape)]
    if sizes:
        return sizes[:1]
    return [len(batch) if isinstance(batch, Sized) and len(batch) else 1]


def _arrays(part: Any) -> Iterator[Any]:
    if isinstance(part, Tensor | np.ndarray):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _arrays(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _arrays(value)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _arrays(getattr(part, field.name))


def _is_integer(array: Any) -> bool:
    if isinstance(array, Tensor):
        kind = array.dtype
        return not (kind.is_floating_point or kind.is_complex or str(kind) == "torch.bool")
    return array.dtype.kind in "iu"


def _name(request: Load) -> str:
    return f"{request.module}:{request.function}"


def _taken(function: Callable[..., Any], names: Mapping[str, Any]) -> set[str]:
    """Those of `names` that are arguments of `function`."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return set(names)
    positional = inspect.Parameter.POSITIONAL_ONLY
    return {each.name for each in parameters if each.kind is not positional} & names.keys()


def _batch_of(function: Callable[..., Any], request: Load) -> dict[str, int]:
    """Micro-batch and length, if they are known and arguments of the function."""
    known = {**dict.fromkeys(_OWN_BATCH, request.micro_batch), "seq_len": request.seq_len}
    parameters = inspect.signature(function).parameters
    named = {key: size for key, size in known.items() if key in parameters}
    for key, size in named.items():
        if size is None and parameters[key].default is inspect.Parameter.empty:
            flag = "--seq-len" if key == "seq_len" else "--micro-batch"
            raise UnsupportedError(f"{_name(request)} needs {key}: pass {flag} or --best")
    return {key: size for key, size in named.items() if size is not None}


def _drawn(loader: DataLoader[Any]) -> dict[str, Any]:
    """The sampler or batch sampler, as arguments of a DataLoader."""
    batched = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.dataset, IterableDataset):
        return batched
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return batched | {"sampler": loader.sampler}


def _wait_ahead(slices: Sequence[Slice], request: Load) -> None:
    """Wait until the workers have loaded ahead, when they hold the most."""
    batch_s = sum(each.wall_s for each in slices) / sum(each.batches for each in slices)
    time.sleep(min(AHEAD_S, 1.5 * request.workers * (request.prefetch or 0) * batch_s))


def _left(given: Iterator[Any]) -> bool:
    """End the workers; returns whether they left in time."""
    leaving = threading.Thread(target=given.close, daemon=True)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(LEAVE_S)
    return not leaving.is_alive()


def _exit_codes(error: BaseException) -> list[int]:
    """Exit codes of dead workers, if torch only says that they "exited unexpectedly"."""
    found = (
        frame.f_locals.get("failed_workers", ())
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "_try_get_data"
    )
    return [worker.exitcode for workers in found for worker in workers]


def _alone(error: BaseException) -> str:
    """Why only this setting fails, while the loader itself may work; else empty."""
    if isinstance(error, UnsupportedError | WireError):
        return ""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.name == "dump" and frame.filename.endswith(_PICKLES) for frame in frames):
        return f"workers are spawned, and their data cannot be pickled: {said}"
    if _WANTS_WORKERS.search(said):
        return f"the function makes no loader without workers: {said}"
    codes = "".join(f"\nexit code {code}" for code in _exit_codes(error))
    text = "".join(traceback.format_exception(error)) + codes
    if _SHM_FULL.search(text):
        return "a worker ended with a bus error: /dev/shm is too small for its batches"
    if _KILLED.search(text):
        return "a worker was killed (SIGKILL)"
    return ""


if __name__ == "__main__":
    main()
