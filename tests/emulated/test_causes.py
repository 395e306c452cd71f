"""Which memory ran out, by torch's own errors on emulated cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.emulated.conftest import Emulate, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


PROGRAM = """
import json, os, torch
from torch.autograd.graph import save_on_cpu
from autotune.wire.stopping import Phase
from probes.faults import fault

def back():
    x = torch.empty(1 << 28, device="cuda", requires_grad=True)
    with save_on_cpu(pin_memory=True):
        y = (x * x).sum()
    kept = torch.empty(22 << 30, dtype=torch.uint8, device="cuda")
    y.backward()

def there():
    torch.empty(1 << 50, pin_memory=True)

found = []
for run in (back, there):
    try:
        run()
    except RuntimeError as error:
        seen = fault(error, Phase.WARMUP, "cuda", None)
        found.append([seen.cause, seen.error.partition(":")[0]])
print(json.dumps(found), flush=True)
os._exit(0)  # as ranks do: an ordinary end can abort in torch's backward thread (its issue 190489)
"""


def test_offloaded_activations_run_out_of_the_memory_that_they_go_to(
    emulate: Emulate, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)  # before Python 3.13 only lines of files are in tracebacks
    run = "import runpy, sys; runpy.run_path(sys.argv[1])"
    found = json.loads(end(begin(emulate("1x24GiB"), run, str(program))))
    assert found == [["oom", "OutOfMemoryError"], ["host_oom", "AcceleratorError"]]
