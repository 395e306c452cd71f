"""How much torch's allocator reserves and does not use, by engine: weighed on emulated cards.

    .venv-cuda/bin/python scripts/bench/unused.py [--only fsdp] [--model 0]

Needs torch's CUDA build, and no GPU. A share is of the peak of what is allocated over weights and
optimizer state. results/plan.md has what it printed.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from shared import run, say, table

from autotune.advise.plan.expected import Helpers, Plan, PlanRequest, plan
from autotune.advise.plan.weighing import Scale, scale
from autotune.device.cards import parse_gpus
from autotune.measure.runner import counting
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.options import Options

MODELS = (
    {"depth": "16", "seq_len": "1024,4096", "micro_batch": "1,4"},
    {"model": "llama-3-8b", "seq_len": "2048,8192", "micro_batch": "1,2"},
)
ENGINES = (
    ({"engine": "ddp", "zero": "0"}, 1),
    ({"engine": "ddp", "zero": "0"}, 8),
    ({"engine": "deepspeed", "zero": "1,2,3"}, 8),
    ({"engine": "fsdp", "zero": "2,3"}, 8),
)
"""And on how many GPUs."""
CARD = parse_gpus("1xH200").card


def main(*, only: str = "", model: int | None = None) -> None:
    """The engines whose names have `only`, and the one model of that number."""
    shares: dict[tuple[str, int, int, str], list[float]] = defaultdict(list)
    with scale(CARD, say) as of_card:
        for shape in MODELS if model is None else MODELS[model : model + 1]:
            for engine, gpus in ENGINES:
                if only not in engine["engine"]:
                    continue
                found = planned(shape | engine, gpus)
                for each in found.space.candidates:
                    if (share := unused(of_card, found, each)) is not None:
                        kind = engine["engine"], gpus, each.zero_stage, each.checkpointing
                        shares[kind].append(share)
    print(table(
        "engine | GPUs | stage | checkpointing | weighed | median | least | most",
        ((*kind, len(of), f"{np.median(of):.0%}", f"{min(of):.0%}", f"{max(of):.0%}")
         for kind, of in shares.items()),
    ))  # fmt: skip


def planned(what: dict[str, str], gpus: int) -> Plan:
    """All candidates of one engine, by formulas without a trace."""
    options = Options.from_texts(what | {"checkpointing": "none,full", "offload": "none"})
    with counting.forked(options.model.family) as start:
        helpers = Helpers(
            lambda wanted: counting.count(wanted, options.model.name, start),
            lambda wanted: "not traced",
        )
        return plan(PlanRequest(options=options, card=CARD, host_bytes=None), gpus, helpers)


def unused(of_card: Scale, found: Plan, candidate: Candidate) -> float | None:
    """The share of `candidate`; None where it runs out of memory."""
    outcome = of_card.weigh(found, candidate)
    if outcome.measurement is None:
        say(f"{candidate.key}: {outcome.reason}")
        return None
    state = engine_of(found.space.workload, candidate).state(found.space.workload, candidate)
    peaks = outcome.measurement.peaks
    over = peaks.allocated_bytes - state.weights - state.optimizer
    share = (peaks.reserved_bytes - peaks.allocated_bytes) / over
    say(f"{candidate.key} on {found.gpus}: {share:.1%} of {over / 2**30:.1f} GiB")
    return share


if __name__ == "__main__":
    run(main)
