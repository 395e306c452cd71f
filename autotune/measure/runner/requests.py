"""Requests to the ranks of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from autotune.measure.runner import Job
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.space import Limits
from autotune.space.workload import Workload
from autotune.wire.ranks import ROUTINGS, Probe, Start
from autotune.wire.stopping import Rule

_FEW = Rule(
    warmup_steps=2, warmup_tolerance=1.0, warmup_limit_s=0.0, timed_steps=1, half_width=1.0,
    timed_limit_s=0.0,
)  # fmt: skip
"""The steps before an evaluation and a checkpoint; nothing is timed."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Messages to ranks that train `workload` under `limits`."""

    device_kind: Literal["cpu", "cuda"]
    workload: Workload
    limits: Limits
    seed: int = 0
    alone: bool = False
    """See `Start.alone`."""
    folder: str = ""
    """Where ranks write a checkpoint for a moment; empty for nowhere."""

    def start(self, candidate: Candidate) -> Start:
        """For a group of that build; the group adds each rank's own fields."""
        engine = engine_of(self.workload, candidate)
        return Start(
            world_size=self.workload.world_size,
            device_kind=self.device_kind,
            capacity_bytes=self.limits.capacity_bytes,
            model=self.workload.spec(candidate.depth, candidate.build),
            engine=engine.name,
            dtype=self.workload.dtype,
            engine_config=engine.config(candidate, self.workload, self.device_kind),
            seed=self.seed,
            rank_capacities=list(self.limits.rank_capacities),
            alone=self.alone,
        )  # fmt: skip

    def probe(self, number: int, job: Job) -> Probe:
        plain = Probe(
            number=number,
            micro_batch=job.candidate.micro_batch,
            seq_len=job.candidate.seq_len,
            grad_accum=job.grad_accum,
            micro_steps=job.micro_steps,
            rule=job.rule,
            needed_step_s=job.needed_step_s,
            vector=list(job.candidate.vector),
            routing=[each for each in self.workload.routing if each in ROUTINGS],
        )
        if job.phases:
            plain = replace(
                plain, rule=_FEW, eval_batch=self.workload.eval_batch, save=self.workload.save,
                save_to=self.folder,
            )  # fmt: skip
        if (mix := self.workload.length_mix) is None:
            return plain
        batches = mix.batches(job.candidate, self.workload.world_size)
        request = replace(
            plain,
            lengths=batches.searched(job.micro_steps, self.seed),
            pad_to_multiple=batches.multiple,
            ends=batches.ends,
            pack=job.candidate.pack == "on",
        )
        if not job.mixed:
            return request
        drawn = batches.draw(job.micro_steps, self.seed)
        return replace(request, lengths=drawn, longest=batches.worst())
