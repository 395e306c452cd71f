"""What the hook sees of a script on emulated cards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune.device.emulated.emulation import Emulation
from tests.emulated.conftest import Emulate
from tests.support.watched import Told, watched

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


def on(cards: Emulation, folder: Path, program: str) -> tuple[Told, str]:
    """What a watched program on these cards told, and what it printed."""
    added = {name: at for name, at in cards.environment.items() if os.environ.get(name) != at}
    (told,), code, out = watched(folder, program, AUTOTUNE_DEVICE_KIND="cuda", **added)
    assert code == 0
    return told, out


def test_a_script_has_a_context_where_its_model_is_and_nowhere_else(
    emulate: Emulate, tmp_path: Path
) -> None:
    told, out = on(emulate("2xA100-80GB"), tmp_path, """
        import json, pynvml, torch
        pynvml.nvmlInit()
        model = torch.nn.Linear(8, 8, device="cuda:1")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 8, device="cuda:1")).sum().backward()
            optimizer.step()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        print(json.dumps([len(pynvml.nvmlDeviceGetComputeRunningProcesses(c)) for c in cards]))
    """)  # fmt: skip
    assert json.loads(out) == [0, 1]
    assert len(told.micro_steps) == 3
