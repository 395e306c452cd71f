"""Step times of long schedules from two of their micro-steps, beside whole ones.

    .venv/bin/python scripts/bench/accum.py [--repeats 7] [--accum 4,8,16]

The search runs two micro-steps of a schedule and scales the early one's time; the finals run all.
Both are measured here in the same live groups on the CPU, and compared pair by pair. They take
turns, so disturbances meet both. The promise is that they agree within 3 %. The exit code is
always 0, since times depend on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared import (
    ProbeFailedError,
    gpt,
    numbers,
    pool,
    probing,
    reported,
    run,
    say,
    table,
    versions,
)

from autotune.device import open_device
from autotune.device.device import Device
from autotune.measure.runner.pool import Pool
from autotune.space.candidate import Candidate
from autotune.space.outcome import others_share
from autotune.wire.reports import Report
from autotune.wire.stopping import Rule, interval

PROMISED = 0.03
SEARCH_MICRO_STEPS = 2
SETUPS = (("ddp", 0, 1), ("ddp", 0, 2), ("deepspeed", 2, 2))
"""Engine, stage, ranks."""
DEPTH, WIDTH, VOCAB_SIZE, SEQ_LEN, MICRO_BATCH = 2, 256, 1024, 64, 4
RULE = Rule(
    warmup_steps=3, warmup_tolerance=0.2, warmup_limit_s=1.0,
    timed_steps=5, half_width=0.02, timed_limit_s=1.2,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A schedule measured both ways, one right after the other. Times are seconds."""

    scaled_s: float
    """A step of the schedule, from two micro-steps."""
    full_s: float
    """A whole step of the schedule."""
    disturbed_share: float
    """Share of the processor time that others took, the larger of both."""
    loss: float

    @property
    def ratio(self) -> float:
        return self.scaled_s / self.full_s


def main(*, repeats: int = 7, accum: str = "4,8,16") -> None:
    device = open_device("cpu")
    rows = [row for setup in SETUPS for row in measured(device, setup, numbers(accum), repeats)]
    head = (
        "engine | ranks | grad_accum | scaled step | full step | spread of full | disturbed"
        " | scaled/full | interval | within 3 % | loss"
    )
    print(f"{header(device, repeats)}\n\n{table(head, rows)}")


def measured(
    device: Device, setup: tuple[str, int, int], accums: Sequence[int], repeats: int
) -> Iterator[Sequence[object]]:
    """A row of the table for every schedule of one engine and world size, in one live group."""
    engine, stage, ranks = setup
    name = f"{engine} stage {stage}" if stage else engine
    candidate = Candidate(depth=DEPTH, seq_len=SEQ_LEN, micro_batch=MICRO_BATCH, zero_stage=stage)
    with pool(device, gpt(WIDTH, VOCAB_SIZE, ranks, engine)) as runner:
        for accum in accums:
            case = (name, ranks, accum)
            try:
                probe(runner, candidate, accum, SEARCH_MICRO_STEPS)  # starts the group, warms it
                pairs = [
                    pair(runner, candidate, accum, scaled_first=number % 2 == 0)
                    for number in range(repeats)
                ]
            except ProbeFailedError as error:
                yield *case, *[""] * 6, error, ""
            else:
                yield *case, *cells(pairs)
            say(f"{name}, {ranks} ranks, grad_accum {accum}")


def pair(runner: Pool, candidate: Candidate, grad_accum: int, *, scaled_first: bool) -> Pair:
    """The schedule measured both ways, in either order."""
    ways = [SEARCH_MICRO_STEPS, grad_accum]
    reports = {way: probe(runner, candidate, grad_accum, way)
               for way in (ways if scaled_first else reversed(ways))}  # fmt: skip
    scaled, full = (reports[way] for way in ways)
    return Pair(
        interval(scaled.step_s).median,
        interval(full.step_s).median,
        max(others_share(report.conditions) for report in reports.values()),
        full.loss,
    )


def probe(runner: Pool, candidate: Candidate, grad_accum: int, micro_steps: int) -> Report:
    """One probe in the live group."""
    job = probing(candidate, RULE, grad_accum=grad_accum, micro_steps=micro_steps)
    return reported(runner, job)


def header(device: Device, repeats: int) -> str:
    """The setting: device and versions."""
    return (
        f"{device.infos[0].name}; {versions('torch', 'deepspeed')};"
        f" gpt of depth {DEPTH} and width {WIDTH}, fp32, AdamW, micro_batch {MICRO_BATCH},"
        f" seq_len {SEQ_LEN}.\nMedians of {repeats} pairs in live groups; the ratio is the median"
        " of the pairs' ratios, with its 95 % interval (the whole range below 6 pairs). Disturbed:"
        " the share of processor time that other programs and the hypervisor took, a median."
    )


def cells(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The cells of a measured schedule."""
    full_s = interval([pair.full_s for pair in pairs])
    scaled_s = statistics.median(pair.scaled_s for pair in pairs)
    ratio = interval([pair.ratio for pair in pairs])
    disturbed = statistics.median(pair.disturbed_share for pair in pairs)
    return (
        f"{scaled_s * 1e3:.1f} ms",
        f"{full_s.median * 1e3:.1f} ms",
        f"±{full_s.half_width:.1%}",
        f"{disturbed:.0%}",
        f"{ratio.median:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        word(ratio.low, ratio.high),
        f"{pairs[-1].loss:.4f}",
    )


def word(low: float, high: float) -> str:
    """Whether the promise is held; undecided if the interval includes the limit."""
    if low >= 1 - PROMISED and high <= 1 + PROMISED:
        return "yes"
    return "no" if low > 1 + PROMISED or high < 1 - PROMISED else "undecided: noise"


if __name__ == "__main__":
    run(main)
