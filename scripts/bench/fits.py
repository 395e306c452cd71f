"""What fits, by model, card and number of cards, all weighed: docs/pages/reference/fits.md.

    .venv-cuda/bin/python scripts/bench/fits.py results/public/fits.csv [--models t5-small]

prints the page from the CSV, after it weighed the missing cells. `--minutes 0` only prints. Needs
torch's CUDA build, and no GPU. The code of `plan` weighs: one rank on an emulated card stands for
all. It can be stopped at any time, and goes on from the CSV. mamba-7b needs the Python files of
mamba-ssm 2.3.2 and causal-conv1d 1.7.0 on PYTHONPATH, from their sources on PyPI. Without them a
step loops over tokens, which takes minutes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from shared import add_row, machine, rows_in, run, say, table, versions

from autotune.advise.plan.answers import Answer, answer
from autotune.advise.plan.answers import table as by_value
from autotune.advise.plan.expected import Helpers, Plan, PlanRequest, Weighed
from autotune.advise.plan.weighing import Scale, scale, weighed
from autotune.device.cards import parse_gpus
from autotune.measure.runner import counting
from autotune.space.options import Options
from autotune.wire.helpers import Describe, Described

MODELS = {
    "llama-3-8b": ("2048", "1:256"), "qwen3-8b": ("2048", "1:256"), "t5-small": ("512", "1:1024"),
    "gemma-3-27b": ("2048", "1:256"), "mixtral": ("2048", "1:256"), "mamba-7b": ("1024", "1:64"),
}  # fmt: skip
"""Lengths and micro-batches."""
NOTES = {
    "mamba-7b": "Mamba ran with mamba-ssm. Functions that allocate as much stand for its kernels.",
}
CARDS = ("RTX4090", "L40S", "H100", "H200")
COUNTS = (1, 2, 4, 8)
ROOM = 64
"""Emulated cards have so many times the memory, for configurations that do not fit. Limits are
those of the card."""
TRACE_S = 600.0
STAND_INS = Path(__file__).with_name("mamba")
ABOUT = """# What fits

Pre-training or full fine-tuning: bf16, AdamW, full checkpointing, no offload. Several cards share
weights, gradients and optimizer state by FSDP (stage 3); one trains alone. 80 % of a card are
allowed. A cell has the largest micro-batch that fits and the peak of a card. A larger one was
weighed and did not fit, or is expected not to. A + says that no larger one was tried. Where not
even one sample fits, a cell has what a card needs for it.

Each cell was weighed: one rank with the real model and torch's own allocator ran on an
[emulated card](../how-to/emulated.md), and stands for all. `scripts/bench/fits.py` made the table,
on {machine}. {versions}. For your own length or settings use [plan](../how-to/plan.md).
"""


def main(results: Path, *, models: str = ",".join(MODELS), minutes: float = 600.0,
         one: str = "") -> None:  # fmt: skip
    if one:
        model, card = one.split(",")
        weigh_cells(results, model, card)
        return
    until = time.monotonic() + 60 * minutes
    for model in models.split(","):
        for card in CARDS:
            left_s = until - time.monotonic()
            if left_s > 0 and missing(results, model, card):
                command = [sys.executable, __file__, str(results), "--one", f"{model},{card}"]
                try:
                    subprocess.run(command, timeout=left_s, check=False, env=with_stand_ins())
                except subprocess.TimeoutExpired:
                    say("no time is left")
    print(page(rows_in(results)))


def with_stand_ins() -> dict[str, str]:
    """The environment, with stand-ins for mamba-ssm's compiled kernels."""
    path = [str(STAND_INS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": ":".join(filter(None, path))}


def missing(results: Path, model: str, card: str) -> list[int]:
    """Numbers of cards that are not in `results`."""
    known = {(row["model"], row["card"], row["gpus"]) for row in rows_in(results)}
    return [count for count in COUNTS if (model, card, str(count)) not in known]


def weigh_cells(results: Path, model: str, card_name: str) -> None:
    """Weigh the cells of a model and a card that are missing, and add each to `results`."""
    card = parse_gpus(card_name).card
    length, sizes = MODELS[model]
    cache = results.with_suffix(".cache")
    cache.mkdir(exist_ok=True)
    with (
        counting.forked("hf") as start,
        scale(card, lambda line: say(f"  {line}"), room=ROOM) as on_card,
    ):
        helpers = Helpers(
            partial(counting.count, model=model, start=start),
            partial(traced, cache, partial(counting.describe, limit_s=TRACE_S, start=start)),
        )  # fmt: skip
        for count in missing(results, model, card_name):
            texts = {"model": model, "seq_len": length, "micro_batch": sizes, "dtype": "bf16",
                     "checkpointing": "full", "zero": "3" if count > 1 else "0",
                     "engine": "fsdp" if count > 1 else "ddp"}  # fmt: skip
            asked = PlanRequest(
                options=Options.from_texts(texts), card=card, host_bytes=None, fused=False
            )
            found = cell(asked, count, helpers, on_card)
            if "stopped" in str(found["why"]):
                return
            of = {"model": model, "card": card_name, "gpus": count, "seq_len": length}
            add_row(results, of | found)
            say(f"{of | found}")


def traced(
    cache: Path, find: Callable[[Describe], Described | str], asked: Describe
) -> Described | str:
    """The trace of `find`, cached for other cards."""
    path = cache / f"{hashlib.sha256(repr(asked).encode()).hexdigest()[:16]}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Described)
    found = find(asked)
    if isinstance(found, Described):
        path.write_bytes(msgspec.json.encode(found))
    return found


def cell(asked: PlanRequest, count: int, helpers: Helpers, on_card: Scale) -> dict[str, object]:
    """The weighed cell for one number of cards."""
    began = time.monotonic()
    known: Weighed = {}
    why: list[str] = []
    on_card.note = why.append

    def again(by: Weighed) -> Answer:
        nonlocal known
        known = by
        return answer(replace(asked, weighed=by), (count,), None, helpers)

    found = weighed(again({}), again, on_card, 1, lambda *told: None)
    [plan] = found.plans
    row = by_value(plan)[0].row
    peak_bytes, is_weighed, more = row.peak.bytes, row.weighed, 0
    if is_weighed and known[count, row.candidate].measurement is None:
        # Memory ran out: find the needed size.
        roomy = replace(plan.space.limits, capacity_bytes=ROOM * plan.space.limits.capacity_bytes)
        space: Plan = replace(plan, space=replace(plan.space, limits=roomy))
        outcome, more = on_card.weigh(space, row.candidate), 1
        is_weighed = outcome.measurement is not None
        if outcome.measurement is not None:
            peak_bytes = outcome.measurement.peaks.device_bytes
    above = [
        outcome.measurement.peaks.device_bytes
        for (_, candidate), outcome in known.items()
        if outcome.measurement and candidate.micro_batch == row.candidate.micro_batch + 1
    ]  # fmt: skip
    return {
        "micro_batch": row.candidate.micro_batch, "fits": row.fits, "weighed": is_weighed,
        "peak_bytes": peak_bytes, "limit_bytes": plan.space.limits.limit_bytes,
        "next_bytes": above[0] if above else "", "weighings": len(known) + more,
        "seconds": round(time.monotonic() - began), "why": "; ".join(why),
    }  # fmt: skip


def page(rows: Sequence[dict[str, str]]) -> str:
    """The page."""
    cells = {(row["model"], row["card"], int(row["gpus"])): row for row in rows}
    lines, left = [], []
    for model, (length, _) in MODELS.items():
        for card in CARDS:
            some = [cells.get((model, card, count)) for count in COUNTS]
            lacking = [
                str(count) for count, row in zip(COUNTS, some, strict=True)
                if row is None or row["weighed"] != "True"
            ]  # fmt: skip
            left += [f"{model} on {', '.join(lacking)} {card}"] if lacking else []
            if any(some):
                lines.append((model, length, card, *map(text, some)))
    seconds = sum(int(row["seconds"]) for row in rows)
    weighings = sum(int(row["weighings"]) for row in rows)
    about = ABOUT.format(machine=machine(), versions=versions("torch", "transformers"))
    head = "model | length | card | " + " | ".join(f"{n} card{'s' * (n > 1)}" for n in COUNTS)
    done = sum(row["weighed"] == "True" for row in rows)
    said = (
        f"{done} of {len(MODELS) * len(CARDS) * len(COUNTS)} cells were weighed, by"
        f" {weighings} candidates in {seconds / 60:.0f} minutes."
    )
    for model, note in NOTES.items():
        said += f"\n{note}" if any(row["model"] == model for row in rows) else ""
    return f"{about}\n{table(head, lines)}\n\n{said}\n\nNot weighed: {'; '.join(left) or 'none'}."


def text(row: dict[str, str] | None) -> str:
    """The text of a cell."""
    if row is None or row["weighed"] != "True":
        return "-"
    peak = f"{int(row['peak_bytes']) / 2**30:.1f} GiB"
    more = "+" if row["micro_batch"] == MODELS[row["model"]][1].rpartition(":")[2] else ""
    return f"**{row['micro_batch']}{more}**, {peak}" if row["fits"] == "True" else f"needs {peak}"


if __name__ == "__main__":
    run(main)
