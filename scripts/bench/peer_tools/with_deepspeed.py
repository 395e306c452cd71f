"""DeepSpeed's autotuner: `python with_deepspeed.py TASK` runs `deepspeed --autotuning tune`.

It gets the config that the study would export, with stage 0 and an open micro-batch. After each
run the autotuner has pdsh kill leftover processes on all hosts by a pattern. Here it must not
touch others on this one host, so it finds a pdsh that does nothing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from peer_tools.task import Answer, Task

from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES
from autotune.space.workload import Workload

RANK = Path(__file__).with_name("deepspeed_rank.py")


def main() -> None:
    path = sys.argv[1]
    task = Task.read(path)
    folder = Path(task.folder)
    config = folder / "config.json"
    config.write_text(json.dumps(tuning_config(task)))
    programs = folder / "programs"
    programs.mkdir()
    (programs / "pdsh").write_text("#!/bin/sh\n")
    (programs / "pdsh").chmod(0o755)
    command = [
        "deepspeed", "--autotuning", "tune", "--num_gpus", "1", "--master_port", str(free_port()),
        str(RANK), "--task", path, "--deepspeed_config", str(config),
    ]  # fmt: skip
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "LOCAL_SIZE": "1",  # one run at a time, even with several NUMA nodes
        "GLOO_SOCKET_IFNAME": "lo",
    }
    subprocess.run(command, cwd=folder, env=environment, check=False)
    best = folder / "results" / "ds_config_optimal.json"
    if not best.exists():
        sys.exit(f"the autotuner wrote no configuration: {first_error(folder / 'results')}")
    found = json.loads(best.read_text())
    task.tell(
        Answer(found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"])
    )


def tuning_config(task: Task) -> dict[str, object]:
    """The user's config: the study's export for stage 0, with an open micro-batch."""
    workload = Workload(
        model="gpt",
        width=task.width,
        vocab_size=task.vocab_size,
        dtype="fp32",
        engine="deepspeed",
        world_size=1,
        global_batch=None,
    )
    config = ENGINES["deepspeed"].config(
        Candidate(depth=task.depth, seq_len=task.seq_len, micro_batch=1), workload, "cpu"
    )
    del config["train_batch_size"]  # follows from the other two
    return config | {
        "train_micro_batch_size_per_gpu": "auto",
        "autotuning": {
            "enabled": True,
            "exps_dir": str(Path(task.folder, "experiments")),
            "results_dir": str(Path(task.folder, "results")),
            "max_train_micro_batch_size_per_gpu": task.most,
        },
    }


def free_port() -> int:
    """A free port. The autotuner adds a run's number to it, so it also uses the ports above."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def first_error(results: Path) -> str:
    """The first exception in the stderr of any run."""
    for log in sorted(results.glob("*/stderr.log"), key=lambda path: path.stat().st_mtime):
        for line in log.read_text(errors="replace").splitlines():
            if re.match(r"[\w.]+(Error|Exception)\b", line):
                return f"{log.parent.name}: {line}"
    return "no run left an exception"


if __name__ == "__main__":
    main()
