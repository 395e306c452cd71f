"""What candidates are measured on: this machine's devices, or a recording of another's."""

from __future__ import annotations

from pathlib import Path

from autotune.testbed.testbed import Testbed

REPLAY = "replay:"


def open_testbed(spec: str) -> Testbed:
    """What `spec` names: "auto", "cpu", "cuda", "cuda:0,2" or "replay:FILE.csv".

    Raises:
        UsageError: `spec` is none of these, or names a device or a recording that is not there.
    """
    if spec.startswith(REPLAY):
        from autotune.testbed.recording import Recording

        return Recording(Path(spec.removeprefix(REPLAY)))
    from autotune.device import open_device
    from autotune.testbed.machine import Machine

    return Machine(open_device(spec), spec)
