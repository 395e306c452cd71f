"""Which memory ran out, by torch's own errors on emulated cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.measure.script.launches import _memory
from autotune.wire.hook import Left
from tests.emulated.conftest import Emulate, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


PROGRAM = """
import json, os, torch
from torch.autograd.graph import save_on_cpu
from autotune.wire.stopping import Phase
from probes.faults import fault

def full():
    ones = torch.ones(16, 16, device="cuda")
    kept = torch.empty(torch.cuda.mem_get_info()[0] - (4 << 20), dtype=torch.uint8, device="cuda")
    ones @ ones

def back():
    x = torch.empty(1 << 28, device="cuda", requires_grad=True)
    with save_on_cpu(pin_memory=True):
        y = (x * x).sum()
    kept = torch.empty(22 << 30, dtype=torch.uint8, device="cuda")
    y.backward()

def there():
    torch.empty(1 << 50, pin_memory=True)

def beside():
    torch.empty(30 << 30, dtype=torch.uint8, device="cuda").cpu().pin_memory()

found = []
for run in (full, back, beside, there):
    try:
        run()
    except RuntimeError as error:
        seen = fault(error, Phase.WARMUP, "cuda", None)
        kinds = [each.__name__ for each in type(error).__mro__]
        found.append([seen.cause, seen.error, kinds, seen.traceback])
    torch.cuda.empty_cache()
print(json.dumps(found), flush=True)
os._exit(0)  # as ranks do: an ordinary end can abort in torch's backward thread (its issue 190489)
"""


def test_the_memory_that_ran_out_is_known_by_what_failed(emulate: Emulate, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)  # before Python 3.13 only lines of files are in tracebacks
    run = "import runpy, sys; runpy.run_path(sys.argv[1])"
    found = json.loads(end(begin(emulate("1x24GiB"), run, str(program))))
    assert [(cause, error.partition(":")[0]) for cause, error, *_ in found] == [
        ("oom", "RuntimeError"),  # of cuBLAS, which has no room for its handle
        ("oom", "OutOfMemoryError"),
        ("oom", "OutOfMemoryError"),
        ("host_oom", "AcceleratorError"),
    ]
    lefts = [Left(error=error, kinds=kinds, traceback=text) for _, error, kinds, text in found]
    assert [_memory(left, "cuda") for left in lefts[1:]] == [False, False, True]  # of a script
