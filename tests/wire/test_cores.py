"""Ranks keep to the cores of their group."""

from __future__ import annotations

import os

from autotune.wire.cores import CORES
from tests.support.programs import python

SCRIPT = """
import os
from autotune.wire.cores import keep_to_cores
keep_to_cores()
print(sorted(os.sched_getaffinity(0)))
"""


def cores_of(environment: dict[str, str]) -> str:
    return python("-c", SCRIPT, env=environment).stdout.strip()


def test_a_process_keeps_to_the_cores_that_it_is_given() -> None:
    last = max(os.sched_getaffinity(0))
    assert cores_of({CORES: str(last)}) == f"[{last}]"


def test_without_any_it_uses_all() -> None:
    assert cores_of({}) == str(sorted(os.sched_getaffinity(0)))
