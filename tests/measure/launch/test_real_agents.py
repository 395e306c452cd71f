"""Ranks that agents of each launcher start: as good as those of one host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.measure import launch
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.cluster import Cluster as Nodes
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from tests.support import defaults
from tests.support.choice import campaign
from tests.support.dialed import Cluster
from tests.support.pools import Started

pytestmark = pytest.mark.slow

ENGINES = {"ddp": 0, "fsdp": 3, "deepspeed": 3}
"""With a stage of each."""


def options(engine: str) -> Options:
    return Options.of(
        engine=engine, zero=(ENGINES[engine],), world_size=2, gpt="width=64,vocab_size=256",
        depth=(2,), seq_len=(32,), micro_batch=(2,), checkpointing=("none",), dtype="fp32",
    )  # fmt: skip


def loss(runner: Runner, candidate: Candidate) -> float:
    job = defaults.job(candidate, rule=defaults.FIVE_STEPS, fresh=True)
    result = runner.run(job, time.monotonic() + 120)
    assert len(result.reported.step_s) == 3
    return result.reported.loss


@pytest.mark.parametrize(
    "engine",
    ["ssh", *campaign("slurm", "ray")],
    indirect=True,
)
def test_losses_over_two_hosts_equal_those_of_one(engine: Cluster, tmp_path: Path) -> None:
    asked = engine.launch
    if engine.engine == "ssh":  # a rank on each
        hostfile = tmp_path / "hosts"
        hostfile.write_text("".join(f"{host.name} slots=1\n" for host in engine.hosts))
        asked = f"ssh:{hostfile}"
    launcher = launch.checked(asked, 2)
    assert launcher is not None
    nodes = Nodes(launcher, "cpu", allow_mixed=False, allow_busy=False, dial_s=60.0)
    try:
        for name in ENGINES:
            space = nodes.space(options(name))
            assert space.workload.nodes == 2
            (candidate,) = space.candidates
            logs = tmp_path / name
            logs.mkdir()
            wiring = Wiring(
                logs=logs, seed=0, budget_s=600.0, stop=lambda: False,
                on_phase=lambda phase, steps: None, note=print,
            )  # fmt: skip
            (runner,) = nodes.runners(space, [wiring])
            over_two = loss(runner, candidate)
            runner.retire(time.monotonic() + 10)
            here = Started(logs, world_size=2, engine=name)
            over_one = loss(here.pool, candidate)
            here.pool.close()
            assert over_two == pytest.approx(over_one, rel=1e-6), name
    finally:
        nodes.close()
