"""Peaks of a public training script on emulated GPUs, beside those of real ones.

    .venv-cuda/bin/python scripts/bench/published/emulated.py CHECKOUT [--rows 0,1,2]

CHECKOUT is a clone of https://github.com/openai/parameter-golf (MIT): its records have the script
of each run and torch's peaks. Needs torch's CUDA build, sentencepiece, and no GPU. The script runs
unchanged, on random tokens, for two steps. Its evaluation divides by a sum that is 0 here, and
ends the run. Sizes are in MiB.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from shared import machine, numbers, run, say, table, versions

from autotune.device.emulated.emulation import Emulation

RECORDS = "records/track_non_record_16mb/2026-04-04_GDN_Hybrid_LongContext"
VOCAB = 1024
STEPS = {
    "ITERATIONS": "2",
    "WARMUP_STEPS": "1",
    "VAL_LOSS_EVERY": "0",
    "MAX_WALLCLOCK_SECONDS": "0",
}
HEAD = "run | torch there | allocated | emulated | off | reserved | emulated | off"
WRAPPER = """
import runpy, torch
try:
    runpy.run_path("train_gpt.py", run_name="__main__")
except ZeroDivisionError:
    pass
print(torch.cuda.max_memory_allocated() // 2**20, torch.cuda.max_memory_reserved() // 2**20)
"""


@dataclass(frozen=True)
class Row:
    """One public run on one GPU: its variables, and the peaks in its log."""

    log: str
    card: str
    torch: str
    given: dict[str, str]
    allocated: int
    reserved: int


RUNS = (
    (8192, 393216, 7778, 8274),
    (16384, 393216, 7787, 8276),
    (32768, 524288, 10273, 10592),
)
ROWS = tuple(
    Row(
        f"baseline_1xh100_600s_seq{length}.txt", "H100", "2.9.1+cu128",
        {"TRAIN_SEQ_LEN": str(length), "TRAIN_BATCH_TOKENS": str(tokens)}, allocated, reserved,
    )
    for length, tokens, allocated, reserved in RUNS
)  # fmt: skip


def prepare(
    folder: Path, script: str, vocab: int = VOCAB, most: int = 3_000_000
) -> dict[str, str]:
    """The script's folder with random data; the variables that name it."""
    import sentencepiece

    (folder / "train_gpt.py").write_text(script)
    letters = random.Random(0)
    words = ("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(200_000))
    (folder / "text").write_text("\n".join(words))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokens"), vocab_size=vocab,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    return {"TOKENIZER_PATH": str(folder / "tokens.model")} | fill(folder, vocab, most)


def fill(folder: Path, vocab: int, most: int) -> dict[str, str]:
    """Random tokens, of which every 1000th begins a text; the variables that name them."""
    chance = np.random.default_rng(0)
    header = np.zeros(256, dtype="<i4")
    for name, tokens in (("train", most), ("val", most // 5)):
        header[:3] = 20240520, 1, tokens
        data = chance.integers(0, vocab, tokens).astype("<u2")
        data[::1000] = vocab - 1
        (folder / f"fineweb_{name}_0.bin").write_bytes(header.tobytes() + data.tobytes())
    # The script prints the output of this program.
    (folder / "nvidia-smi").write_text("#!/bin/sh\n")
    (folder / "nvidia-smi").chmod(0o755)
    return {"DATA_PATH": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def weighed(row: Row, folder: Path, given: dict[str, str]) -> tuple[int, int]:
    """Peaks of the run on an emulated card."""
    cards = Emulation(f"1x{row.card}")
    done = subprocess.run(
        [sys.executable, "-c", WRAPPER], cwd=folder, text=True, capture_output=True, check=False,
        env=cards.environment | given | STEPS | row.given,
    )  # fmt: skip
    cards.close()
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    allocated, reserved = done.stdout.split()[-2:]
    return int(allocated), int(reserved)


def lines(checkout: Path, chosen: tuple[int, ...]) -> Iterator[list[object]]:
    script = (checkout / RECORDS / "train_gpt.py").read_text()
    with tempfile.TemporaryDirectory() as name:
        given = prepare(Path(name), script)
        for row in (ROWS[i] for i in chosen):
            say(row.log)
            found = weighed(row, Path(name), given)
            yield [row.log, row.torch, *(
                cell for there, here in zip((row.allocated, row.reserved), found, strict=True)
                for cell in (there, here, f"{here / there - 1:+.1%}")
            )]  # fmt: skip


def main(checkout: Path, rows: str = "0,1,2") -> None:
    """Print the table."""
    print(f"{machine()}; {versions('torch')}; runs of {RECORDS}.\n")
    print(table(HEAD, lines(checkout, numbers(rows))))


if __name__ == "__main__":
    run(main)
