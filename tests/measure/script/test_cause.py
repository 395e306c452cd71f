"""The cause of a failed launch, in what its processes printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.measure.script.cause import cause_in, hint, is_launchers, short
from autotune.space.outcome import Verdict
from tests.support.launches import PYTHON, Lab

LAUNCHER = """\
E1127 api.py:1002] failed (exitcode: 2) local_rank: 1 (pid: 10049) of binary: /bin/python
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
ddp.py FAILED
"""
REFUSED = """\
usage: ddp.py [-h] --micro MICRO [--ckpt {yes,no}]
ddp.py: error: argument --ckpt: invalid choice: 'full' (choose from 'yes', 'no')
"""
TRACEBACKS = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "ddp.py", line 3, in <module>
[rank1]:     int("a")
[rank1]: ValueError: invalid literal for int()
[rank1]:
[rank1]: During handling of the above exception, another exception occurred:
[rank1]:
[rank1]: Traceback (most recent call last):
[rank1]:   File "ddp.py", line 5, in <module>
[rank1]:     raise Wrong("no data")
[rank1]: my.Wrong: no data
"""
BOX = """\
\u256d\u2500 Parsing error \u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256e
\u2502 Error parsing Config: x  \u2502
\u2502 \u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500 \u2502
\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (REFUSED * 2, "ddp.py: error: argument --ckpt: invalid choice: 'full'"
                      " (choose from 'yes', 'no')"),
        (TRACEBACKS, "my.Wrong: no data"),
        (BOX, "Error parsing Config: x"),
        ("/bin/python3.11: Error while finding module specification for 'torchtitan.train'"
         " (ModuleNotFoundError: No module named 'torchtitan')\n",
         "Error while finding module specification for 'torchtitan.train' (ModuleNotFoundError:"
         " No module named 'torchtitan')"),
        ("step 1\n", None),
    ],
    ids=["argparse", "traceback", "box", "no module", "nothing"],
)  # fmt: skip
def test_the_cause_is_what_a_process_said_and_not_its_launcher(
    said: str, cause: str | None
) -> None:
    assert cause_in(said + LAUNCHER) == cause


def test_an_error_that_only_tells_of_another_process_is_a_launcher_s() -> None:
    assert is_launchers(["torch.distributed.elastic.multiprocessing.errors.ChildFailedError"])
    assert not is_launchers(["ValueError"])


def test_the_cause_is_the_reason_of_the_verdict(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    script.write_text(
        "import torch\n"
        "class ChildFailedError(Exception): ...\n"
        "print('ddp.py: error: no such flag', flush=True)\n"
        "raise ChildFailedError('====')\n"
    )
    lab = Lab(tmp_path, f"{PYTHON} {script} {{micro_batch}}", seq_len="")
    found = lab.probe(place=1)
    lab.runner.close()
    assert found.verdict is Verdict.CRASHED
    assert found.reason.startswith("ddp.py: error: no such flag; see launch")


def test_what_lacks_a_launcher_is_told_to_use_one() -> None:
    said = "ValueError: Error initializing: environment variable RANK expected, but not set"
    assert "torchrun --nproc_per_node 2" in hint(said)
    assert hint("ValueError: environment") == ""


def test_the_output_of_a_compiler_is_left_out_of_its_error() -> None:
    said = "RuntimeError: Error building extension 'fused_lamb': [1/3] /bin/nvcc -MD\n-O3"
    assert short(said) == (
        "RuntimeError: Error building extension 'fused_lamb': nvcc, CUDA's compiler, is missing or"
        " failed; see the log"
    )
