"""This machine's devices, on which a user's script is launched."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from autotune.device.cpu import cores, host_memory_bytes
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.script.files import Files
from autotune.measure.script.launches import Launches
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.script_space import command_of, resolve_script
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Record
from autotune.space.space import Space
from autotune.space.workload import Workload


class Scripted(Machine):
    """The `Testbed` whose results are measured now, in a user's script."""

    learns = False

    def slots(self, options: Options, space: Space) -> int:
        return 1

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        ours = visible(self.spec, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        return command_of(space.workload).assigned | ours

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        (wiring,) = wirings
        command = command_of(space.workload)
        launches = Launches(
            command=command,
            device=self.device,
            environment=self.variables(space, 1),
            space=space,
            files=Files(command, space, self.device.kind, wiring.seed),
            wiring=wiring,
        )
        return [launches]

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """What `options` have the script try. Raises what `script_space.resolve_script` does."""
        return resolve_script(options, self.device, host_memory_bytes(), cores(), known)


def shown_command(
    space: Space, record: Record, options: Options, device_kind: str, exports: Path
) -> list[str]:
    """Words that start the script of `space` as in `record`; its files are in `exports`."""
    command, ran = command_of(space.workload), record.measured.ran
    seed = options.search.seed
    paths = Files(command, space, device_kind, seed).paths(exports.absolute())
    replicas = ran.data_parallel if ran else None
    return command.shown(record.candidate, space.workload, seed, paths, replicas)


def write_files(
    space: Space, candidate: Candidate, device_kind: str, exports: Path, *, seed: int,
    replicas: int | None,
) -> None:  # fmt: skip
    """Write the files that `shown_command` names. Raises OSError."""
    files = Files(command_of(space.workload), space, device_kind, seed)
    files.write(candidate, exports.absolute(), replicas)


def visible(spec: str, before: str) -> dict[str, str]:
    """Variables that show a script only the devices of `spec`, as numbers; UUIDs fail."""
    if spec == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"}
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the order of this study
    named = re.fullmatch(r"cuda:(\d+(?:,\d+)*)", spec)
    if named is None:
        return order
    were = before.split(",") if before else None
    chosen = [were[int(n)] if were else n for n in named[1].split(",")]
    return order | {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}
