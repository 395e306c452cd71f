"""Files that a script's command names: configurations of other tools, made for each candidate."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.result.export import accelerate, hf
from autotune.result.files import write_whole
from autotune.result.making import unmeasured
from autotune.space.candidate import Candidate
from autotune.space.command import FILES, Command
from autotune.space.engines import engine_of
from autotune.space.space import Space

_PATHS = {
    "deepspeed_config": "deepspeed.json",
    "accelerate_config": "accelerate.yaml",
    "training_args": "training_args.json",
}
OUT = "out"


class Files:
    """Those of one study."""

    def __init__(self, command: Command, space: Space, device_kind: str) -> None:
        self._has_out = command.says("out")
        self._names = [name for name in FILES if name in command.placeholders]
        self._space = space
        self._device_kind = device_kind

    def paths(self, folder: Path) -> dict[str, str]:
        """Where those that the command names are in `folder`, by name; and where `{out}` is."""
        found = {name: _PATHS[name] for name in self._names} | {"out": OUT}
        return {name: str(folder / file) for name, file in found.items()}

    def write(self, candidate: Candidate, folder: Path) -> None:
        """Write those that the command names for `candidate` to `folder`. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._has_out:
            (folder / OUT).mkdir(exist_ok=True)
        for name in self._names:
            for file, text in self._made(name, candidate, folder).items():
                write_whole(folder / file, text)

    def _made(self, name: str, candidate: Candidate, folder: Path) -> dict[str, str]:
        """Texts by file."""
        if name == "deepspeed_config":
            engine = engine_of(self._space.workload, candidate)
            config = engine.config(candidate, self._space.workload, self._device_kind)
            return {_PATHS[name]: json.dumps(config, indent=2) + "\n"}
        expected = unmeasured(candidate, self._space, self._device_kind)
        if name == "training_args":
            arguments, _ = hf.arguments(expected, older=hf.is_older())
            arguments["output_dir"] = str(folder / OUT)
            return {_PATHS[name]: json.dumps(arguments, indent=2) + "\n"}
        return accelerate.export(expected, folder).files
