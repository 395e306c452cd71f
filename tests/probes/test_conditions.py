"""What is taken for heat, and what others take."""

from __future__ import annotations

import subprocess
import sys
import time

from probes.conditions import Watch


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_what_others_take_does_not_count_what_this_process_does() -> None:
    watch = Watch(None)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy(0.4)
        alone, as_two = watch.others_share(1), watch.others_share(2)
    finally:
        other.kill()
        other.wait()
    assert 0.0 < alone <= 1.0
    # With a second rank that does as much as this one, less of it is others'.
    assert as_two < alone
