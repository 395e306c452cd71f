"""Ends of ranks on emulated cards, and what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.measure.runner.extensions import CACHES
from tests.emulated.conftest import Emulate, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

HOLDS = """
import ctypes, time
at = ctypes.c_void_p()
assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(at), ctypes.c_size_t(2 << 30)) == 0
time.sleep(600)
"""
KEEPS_FROM_EXITING = """
import ctypes, os, sys, time
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, STOP_AT_EXIT, EVERY_THREAD = 0x4206, 0x40, 0x40000000
print(ptrace(SEIZE, int(sys.argv[1]), 0, STOP_AT_EXIT), flush=True)
os.waitpid(int(sys.argv[1]), EVERY_THREAD)
time.sleep(2)
"""
LINGERS = """
import signal, subprocess, sys, time
from pathlib import Path
from autotune.device import open_device
from autotune.measure.runner import local
from autotune.measure.runner.node import LocalNode
from autotune.measure.runner.places import Places
from autotune.measure.runner.seating import Seating

device, folder = open_device("cuda"), Path(sys.argv[1])
places = Places(Seating([(LocalNode(device, folder, {}, print, works=False), 1)], 1))
places.take()
rank = local.spawn([sys.executable, "-c", sys.argv[2]], b"", folder / "rank.log", {})
while device.in_use_bytes()[0] < 2 << 30:
    time.sleep(0.05)
keeper = subprocess.Popen(
    [sys.executable, "-c", sys.argv[3], str(rank.pid)], stdout=subprocess.PIPE
)
assert keeper.stdout.readline() == b"0\\n"
local.REAP_S = 0.1
rank.signal(signal.SIGKILL)
rank.reap()
held = rank.exit_code() is None and device.in_use_bytes()[0] >> 30
print(held, places.left_bytes(float("inf"), rank.lives), rank.exit_code())
keeper.wait()
"""


def test_memory_of_a_rank_that_is_killed_and_still_there_is_waited_for(
    emulate: Emulate, tmp_path: Path
) -> None:
    """As one that unpins much host memory: it is stopped on its way out."""
    program = begin(emulate("1xH100"), LINGERS, str(tmp_path), HOLDS, KEEPS_FROM_EXITING)
    assert end(program).split() == ["2", "0", "-9"]


COMPILES = """
import dataclasses, itertools, sys, time
from pathlib import Path
from autotune.device import open_device
from autotune.measure.runner.pool import on_this_machine
from autotune.measure.runner.wiring import Wiring
from autotune.space.space import Limits
from tests.support import defaults
from tests.support.pools import RULE, SMALL

folder = Path(sys.argv[1])
pool = on_this_machine(
    open_device("cuda"), defaults.workload(width=64, dtype="fp32", engine="ddp", world_size=1),
    Limits(capacity_bytes=16 << 30, ceiling=0.8, host_capacity_bytes=64 << 30, host_ceiling=0.9),
    Wiring(logs=folder, note=print),
)
job = defaults.job(dataclasses.replace(SMALL, compile="on"), rule=RULE)
for _ in range(2):
    result = pool.run(dataclasses.replace(job, fresh=True), time.monotonic() + 150)
    assert result.report is not None, result
    kept = list(folder.glob("compiled.tmp/*/fxgraph/*/*"))
    print(result.warm, result.report.compile_s, len(kept))
pool.close()
print(list(folder.glob("*.tmp")))
"""


def test_a_fresh_group_takes_what_an_earlier_one_compiled(
    emulate: Emulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CACHES:  # torch sets the first one itself, in a process where it compiled
        monkeypatch.delenv(name, raising=False)
    first, second, left = end(begin(emulate("1xH100"), COMPILES, str(tmp_path))).splitlines()
    (_, _, compiled), (warm, _, still) = first.split(), second.split()
    assert warm == "False"
    assert int(still) == int(compiled) > 0
    assert left == "[]"
