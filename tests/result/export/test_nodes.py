"""Exports of a result over several nodes: what each node is told, and what is not said."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.result.best import Best
from autotune.result.export import EXPORTS, write
from tests.support.exported import result

TWO = result("deepspeed", 3, kind="cuda", dtype="bf16", allocator="expandable",
             model="llama-3-8b-tiny", world_size=4, nodes=2)  # fmt: skip
UNEVEN = result("ddp", 0, world_size=3, nodes=2)
SAYS = {"accelerate", "lightning", "ms-swift", "nanochat", "launch"}
STUB = '#!/bin/sh\necho "$(basename "$0")" "$@" "devices=$CUDA_VISIBLE_DEVICES"\n'
PROGRAMS = ("torchrun", "deepspeed", "accelerate")
Started = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Runs a script of an export, with programs on its PATH that print their arguments."""

    def start(best: Best, file: str = "launch.sh", **variables: str) -> object:
        write(best, tmp_path, ["accelerate", "launch", "nanochat"])
        for name in PROGRAMS:
            (tmp_path / name).write_text(STUB)
            (tmp_path / name).chmod(0o755)
        return subprocess.run(
            [str(tmp_path / file), "train.py", "--own"], capture_output=True, text=True,
            check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin"} | variables,
        )  # fmt: skip

    return start  # type: ignore[return-value]


NODE = {"MASTER_ADDR": "node0", "MASTER_PORT": "4000"}
TORCHRUN = "--master-addr=node0 --master-port=4000"


@pytest.mark.parametrize("variable", ["NODE_RANK", "SLURM_NODEID"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_node_starts_its_own_ranks(started: Started, variable: str, rank: str) -> None:
    ran = started(TWO, **NODE, **{variable: rank})
    assert ran.stdout == (
        f"torchrun --nnodes=2 --nproc-per-node=2 --node-rank={rank} {TORCHRUN} train.py --own"
        " devices=0,1\n"
    ), ran.stderr


@pytest.mark.parametrize(("rank", "ranks"), [("0", 2), ("1", 1)])
@pytest.mark.parametrize("file", ["launch.sh", "nanochat.sh"])
def test_the_first_node_has_the_rank_that_is_left_over(
    started: Started, file: str, rank: str, ranks: int
) -> None:
    ran = started(UNEVEN, file, **NODE, NODE_RANK=rank)
    words = f"torchrun --nnodes=2 --nproc-per-node={ranks} --node-rank={rank} {TORCHRUN} "
    assert ran.stdout.startswith(words), ran.stderr


def test_accelerate_is_told_which_node_this_is(started: Started, tmp_path: Path) -> None:
    ran = started(TWO, **NODE, NODE_RANK="1", LAUNCHER="accelerate")
    assert ran.stdout.startswith(
        f"accelerate launch --config_file {tmp_path}/accelerate.yaml"
        f" --deepspeed_config_file {tmp_path}/accelerate-deepspeed.json --machine_rank 1"
        " --main_process_ip node0 --main_process_port 4000 train.py --own"
    ), ran.stderr


@pytest.mark.parametrize(("best", "each"), [(TWO, " --num_gpus=2"), (UNEVEN, "")])
def test_one_deepspeed_starts_all(started: Started, tmp_path: Path, best: Best, each: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node0 slots=8\nnode1 slots=8\n")
    ran = started(best, LAUNCHER="deepspeed", HOSTFILE=str(hosts))
    words = f"deepspeed --hostfile {hosts} --num_nodes=2{each} train.py --own"
    assert ran.stdout.startswith(words), ran.stderr


@pytest.mark.parametrize(
    ("best", "variables", "what"),
    [(TWO, {}, "NODE_RANK is not set: 0 on the first of 2 nodes"),
     (TWO, {"NODE_RANK": "0"}, "MASTER_ADDR is not set"),
     (TWO, {"LAUNCHER": "deepspeed"}, "HOSTFILE names no file"),
     (UNEVEN, {"NODE_RANK": "0", "LAUNCHER": "accelerate", **NODE},
      "cannot share 3 ranks among 2 nodes: LAUNCHER=torchrun")],
)  # fmt: skip
def test_what_a_node_has_to_know_is_asked_for_in_one_line(
    started: Started, best: Best, variables: dict[str, str], what: str
) -> None:
    ran = started(best, **variables)
    [line] = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert what in line


@pytest.mark.parametrize("name", EXPORTS)
def test_a_format_that_has_no_word_for_nodes_says_so(name: str) -> None:
    made = EXPORTS[name].make(TWO)
    assert made is not None
    assert ("nodes 2" in made.unexpressed) is (name not in SAYS)
    said = "".join(text for file, text in made.files.items() if not file.endswith(".json"))
    assert not said or name in ("env", *SAYS) or "nodes 2" in said


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_what_has_as_many_ranks_on_each_node_does_not_say_another_number(name: str) -> None:
    made = EXPORTS[name].make(UNEVEN)
    assert made is not None
    assert {"world_size 3", "nodes 2"} <= set(made.unexpressed)


@pytest.mark.parametrize("name", EXPORTS)
def test_on_one_machine_no_word_is_said_of_nodes(name: str) -> None:
    made = EXPORTS[name].make(result("deepspeed", 3, allocator="expandable"))
    assert made is not None
    whole = "".join((*made.files, *made.files.values(), *made.unexpressed)).lower()
    assert not [word for word in ("nodes", "node_rank", "node-rank", "master") if word in whole]


# The tools' own code.


@pytest.mark.slow
def test_lightning_has_nodes_and_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    for name in ("SLURM_NTASKS", "SLURM_JOB_NAME"):  # in which it would look for its nodes
        monkeypatch.delenv(name, raising=False)
    write(result("ddp", 0, world_size=4, nodes=2), tmp_path, ["lightning"])
    spec = importlib.util.spec_from_file_location("made", tmp_path / "lightning_trainer.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    trainer = made.trainer(logger=False, enable_checkpointing=False)
    assert (trainer.num_nodes, trainer.num_devices, trainer.world_size) == (2, 2, 4)


REMOTE = "#!/bin/sh\necho 10.0.0.1\n"
PDSH = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done >"$0.words"\n'


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_deepspeeds_launcher_takes_the_nodes_and_the_environment(tmp_path: Path) -> None:
    """Its own code runs; ssh and pdsh are programs that print what they are told."""
    pytest.importorskip("deepspeed")
    best = result("deepspeed", 3, world_size=4, nodes=2, allocator="expandable")
    write(best, tmp_path, ["launch"])
    for name, text in (("ssh", REMOTE), ("pdsh", PDSH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("node0 slots=8\nnode1 slots=8\nnode2 slots=8\n")
    beside = Path(sys.executable).parent
    ran = subprocess.run(
        [str(tmp_path / "launch.sh"), "train.py"], capture_output=True, text=True, check=False,
        cwd=tmp_path, env=os.environ | {
            "LAUNCHER": "deepspeed", "HOSTFILE": str(hosts), "HOME": str(tmp_path),
            "PATH": f"{tmp_path}:{beside}:{os.environ['PATH']}",
        },
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    words = (tmp_path / "pdsh.words").read_text().splitlines()
    assert words[words.index("-w") + 1] == "node0,node1"
    [world] = [word.partition("=")[2] for word in words if word.startswith("--world_info")]
    assert _decoded(world) == {"node0": [0, 1], "node1": [0, 1]}
    assert "--master_addr=10.0.0.1" in words
    set_there = next(word for word in words if "export " in word)
    assert "export DS_ACCELERATOR=cpu;" in set_there
    assert "export PYTORCH_ALLOC_CONF=expandable_segments:True;" in set_there


def _decoded(world: str) -> object:
    import base64

    return json.loads(base64.urlsafe_b64decode(world))
