"""Launches of scripts without a study."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from autotune.device.cpu import CpuDevice, cores
from autotune.device.device import Device
from autotune.measure.runner import Result
from autotune.measure.runner.wiring import Wiring
from autotune.measure.script.launches import Launches
from autotune.measure.testbed import scripted
from autotune.measure.testbed.scripted import Scripted
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.wire.reports import Ran
from autotune.wire.stopping import Phase, Rule
from tests.support import defaults
from tests.support.pools import RULE
from tests.support.programs import TESTS

OWN = TESTS / "support" / "own_script.py"
PYTHON = shlex.quote(sys.executable)
BIN = Path(sys.executable).parent
PLAIN = f"{PYTHON} {OWN} plain --batch {{micro_batch}} --len {{seq_len}}"


def options(script: str, **more: str) -> Options:
    given = {"micro_batch": "2,4", "seq_len": "32", "device": "cpu"} | more
    return Options.from_texts({"script": script} | {k: v for k, v in given.items() if v})


def space_of(script: str, device: Device | None = None, /, **more: str) -> Space:
    """As on two cores or more: one core is refused four ranks."""
    with patch.object(scripted, "cores", lambda: max(2, cores())):
        return Scripted(device or CpuDevice(), "cpu").space(options(script, **more))


def seen(result: Result) -> Ran:
    """What of its script was seen."""
    ran = result.reported.ran
    assert ran is not None
    return ran


class Lab:
    """A runner of one script, and what it said."""

    def __init__(
        self, logs: Path, script: str, device: Device | None = None, /, **more: str
    ) -> None:
        self.notes: list[str] = []
        self.space = space_of(script, device, **more)
        self.stopped = False
        self.on_phase: Callable[[Phase, int], None] = lambda phase, made: None
        """Learns the phase of a launch, and its steps."""
        wiring = Wiring(
            logs=logs, seed=0, budget_s=600.0, stop=lambda: self.stopped,
            on_phase=self._on_phase, note=self.notes.append,
        )  # fmt: skip
        spec = "cpu" if device is None else device.kind
        (runner,) = Scripted(device or CpuDevice(), spec).runners(self.space, [wiring])
        assert isinstance(runner, Launches)
        self.runner = runner

    def _on_phase(self, phase: Phase, made: int) -> None:
        self.on_phase(phase, made)

    def probe(
        self, place: int = 0, *, rule: Rule = RULE, limit_s: float = 120.0, phases: bool = False
    ) -> Result:
        """Of the candidate in that place."""
        candidate: Candidate = self.space.candidates[place]
        accum = self.space.workload.micro_steps(candidate)
        job = defaults.job(
            candidate, grad_accum=accum, micro_steps=accum, rule=rule, fresh=True, phases=phases
        )
        return self.runner.run(job, time.monotonic() + limit_s)
