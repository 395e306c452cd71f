"""Fixtures that several tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest
from hypothesis import settings

from autotune.commands.app import main
from autotune.device.device import DeviceInfo, EnergyCounters
from autotune.device.imagined import ImaginedDevice
from tests.support.postgres import Server, binaries, server

if TYPE_CHECKING:
    from tests.support.pools import Make

# No test depends on the machine's speed, or tries other examples than the last time.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# Parallel tests have more threads than the machine has cores, so waiting ones must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# torch compiles programs to ask what the compiler knows, for longer than tests' models take.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Scripts start with "python", which Debian only has in an environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

# Background jobs of a shell, or of nohup, ignore signals; studies would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Tests marked `gpu` have emulated cards if AUTOTUNE_TEST_CARDS names some."""
    cards = os.environ.get("AUTOTUNE_TEST_CARDS")
    if cards and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        from autotune.device.emulated.emulation import Emulation

        config.add_cleanup(Emulation(cards).__enter__().close)


class FakeDevice(ImaginedDevice):
    """Described devices, without other users."""

    why = "--device"

    def __init__(self, kind: Literal["cpu", "cuda"], *infos: DeviceInfo) -> None:
        self.kind, self.infos = kind, infos

    def energy(self) -> EnergyCounters:
        return EnergyCounters(lack="no counter")

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Said(NamedTuple):
    """The output of a command line."""

    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a command line in this process, which has to end with a `code`."""

    def run(*argv: object, code: int = 0) -> Said:
        capsys.readouterr()
        ended, said = main([str(word) for word in argv]), Said(*capsys.readouterr())
        assert ended == code, said
        return said

    return run


@pytest.fixture
def cpu() -> FakeDevice:
    """A host of 16 GiB."""
    return FakeDevice("cpu", _info(0, "cpu", "a processor", 16, bf16=False))


@pytest.fixture
def gpus() -> FakeDevice:
    """Two GPUs, of 80 and 40 GiB."""
    return FakeDevice(
        "cuda", _info(0, "GPU-0", "a GPU", 80), _info(1, "GPU-1", "a smaller GPU", 40)
    )


def _info(index: int, uuid: str, name: str, gib: int, bf16: bool = True) -> DeviceInfo:
    return DeviceInfo(index=index, uuid=uuid, name=name, capacity_bytes=gib * 2**30, bf16=bf16)


@pytest.fixture(scope="session")
def postgres_of_all() -> Iterator[Server]:
    """It runs only while a test asks for it: others look for processes that are left."""
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL (apt-get install postgresql)")
    with server(programs) as made:
        yield made


@pytest.fixture
def postgres(postgres_of_all: Server) -> Iterator[Server]:
    """A server of PostgreSQL with nothing in it."""
    postgres_of_all.begin()
    yield postgres_of_all
    postgres_of_all.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Make]:
    """Makes worker groups without a study; nothing is left of them."""
    from tests.support.pools import Started, ranks

    started: list[Started] = []

    def one(**how: Any) -> Started:
        started.append(Started(tmp_path, **how))
        return started[-1]

    yield one
    for each in started:
        each.pool.close()
    assert ranks() == []


@pytest.fixture(scope="session", autouse=True)
def end_kept_servers() -> Iterator[None]:
    """End the servers that `tests.support.pools` keeps for all tests."""
    yield
    pools = sys.modules.get("tests.support.pools")
    if pools is not None and pools.kept.cache_info().currsize:
        pools.kept().end()


@pytest.fixture(scope="module", autouse=True)
def end_job_servers() -> Iterator[None]:
    """End the servers that `tests.support.jobs` keeps for the tests of a module."""
    yield
    jobs = sys.modules.get("tests.support.jobs")
    if jobs is not None:
        jobs.end_kept_servers()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among what is imported and collected: it takes a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests for GPUs without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
