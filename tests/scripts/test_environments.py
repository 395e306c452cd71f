"""Where `scripts/test` makes its second environment, and what it says where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import ROOT, SCRIPTS

ENSURE = 'set -euo pipefail; source scripts/_venv.sh; ensure_cuda && echo "made"'
PROGRAMS = {
    "uname": 'echo "${UNAME:-Linux x86_64}"',
    "df": 'echo Avail; echo "${FREE_KB:-20000000}"',
    "no-python": 'case "$*" in *%d.%d*) echo 3.11;; esac',
}


def ensure(folder: Path, **environment: str) -> tuple[str, list[str]]:
    """What is printed of the making, on a machine that the variables describe."""
    programs, scripts = folder / "bin", folder / "scripts"
    for each in (programs, scripts):
        each.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for path in (SCRIPTS / "_venv.sh", SCRIPTS / "constraints.txt"):
        shutil.copy(path, scripts)
    shutil.copy(ROOT / "pyproject.toml", folder)
    there = {"PATH": f"{programs}:{os.environ['PATH']}", "CC": "true"}
    done = subprocess.run(
        ["bash", "-c", ENSURE], cwd=folder, env=os.environ | there | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({"UNAME": "Darwin arm64"}, "this is Darwin arm64"),
        ({"CC": "no-such-compiler"}, "there is no C compiler (apt-get install gcc)"),
        ({"FREE_KB": "4000000"}, "needs 15 GB in"),
        ({"PYTHON": "no-python"}, "the installation failed; see above"),
    ],
)
def test_where_it_cannot_be_made_the_last_line_says_why(
    tmp_path: Path, machine: dict[str, str], why: str
) -> None:
    out, err = ensure(tmp_path, **machine)
    assert out == ""
    assert err[-1].startswith("autotune: the tests on emulated cards are left out: ")
    assert why in err[-1]
    assert len(err) == 1 or "PYTHON" in machine


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    there = tmp_path / ".venv-cuda" / "bin"
    there.mkdir(parents=True)
    (there / "python").write_text("#!/bin/sh\nexit 0\n")
    (there / "python").chmod(0o755)
    out, err = ensure(tmp_path)
    assert (out, len(err)) == ("made\n", 1)
    again = subprocess.run(
        ["bash", "-c", ENSURE.replace("scripts", str(tmp_path / "scripts"))], cwd=tmp_path,
        env=os.environ | {"FREE_KB": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (again.stdout, again.stderr) == ("made\n", "")
