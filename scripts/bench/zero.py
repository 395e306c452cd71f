"""Memory of each ZeRO stage and offload on every rank, beside the ZeRO paper's formulas.

    .venv/bin/python scripts/bench/zero.py [--ranks 1,2,4] [--stages 0,1,2,3]

Real ranks train a small model on the CPU, in fp32 with AdamW. The batch is tiny, so nearly all
their memory is state. On the CPU host and device are one memory: offloaded state is in both
columns. If measurement and theory differ by more than 10 %, the causes are named. Each one has its
bytes, and the remaining difference is shown. Sizes are in MB of 10^6 bytes. The exit code is
always 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from unittest import mock

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
from autotune.space.engines import engine_of, state_bytes
from autotune.space.workload import Workload
from autotune.wire.reports import Report
from autotune.wire.stopping import Rule

VOCAB_SIZE = 256
SEQ_LEN = 16
SMALL_WIDTH = 64
CASES = ((0, "none"), (1, "none"), (1, "optimizer"), (2, "none"), (2, "optimizer"),
         (3, "none"), (3, "optimizer"), (3, "all"))  # fmt: skip
EXPLAINED_ABOVE = 0.10
# Memory is steady after the first step; the time of a step does not matter.
RULE = Rule(
    warmup_steps=3, warmup_tolerance=1e9, warmup_limit_s=0.0,
    timed_steps=2, half_width=1e9, timed_limit_s=0.0,
)  # fmt: skip
FP32_BYTES = 4

LIBRARY = (
    "Code, threads and objects that the engine brings in and the heap around them: what a model of"
    f" depth 1 and width {SMALL_WIDTH} holds beyond its state, measured at the same ranks."
)
BUCKET = (
    "Stage 3 keeps the reduce bucket of 12·d² elements (`ipg_buckets` in DeepSpeed's stage3.py);"
    " stages 1 and 2 give theirs back after each backward."
)
OFFLOAD_COPY = (
    "Offload in stages 1 and 2 keeps one more copy of the rank's weight partition to pass updates"
    " through (`param_buffer_of_bit16_for_cpu_offload_groups` in stage_1_and_2.py): 4·N/ranks."
)
OFFLOAD_STAGING = (
    "Offload in stages 1 and 2 keeps two staging buffers of the largest parameter's size"
    " (`temp_grad_buffer_for_cpu_offload` and `..._gpu_offload`)."
)
OFFLOAD_GRADIENT = (
    "Offload in stage 3 keeps the gradient partition twice: where gradients are gathered and as"
    " the optimizer's `.grad` (`subgroup_gradient_buffer` in stage3.py): 4·N/ranks."
)
ARENAS = (
    "Freed memory at the top of the arenas that malloc gives to threads, which `malloc_trim` does"
    " not return to the system: what the same probe holds less with MALLOC_ARENA_MAX=1, measured."
)
NAMED = (
    f"Rows that deviate by more than {EXPLAINED_ABOVE:.0%} name their causes, in MB; what is left"
    " is the deviation once these are counted."
)


@dataclass(frozen=True)
class Cause:
    """Bytes of one rank that the theory does not count, and why they are held."""

    why: str
    held_bytes: float


@dataclass(frozen=True)
class Control:
    """A rank of a world size with a tiny model."""

    base_bytes: int
    """Memory of a rank before it builds anything."""
    library_bytes: dict[str, float]
    """By engine: memory between steps beside state."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. Bytes are those of the fullest rank."""

    ranks: int
    candidate: Candidate
    static_bytes: int
    theory_bytes: float
    peak_bytes: int
    loss: float
    causes: tuple[Cause, ...]

    @property
    def deviation(self) -> float:
        return self.static_bytes / self.theory_bytes - 1

    @property
    def left(self) -> float:
        """The remaining deviation after the causes, as a share of the same theory."""
        named = sum(cause.held_bytes for cause in self.causes)
        return (self.static_bytes - named) / self.theory_bytes - 1

    @property
    def accounted(self) -> bool:
        return min(abs(self.deviation), abs(self.left)) <= EXPLAINED_ABOVE


def main(
    *, ranks: str = "1,2,4", stages: str = "0,1,2,3", depth: int = 12, width: int = 576
) -> None:
    device = open_device("cpu")
    notes: list[str] = []
    rows = []
    cases = [case for case in CASES if case[0] in numbers(stages)]
    for count in numbers(ranks):
        rows += list(measured(device, workload(width, count), depth, cases, notes))
    print(f"{header(device, depth, width)}\n\n{report(rows, notes)}\n")


def measured(
    device: Device,
    work: Workload,
    depth: int,
    cases: Sequence[tuple[int, str]],
    notes: list[str],
) -> Iterator[Sequence[object]]:
    """The rows of every case at the ranks of `work`; new notes are added."""
    try:
        control = controlled(device, work.world_size)
    except ProbeFailedError as error:
        yield work.world_size, *[""] * 7, f"the control failed: {error}"
        return
    with pool(device, work) as runner:
        for stage, offload in cases:
            candidate = Candidate(
                depth=depth, seq_len=SEQ_LEN, micro_batch=1, zero_stage=stage, offload=offload
            )
            try:
                found = row(work, candidate, probe(runner, work, candidate), control)
                if not found.accounted:
                    found = without_arenas(runner, work, found)
            except ProbeFailedError as error:
                yield work.world_size, stage, offload, *[""] * 5, error
            else:
                yield cells(found, notes)


def without_arenas(runner: Pool, work: Workload, found: Row) -> Row:
    """`found` with the memory of malloc's arenas of threads, measured by a run without them."""
    with mock.patch.dict(os.environ, MALLOC_ARENA_MAX="1"):
        seen = probe(runner, work, found.candidate)
    return replace(
        found, causes=(*found.causes, Cause(ARENAS, found.static_bytes - seen.state_bytes))
    )


def controlled(device: Device, ranks: int) -> Control:
    """The control at `ranks` ranks.

    No message has the memory of a rank before it builds. It is the small model's peak minus its
    memory between steps, since that model's steps take hardly any memory.
    """
    work = workload(SMALL_WIDTH, ranks)
    library_bytes: dict[str, float] = {}
    base_bytes = 0
    with pool(device, work) as runner:
        for stage in (1, 0):
            candidate = Candidate(depth=1, seq_len=SEQ_LEN, micro_batch=1, zero_stage=stage)
            seen = probe(runner, work, candidate)
            engine = engine_of(work, candidate).name
            library_bytes[engine] = seen.state_bytes - static_theory_bytes(work, candidate)
            base_bytes = seen.peaks.device_bytes - seen.state_bytes
    return Control(base_bytes, library_bytes)


def workload(width: int, ranks: int) -> Workload:
    return gpt(width, VOCAB_SIZE, ranks, "auto")


def probe(runner: Pool, work: Workload, candidate: Candidate) -> Report:
    """A few steps of `candidate` in a group of its own."""
    say(f"{work.world_size} ranks, {candidate.key}")
    return reported(runner, probing(candidate, RULE, fresh=True))


def row(work: Workload, candidate: Candidate, report: Report, control: Control) -> Row:
    """The measurement of `candidate`, and its causes."""
    library = Cause(LIBRARY, control.library_bytes[engine_of(work, candidate).name])
    return Row(
        ranks=work.world_size,
        candidate=candidate,
        static_bytes=report.state_bytes,
        theory_bytes=static_theory_bytes(work, candidate),
        peak_bytes=report.peaks.device_bytes - control.base_bytes,
        loss=report.loss,
        causes=(library, *buffers(work, candidate)),
    )


def static_theory_bytes(work: Workload, candidate: Candidate) -> float:
    """State of one rank between steps: weights, optimizer, and gradients where they are kept."""
    state = state_bytes(work, candidate)
    share = gradients_kept(work, candidate)
    gradients = FP32_BYTES * work.shape(candidate.depth).parameters * share
    return state.weights + state.optimizer + state.host + gradients


def gradients_kept(work: Workload, candidate: Candidate) -> float:
    """Share of the model's fp32 gradients that a rank still holds between steps.

    DDP's reducer keeps its buckets, in which the gradients live; without it `.grad` is dropped.
    DeepSpeed drops them in stages 1 and 2. There it keeps the partition that an offloaded
    optimizer reads (`initialize_optimizer_states` in stage_1_and_2.py). In stage 3 it keeps a
    partition (`grad_partitions_flat_buffer` in stage3.py).
    """
    if candidate.zero_stage == 0:
        return 1.0 if work.world_size > 1 else 0.0
    if candidate.zero_stage == 3 or candidate.offload != "none":
        return 1.0 / work.world_size
    return 0.0


def buffers(work: Workload, candidate: Candidate) -> Iterator[Cause]:
    """Tensors that DeepSpeed 0.19 keeps between steps besides state."""
    shape = work.shape(candidate.depth)
    partition_bytes = FP32_BYTES * shape.parameters / work.world_size
    if candidate.zero_stage == 3:
        yield Cause(BUCKET, FP32_BYTES * 12 * shape.width**2)
        if candidate.offload != "none":
            yield Cause(OFFLOAD_GRADIENT, partition_bytes)
    elif candidate.offload != "none":
        largest = max(4 * shape.width**2, shape.vocab_size * shape.width)
        yield Cause(OFFLOAD_COPY, partition_bytes)
        yield Cause(OFFLOAD_STAGING, 2 * FP32_BYTES * largest)


def header(device: Device, depth: int, width: int) -> str:
    """The setting: model, device and versions."""
    parameters = workload(width, 1).shape(depth).parameters
    info = device.infos[0]
    return (
        f"{info.name}, {info.capacity_bytes / 2**30:.0f} GiB; {versions('torch', 'deepspeed')};"
        f" gpt of depth {depth} and width {width},"
        f" {parameters / 1e6:.1f}M parameters, fp32, AdamW, micro_batch 1, seq_len {SEQ_LEN}.\n"
        "Static: held between steps over what the rank held before it built anything; peak"
        " likewise, in steps. The rank that holds most. MB of 10^6 bytes."
    )


def report(rows: Iterable[Sequence[object]], notes: Sequence[str]) -> str:
    """The table, and below it the notes that its rows use."""
    head = (
        "ranks | stage | offload | static measured | static theory | deviation | peak measured"
        " | loss | note"
    )
    lines = [table(head, rows)]
    if notes:
        lines += ["", NAMED, "", *(f"{n}. {why}" for n, why in enumerate(notes, start=1))]
    return "\n".join(lines)


def cells(row: Row, notes: list[str]) -> Sequence[object]:
    """The cells of a row."""
    return (
        row.ranks, row.candidate.zero_stage, row.candidate.offload, mb(row.static_bytes),
        mb(row.theory_bytes), f"{row.deviation:+.1%}", mb(row.peak_bytes), f"{row.loss:.4f}",
        explained(row, notes),
    )  # fmt: skip


def explained(row: Row, notes: list[str]) -> str:
    """The causes of a row's deviation with their bytes; empty where it needs none."""
    if abs(row.deviation) <= EXPLAINED_ABOVE:
        return ""
    named = []
    for cause in row.causes:
        if cause.why not in notes:
            notes.append(cause.why)
        named.append(f"({notes.index(cause.why) + 1}) {mb(cause.held_bytes)}")
    verdict = f"{row.left:+.1%} left"
    if not row.accounted:
        verdict += ", unexplained"
    return f"{' + '.join(named)}; {verdict}"


def mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f}"


if __name__ == "__main__":
    run(main)
