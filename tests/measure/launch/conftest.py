"""Clusters that launchers start agents on: three hosts with a real engine each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dialed import Cluster
from tests.support.namespaces import network
from tests.support.rays import ray_cluster
from tests.support.slurm import Slurm, slurm
from tests.support.sshd import sshds


@pytest.fixture(scope="module")
def of_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def of_ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ssh")
    with network(3) as net, sshds(net, folder) as program:
        hostfile = folder / "hosts"
        hostfile.write_text("".join(f"{host.name} slots=2\n" for host in net.hosts))
        yield Cluster("ssh", net.hosts, f"ssh:{hostfile}", {"AUTOTUNE_SSH": program})


@pytest.fixture(scope="module")
def of_ray() -> Iterator[Cluster]:
    with network(3) as net, ray_cluster(net) as variables:
        yield Cluster("ray", net.hosts, "ray", variables)


@pytest.fixture(params=["slurm", "ssh", "ray"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One that this process may use."""
    if request.param == "slurm":
        found: Slurm = request.getfixturevalue("of_slurm")
        monkeypatch.setenv("SLURM_CONF", found.environment["SLURM_CONF"])
        with found.job("--nodes=3", "--gpus-per-node=2") as variables:
            made = Cluster("slurm", found.network.hosts, "slurm", variables)
            yield _entered(made, monkeypatch)
    else:
        yield _entered(request.getfixturevalue(f"of_{request.param}"), monkeypatch)


def _entered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    return cluster
