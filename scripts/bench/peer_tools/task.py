"""Task and answer of a peer as files, so it can have any number of processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """The configuration that a peer found."""

    micro_batch: int
    grad_accum: int = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """One search for a micro-batch; all its files are in `folder`."""

    folder: str
    depth: int
    width: int
    vocab_size: int
    seq_len: int
    most: int
    """The largest micro_batch, if the tool takes such a limit."""
    capacity_bytes: int
    mode: str
    """The tool's mode, if it has several."""

    @classmethod
    def read(cls, path: str) -> Task:
        return cls(**json.loads(Path(path).read_text()))

    def write(self) -> Path:
        """Write the task for the processes of the peer; the path is their argument."""
        path = Path(self.folder, "task.json")
        path.write_text(json.dumps(asdict(self)))
        return path

    def count(self, event: str) -> None:
        """Note that a process began ("launch") or a step ran out of memory ("oom")."""
        with Path(self.folder, "events").open("a") as file:
            file.write(f"{event}\n")

    def counted(self, event: str) -> int:
        path = Path(self.folder, "events")
        return path.read_text().split().count(event) if path.exists() else 0

    def tell(self, answer: Answer) -> None:
        Path(self.folder, "answer.json").write_text(json.dumps(asdict(answer)))

    @property
    def answer(self) -> Answer | None:
        path = Path(self.folder, "answer.json")
        return Answer(**json.loads(path.read_text())) if path.exists() else None
