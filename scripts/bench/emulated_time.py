"""Speeds of public training runs: on emulated GPUs, beside real ones.

    .venv-cuda/bin/python scripts/bench/emulated_time.py [--checkout FOLDER] [--only TEXT]

There are two kinds of runs, both by the publishers' own code. Those of fms-acceleration ran in
`published/weighed.py`, which left the time of a step in results/public/weighed.csv. The closed
forms of plan are shown, too. With a clone of https://github.com/openai/parameter-golf (MIT) as
FOLDER, its scripts run unchanged, and print steps by the card's clock. Only one of several ranks
runs, in NCCL's group of all, and its collectives take their time. Needs torch's CUDA build,
sentencepiece and pandas, and no GPU.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from plan import in_this_process
from published.rows import texts_of
from published.tokens import prepare
from shared import ROOT, machine, rows_in, run, say, table, tau, versions

from autotune.advise.plan.expected import Helpers, PlanRequest, plan
from autotune.device.cards import parse_gpus
from autotune.device.emulated.emulation import Emulation
from autotune.space.options import Options

PUBLIC = ROOT / "results" / "public"
ADAPTERS = ",dropout=0.1,targets=q_proj+k_proj+v_proj+o_proj"
"""Of the runs of fms-acceleration, by its scenarios."""
HEAD = "run | card | published | emulated | off | closed forms | off"
STEPS = {
    "ITERATIONS": "4", "WARMUP_STEPS": "2", "VAL_LOSS_EVERY": "0", "MAX_WALLCLOCK_SECONDS": "0",
    "TRAIN_LOG_EVERY": "1",
}  # fmt: skip
WRAPPER = """
import os, runpy, time, torch
from probes.world import CardClock
from published.weigh_one import alone
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    alone(0, ranks, "nccl")
clock = CardClock()
time.perf_counter = lambda: clock() if torch.cuda.is_initialized() else 0.0
try:
    runpy.run_path("train_gpt.py", run_name="__main__")
except ZeroDivisionError:
    pass  # the evaluation, after the steps
"""


@dataclass(frozen=True)
class Script:
    """A public run of a script: its folder under `records`, and its time of a step."""

    record: str
    card: str
    ranks: int
    step_ms: float
    given: dict[str, str]
    tokens: int
    """Tokens of a step, in all."""


_LONG = "track_non_record_16mb/2026-04-04_GDN_Hybrid_LongContext"
SCRIPTS = (
    *(
        Script(_LONG, "H100", 1, step_ms,
               {"TRAIN_SEQ_LEN": str(length), "TRAIN_BATCH_TOKENS": str(tokens)}, tokens)
        for length, tokens, step_ms in ((8192, 393216, 593.77), (16384, 393216, 954.63),
                                        (32768, 524288, 2219.24))
    ),
    Script("track_10min_16mb/2026-03-17_NaiveBaseline", "H100", 8, 43.54, {}, 524288),
    Script("track_10min_16mb/2026-03-18_LongContextSeq2048", "H100", 8, 51.89, {}, 524288),
    Script("track_10min_16mb/2026-03-19_TrainingOptSeq4096", "H100", 8, 70.51, {}, 393216),
    Script("track_10min_16mb/2026-03-19_10L_MixedPrecision", "H200", 8, 45.78,
           {"NUM_LAYERS": "10"}, 524288),
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """Tokens a second of one GPU."""

    group: str
    """Runs of a group only differ in their configuration."""
    name: str
    card: str
    published: float
    emulated: float
    formula: float | None = None

    def cells(self) -> list[str]:
        found = [f"{self.published:,.0f}"]
        for each in (self.emulated, self.formula):
            found += [f"{each:,.0f}", f"{each / self.published - 1:+.0%}"] if each else ["", ""]
        return [self.name, self.card, *found]


def timed(only: str) -> Iterator[Compared]:
    """The runs of weighed.csv of which a step was timed."""
    known = {
        (run["model"].split("/")[1], run["gpus"], run["lora_rank"] > 0): dict(run)
        for _, run in pd.read_csv(PUBLIC / "memory.csv").iterrows() if run["id"].startswith("fms")
    }  # fmt: skip
    helpers = in_this_process()
    for row in rows_in(PUBLIC / "weighed.csv"):
        if not row["step_ms"] or only not in row["id"]:
            continue
        how, gpus = json.loads(row["how"]), int(row["gpus"])
        model = row["name"].split(",")[0]
        group = f"{model}{', LoRA' if how['lora'] else ''}"
        run = known.get((model, gpus, how["lora"]))
        formula = None
        if run is not None:
            formula = closed_form(run | {"micro_batch": how["batch"]}, gpus, helpers)
        yield Compared(f"{group} on {row['card']}", f"{group}, {how['batch']} samples",
                       f"{gpus}x{row['card']}", float(row["quote"].rpartition(",")[2]),
                       how["batch"] * how["length"] * 1e3 / float(row["step_ms"]),
                       formula)  # fmt: skip


def closed_form(run: dict[str, Any], gpus: int, helpers: Helpers) -> float:
    """The upper end of what plan expects."""
    with tempfile.TemporaryDirectory() as folder:
        texts, _ = texts_of(run, Path(folder))
        if "lora" in texts:
            texts["lora"] += ADAPTERS
        request = PlanRequest(
            options=Options.from_texts(texts), card=parse_gpus(run["gpu"]).card, host_bytes=None
        )
        (formula,) = plan(request, gpus, helpers).expected
    return formula.tokens_per_s[1] / gpus


def scripts(checkout: Path, only: str) -> Iterator[Compared]:
    for script in SCRIPTS:
        name = f"{Path(script.record).name} {' '.join(script.given.values())}".strip()
        if only not in name:
            continue
        step_ms = told(script, (checkout / "records" / script.record / "train_gpt.py").read_text())
        per_gpu = script.tokens / script.ranks * 1e3
        yield Compared(f"parameter-golf on {script.ranks}x{script.card}", name,
                       f"{script.ranks}x{script.card}", per_gpu / script.step_ms,
                       per_gpu / step_ms)  # fmt: skip


def told(script: Script, text: str) -> float:
    """Milliseconds of a step that the script printed."""
    several = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(script.ranks)}
    several |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29571"}
    cards = Emulation(f"{script.ranks}x{script.card}")
    with tempfile.TemporaryDirectory() as name:
        given = prepare(Path(name), text)
        given |= STEPS | script.given | (several if script.ranks > 1 else {})
        done = subprocess.run(
            [sys.executable, "-c", WRAPPER], cwd=name, text=True, capture_output=True, check=False,
            env=cards.environment | given | {
                "PYTHONPATH": f"{ROOT}:{ROOT}/scripts/bench:{os.environ.get('PYTHONPATH', '')}"
            },
        )  # fmt: skip
    cards.close()
    found = re.findall(r"^step:\d.*step_avg:([\d.]+)ms", done.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(done.stderr[-2000:])
    return float(found[-1])


def summary(found: list[Compared]) -> Iterator[list[object]]:
    groups = defaultdict(list)
    for each in found:
        groups[each.group].append(each)
    for name, parts in [*((name, [runs]) for name, runs in groups.items()),
                        ("all", [*groups.values()])]:  # fmt: skip
        runs = [each for part in parts for each in part]
        line = [name, len(runs)]
        for kind in ("emulated", "formula"):
            known = [
                [(each.published, told) for each in part if (told := getattr(each, kind))]
                for part in parts
            ]
            off = [abs(told / real - 1) for part in known for real, told in part]
            line += [f"{statistics.median(off):.0%}" if off else "", ordered(known)]
        yield line


def ordered(groups: list[list[tuple[float, float]]]) -> str:
    """Kendall's tau of all pairs that are within a group of more than two."""
    known = [(tau(group), comb(len(group), 2)) for group in groups if len(group) > 2]
    pairs = sum(number for _, number in known)
    return f"{sum(each * number for each, number in known) / pairs:+.2f}" if pairs else ""


def main(*, checkout: Path | None = None, only: str = "") -> None:
    """Print the tables of runs with `only` in their names."""
    found = []
    for kind in (timed(only), scripts(checkout, only) if checkout else iter(())):
        for each in kind:
            say(" | ".join(each.cells()))
            found.append(each)
    print(f"{machine()}; {versions('torch', 'transformers')}. Tokens a second of one GPU.\n")
    print(table(HEAD, (each.cells() for each in found)))
    print(f"\n{table('runs | number | off, median | tau | closed forms | tau', summary(found))}")


if __name__ == "__main__":
    run(main)
