"""srun inside an allocation starts a task on each node."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import UsageError
from autotune.measure.launch import agent
from autotune.measure.launch.client import Client, with_line
from autotune.measure.launch.launcher import Launcher, LaunchRequest
from autotune.measure.launch.slurm_job import SlurmJob, ask, in_tasks, names_of
from autotune.measure.runner.local import module_path

END_S = 5.0
LATE_S, LATEST_S = 0.5, 5.0
"""Seconds after srun's report of a task's end for its last output; and if it wrote nothing."""
_SHARES = re.compile(
    r"S(LURM|RUN)_(.*_PER_.*|NTASKS|NPROCS|GPUS|GRES|STEP_GRES|GPU_.*|CPU_BIND.*|MEM_.*|EXACT"
    r"|EXCLUSIVE|DISTRIBUTION)"
)
"""Variables that give the job's flags to srun: with them a task gets a part of its node."""
_TASK_LEFT = re.compile(r"srun: error: (?P<nodes>\S+): tasks? (?P<task>\d+)\S*: (?P<how>.*)")


def make(asked: LaunchRequest) -> Slurm:
    """Raises `UsageError` outside an allocation, or if it has too few nodes."""
    if in_tasks():
        raise UsageError(
            "--launch slurm: srun started this study once for each task; start it without srun"
        )
    job = SlurmJob.here()
    if job is None:
        raise UsageError(
            "--launch slurm: not in a Slurm allocation; start the study within sbatch --nodes=2,"
            " or salloc --nodes=2"
        )
    if asked.nodes is not None and asked.nodes > len(job.names):
        raise UsageError(
            f"--nodes {asked.nodes}: Slurm job {job.number} has {len(job.names)};"
            f" use --nodes {len(job.names)}"
        )
    return Slurm(job, asked)


class Slurm(Launcher):
    name = "slurm"

    def __init__(self, job: SlurmJob, asked: LaunchRequest) -> None:
        super().__init__(asked.nodes or len(job.names), asked.interface)
        self._job = job
        self._step = f"autotune-{secrets.token_hex(4)}"
        self._left: dict[str, tuple[str, str, float]] = {}
        """By node, until it is reported: the task, how it ended, and the time of that report."""
        self._ended: set[str] = set()
        self.names = tuple(job.names[: self.nodes])
        self.notes = tuple(filter(None, [asked.note, self._of_lost_nodes()]))

    def _hosts(self) -> Iterable[str]:
        return self._job.addresses

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        command = [
            "srun", f"--jobid={self._job.number}", f"--job-name={self._step}", "--overlap",
            f"--nodes={self.nodes}", f"--ntasks={self.nodes}", "--ntasks-per-node=1",
            "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--input=all",
            "--label", "--unbuffered", "--mem=0", "--cpu-bind=none", *self._gpus(),
            *agent.command(driver),
        ]  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if not _SHARES.fullmatch(name)}
        self._clients[""] = Client(command, key, logs / "srun.log", kept | module_path())
        return []

    def poll(self) -> list[str]:
        if (client := self._clients.get("")) is None:
            return []
        gone = client.left()  # first, so the lines below are complete
        now = time.monotonic()
        for line in client.new_lines():
            if left := _TASK_LEFT.match(line):
                how = left["task"], left["how"], now
                self._left |= dict.fromkeys(names_of(left["nodes"]), how)
        ended: dict[str, str] = {}
        for node, (task, reason, since) in list(self._left.items()):
            last = client.last_line(f"{task}: ")
            if gone or now - since > (LATE_S if last else LATEST_S):
                ended[node] = f"srun: {with_line(reason, last)}"
                del self._left[node]
        if gone:
            rest = set(self._job.names[: self.nodes]) - self._ended - ended.keys()
            said = f"srun left with {with_line(gone, client.last_line())}"
            ended |= dict.fromkeys(sorted(rest), said)
        self._ended |= ended.keys()
        return [f"{name}: {how}" for name, how in ended.items()]

    def close(self) -> None:
        if not self._clients:
            return
        super().close()
        deadline = time.monotonic() + END_S  # if srun was killed, its step goes on
        while (steps := self._steps()) and time.monotonic() < deadline:
            ask("scancel", *steps)
            time.sleep(0.05)

    def _steps(self) -> list[str]:
        listed = ask("squeue", "--steps", "--noheader", f"--jobs={self._job.number}",
                     "--format=%i %j")  # fmt: skip
        steps = (line.split(maxsplit=1) for line in listed.splitlines())
        return [step for step, *name in steps if name == [self._step]]

    def _gpus(self) -> list[str]:
        """The flag that gives each agent all GPUs of the job on its node. Without it, jobs with
        --gpus-per-task, --gpus or --exclusive give a task fewer, or none."""
        least = min(self._job.gpus(), default=0)
        return [f"--gpus-per-node={least}"] if least else []

    def _of_lost_nodes(self) -> str:
        if self.nodes == 1 or self._job.said_no_kill:
            return ""
        return (
            f"Slurm ends job {self._job.number} with its first node that is lost, unless sbatch or"
            " salloc was given --no-kill"
        )
