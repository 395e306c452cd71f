"""An emulation that cannot be made says why in one line, and leaves nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from autotune.device.emulated import build
from autotune.device.emulated.build import cuda_torch, libraries
from autotune.device.emulated.emulation import Emulation
from autotune.errors import UsageError
from tests.support.programs import python

pytestmark = pytest.mark.emulated

FULL = """
import resource
from autotune import emulate
from autotune.errors import UsageError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    emulate("1xT4")
except UsageError as error:
    print(error)
"""

OF_ANOTHER_USER = """
import os
from autotune.device.emulated import build
from autotune.device.emulated.build import cuda_torch, libraries
from autotune.errors import UsageError
if os.geteuid() == 0:  # who may write anywhere
    os.seteuid(65534)
try:
    libraries()
except UsageError as error:
    print(error)
"""


def test_no_room_for_the_file_of_an_emulation(tmp_path: Path) -> None:
    libraries()
    done = python("-c", FULL, env={"TMPDIR": str(tmp_path)})
    said = "--device emulated 1xT4: no file in TMPDIR: File too large\n"
    assert (done.stdout, done.stderr) == (said, "")
    assert not list(tmp_path.iterdir())


def test_no_folder_for_the_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"Not a directory; set XDG_CACHE_HOME"):
        libraries()


@pytest.mark.parametrize("mode", [0o500, 0o000], ids=["read-only", "closed"])
def test_a_cache_of_somebody_else(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    done = python("-c", OF_ANOTHER_USER, env={"XDG_CACHE_HOME": str(cache)})
    assert done.stdout == (
        f"emulated GPUs: {cache}/autotune/emulated: Permission denied; set XDG_CACHE_HOME to"
        " another folder\n"
    ), done.stderr
    assert not list(cache.iterdir())


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(cuda_torch(), version="2.14.1+cpu", cuda="")
    for found, why in (plain, r"built for CUDA; 2.14.1\+cpu is not"), (None, "pip install torch"):
        monkeypatch.setattr(build, "torch_build", lambda found=found: found)
        with pytest.raises(UsageError, match=why):
            Emulation("1xT4")


def test_no_emulation_after_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = dict(os.environ)
    cards = Emulation("1xT4")
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(UsageError, match="torch is imported already"), cards:
        pass
    assert dict(os.environ) == before
    assert not list(tmp_path.iterdir())
