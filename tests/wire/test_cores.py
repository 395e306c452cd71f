"""Ranks keep to the cores of their group."""

from __future__ import annotations

import os
import subprocess
import sys

from autotune.wire.cores import CORES

SCRIPT = """
import os
from autotune.wire.cores import keep_to_cores
keep_to_cores()
print(sorted(os.sched_getaffinity(0)))
"""


def cores_of(environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def test_a_process_keeps_to_the_cores_that_it_is_given() -> None:
    last = max(os.sched_getaffinity(0))
    assert cores_of({CORES: str(last)}) == f"[{last}]"


def test_without_any_it_uses_all() -> None:
    assert cores_of({}) == str(sorted(os.sched_getaffinity(0)))
