"""Other tools that look for a micro-batch, and this one, on the same GPT under the same limit.

    .venv/bin/pip install -c scripts/constraints.txt -e .[bench]
    .venv/bin/python scripts/bench/peers.py [--budget 2m] [--capacity 896MiB] [--rounds 40]

One after the other, each tool searches micro_batch in processes of its own on the CPU. All have
the memory limit of a rank of the study. In a second row, the study also searches seq_len and
checkpointing. Then all found configurations are measured beside every micro_batch, in turns, in
the same worker groups. Many short rounds follow beside those that may be the best. Progress goes
to stderr. A tool that is not installed, fails or takes too long has a row that says so. The exit
code is always 0.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from peer_tools.task import Task
from shared import ROOT, probing, run, say, table, versions, wiring

from autotune.device import open_device
from autotune.device.device import Device
from autotune.measure.runner import Result
from autotune.measure.runner.local import OPS
from autotune.measure.runner.pool import Pool, on_this_machine
from autotune.result.best import Best
from autotune.result.folder.table import load_trials
from autotune.show.report.text import si
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Limits
from autotune.space.workload import Workload
from autotune.units import parse_bytes
from autotune.wire.stopping import Interval, Rule, interval

TOOLS = ROOT / "scripts" / "bench" / "peer_tools"
DEPTH, WIDTH, VOCAB_SIZE, SEQ_LEN = 4, 256, 4096, 128
STUDIES = (
    ("this project", ("--seq-len", str(SEQ_LEN), "--checkpointing", "none")),
    ("this project, wider space", ("--seq-len", "64,128,256", "--checkpointing", "none,full")),
)
CEILING = 0.8
WORKLOAD = Workload(
    model="gpt", width=WIDTH, vocab_size=VOCAB_SIZE, dtype="fp32", engine="ddp", world_size=1,
    global_batch=None,
)  # fmt: skip
RULE = Rule(
    warmup_steps=3, warmup_tolerance=0.2, warmup_limit_s=1.0,
    timed_steps=5, half_width=0.02, timed_limit_s=1.5,
)  # fmt: skip
SHORT = replace(RULE, warmup_steps=2, warmup_limit_s=0.1, timed_steps=2, timed_limit_s=0.1)
"""The rule of a round: disturbances are the same for all in it."""
CONTESTED = 6
"""Number of micro-batches that are measured in rounds: the fastest ones."""
PEER_OPS = ("ShareMemCommBuilder",)
"""Operations that DeepSpeed compiles on a CPU. This takes minutes once a machine, which do not
count as cost of a search."""
REMARK_CHARACTERS = 160
DEADLINE_S = 180.0
"""Seconds for a probe."""


@dataclass(frozen=True)
class Peer:
    """A tool that is driven by one of the scripts in `peer_tools/`."""

    tool: str
    modules: tuple[str, ...]
    """The packages that it needs."""
    script: str
    mode: str = ""

    @property
    def name(self) -> str:
        return f"{self.tool}, {self.mode}" if self.mode else self.tool


PEERS = (
    Peer("accelerate, find_executable_batch_size", ("accelerate",), "with_accelerate.py"),
    Peer("Lightning, scale_batch_size", ("lightning",), "with_lightning.py", "power"),
    Peer("Lightning, scale_batch_size", ("lightning",), "with_lightning.py", "binsearch"),
    Peer("DeepSpeed, --autotuning tune", ("deepspeed", "tabulate"), "with_deepspeed.py"),
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A candidate, with the micro-steps of its optimizer step."""

    candidate: Candidate
    grad_accum: int = 1


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of one tool, and its costs."""

    tool: str
    schedule: Schedule | None = None
    wall_s: float = 0.0
    launches: int = 0
    """Processes that trained."""
    ooms: int = 0
    remark: str = ""


@dataclass
class Measured:
    """A schedule in the common harness, over all repeats."""

    flops_per_s: list[float] = field(default_factory=list)
    """Model FLOP/s of each repeat, from the median of its steps."""
    peak_bytes: int = 0
    """The largest peak of any repeat."""
    reason: str = ""
    """Why there is no measurement."""
    rounds: list[float] = field(default_factory=list)
    """Model FLOP/s of each round."""

    @property
    def median(self) -> float:
        return statistics.median(self.flops_per_s)


@dataclass(frozen=True)
class Comparison:
    """All measurements, and their yardstick."""

    measured: Mapping[Schedule, Measured]
    axis: Sequence[Schedule]
    """The configurations that every tool could find."""
    limits: Limits

    def objection(self, schedule: Schedule) -> str:
        """Why a configuration may not be used; empty if it may."""
        found = self.measured[schedule]
        over = found.peak_bytes > self.limits.limit_bytes
        return found.reason or ("over the ceiling" if over else "")

    @property
    def fastest(self) -> list[Schedule]:
        """The usable ones of the axis, the fastest in the repeats first."""
        fits = [each for each in self.axis if not self.objection(each)]
        return sorted(fits, key=lambda each: -self.measured[each].median)

    @property
    def optimum(self) -> Schedule | None:
        """The fastest usable one of the axis; None without any. The first half of the rounds
        chooses it, the second half compares."""
        fits = self.fastest
        return max(fits, key=lambda each: self._share(each, fits[0], False).median, default=None)

    def share(self, schedule: Schedule) -> Interval | None:
        """Share of the optimum's speed, with a 95 % interval; None without an optimum."""
        best = self.optimum
        return None if best is None else self._share(schedule, best, True)

    def _share(self, schedule: Schedule, best: Schedule, second: bool) -> Interval:
        """Share of the speed of `best`, round by round in one half of the rounds; without rounds,
        by medians. A schedule without rounds is the slowest."""
        mine, its = self.measured[schedule], self.measured[best]
        if not its.rounds:
            return interval([mine.median / its.median])
        half = len(its.rounds) // 2
        part = slice(half, None) if second else slice(half)
        pairs = zip(mine.rounds[part], its.rounds[part], strict=False)
        return interval([a / b for a, b in pairs] or [0.0])


@dataclass(frozen=True)
class Ended:
    """An ended process. `code` is None if its time was up."""

    code: int | None
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class Limited:
    """The settings of the comparison."""

    budget: str = "2m"
    """Budget of each study."""
    capacity: str = "896MiB"
    """Pretended capacity."""
    most: int = 32
    """The largest micro_batch."""
    repeats: int = 3
    """Measurements of each schedule."""
    rounds: int = 40
    """Short rounds of found and fastest schedules."""
    limit_s: float = 480.0
    """Seconds for a tool."""

    @property
    def capacity_bytes(self) -> int:
        return parse_bytes(self.capacity, "--capacity")


def main(options: Annotated[Limited, Parameter(name="*")] = Limited()) -> None:
    device = open_device("cpu")
    axis = [
        Schedule(Candidate(depth=DEPTH, seq_len=SEQ_LEN, micro_batch=size))
        for size in range(1, options.most + 1)
    ]
    host_bytes = device.infos[0].capacity_bytes
    limits = Limits(
        capacity_bytes=options.capacity_bytes,
        ceiling=CEILING,
        host_capacity_bytes=host_bytes,
        host_ceiling=1.0,
    )
    rows: list[Found] = []
    with tempfile.TemporaryDirectory() as scratch:
        ran([*OPS, *PEER_OPS], Path(scratch, "ops.log"), options.limit_s)
        for peer in PEERS:
            asked = Task(
                folder=tempfile.mkdtemp(dir=scratch), depth=DEPTH, width=WIDTH,
                vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN, most=options.most,
                capacity_bytes=options.capacity_bytes, mode=peer.mode,
            )  # fmt: skip
            rows.append(searched(peer, asked, options.limit_s))
        for name, flags in STUDIES:
            rows.append(studied(name, flags, options, Path(tempfile.mkdtemp(dir=scratch))))
        found = [row.schedule for row in rows if row.schedule is not None]
        compared = Comparison({each: Measured() for each in [*axis, *found]}, axis, limits)
        measure(device, compared, found, options)
    print(f"{header(device, limits, options)}\n\n{report(rows, compared)}")
    print(f"\nEvery micro_batch:\n\n{curve(compared)}")


def searched(peer: Peer, asked: Task, limit_s: float) -> Found:
    """Have `peer` look for a micro-batch."""
    missing = [name for name in peer.modules if importlib.util.find_spec(name) is None]
    if missing:
        return Found(tool=peer.name, remark=f"not installed: {', '.join(missing)}")
    log = Path(asked.folder, "log")
    command = [sys.executable, str(TOOLS / peer.script), str(asked.write())]
    ended = ran(command, log, limit_s)
    say(f"{peer.name}: {ended.wall_s:.0f} s")
    row = Found(
        tool=peer.name,
        wall_s=ended.wall_s,
        launches=asked.counted("launch"),
        ooms=asked.counted("oom"),
    )
    answer = asked.answer
    if answer is None:
        return replace(row, remark=failure(ended, log))
    candidate = Candidate(depth=DEPTH, seq_len=SEQ_LEN, micro_batch=answer.micro_batch)
    return replace(row, schedule=Schedule(candidate, answer.grad_accum))


def studied(name: str, flags: Sequence[str], options: Limited, folder: Path) -> Found:
    """Have this project search micro_batch, and the axes in `flags`."""
    out, log = folder / "study", folder / "log"
    command = [
        sys.executable, "-m", "autotune", "--device", "cpu", "--world-size", "1",
        "--depth", str(DEPTH), "--gpt", f"width={WIDTH},vocab_size={VOCAB_SIZE}",
        "--micro-batch", f"1:{options.most}", "--capacity", options.capacity,
        "--ceiling", f"{CEILING:.0%}", "--budget", options.budget, "--out", str(out), *flags,
    ]  # fmt: skip
    ended = ran(command, log, options.limit_s)
    say(f"{name}: {ended.wall_s:.0f} s")
    launches, ooms = accounts(out)
    row = Found(tool=name, wall_s=ended.wall_s, launches=launches, ooms=ooms)
    best = out / "best.json"
    if not best.exists():
        return replace(row, remark=failure(ended, log))
    return replace(row, schedule=Schedule(Best.read(best).config.candidate))


def accounts(study: Path) -> tuple[int, int]:
    """Ranks that a study started, and its trials that ran out of memory."""
    launches = len(list((study / "logs").glob("group*-rank*.log")))
    if not (study / "trials.csv").exists():
        return launches, 0
    return launches, int((load_trials(study)["verdict"] == Verdict.OOM).sum())


def ran(command: Sequence[str], log: Path, limit_s: float) -> Ended:
    """Run `command` like a rank, in a session that ends with it or after `limit_s`."""
    modules = os.pathsep.join([str(ROOT), str(TOOLS.parent)])
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    environment = os.environ | open_device("cpu").rank_environment(1)
    environment |= {"PYTHONPATH": modules, "PATH": programs}
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=log.parent, env=environment, stdin=subprocess.DEVNULL,
            stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    code = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(code, time.monotonic() - began)


def failure(ended: Ended, log: Path) -> str:
    """Why a tool found nothing: its time was up, or the last line of its output."""
    if ended.code is None:
        return f"ended after {ended.wall_s:.0f} s without a result"
    lines = log.read_text(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"exit code {ended.code}: {said}"[:REMARK_CHARACTERS]


def measure(
    device: Device, compared: Comparison, found: Sequence[Schedule], options: Limited
) -> None:
    """Measure every schedule, in a new order each time; then found and fastest ones in rounds.

    Each repeat has worker groups of its own. A schedule that runs out of memory in a fresh group
    is not measured again.
    """
    measured = compared.measured
    rng = random.Random(0)
    began = time.monotonic()
    contested = list(measured)
    with (
        tempfile.TemporaryDirectory() as logs,
        closing(on_this_machine(device, WORKLOAD, compared.limits, wiring(Path(logs)))) as runner,
    ):
        for number in range(options.repeats + options.rounds):
            short = number >= options.repeats
            if number == options.repeats:
                contested = list(dict.fromkeys([*compared.fastest[:CONTESTED], *found]))
            if not short:
                runner.retire(time.monotonic() + DEADLINE_S)
            order = [schedule for schedule in contested if not measured[schedule].reason]
            rng.shuffle(order)
            live = runner.live_build  # with two builds, a group ends once a round
            order.sort(key=lambda schedule: schedule.candidate.build != live)
            for schedule in order:
                result = probe(runner, schedule, compared.limits, short)
                add(measured[schedule], schedule, result, short)
            say(f"harness: {number + 1}, {time.monotonic() - began:.0f} s")


def probe(runner: Pool, schedule: Schedule, limits: Limits, short: bool) -> Result:
    """One measurement. Only a fresh group decides that memory is too small, or a peak too large:
    in a warm one, earlier probes may be the cause. A `short` one shows no peak."""
    rule = SHORT if short else RULE
    job = probing(schedule.candidate, rule, grad_accum=schedule.grad_accum)
    result = runner.run(job, time.monotonic() + DEADLINE_S)
    over = result.report is not None and result.report.peaks.device_bytes > limits.limit_bytes
    if result.warm and (result.verdict is Verdict.OOM or (over and not short)):
        result = runner.run(replace(job, fresh=True), time.monotonic() + DEADLINE_S)
    return result


def add(measured: Measured, schedule: Schedule, result: Result, short: bool) -> None:
    """Add the `result` of `schedule`, which is `short` in a round."""
    if result.report is None:
        out = result.verdict is Verdict.OOM
        measured.reason = "runs out of memory" if out else result.reason
        return
    if not short:
        measured.peak_bytes = max(measured.peak_bytes, result.report.peaks.device_bytes)
    candidate = schedule.candidate
    tokens = candidate.tokens * schedule.grad_accum
    flops = WORKLOAD.shape(DEPTH).flops_per_token(candidate.seq_len) * tokens
    rates = measured.rounds if short else measured.flops_per_s
    rates.append(flops / interval(result.report.step_s).median)


def header(device: Device, limits: Limits, options: Limited) -> str:
    """The setting: task, device and versions."""
    parameters = WORKLOAD.shape(DEPTH).parameters
    tools = versions("torch", "accelerate", "lightning", "deepspeed")
    return (
        f"{device.infos[0].name}; {tools}; gpt of depth {DEPTH} and width {WIDTH},"
        f" {parameters / 1e6:.1f}M parameters, vocab_size {VOCAB_SIZE}, fp32, AdamW, 1 rank,"
        f" seq_len {SEQ_LEN}, checkpointing none, micro_batch 1 to {options.most}. Capacity"
        f" {limits.capacity_bytes / 2**20:.0f} MiB, ceiling {CEILING:.0%}.\n"
        "What was found is measured again beside every micro_batch, in turns: rates are medians of"
        f" {options.repeats} probes, peaks the largest. 100 % is the fastest micro_batch under the"
        " ceiling, also for the wider space, which has seq_len 64 and 256 and full checkpointing"
        f" besides. It is chosen in the first half of {options.rounds} short rounds of what was"
        f" found and of the {CONTESTED} fastest; shares are medians of the second half, round by"
        " round, with 95 % intervals."
        f" A study's budget is {options.budget}. Launches are processes that trained."
        " What a tool's libraries take is not held against it."
    )


def report(rows: Sequence[Found], compared: Comparison) -> str:
    """The table of found schedules; its first line is the exhaustive optimum."""
    head = (
        "tool | configuration found | of the optimum | model FLOP/s | peak, of capacity"
        " | wall time | launches | OOMs | remark"
    )
    top = ("exhaustive optimum", *cells(compared.optimum, compared), *[""] * 4)
    return table(head, [top, *(line(row, compared) for row in rows)])


def line(row: Found, compared: Comparison) -> Sequence[object]:
    """One tool's line."""
    remark = row.remark if row.schedule is None else compared.objection(row.schedule)
    costs = (f"{row.wall_s:.0f} s", row.launches, row.ooms) if row.wall_s else [""] * 3
    return row.tool, *cells(row.schedule, compared), *costs, remark


def cells(schedule: Schedule | None, compared: Comparison) -> Sequence[str]:
    """The configuration, its share of the optimum, its rate and its peak."""
    if schedule is None:
        return "none", "", "", ""
    found = compared.measured[schedule]
    if found.reason:
        return words(schedule), "", "", ""
    of = compared.share(schedule)
    share = "" if of is None else f"{of.median:.1%}"
    if of is not None and of.steps > 1 and schedule != compared.optimum:
        share += f" ({of.low:.1%} to {of.high:.1%})"
    peak = found.peak_bytes / compared.limits.capacity_bytes
    return words(schedule), share, si(found.median, "FLOP/s"), f"{peak:.0%}"


def words(schedule: Schedule) -> str:
    """A configuration by its differences from the common one."""
    candidate = schedule.candidate
    parts = [f"micro_batch {candidate.micro_batch}"]
    if schedule.grad_accum > 1:
        parts.append(f"grad_accum {schedule.grad_accum}")
    if candidate.seq_len != SEQ_LEN:
        parts.append(f"seq_len {candidate.seq_len}")
    if candidate.checkpointing != "none":
        parts.append(f"checkpointing {candidate.checkpointing}")
    return ", ".join(parts)


def curve(compared: Comparison) -> str:
    """The table of the whole axis, with the range of the repeats."""
    lines = []
    for schedule in compared.axis:
        found, rates = compared.measured[schedule], [""] * 3
        if not found.reason:
            low, high = min(found.flops_per_s), max(found.flops_per_s)
            peak = found.peak_bytes / compared.limits.capacity_bytes
            rates = [si(found.median), f"{si(low)} to {si(high)}", f"{peak:.0%}"]
        lines.append([schedule.candidate.micro_batch, *rates, compared.objection(schedule)])
    return table("micro_batch | model FLOP/s | range | peak, of capacity | remark", lines)


if __name__ == "__main__":
    run(main)
