"""What is special about jobs of Slurm."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.measure import launch
from autotune.measure.launch import agent
from tests.support.dialed import STUB, dialed, wait_until
from tests.support.programs import ROOT
from tests.support.slurm import Slurm

pytestmark = pytest.mark.slow

FOUND = (
    "import json; from autotune.measure import launch; made = launch.checked(None, None);"
    "print(json.dumps([made.nodes, made.address(), made.notes]))"
)


@pytest.fixture
def in_job(
    of_slurm: Slurm, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Slurm]:
    """This process is in a job of such flags."""
    monkeypatch.setenv("SLURM_CONF", of_slurm.environment["SLURM_CONF"])
    monkeypatch.setattr(agent, "MODULE", STUB)
    with of_slurm.job(*request.param.split()) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield of_slurm


def batch(of_slurm: Slurm, folder: Path, flags: str) -> tuple[int, str, list[str]]:
    """Nodes, address and notes of what a study finds in a job of such flags."""
    script, out = folder / "job.sh", folder / "out"
    script.write_text(f"#!/bin/sh\n#SBATCH {flags}\nexec {sys.executable} -c '{FOUND}'\n")
    of_slurm.run("sbatch", f"--output={out}", f"--chdir={ROOT}", str(script))
    wait_until(lambda: out.exists() and out.read_text().endswith("]]\n"))
    nodes, address, notes = json.loads(out.read_text())
    return nodes, address, notes


def test_a_study_in_a_batch_job_uses_its_nodes(of_slurm: Slurm, tmp_path: Path) -> None:
    nodes, address, notes = batch(of_slurm, tmp_path, "--nodes=2")
    assert nodes == 2
    assert address == of_slurm.network.hosts[0].address  # as the others reach it
    assert notes[0].endswith(" of 2 nodes: --launch slurm")
    assert notes[1].endswith("unless sbatch or salloc was given --no-kill")


def test_a_job_that_outlives_its_nodes_is_not_warned_of(of_slurm: Slurm, tmp_path: Path) -> None:
    assert len(batch(of_slurm, tmp_path, "--no-kill --nodes=2")[2]) == 1


@pytest.mark.parametrize("in_job", ["--nodes=1"], indirect=True)
def test_a_job_of_one_node_is_one_machine(in_job: Slurm) -> None:
    assert launch.checked(None, None) is None


@pytest.mark.parametrize("in_job", ["--nodes=2"], indirect=True)
def test_more_nodes_than_the_job_has_are_refused(in_job: Slurm) -> None:
    with pytest.raises(UsageError, match=r"--nodes 4: Slurm job \d+ has 2; use --nodes 2"):
        launch.checked("slurm", 4)


@pytest.mark.parametrize(
    ("in_job", "gpus"),
    [
        ("--nodes=2 --gpus-per-node=2", "0,1"),
        ("--nodes=2 --gpus-per-node=1", "0"),
        ("--nodes=2 --ntasks=4 --gpus-per-task=1", "0,1"),
        ("--nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus=4", "0,1"),
        ("--nodes=2 --exclusive", "0,1"),
    ],
    indirect=["in_job"],
)
def test_an_agent_has_the_job_s_gpus_there(in_job: Slurm, gpus: str, tmp_path: Path) -> None:
    launcher = launch.checked("slurm", None)
    assert launcher is not None
    with dialed(launcher, tmp_path) as agents:
        said = agents.start()
        assert [agent["node"] for agent in said] == ["n1", "n2"]
        seen = [agent["variables"].get("CUDA_VISIBLE_DEVICES") for agent in said]
    assert seen == [gpus, gpus]


@pytest.mark.parametrize("in_job", ["--nodes=2"], indirect=True)
def test_a_launch_that_slurm_refuses_is_told_of(in_job: Slurm, tmp_path: Path) -> None:
    launcher = launch.checked("slurm", None)
    assert launcher is not None
    in_job.run("scancel", os.environ["SLURM_JOB_ID"])
    with dialed(launcher, tmp_path) as agents:
        launcher.start("127.0.0.1:9", "{}", tmp_path / "key", tmp_path)
        told = agents.polled(2)
    assert [line.partition(":")[0] for line in told] == ["n1", "n2"]
    assert all("srun left with exit code 1: srun: " in line for line in told)
    assert all("invalid job" in line for line in told)


def test_the_documented_job_finds_a_result_on_its_nodes(of_slurm: Slurm, tmp_path: Path) -> None:
    page = (ROOT / "docs/pages/how-to/cluster.md").read_text(encoding="utf-8")
    [script] = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH .*?)```", page, re.DOTALL)
    small = (
        "--device cpu --world-size 2 --depth 1 --seq-len 32 --micro-batch 1 --gpt vocab_size=256"
        " --zero 0 --checkpointing none --trials 1 --finals 1 --budget 90s"
    )
    job = script.replace("gpus-per-node=8", "gpus-per-node=2").replace(
        "autotune --budget 30m", f"{sys.executable} -m autotune {small}"
    )
    (tmp_path / "job.sh").write_text(job)
    of_slurm.run(
        "sbatch", f"--chdir={tmp_path}", f"--export=ALL,PYTHONPATH={ROOT}",
        f"--output={tmp_path / 'out'}", str(tmp_path / "job.sh"),
    )  # fmt: skip
    wait_until(lambda: not of_slurm.run("squeue", "--noheader"))
    out = (tmp_path / "out").read_text()
    assert "of 2 nodes: --launch slurm" in out
    assert "nodes 2" in out, out
    best = json.loads((tmp_path / "results" / "two-nodes" / "best.json").read_text())
    assert best["config"]["world_size"] == 2


@pytest.mark.campaign
@pytest.mark.parametrize(("flags", "goes_on"), [("--no-kill", True), ("", False)])
def test_a_node_that_slurm_loses_ends_the_job_unless_it_was_told_not_to(
    of_slurm: Slurm, tmp_path: Path, flags: str, goes_on: bool
) -> None:
    lost = of_slurm.network.hosts[1]
    asked = (
        "--device cpu --world-size 1 --parallel auto --depth 1 --seq-len 32,64"
        " --gpt vocab_size=256"
        f" --micro-batch 1:32 --sampler tpe --finals 1 --budget 45s --out {tmp_path / 'study'}"
    )
    (tmp_path / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --exclusive --no-requeue {flags}\n"
        f"exec {sys.executable} -m autotune {asked}\n"
    )
    of_slurm.run(
        "sbatch", f"--chdir={tmp_path}", f"--export=ALL,PYTHONPATH={ROOT}",
        f"--output={tmp_path / 'out'}", str(tmp_path / "job.sh"),
    )  # fmt: skip
    try:
        wait_until((tmp_path / "study" / "best.json").exists)
        wait_until(lambda: "autotune.agent" in " ".join(lost.processes().values()))
        lost.cut()
        wait_until(lambda: not of_slurm.run("squeue", "--noheader", "--states=running"))
    finally:
        lost.heal()
    wait_until(lambda: of_slurm.run("sinfo", "--noheader", "--format=%D %t") == "3 idle\n")
    out = (tmp_path / "out").read_text()
    assert ("unless sbatch or salloc was given --no-kill" in out) is not goes_on
    assert ("DUE TO NODE FAILURE" in out) is not goes_on, out
    assert (tmp_path / "study" / "best.json").exists()
    if goes_on:
        assert "node n2 was lost: no sign of it" in out
        assert "Written: " in out
