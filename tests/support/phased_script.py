"""A training script as a user would write it, which evaluates and saves now and then.

`phased_script.py --batch N --eval-every N --eval-batch N --save-every N`: 0 is never. With
`--eval-times N` evaluation has so many training batches at once. A save holds copies of the
model, `--copies` of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import light  # type: ignore[import-not-found]  # noqa: F401
import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH = 256, 256, 64

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--eval-every", type=int, default=40)
parser.add_argument("--eval-batch", type=int, default=0)
parser.add_argument("--eval-times", type=int, default=0)
parser.add_argument("--save-every", type=int, default=40)
parser.add_argument("--copies", type=int, default=0)
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
rows = args.eval_batch or args.eval_times * args.batch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers).to(args.device)
optimizer = torch.optim.AdamW(model.parameters())


def loss_of(rows: int) -> torch.Tensor:
    ids = torch.randint(VOCABULARY, (rows, LENGTH), device=args.device)
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


for number in range(1, 1_000_000):
    loss_of(args.batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)  # so that steps take alike on a busy machine, and need no more finals
    if rows and number % args.eval_every == 0:
        model.eval()
        with torch.no_grad():
            loss_of(rows)
        model.train()
    if args.copies and number % args.save_every == 0:
        with tempfile.TemporaryDirectory() as folder:
            kept = [{n: each.clone() for n, each in model.state_dict().items()}
                    for _ in range(args.copies)]  # fmt: skip
            torch.save(kept[0], Path(folder) / "kept.pt")
            del kept
