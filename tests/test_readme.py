"""The first examples of the README and of some pages are run as they stand, for a shorter time."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest

from autotune.commands.exits import ExitCode
from tests.support.documents import PAGES, commands
from tests.support.programs import ROOT, autotune, stopped

SHORT = "--budget 2m --trials 1 --finals 1"
"""A probe is timed for a fiftieth of its budget at most."""
RUN = (
    "tutorial", "how-to/huggingface", "how-to/vision-and-speech", "how-to/module",
    "how-to/diagnose", "how-to/unlike-cards",
)  # fmt: skip
"""Pages whose commands run on a CPU, as the README's do."""


def python_of(page: str) -> str:
    """The first block of Python that stands in a page."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return found[0]


VIT = python_of("how-to/module")
TRAIN = python_of("tutorial").replace("4096, width=256, blocks=4", "64, width=32, blocks=1")
TRAIN = TRAIN.replace("randint(4096,", "randint(64,")
"""The tutorial's script with a small model, whose steps take no time."""
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
    """The commands of the README and of these pages, each once, in whatever order its flags are.
    Those on a result, and on several machines, are left out."""
    pages = (ROOT / "README.md", *(PAGES / f"{name}.md" for name in RUN))
    found = {(*sorted(arguments(each)),): each for page in pages for each in commands(page)}
    away = ("export", "verify", "check", "report", "--resume", "--help")
    return [e for e in found.values() if e.split()[1] not in away and "--launch" not in e]


def arguments(example: str) -> list[str]:
    return shlex.split(example, comments=True)[1:]


def shorter(given: list[str]) -> list[str]:
    """The same where it ends soon, with one trial where it trains for minutes, else a dry run."""
    if given[0] in ("plan", "diagnose") or "--dry-run" in given:
        return given
    if given[0] == "loader":
        return [*given, "--budget", "20s"]
    if "--budget" not in given:
        return [*given, *SHORT.split()]
    place = given.index("--budget")
    if given[place + 1] == "2m":
        return [*given[:place], *SHORT.split(), *given[place + 2 :]]
    return [*given, "--dry-run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files that the examples speak of."""
    model = json.loads((ROOT / "autotune/space/models/ready" / "gpt2.json").read_text())
    (tmp_path / "path" / "to" / "folder").mkdir(parents=True)
    config = json.dumps(model["config"] | model["tiny"])
    files = {"vit.py": VIT, "train.py": TRAIN, "data.py": DATA, "train.log": LOG,
             "job.sh": "python train.py", "path/to/folder/config.json": config}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "grids").symlink_to(ROOT / "results" / "grids")
    study = tmp_path / "results" / "my-study"
    shutil.copytree(ROOT / "results" / "samples" / "cpu-2-cores", study)
    (study / "logs").mkdir()
    (study / "logs" / "launch001.log").write_text(LOG)
    return tmp_path


def test_the_examples_are_found() -> None:
    assert len(examples()) >= 20
    assert sum("--dry-run" not in shorter(arguments(each)) for each in examples()) >= 10


@pytest.mark.slow
@pytest.mark.timeout(900)  # a plan weighs for minutes on a busy machine, where torch has CUDA
@pytest.mark.parametrize(
    "example", examples(), ids=lambda each: each.partition(" #")[0].strip().partition(" ")[2]
)
def test_an_example_runs(example: str, folder: Path) -> None:
    given, remark = shorter(arguments(example)), example.partition(" #")[2]
    if "--lora" in given:
        pytest.importorskip("peft")
    whole = "--finals" not in given or "results/first" in given
    # Finals take longer than all else.
    first = partial(stopped, *given, when=lambda: measured(folder), cwd=folder)
    code, said = ended(given, folder) if whole else first()
    if re.search("needs .*GPU", remark) and "NVML is not available" in said:
        assert code == 2
        return
    assert code == ExitCode.FOUND or (code == ExitCode.STOPPED and not whole), said


def ended(given: list[str], folder: Path) -> tuple[int, str]:
    """The code and the output of a command that ends by itself."""
    ran = autotune(*given, code=None, cwd=folder, timeout=840)
    return ran.returncode, ran.stdout + ran.stderr


def measured(folder: Path) -> bool:
    """Whether a new study in `results` has measured a candidate."""
    tables = {*folder.glob("results/*/trials.csv")} - {folder / "results/my-study/trials.csv"}
    return any(",ok," in table.read_text() for table in tables)


@pytest.mark.slow
def test_the_vision_transformer_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "vit.py").write_text(VIT)
    ran = autotune(
        "--device", "cpu", "--model", "factory:vit:make", "--depth", "1,2", "--seq-len", "4,9",
        "--micro-batch", "1,2", "--budget", "100s", "--trials", "3", "--finals", "1",
        "--out", "study", cwd=tmp_path, timeout=280,
    )  # fmt: skip
    assert "not traced" not in ran.stdout
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert best["config"]["model"] == "factory:vit:make"
    assert best["measured"]["model_flops_per_s"] > 0
