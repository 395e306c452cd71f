"""The Slurm job of this process, by its variables and by Slurm's answers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

import psutil

from autotune.errors import UsageError

_NO_KILL = ("SLURM_NO_KILL", "SALLOC_NO_KILL", "SBATCH_NO_KILL")
_FLAGS = {"--no-kill", "-k"}
_GPUS = re.compile(r"gpu(?::[^:,(]+)?:(\d+)")
_TALK_S = 30.0


@dataclass(frozen=True)
class SlurmJob:
    """An allocation of nodes."""

    number: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    """Addresses by which Slurm reaches the nodes."""

    @classmethod
    def here(cls) -> SlurmJob | None:
        """The job of this process; None outside a job. Raises UsageError if Slurm does not
        answer."""
        number, listed = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
        if not number or not listed:
            return None
        shown = ask("scontrol", "--oneliner", "show", "node", listed)
        nodes = re.findall(r"^NodeName=(\S+)(?:.*? NodeAddr=(\S+))?", shown, re.MULTILINE)
        if not nodes:
            missing = shutil.which("scontrol") is None
            raise UsageError(
                f"in Slurm job {number} (--launch slurm), of which scontrol"
                f" {'is not here' if missing else 'says nothing'}; start the study outside of the"
                " container, or use this machine alone with --nodes 1"
            )
        return cls(number, tuple(n for n, _ in nodes), tuple(a or n for n, a in nodes))

    @classmethod
    def found(cls) -> SlurmJob | None:
        """The job, if a study uses its nodes without being asked to."""
        if in_tasks() or int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) < 2:
            return None
        return cls.here()

    def gpus(self) -> list[int]:
        """The job's GPUs on a node, for each kind of node."""
        shown = ask("scontrol", "--details", "show", "job", self.number)
        held = re.findall(r"^\s+Nodes=.* GRES=(\S*)", shown, re.MULTILINE)
        return [sum(map(int, _GPUS.findall(gres))) for gres in held]

    @property
    def said_no_kill(self) -> bool:
        """Whether the user said that the job survives a lost node. Slurm does not show it."""
        if any(name in os.environ for name in _NO_KILL):
            return True
        above = [word for each in psutil.Process().parents() for word in _words(each)]
        script = ask("scontrol", "write", "batch_script", self.number, "-")
        asked = re.search(r"^#SBATCH\b.*\s(--no-kill|-k)\b", script, re.MULTILINE)
        return asked is not None or not _FLAGS.isdisjoint(above)


def in_tasks() -> bool:
    """Whether srun started this process several times, so each would be a study."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def names_of(listed: str) -> list[str]:
    """The names in Slurm's list of nodes, such as n[1-2]."""
    return ask("scontrol", "show", "hostnames", listed).split() or [listed]


def ask(*command: str) -> str:
    """The output of a program of Slurm; empty if it fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TALK_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _words(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()
    except psutil.Error:
        return []
    return words if words and words[0].endswith("salloc") else []
