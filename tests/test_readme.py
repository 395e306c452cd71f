"""The README's first examples are run as they stand there, for a shorter time."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = "python -m autotune"
SHORT = "--budget 4m --trials 2 --finals 1"
[VIT] = re.findall(r"```python\n(import torch\n.*?class ViT.*?)```", README, re.DOTALL)
TRAIN = """
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
batch = parser.parse_args().batch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    model(torch.randn(batch, 64)).sum().backward()
    optimizer.step()
"""
DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def make(num_workers, pin_memory, prefetch_factor, batch_size):
    data = TensorDataset(torch.zeros(4096, 128, dtype=torch.long))
    return DataLoader(data, batch_size, num_workers=num_workers, pin_memory=pin_memory,
                      prefetch_factor=prefetch_factor)
"""
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 1.20 GiB is free. Process 1 has 77.90 GiB memory in use. Of"
    " the allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch"
    " but unallocated.\n"
)


def examples() -> list[str]:
    """Commands of autotune up to where scripts of one's own are explained."""
    text = README.partition("## Your own training script")[0]
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = blocks.replace("scripts/tune ", f"{PROGRAM} ").splitlines()
    return [line for line in lines if line.startswith(PROGRAM)]


def shorter(arguments: list[str]) -> list[str]:
    """The same where it ends soon, with two trials where it trains for minutes, else a dry run."""
    if arguments[0] in ("plan", "diagnose") or "--dry-run" in arguments:
        return arguments
    if arguments[0] == "loader":
        return [*arguments, "--budget", "20s"]
    if "--budget" not in arguments:
        return [*arguments, *SHORT.split()]
    place = arguments.index("--budget")
    if arguments[place + 1] == "2m":
        return [*arguments[:place], *SHORT.split(), *arguments[place + 2 :]]
    return [*arguments, "--dry-run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files that the examples speak of."""
    model = json.loads((ROOT / "autotune" / "models" / "ready" / "gpt2.json").read_text())
    (tmp_path / "path" / "to" / "folder").mkdir(parents=True)
    config = json.dumps(model["config"] | model["tiny"])
    for name, text in {"vit.py": VIT, "train.py": TRAIN, "data.py": DATA, "train.log": LOG,
                       "path/to/folder/config.json": config}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "grids").symlink_to(ROOT / "results" / "grids")
    (tmp_path / "results" / "my-study").symlink_to(ROOT / "results" / "samples" / "cpu-2-cores")
    return tmp_path


def test_the_examples_are_found() -> None:
    assert len(examples()) >= 16
    assert sum("--dry-run" not in shorter(shlex.split(e)[3:]) for e in examples()) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", examples(), ids=lambda each: each.removeprefix(PROGRAM).partition(" #")[0].strip()
)
def test_an_example_runs(example: str, folder: Path) -> None:
    command, _, remark = example.partition(" #")
    arguments = shorter(shlex.split(command)[3:])
    if "--lora" in arguments:
        pytest.importorskip("peft")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    if re.search("needs .*GPU", remark) and "NVML is not available" in ran.stderr:
        assert ran.returncode == 2
        return
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_vision_transformer_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "vit.py").write_text(VIT)
    command = [
        sys.executable, "-m", "autotune", "--device", "cpu", "--model", "factory:vit:make",
        "--depth", "1,2", "--seq-len", "4,9", "--micro-batch", "1,2", "--budget", "4m",
        "--trials", "3", "--finals", "1", "--out", "study",
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "without a trace" not in ran.stdout
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert best["config"]["model"] == "factory:vit:make"
    assert best["measured"]["model_flops_per_s"] > 0
