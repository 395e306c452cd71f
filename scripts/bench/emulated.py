"""Memory of each engine, ZeRO stage and offload on emulated GPUs, by number of devices.

    .venv-cuda/bin/python scripts/bench/emulated.py [--devices 1,2,4,8] [--card A100-80GB]

Needs torch's CUDA build, and no GPU. Each row is a trial of a real study on emulated cards: real
torch and real allocator, kernels that do nothing. `allocated` and `reserved` are torch's peaks.
`device` is NVML's, with the context and NCCL's buffers of `device/emulated/overheads.py`. The exit
code is always 0.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from shared import machine, numbers, run, say, searched, study_on, table, versions

from autotune.device.emulated.emulation import Emulation

SHAPE = (
    "--depth", "12", "--seq-len", "1024", "--micro-batch", "8", "--checkpointing", "none",
)  # fmt: skip
CASES = (
    ("ddp", "0", "none"),
    ("fsdp", "2,3", "none"),
    ("deepspeed", "0,1,2,3", "none,optimizer,all"),
)
BUDGET = "20m"
PEAKS = ("allocated", "reserved", "device")
HEAD = "devices | engine | stage | offload | verdict | allocated | reserved | device"


def trials(
    card: str, devices: int, engine: str, stages: str, offload: str
) -> list[dict[str, str]]:
    """Trials of one study that probes each build once."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        done = study_on(
            Emulation(f"{devices}x{card}"), out, "--engine", engine, "--zero", stages,
            "--offload", offload, "--sampler", "grid", "--budget", BUDGET, *SHAPE,
        )  # fmt: skip
        found = searched(out)
        if not found:
            say(done.stderr)
        return found


def gib(text: str) -> str:
    """GiB of a number of bytes."""
    return f"{int(text) / 2**30:.2f} GiB" if text else ""


def rows(card: str, counts: tuple[int, ...]) -> Iterator[list[str]]:
    for devices in counts:
        for engine, stages, offload in CASES:
            if devices == 1 and engine == "fsdp":
                continue
            say(f"{devices}x{card}, {engine}")
            for trial in trials(card, devices, engine, stages, offload):
                case = (trial["zero_stage"], trial["offload"], trial["verdict"])
                peaks = (gib(trial[f"peak_{kind}_bytes"]) for kind in PEAKS)
                yield [str(devices), engine, *case, *peaks]


def main(devices: str = "1,2,4,8", card: str = "A100-80GB") -> None:
    """Print the table."""
    print(f"{machine()}; {versions('torch', 'deepspeed')}. gpt {' '.join(SHAPE)}, bf16, AdamW.\n")
    print(table(HEAD, rows(card, numbers(devices))))


if __name__ == "__main__":
    run(main)
