"""Times of the kernels of one training step: on a real GPU, and on an emulated one beside it.

    python scripts/bench/kernels.py record results/kernels/NAME.csv         # on a GPU
    .venv-cuda/bin/python scripts/bench/kernels.py compare results/kernels/h200.csv

`record` profiles a step of the default model in five sizes by torch's profiler. `compare` runs the
same steps on the emulated card of that name, and prints both by kinds of kernels. Use the torch of
the recording: another one may start other kernels.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # autotune need not be installed

from shared import ROOT, card_of, machine, run, say, table

from autotune.device.emulated.emulation import emulate
from autotune.errors import UsageError

STEPS = {
    "d12-s2048-b16": (12, 2048, 16, "none", "off"),
    "d12-s1024-b4": (12, 1024, 4, "none", "off"),
    "d20-s2048-b8": (20, 2048, 8, "none", "off"),
    "d12-s1024-b4-full": (12, 1024, 4, "full", "off"),
    "d12-s2048-b16-compile": (12, 2048, 16, "none", "on"),
}
"""Depth, seq_len, micro_batch, checkpointing, compile."""
WARMUP = 6
NAME = 150
"""Characters of a kernel's name that are kept."""
KINDS = {
    "compiled": r"triton",
    "products": r"nvjet|splitK|gemv|^product$|gemmSN",
    "attention": r"sdpa|flash|fmha|convert_dq|dot_do_o",
    "copies, fills": r"^Mem|^copy$|^fill$|FillFunctor",
    "lists of tensors": r"multi_tensor_apply",
    "softmax": r"SoftMax",
    "norms": r"layer_norm|GammaBeta|rms_norm",
    "joined": r"CatArray",
    "converted": r"unrolled_elementwise",
    "element by element": r"vectorized_elementwise",
    "by computed places": r"elementwise_kernel",
    "embedding": r"gather|compute_grad_weight|sum_and_scatter|krn_|embedding",
}
"""Patterns in names of kernels, demangled by a profiler or mangled on an emulated card."""
HEAD = "kernels | number | real ms | modelled | off"
Times = Mapping[str, tuple[int, float]]
"""Number and microseconds by kernel."""


def kind_of(kernel: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel)), "others")


def step_of(name: str) -> Callable[[], object]:
    """A function that makes one training step, warmed up."""
    import pynvml
    import torch

    from autotune.wire.ranks import ModelSpec, Probe, Start
    from autotune.wire.stopping import Rule
    from probes import measure, worker

    depth, seq_len, micro_batch, checkpointing, compiled = STEPS[name]
    pynvml.nvmlInit()
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    spec = ModelSpec(
        name="gpt", depth=depth, width=64 * depth, vocab_size=32768, zero_stage=0, offload="none",
        checkpointing=checkpointing, compile=compiled,
    )  # fmt: skip
    total = torch.cuda.get_device_properties(0).total_memory
    start = Start(
        world_size=1, device_kind="cuda", device_uuid=uuid, capacity_bytes=total, model=spec,
        engine="ddp", dtype="bf16",
    )  # fmt: skip
    live = worker.set_up(start, 0, worker.meter_for(start), lambda message: None)
    live.engine.prepare(micro_batch, 1)
    rule = Rule(
        warmup_steps=1, warmup_tolerance=1, warmup_limit_s=1, timed_steps=1, half_width=1,
        timed_limit_s=1,
    )  # fmt: skip
    probe = Probe(
        number=0, micro_batch=micro_batch, seq_len=seq_len, grad_accum=1, micro_steps=1, rule=rule,
        needed_step_s=None,
    )  # fmt: skip
    progress = measure._Progress(0, live.world, lambda message: None)
    stepper = measure._Stepper(probe, live.engine, live.world, spec, progress)
    for _ in range(WARMUP):
        stepper.step()
    torch.cuda.synchronize()
    return stepper.step


def real(name: str) -> Times:
    """The times by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = step_of(name)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    return summed(
        (event.name[:NAME], event.time_range.end - event.time_range.start)
        for event in profiler.events()
        if event.device_type.name == "CUDA" and not event.name.startswith("Optimizer.step")
    )


def summed(each: Iterable[tuple[str, float]]) -> Times:
    found: dict[str, tuple[int, float]] = {}
    for kernel, took_us in each:
        count, us = found.get(kernel, (0, 0.0))
        found[kernel] = count + 1, us + took_us
    return found


def record(path: Path) -> int:
    import torch

    steps = {name: real(name) for name in STEPS}
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    write(path, head, steps)
    return 0


def write(path: Path, head: Mapping[str, str], steps: Mapping[str, Times]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.write(f"# {json.dumps(head)}\n")
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["step", "kernel", "count", "us"])
        for name, times in steps.items():
            lines.writerows([name, k, count, f"{us:.1f}"] for k, (count, us) in times.items())


def read(path: Path) -> tuple[dict[str, str], dict[str, Times]]:
    """The content of a file of `record`. Raises `UsageError` for another file."""
    steps: defaultdict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        for row in csv.DictReader(lines):
            steps[row["step"]][row["kernel"]] = int(row["count"]), float(row["us"])
        return json.loads(head.removeprefix("# ")), dict(steps)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path}: no recording of kernels: {error}") from error


def last_step(trace: Sequence[str]) -> Times:
    """The last step in the trace of an emulated card: the repeated part at its end."""
    rows = [line.split(" ", 4) for line in trace]
    names = [row[4] for row in rows]
    period = next(n for n in range(100, len(names) // 2 + 1) if names[-n:] == names[-2 * n : -n])
    return summed((row[4], float(row[3]) / 1e3) for row in rows[-period:])


def emulated(card: str, name: str) -> Times:
    with closing(emulate(f"1x{card}")) as cards, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        more = {"AUTOTUNE_EMULATED_TRACE": str(path), "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, __file__, "step", name], env=cards.environment | more, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return last_step(path.read_text(encoding="utf-8").splitlines())


def by_kind(times: Times) -> dict[str, tuple[int, float]]:
    """Number and milliseconds."""
    found: dict[str, tuple[int, float]] = {}
    for kernel, (count, us) in times.items():
        number, ms = found.get(kind_of(kernel), (0, 0.0))
        found[kind_of(kernel)] = number + count, ms + us / 1e3
    return found


def compared(there: Times, here: Times) -> str:
    """A table in Markdown, the longest times first, and their sum."""
    theirs, ours = by_kind(there), by_kind(here)
    kinds = sorted(theirs.keys() | ours.keys(), key=lambda kind: -theirs.get(kind, (0, 0.0))[1])
    rows = []
    for kind in kinds:
        (number, ms), (_, modelled_ms) = theirs.get(kind, (0, 0.0)), ours.get(kind, (0, 0.0))
        rows.append([kind, str(number), f"{ms:.2f}", f"{modelled_ms:.2f}", off(modelled_ms, ms)])
    total, modelled = (sum(ms for _, ms in times.values()) for times in (theirs, ours))
    rows.append(["all", str(sum(n for n, _ in theirs.values())), f"{total:.2f}",
                 f"{modelled:.2f}", off(modelled, total)])  # fmt: skip
    return table(HEAD, rows)


def off(modelled: float, real: float) -> str:
    return f"{modelled / real - 1:+.0%}" if real else ""


def compare(path: Path) -> int:
    head, steps = read(path)
    card = card_of(head["device"], path)
    print(f"One {head['device']}, torch {head['torch']}; emulated on {machine()}.")
    for name, there in steps.items():
        print(f"\n### {name}\n\n{compared(there, emulated(card, name))}", flush=True)
    return 0


def main(what: Literal["record", "compare", "step"], of: str) -> int:
    """`step` makes some steps, for `compare`."""
    try:
        if what == "step":
            step = step_of(of)
            for _ in range(2):
                step()
            return 0
        return {"record": record, "compare": compare}[what](Path(of))
    except UsageError as error:
        say(f"kernels: {error}")
        return 2


if __name__ == "__main__":
    run(main)
