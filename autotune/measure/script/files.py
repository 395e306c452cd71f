"""Files that a script's command names: configurations of other tools, made for each candidate."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.result.best import Best
from autotune.result.export import accelerate, hf
from autotune.result.files import write_whole
from autotune.result.making import unmeasured
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate
from autotune.space.command import FILES, Command
from autotune.space.space import Space

_PATHS = {
    "deepspeed_config": "deepspeed.json",
    "accelerate_config": "accelerate.yaml",
    "training_args": "training_args.json",
}
OUT = "out"
OWN = "own"
"""Folder of the user's files that are filled in."""


class Files:
    def __init__(self, command: Command, space: Space, device_kind: str, seed: int) -> None:
        self._command = command
        self._seed = seed
        self._has_out = command.says("out")
        self._names = [name for name in FILES if name in command.placeholders]
        self._space = space
        self._device_kind = device_kind

    def paths(self, folder: Path) -> dict[str, str]:
        """Paths in `folder` of the files that the command names, by name; and of `{out}`."""
        found = {name: _PATHS[name] for name in self._names} | {"out": OUT}
        for number, name in enumerate(self._command.files):  # numbered: names may be equal
            found[name] = f"{OWN}/{number}/{Path(name).name.removeprefix('file:')}"
        return {name: str(folder / file) for name, file in found.items()}

    def write(self, candidate: Candidate, folder: Path, replicas: int | None) -> None:
        """Write the command's files to `folder`; `replicas` may be unknown. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._has_out:
            (folder / OUT).mkdir(exist_ok=True)
        values = self._command.values(candidate, self._space.workload, self._seed, replicas)
        for file, text in self._command.filled_files(values | self.paths(folder)).items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            write_whole(Path(file), text)
        if not self._names:
            return
        expected = unmeasured(candidate, self._space, self._device_kind, replicas)
        if replicas is None and self._space.workload.world_size > 1:
            # DeepSpeed refuses another global batch than its own, and computes a missing one.
            for made in expected.exports.values():
                made.pop("train_batch_size", None)
        for name in self._names:
            for file, text in self._made(name, expected, folder).items():
                write_whole(folder / file, text)

    def _made(self, name: str, expected: Best, folder: Path) -> dict[str, str]:
        """Texts by file."""
        if name == "deepspeed_config":
            return {_PATHS[name]: json.dumps(expected.deepspeed(), indent=2) + "\n"}
        if name == "training_args":
            known = {"micro_batch", "grad_accum", "dtype"}
            known |= {name for name, each in self._space.axes.items()
                      if len(each) > 1 or each[0] != AXES[name].plain}  # fmt: skip
            arguments, _, _ = hf.arguments(expected, older=hf.is_older(), known=known)
            arguments["output_dir"] = str(folder / OUT)
            return {_PATHS[name]: json.dumps(arguments, indent=2) + "\n"}
        return accelerate.export(expected, folder).files
