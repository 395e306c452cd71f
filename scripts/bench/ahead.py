"""Probes that studies lose to memory, with `--weigh` and without.

    .venv-cuda/bin/python scripts/bench/ahead.py results/public/ahead.csv [--more-mib 300]

prints results/ahead.md from that file, after it ran the missing studies. Needs torch's CUDA build,
and no GPU: emulated cards stand for real ones. Their context is `more_mib` larger than in
weighing, since a real card's constants differ from the table.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared import add_row, machine, rows_in, run, say, searched, study_on, table, versions

from autotune.device.emulated.emulation import Emulation

GPT = ("--seq-len", "1024", "--micro-batch", "1:64")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpt, 3 depths": ("1xA100-40GB", ("--depth", "8:16:4", *GPT, "--checkpointing", "none,full")),
    "gpt, 3 lengths": ("1xA100-40GB", (
        "--depth", "12", "--seq-len", "512,1024,2048", "--micro-batch", "1:96",
        "--checkpointing", "none,full")),
    "gpt, ways of checkpointing": ("1xA100-40GB", (
        "--depth", "16", *GPT, "--checkpointing", "none,selective,1/2,full")),
    "gpt, RTX4090": ("1xRTX4090", ("--depth", "8:12:4", *GPT, "--checkpointing", "none,full")),
    "gpt, ZeRO 0-3": ("2xA100-40GB", ("--depth", "16", *GPT, "--zero", "0,1,2,3")),
    "gpt, FSDP": ("2xA100-40GB", ("--depth", "16:20:4", *GPT, "--engine", "fsdp",
                                  "--zero", "2,3")),
    "llama-3-8b, 3 blocks": ("1xA100-40GB", (
        "--model", "llama-3-8b", "--depth", "3", "--seq-len", "1024,2048", "--micro-batch",
        "1:32")),
    "t5-small": ("1xA100-40GB", ("--model", "t5-small", "--seq-len", "512", "--micro-batch",
                                 "1:256")),
}  # fmt: skip
BUDGET = "40m"
LOST = ("oom", "over_ceiling", "over_host_ceiling")
ABOUT = """# Probes lost to memory, with `--weigh`

`scripts/bench/ahead.py` runs each study twice, as users run it, but for `--finals 1`. Emulated
cards are taken for the real ones{more}. A probe is lost if it ran out of memory or went over the
ceiling.

- Here a weighed peak is what the "real" card holds, but for what the allocator kept of candidates
  before. How far real cards are off is in [weighed.md](weighed.md).
- Other programs ran beside the studies, so seconds are long, and not equally.

{machine}; {versions}.
"""


def main(results: Path, *, seeds: str = "0", more_mib: int = 0) -> None:
    rows = rows_in(results)
    known = {(row["space"], row["seed"], row["weigh"]) for row in rows}
    for name, (cards, flags) in CASES.items():
        for seed in seeds.split(","):
            for weigh in ("no", "yes"):
                if (name, seed, weigh) not in known:
                    say(f"{name}, seed {seed}, weighed: {weigh}")
                    of = {"space": name, "seed": seed, "weigh": weigh}
                    rows.append(of | studied(cards, flags, seed, weigh, more_mib))
                    add_row(results, rows[-1])
    print(report(rows, more_mib))


def studied(
    cards: str, flags: Sequence[str], seed: str, weigh: str, more_mib: int
) -> dict[str, str]:
    """The row of one study."""
    emulation = Emulation(cards)
    for unit in emulation.units:
        unit.context += more_mib << 20
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        ahead = ["--weigh"] if weigh == "yes" else []
        done = study_on(emulation, out, "--budget", BUDGET, "--seed", seed, *flags, *ahead)
        if done.returncode:
            raise SystemExit(done.stderr)
        trials = searched(out)
        best = json.loads((out / "best.json").read_text())
    probed = [row["verdict"] for row in trials if row["verdict"] != "skipped"]
    said = re.search(r"--weigh: (\d+) candidates weighed in (\d+) s", done.stderr)
    size = re.search(r"(\d+) candidates:", done.stdout)
    return {
        "candidates": size[1] if size else "",
        "probes": str(len(probed)),
        "lost": str(sum(verdict in LOST for verdict in probed)),
        "weighed": said[1] if said else "0",
        "weighing_s": said[2] if said else "0",
        "elapsed_s": f"{best['provenance']['elapsed_s']:.0f}",
        "best_flops": f"{best['measured']['model_flops_per_s']:.6g}",
        "lost_ones": "; ".join(
            f"{row['key']} {row['reason']}" for row in trials if row["verdict"] in LOST
        ),
    }


def report(rows: Sequence[dict[str, str]], more_mib: int) -> str:
    """The page."""
    lines, total = [], {"no": [0, 0], "yes": [0, 0]}
    pairs: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows:
        pairs.setdefault((row["space"], row["seed"]), {})[row["weigh"]] = row
    for (name, _), pair in pairs.items():
        if len(pair) < 2:
            continue
        before, after = pair["no"], pair["yes"]
        for each in (before, after):
            total[each["weigh"]][0] += int(each["lost"])
            total[each["weigh"]][1] += int(each["probes"])
        worth = float(after["best_flops"]) / float(before["best_flops"]) - 1
        lines.append((
            name, before["candidates"], f"{before['lost']} of {before['probes']}",
            f"{after['lost']} of {after['probes']}", after["weighed"], after["weighing_s"],
            before["elapsed_s"], after["elapsed_s"], f"{worth:+.1%}",
        ))  # fmt: skip
    of = {weigh: f"{lost} of {probes}, {lost / max(1, probes):.1%}"
          for weigh, (lost, probes) in total.items()}  # fmt: skip
    lines.append(("all", "", of["no"], of["yes"], "", "", "", "", ""))
    about = ABOUT.format(
        more=f", with {more_mib} MiB more in each context" if more_mib else "",
        machine=machine(),
        versions=versions("torch", "transformers", "deepspeed"),
    )
    head = (
        "space | candidates | lost | lost with --weigh | weighed | s of it | s in all"
        " | s with --weigh | best, with over without"
    )
    left = [name for name in CASES if not any(name == each[0] for each in lines)]
    return f"{about}\n{table(head, lines)}\n\nNot run: {', '.join(left) or 'none'}."


if __name__ == "__main__":
    run(main)
