"""Default requests to a rank; tests change a part of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.measure.runner import Job
from autotune.space.candidate import Candidate
from autotune.space.workload import Workload
from autotune.wire.ranks import ModelSpec, Probe, Start
from autotune.wire.stopping import Rule

SMALL = Candidate(depth=1, seq_len=32, micro_batch=1)
SPEC = ModelSpec(name="gpt", depth=1, width=64, vocab_size=256, checkpointing="none")
RULE = Rule(
    warmup_steps=3, warmup_tolerance=0.1, warmup_limit_s=10, timed_steps=5, half_width=0.02,
    timed_limit_s=10,
)  # fmt: skip
FIVE_STEPS = replace(
    RULE, warmup_steps=2, warmup_tolerance=1e9, warmup_limit_s=0.0, timed_steps=3, half_width=1e9,
    timed_limit_s=0.0,
)  # fmt: skip
"""Two warm-up steps and three timed ones, however long they take."""
_JOB = Job(
    candidate=SMALL, grad_accum=1, micro_steps=1, rule=RULE, needed_step_s=None, fresh=False
)
_START = Start(
    world_size=1, device_kind="cpu", device_uuid="cpu", capacity_bytes=2**33, model=SPEC,
    engine="ddp", dtype="fp32",
)  # fmt: skip
_WORKLOAD = Workload(
    model="gpt", width=64, vocab_size=256, dtype="fp32", engine="auto", world_size=1,
    global_batch=None,
)  # fmt: skip


def job(candidate: Candidate = SMALL, **changes: Any) -> Job:
    """One micro-step of `candidate`, by `RULE`."""
    return replace(_JOB, candidate=candidate, **changes)


def rule(**changes: Any) -> Rule:
    """`RULE`, but for these."""
    return replace(RULE, **changes)


def start(**changes: Any) -> Start:
    """A rank of DDP on the CPU."""
    return replace(_START, **changes)


def probe(**changes: Any) -> Probe:
    """One micro-step of two samples of 4 tokens, by `RULE`."""
    asked = Probe(
        number=1, micro_batch=2, seq_len=4, grad_accum=1, micro_steps=1, rule=RULE,
        needed_step_s=None,
    )  # fmt: skip
    return replace(asked, **changes)


def workload(**changes: Any) -> Workload:
    """A small gpt in fp32 on one rank."""
    return replace(_WORKLOAD, **changes)
