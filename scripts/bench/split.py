"""Whether rates and winners are true of scripts whose ranks share a model.

    .venv/bin/python scripts/bench/split.py [--only tp,ddp] [--launches 3] [--studies 2]

On the CPU, with `tests/support/parallel_script.py`. Every candidate of each script is launched
`--launches` times, in random order. Of the same steps, the rate that autotune credits is held
against the one that the script prints. Then come studies: the winner of each is held against the
candidate whose median rate by the script's own figures is the best. A winner that is no further
behind than launches of one candidate differ is no loss. Prints tables in Markdown; the exit code
is 0 whatever comes out, since times depend on the machine.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from script import Lab, goal, python, studied
from shared import ROOT, machine, run, say, table

from autotune.result.best import Best
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.study.prober import rule_for
from autotune.wire.reports import Report

SCRIPT = ROOT / "tests" / "support" / "parallel_script.py"
CREDIT = 0.02
"""The goal: credited and printed rates of the same steps differ by no more."""
FIGURE_STEPS = 10
"""Of each rate that the script prints."""
BUDGET_S = 180
LIMIT_S = 300.0


@dataclass(frozen=True)
class Case:
    """A script, its ranks, its words, and what is searched beside the micro-batch."""

    how: str
    ranks: int
    words: str = ""
    axes: tuple[tuple[str, str], ...] = ()
    micro_batch: str = "4,8"

    @property
    def texts(self) -> dict[str, str]:
        command = (
            f"OMP_NUM_THREADS=1 {python()} -m torch.distributed.run --standalone"
            f" --nproc-per-node {self.ranks} {SCRIPT} {self.how} --batch {{micro_batch}}"
            f" --pause-s 0.05 {self.words}"
        )
        asked = {"script": command, "micro_batch": self.micro_batch, "device": "cpu"}
        return asked | {"objective": "tokens_per_s", "budget_s": f"{BUDGET_S}s"} | dict(self.axes)


SEQUENCES = "--len {seq_len}"
CASES = {
    "DDP": Case("ddp", 2, micro_batch="4,8,16"),
    "FSDP2": Case("fsdp", 2, micro_batch="4,8,16"),
    "hybrid shard": Case("hsdp", 4, "--degree {dp_shard}", (("dp_shard", "2,4"),)),
    "TP by hand": Case("tp", 2, "--degree {tp}", (("tp", "1,2"),)),
    "TP by DTensor": Case("dtensor", 2, "--degree {tp}", (("tp", "1,2"),)),
    "1F1B pipeline": Case("pipeline", 2, "--degree 2 --parts {parts}", (("axis", "parts=2,4"),)),
    "context parallel": Case("cp", 2, f"--degree {{cp}} {SEQUENCES}",
                             (("cp", "1,2"), ("seq_len", "32"))),
    "TP x DP, 2 x 2": Case("tp", 4, "--degree {tp} --accum {grad_accum}",
                           (("tp", "1,2,4"), ("global_batch", "32")), "8"),
}  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """One launch: rates of the same steps."""

    own: float
    credited: float

    @property
    def off(self) -> float:
        return self.credited / self.own - 1


def launched(lab: Lab, logs: Path, candidate: Candidate) -> Launched:
    """The rates of one launch of `candidate`."""
    rule = replace(rule_for("cpu", lab.options), timed_steps=60, timed_limit_s=0.0)
    result = lab.runner.run(replace(lab.job(candidate), rule=rule), time.monotonic() + LIMIT_S)
    log = max(logs.glob("launch*.log"), key=os.path.getmtime)
    return same_steps(
        result.reported, [float(f) for f in re.findall(r"tokens/s ([\d.]+)", log.read_text())]
    )


def same_steps(report: Report, figures: Sequence[float]) -> Launched:
    """The mean rates of the steps that `figures`, but the first of them, are of."""
    assert report.ran is not None
    step_s = [*report.warmup_step_s, *report.step_s]  # from the second step on
    both = min(len(figures), (len(step_s) + 1) // FIGURE_STEPS)
    own_s = sum(1 / each for each in figures[1:both])
    seen_s = sum(step_s[FIGURE_STEPS - 1 : both * FIGURE_STEPS - 1])
    steps = (both - 1) * FIGURE_STEPS
    return Launched((both - 1) / own_s, steps * report.ran.tokens / seen_s)


def study(case: Case, out: Path) -> Best | None:
    """The result of a study of `case`; None where it has none."""
    return Best.read(out / "best.json") if studied(case.texts | {"finals": "2"}, out) else None


@dataclass(frozen=True)
class Judged:
    """The rows of one script, and whether each goal was reached."""

    candidates: list[Sequence[object]]
    studies: list[Sequence[object]]
    off: list[float]
    lost: int


def judged(name: str, case: Case, launches: int, studies: int) -> Judged:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="autotune-split-") as scratch:
        folder = Path(scratch)
        lab = Lab(folder / "logs", Options.from_texts(case.texts))
        found: dict[Candidate, list[Launched]] = {c: [] for c in lab.space.candidates}
        for _ in range(launches):
            for candidate in rng.sample(list(found), len(found)):
                found[candidate].append(launched(lab, folder / "logs", candidate))
                say(f"{name}, {lab.space.name(candidate)}: {found[candidate][-1]}")
        value = {c: statistics.median(each.own for each in of) for c, of in found.items()}
        most = max(value.values())
        noise = max(max(e.own for e in of) / min(e.own for e in of) - 1 for of in found.values())
        rows: list[Sequence[object]] = [
            (name, lab.space.name(c), f"{value[c]:.0f}", f"{1 - value[c] / most:.1%}",
             ", ".join(f"{each.off:+.2%}" for each in of))
            for c, of in sorted(found.items(), key=lambda each: -value[each[0]])
        ]  # fmt: skip
        said: list[Sequence[object]] = []
        lost = 0
        for number in range(studies):
            best = study(case, folder / f"study{number}")
            winner = None if best is None else lab.space.asked_for(best.config.candidate)
            if best is None or winner is None:
                lost += 1
                said.append((name, "no result", "", "", "lost"))
                continue
            behind = 1 - value[winner] / most
            lost += behind > noise
            said.append((
                name, lab.space.name(winner), f"{best.measured.tokens_per_s:.0f}", f"{behind:.1%}",
                "lost" if behind > noise else "best" if not behind else f"noise is {noise:.1%}",
            ))  # fmt: skip
    return Judged(rows, said, [each.off for of in found.values() for each in of], lost)


def main(*, only: str = ",".join(CASES), launches: int = 3, studies: int = 2) -> None:
    """Scripts by their names, or the beginnings of these, between commas."""
    print(f"Machine: {machine()}, load {os.getloadavg()[0]:.0f} at the start.\n", flush=True)
    every: list[Judged] = []
    for name, case in CASES.items():
        if any(name.lower().startswith(word.strip().lower()) for word in only.split(",")):
            every.append(judged(name, case, launches, studies))
    print(table("script | candidate | tokens/s, its own | below the best | credited, each launch",
                (row for each in every for row in each.candidates)))  # fmt: skip
    off = [each for of in every for each in of.off]
    near = sum(abs(each) <= CREDIT for each in off)
    print("\n" + goal(f"{near} of {len(off)} launches are credited to {CREDIT:.0%}", "all",
                      near == len(off)))  # fmt: skip
    if studies:
        print("\n" + table("script | winner | tokens/s | below the best | judged",
                           (row for each in every for row in each.studies)))  # fmt: skip
        count, lost = len(every) * studies, sum(each.lost for each in every)
        said = f"{count - lost} of {count} studies chose the best, or one within noise of it"
        print("\n" + goal(said, "all", not lost))
    print(f"\nLoad {os.getloadavg()[0]:.0f} at the end.")


if __name__ == "__main__":
    run(main)
