"""Watching a user's script: its cost, its errors, and launches until a study finds the best.

    .venv/bin/python scripts/bench/script.py [--parts overhead,rates,search] [--repeats 2]

There are three parts, on the CPU:

- The hook's cost: the CPU time of a plain loop in processes with and without it, in turns, and of
  its functions alone.
- Its rates, beside the figure that the script itself prints.
- A search: every candidate of a small space of an HF Trainer script is launched, `--repeats` times
  in random order. Studies of the same space run in between.

Prints tables in Markdown. A missed goal is printed; the exit code is always 0, since times depend
on the machine.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from shared import ROOT, kept, machine, probing, run, say, table, wiring

from autotune.commands.app import main as autotune
from autotune.commands.exits import ExitCode
from autotune.device.cpu import CpuDevice
from autotune.measure.runner import Job
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.script.launches import HOOK
from autotune.measure.testbed.scripted import Scripted
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from autotune.space.candidate import Candidate
from autotune.space.options import FLAGS, Options
from autotune.space.outcome import Outcome, Record, Verdict
from autotune.study.predict.predictor import Predictor
from autotune.study.prober import Prober, rule_for
from autotune.wire.budget import Clock

OWN = ROOT / "tests" / "support" / "own_script.py"
OVERHEAD, RATE, NEAR, LAUNCHES = 0.004, 0.03, 0.05, 8
"""The goals: cost of a step of 10 ms; difference of two figures; regret after so many launches."""
LIMIT_S = 600.0
ROUNDS = 9

LOOP = """
import json, statistics, sys, time
import torch
torch.set_num_threads(1)
from torch import nn
model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
ids = torch.randint(256, (2, 8))
def loss_now():
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
def step():
    loss_now().backward()
    optimizer.step()
    optimizer.zero_grad()
def cpu_s(call, times):
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times
cpu_s(step, 200)
found = {"step_s": statistics.median(cpu_s(step, 50) for _ in range(100))}
if "_autotune_hook" in sys.modules:
    hook = sys.modules["_autotune_hook"]
    watch, loss = hook._watches[0], loss_now()
    def seen():
        watch.backward(loss)
        watch.stepped(optimizer)
    hook.LOOK_SHARE, share = 0.0, hook.LOOK_SHARE
    found |= {"seen_s": cpu_s(seen, 20000), "look_share": share, "every_s": hook.EVERY_S}
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
    held, names = dict(hooks), torch.autograd.Variable
    engines = names._execution_engine, type(names._execution_engine).__mro__[1]()
    def turned():
        more = []
        for _ in range(200):
            times = []
            for watches in (True, False):
                hooks.update(held) if watches else hooks.clear()
                names._execution_engine = engines[0 if watches else 1]
                times.append(cpu_s(step, 40))
            more.append(times[0] - times[1])
        hooks.update(held)
        names._execution_engine = engines[0]
        return statistics.median(more)
    found["turned_s"] = turned()
    hook.SIZED_S, found["sized_every_s"] = 0.0, hook.SIZED_S
    found["sized_s"] = turned()
    told = []
    for _ in range(100):
        for _ in range(20):
            seen()
        told.append(cpu_s(watch.tell, 1))
    found["tell_s"] = statistics.median(told)
print(json.dumps(found))
"""
"""The CPU time of a tiny step, of which the hook takes the same as of a large one; and of the
hook's functions in one. A busy machine does not change it by much, unlike the time of a clock."""


# The hook's cost.


def overhead() -> list[str]:
    """Lines on a loop with and without the hook, in turns."""
    plain: list[dict[str, float]] = []
    hooked: list[dict[str, float]] = []
    for number in range(ROUNDS):
        for with_hook in (number % 2 == 0, number % 2 == 1):
            (hooked if with_hook else plain).append(loop(with_hook))
    pairs = [h["step_s"] - p["step_s"] for h, p in zip(hooked, plain, strict=True)]
    step_s = statistics.median(each["step_s"] for each in plain)
    seen_s, tell_s, turned_s, sized_s = (
        statistics.median(h[name] for h in hooked)
        for name in ("seen_s", "tell_s", "turned_s", "sized_s")
    )
    found, between = hooked[0], statistics.median(pairs)
    most = max(seen_s, turned_s) / 0.010 + tell_s / found["every_s"] + found["look_share"]
    most += max(0.0, sized_s - turned_s) / found["sized_every_s"]
    rows = [
        (f"CPU time of a tiny step without the hook, median of {ROUNDS} processes",
         f"{step_s * 1e6:.0f} us"),
        ("more with it, pair by pair: median (least to most)",
         f"{between * 1e6:+.1f} us ({min(pairs) * 1e6:+.1f} to {max(pairs) * 1e6:+.1f})"),
        ("more with it, where one process turns it on and off", f"{turned_s * 1e6:+.1f} us"),
        (f"the same with a look at a loss's size, which comes every {found['sized_every_s']:g} s",
         f"{sized_s * 1e6:+.1f} us"),
        ("the hook's own functions in a step", f"{seen_s * 1e6:.1f} us"),
        (f"its message, every {found['every_s']:g} s, in a thread of its own",
         f"{tell_s * 1e6:.0f} us"),
        ("looks at the batch, of the time at most", f"{found['look_share']:.2%}"),
        ("all of that, of a step of 10 ms, at most", f"{most:.2%}"),
    ]  # fmt: skip
    said = goal(f"{most:.2%} of a step of 10 ms", f"at most {OVERHEAD:.1%}", most <= OVERHEAD)
    return [table("measure | measured", rows), "", said]


def loop(with_hook: bool) -> dict[str, float]:
    """The measurements of one process of the loop."""
    channel, environment = Channel(), dict(os.environ)
    dial = channel.dial(0, child=False)
    if with_hook:
        environment |= {
            "AUTOTUNE_DIAL": f"{dial.host}:{dial.port}:{dial.key}", "PYTHONPATH": str(HOOK),
        }  # fmt: skip
    words = [sys.executable, "-c", LOOP]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    peer: Peer | None = None
    while process.poll() is None:
        listened: list[Any] = [channel if peer is None else peer]
        if not wait(listened, 0.2):
            continue
        if peer is None:
            peer = channel.accept()
            continue
        try:
            list(peer.arrived())
        except EOFError:
            break
    out, _ = process.communicate()
    channel.close()
    return {name: float(value) for name, value in json.loads(out).items()}


# Its rates.

RATED = {
    "a small batch": (2, 1, ""),
    "a large batch": (64, 1, ""),
    "accumulation of 4": (8, 4, ""),
    "a slow loader": (4, 1, "--sample-s 0.003"),
}
"""The script's micro-batch, accumulation, and other words."""


def rates() -> list[str]:
    """Lines on steps as the hook saw them, beside those that the script printed."""
    rows, off = [], []
    for name, setting in RATED.items():
        own, seen = rate(*setting)
        off.append(seen / own - 1)
        rows.append((name, f"{own:.0f}", f"{seen:.0f}", f"{off[-1]:+.2%}"))
    most = max(map(abs, off))
    said = goal(f"{most:.2%} at most", f"within {RATE:.0%}", most <= RATE)
    return [table("script | tokens/s, its own | tokens/s, as seen | difference", rows), "", said]


def rate(micro_batch: int, accum: int, words: str) -> tuple[float, float]:
    """Tokens/s of steps 21 to 40 by the script itself, and by the hook."""
    script = f"{python()} {OWN} plain --len 64 --batch {{micro_batch}} --accum {accum} {words}"
    with tempfile.TemporaryDirectory(prefix="autotune-script-") as scratch:
        logs = Path(scratch)
        texts = {"script": script, "micro_batch": str(micro_batch), "budget_s": "10m"}
        options = Options.from_texts(texts | {"device": "cpu"})
        lab = Lab(logs, options)
        rule = replace(
            rule_for("cpu", options), timed_steps=60, warmup_limit_s=0.0, timed_limit_s=0.0
        )
        job = replace(lab.job(lab.space.candidates[0]), rule=rule)
        seen = lab.runner.run(job, time.monotonic() + LIMIT_S).reported
        (log,) = logs.glob("launch*.log")
        own = [float(each) for each in re.findall(r"tokens/s ([\d.]+)", log.read_text())]
        step_s = [*seen.warmup_step_s, *seen.step_s]  # from the second step on
    return own[1], 20 * micro_batch * accum * 64 / sum(step_s[19:39])


# Launches until a study finds the best.

SEARCHED = {
    "micro_batch": "2,4,8,16,32,64", "seq_len": "128,256", "capacity_bytes": "1GiB",
    "device": "cpu", "budget_s": "5m", "objective": "tokens_per_s",
}  # fmt: skip


class Lab:
    """The launches of one script, without a study."""

    def __init__(self, logs: Path, options: Options) -> None:
        testbed = Scripted(CpuDevice(), "cpu")
        self.options, self.space = options, testbed.space(options)
        (self.runner,) = testbed.runners(self.space, [wiring(logs, options.limits.budget_s)])
        self._predictor = Predictor(self.space, "cpu")

    def job(self, candidate: Candidate) -> Job:
        accum = self.space.workload.micro_steps(candidate)
        rule = rule_for("cpu", self.options)
        return probing(candidate, rule, grad_accum=accum, fresh=True)

    def outcome(self, candidate: Candidate) -> Outcome:
        """The outcome of a launch, judged as in a study."""
        clock = Clock(self.options.limits.budget_s, time.monotonic())
        prober = Prober(self.space, "cpu", clock, self.runner, self.options)
        probed = prober.measure(self.job(candidate), self._predictor.peak(candidate), LIMIT_S)
        return probed.outcome


@dataclass(frozen=True)
class Row:
    """One candidate, by all of its launches."""

    key: str
    tokens_per_s: tuple[float, ...]
    """Speeds of the measured launches."""
    verdicts: tuple[str, ...]
    peak_bytes: int

    @property
    def fits(self) -> bool:
        return all(verdict == Verdict.OK for verdict in self.verdicts)

    @property
    def value(self) -> float:
        """Tokens/s; 0 if it does not always fit."""
        return statistics.median(self.tokens_per_s) if self.fits else 0.0


def search(repeats: int) -> list[str]:
    """Lines on every candidate, and on studies beside."""
    script = (  # one thread: programs on other cores disturb it less
        f"OMP_NUM_THREADS=1 {python()} {OWN} hf --batch {{micro_batch}} --len {{seq_len}}"
        " --out {out}"
    )
    texts = {"script": script} | SEARCHED
    rng, studies = random.Random(0), []
    with tempfile.TemporaryDirectory(prefix="autotune-script-") as scratch:
        folder = Path(scratch)
        lab = Lab(folder / "logs", Options.from_texts(texts))
        outcomes: dict[Candidate, list[Outcome]] = {c: [] for c in lab.space.candidates}
        for number in range(repeats):
            for candidate in rng.sample(lab.space.candidates, len(outcomes)):
                outcomes[candidate].append(lab.outcome(candidate))
                last = outcomes[candidate][-1]
                say(f"{candidate.key}: {last.verdict}, {last.probe_s:.1f} s")
            if number + 1 < repeats:
                studies.append(study(script, folder / f"study{number}"))
    rows = [row(candidate, found) for candidate, found in outcomes.items()]
    return report(rows, studies, lab.space.limits.limit_bytes)


def study(script: str, out: Path) -> list[Record]:
    """The search's records of a study of the same space, in their order."""
    if not studied({"script": script} | SEARCHED, out):
        return []
    records = [r for r in records_in(Folder(out)) if r.purpose == "search"]
    return [r for r in records if r.outcome.verdict != Verdict.SKIPPED]


def studied(texts: Mapping[str, str], out: Path) -> bool:
    """Whether a study with these options, which learns from none, found something."""
    words = {**texts, "learn_from": "none", "out": str(out)}.items()
    with redirect_stdout(sys.stderr):
        code = autotune([word for name, text in words for word in (FLAGS[name].name, text)])
    return code == ExitCode.FOUND


def row(candidate: Candidate, found: Sequence[Outcome]) -> Row:
    speeds = [each.measurement.tokens_per_s for each in found if each.measurement]
    peaks = [each.peaks.device_bytes for each in found if each.peaks]
    verdicts = tuple(str(each.verdict) for each in found)
    return Row(candidate.key, tuple(speeds), verdicts, max(peaks, default=0))


def report(
    rows: Sequence[Row], studies: Sequence[Sequence[Record]], limit_bytes: int
) -> list[str]:
    best = max(rows, key=lambda each: each.value)
    head = "candidate | verdicts | tokens/s, each launch | below the best | peak"
    shown = (
        (
            each.key, ", ".join(dict.fromkeys(each.verdicts)),
            ", ".join(f"{speed:.0f}" for speed in each.tokens_per_s),
            f"{1 - each.value / best.value:.1%}" if each.fits else "",
            f"{each.peak_bytes / 2**20:.0f} MiB",
        )
        for each in sorted(rows, key=lambda each: -each.value)
    )  # fmt: skip
    lines = [f"{len(rows)} candidates, limit {limit_bytes / 2**20:.0f} MiB.", ""]
    lines.append(table(head, shown))
    apart = [max(each.tokens_per_s) / min(each.tokens_per_s) - 1 for each in rows]
    lines += ["", f"Launches of one candidate are {statistics.median(apart):.0%} apart (median)."]
    by_key = {each.key: each for each in rows}
    for number, records in enumerate(studies, 1):
        lines += ["", f"Study {number}, launch by launch:", "", course(records, by_key, best)]
    within = [near(records, by_key, best) for records in studies]
    said = ", ".join("never" if each is None else str(each) for each in within)
    held = all(each is not None and each <= LAUNCHES for each in within)
    return [
        *lines, "",
        goal(f"within {NEAR:.0%} of the best after launches: {said}",
             f"within {LAUNCHES} launches", held),
    ]  # fmt: skip


def course(records: Sequence[Record], rows: Mapping[str, Row], best: Row) -> str:
    """A table of one study: each launch, and its incumbent's speed by the other launches."""
    lines: list[Sequence[object]] = []
    for record, behind in zip(records, regrets(records, rows, best), strict=True):
        found = record.outcome.measurement
        speed = f"{found.tokens_per_s:.0f}" if found else ""
        below = "" if behind is None else f"{behind:.1%}"
        case = (len(lines) + 1, record.candidate.key, record.outcome.verdict)
        lines.append((*case, speed, below))
    return table("launch | candidate | verdict | tokens/s | incumbent below the best", lines)


def regrets(records: Sequence[Record], rows: Mapping[str, Row], best: Row) -> list[float | None]:
    """After each launch, the share by which the incumbent is below the best; None without one."""
    found: list[float | None] = []
    incumbent: Record | None = None
    for record in records:
        if record.outcome.verdict == Verdict.OK and (
            incumbent is None or record.measured.tokens_per_s > incumbent.measured.tokens_per_s
        ):
            incumbent = record
        value = None if incumbent is None else rows[incumbent.candidate.key].value
        found.append(None if value is None else 1 - value / best.value)
    return found


def near(records: Sequence[Record], rows: Mapping[str, Row], best: Row) -> int | None:
    """Launches until the incumbent is near the best; None if it never is."""
    behind = enumerate(regrets(records, rows, best), 1)
    return next((n for n, each in behind if each is not None and each <= NEAR), None)


def goal(measured: str, promised: str, held: bool) -> str:
    return f"{measured} (goal: {promised}): {kept(held)}."


def python() -> str:
    return shlex.quote(sys.executable)


PARTS: Mapping[str, tuple[str, Callable[[int], list[str]]]] = {
    "overhead": ("What the hook costs", lambda repeats: overhead()),
    "rates": ("How true its rates are", lambda repeats: rates()),
    "search": ("How soon a study finds the best", search),
}


def main(*, parts: str = ",".join(PARTS), repeats: int = 2) -> None:
    """Each candidate is launched `repeats` times."""
    print(f"Machine: {machine()}.")
    for name in parts.split(","):
        title, part = PARTS[name]
        print("\n".join(["", f"## {title}", "", *part(repeats)]), flush=True)


if __name__ == "__main__":
    run(main)
