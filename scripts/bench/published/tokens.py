"""Random tokens in the files that public training scripts read."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np


def prepare(folder: Path, script: str, vocab: int = 1024, most: int = 3_000_000) -> dict[str, str]:
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
