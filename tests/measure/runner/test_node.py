"""The interface that ranks meet on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.device.cpu import CpuDevice
from autotune.measure.runner import local, node
from autotune.measure.runner.node import LocalNode
from autotune.wire.agents import Task
from autotune.wire.dial import Dial

DIAL = Dial(host="127.0.0.1", port=1, key="00", rank=0, child=True)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """What the next rank gets beside the study's own."""
    given: dict[str, str] = {}

    def start(dial: Dial, log: Path, environment: dict[str, str]) -> object:
        given.update(environment)
        return SimpleNamespace()

    monkeypatch.setattr(local, "start_rank", start)
    for name in node.INTERFACES:
        monkeypatch.delenv(name, raising=False)
    return given


def start(task: Task, log: Path, address: str = "127.0.0.1") -> None:
    local_node = LocalNode(CpuDevice(), log.parent, {}, print, address=address, works=False)
    local_node.start(task, DIAL, log)


def test_ranks_of_one_host_meet_on_loopback(variables: dict[str, str], tmp_path: Path) -> None:
    start(Task(program="rank"), tmp_path / "log")
    assert variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert variables["NCCL_SOCKET_IFNAME"] == "=lo"  # it takes all whose names begin so, else


def test_ranks_of_several_hosts_meet_on_the_interface_that_reaches_the_study(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "interface_of", {"10.0.0.2": "eth7"}.__getitem__)
    start(Task(program="rank", spans=True), tmp_path / "log", address="10.0.0.2")
    assert variables["GLOO_SOCKET_IFNAME"] == "eth7"
    assert variables["NCCL_SOCKET_IFNAME"] == "=eth7"
    assert node.interface_of("10.0.0.2") == "eth7"


def test_what_the_user_has_set_stays(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in node.INTERFACES:
        monkeypatch.setenv(name, "ib0")
    monkeypatch.setattr(node, "interface_of", lambda address: "eth7")
    start(Task(program="rank", spans=True), tmp_path / "log", address="10.0.0.2")
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "ib0"
    start(Task(program="rank"), tmp_path / "log")
    assert variables["GLOO_SOCKET_IFNAME"] == "lo"  # another would hang where there is one host
    assert variables["NCCL_SOCKET_IFNAME"] == "ib0"


def test_an_interface_is_known_by_its_address() -> None:
    assert node.interface_of("127.0.0.1") == "lo"
    assert node.interface_of("192.0.2.1") == ""


def test_the_study_places_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["RANK", "MASTER_ADDR", "SLURM_PROCID", "SLURMD_NODENAME", "OMPI_COMM_WORLD_RANK",
             "PMI_RANK", "TORCHELASTIC_RUN_ID", "RAY_ADDRESS"]  # fmt: skip
    for name in [*named, "NCCL_DEBUG", "RANKING"]:
        monkeypatch.setenv(name, "7")
    environment = local.full_environment(tmp_path / "log", {"LOCAL_RANK": "1"})
    assert not environment.keys() & set(named)
    assert environment["LOCAL_RANK"] == "1"
    assert environment["NCCL_DEBUG"] == environment["RANKING"] == "7"
