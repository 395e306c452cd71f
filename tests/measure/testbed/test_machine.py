"""A machine starts one fork server for the count of a model and for its ranks."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.device import open_device
from autotune.measure.runner import forks, local
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.machine import Machine
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from tests.support import defaults
from tests.support.pools import RULE

pytestmark = pytest.mark.slow


def test_a_model_s_ranks_are_forked_where_it_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    spawn = local.spawn

    def seen(command: list[str], *how: Any) -> local.LocalProcess:
        started.append(command)
        return spawn(command, *how)

    monkeypatch.setattr(forks, "spawn", seen)
    monkeypatch.setattr(local, "spawn", seen)
    machine = Machine(open_device("cpu", for_torch=True), "cpu")
    options = Options.from_texts({
        "model": "factory:tests.support.own:images", "micro_batch": "1", "world_size": "1",
    })  # fmt: skip
    space = machine.space(options)
    assert machine._forks is not None
    log = next(iter(machine._forks._servers.values())).log
    log.write_text("imported")
    (runner,) = machine.runners(space, [Wiring(logs=tmp_path, note=print)])
    job = defaults.job(space.candidates[0], rule=RULE)
    assert runner.run(job, time.monotonic() + 60.0).verdict is Verdict.OK
    runner.close()
    assert [command[-3] for command in started] == ["probes.forkserver"]
    assert (tmp_path / log.name).read_text() == "imported"
    del machine, runner
    gc.collect()
    assert not log.parent.exists()


def test_a_count_alone_leaves_no_process_and_no_folder() -> None:
    """As after a dry run."""
    machine = Machine(open_device("cpu", for_torch=True), "cpu")
    machine.space(Options.from_texts({"model": "factory:tests.support.own:images"}))
    assert machine._forks is not None
    (server,) = machine._forks._servers.values()
    assert psutil.pid_exists(server.process.pid)
    logs, pid = server.log.parent, server.process.pid
    del machine, server
    gc.collect()
    assert not psutil.pid_exists(pid)
    assert not logs.exists()
