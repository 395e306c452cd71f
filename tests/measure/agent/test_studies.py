"""Whole studies over several hosts, and what is left of them however they end."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autotune.measure.runner.remote import LEASE_S, LOST_S
from autotune.show.report.text import minutes
from tests.support.agents import QUICK_AGENT, SLACK_S, ranks_on, until
from tests.support.namespaces import Network, network
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow


class Study:
    """A study whose agents are started by hand, with quick ranks."""

    def __init__(self, net: Network, folder: Path, *options: str, pace: int = 3) -> None:
        self.net = net
        self.folder = folder
        self.temporary = folder.parent / "tmp"
        self.temporary.mkdir()
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "QUICK_PACE": str(pace), "TMPDIR": str(self.temporary),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotune", "--launch", "wait", "--device", "cpu",
             "--nodes", str(len(net.hosts)), "--interface", net.address, "--out", str(folder),
             "--seq-len", "32,64", "--micro-batch", "1:4", "--depth", "2", "--zero", "0",
             *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = next(line for line in self.process.stderr if "--driver" in line)
        words = line.split()
        self.key_file = words[words.index("--key-file") + 1]
        driver = words[words.index("--driver") + 1]
        self.agents = [
            subprocess.Popen(
                host.command(*QUICK_AGENT, "--driver", driver, "--key-file", self.key_file,
                             "--node", host.name),
                env=environment,
            )
            for host in net.hosts
        ]  # fmt: skip
        self.said: list[str] = []
        self._threads = [
            threading.Thread(target=self.said.extend, args=(stream,))
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for thread in self._threads:
            thread.start()

    def runs_ranks(self) -> bool:
        return all(ranks_on(host) for host in self.net.hosts)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.said)

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "trials.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def ended(self) -> int:
        code = self.process.wait(180)
        for thread in self._threads:
            thread.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for agent in self.agents:
            agent.kill()
            agent.wait()


@pytest.fixture
def net() -> Iterator[Network]:
    """Two hosts on which nothing is left."""
    with network(2) as made, ExitStack() as stack:
        yield made
        stack.close()
        for host in made.hosts:
            assert until(lambda host=host: not host.processes(), SLACK_S), host.processes()


def nothing_is_left(study: Study) -> bool:
    return until(lambda: not list(study.temporary.iterdir()), SLACK_S)


def test_a_study_over_two_hosts_writes_its_result(net: Network, tmp_path: Path) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "2", "--budget", "40s", "--trials", "3")
    mode = Path(study.key_file).stat().st_mode
    assert mode & 0o077 == 0
    assert study.ended() == 0, study.said
    assert [agent.wait(20) for agent in study.agents] == [0, 0]
    best = json.loads((study.folder / "best.json").read_text())
    assert best["config"]["world_size"] == 2
    assert best["fingerprint"]["devices"]["nodes"] == 2
    assert {path.name for path in (study.folder / "logs").iterdir()} >= {
        "group001-rank0.log", "group001-rank1.log",
    }  # fmt: skip
    assert nothing_is_left(study)


def test_a_lost_node_is_named_and_the_others_go_on(net: Network, tmp_path: Path) -> None:
    study = Study(
        net, tmp_path / "study", "--world-size", "1", "--parallel", "auto", "--budget", "40s"
    )
    assert until(study.runs_ranks, 60), study.said  # a group on each
    study.agents[1].kill()
    assert study.ended() == 0, study.said
    said = "".join(study.said)
    assert "node n2 was lost" in said
    rows = study.rows()
    assert {row["verdict"] for row in rows} <= {"ok", "pruned", "skipped"}
    lost = [row for row in rows if "n2 was lost" in row["reason"]]
    assert {row["verdict"] for row in lost} == {"skipped"}
    again = [row["verdict"] for row in rows if row["key"] == lost[0]["key"]]
    assert set(again) - {"skipped"}  # it was asked for again
    study.close()
    assert nothing_is_left(study)


SILENT = "node n2 was lost: no sign of it for 7 s"


def reported(study: Study) -> bool:
    best = json.loads((study.folder / "best.json").read_text())
    [lost] = best["provenance"]["lost_nodes"]
    in_page = f"After {minutes(lost['elapsed_s'])}, {SILENT}." in (
        study.folder / "report.html"
    ).read_text(encoding="utf-8")
    return in_page and lost["why"] == SILENT


def test_an_idle_node_that_is_lost_is_named_at_once(net: Network, tmp_path: Path) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "1", "--budget", "120s", pace=300)
    assert until(lambda: study.says(" ok "), 60), study.said
    assert all(study.says(f"node {name} has come") for name in ("n1", "n2"))
    net.hosts[1].cut()
    assert until(lambda: study.says(SILENT), LOST_S + SLACK_S), study.said
    assert study.process.poll() is None
    study.process.send_signal(signal.SIGINT)
    assert study.ended() == 4
    assert reported(study)
    assert not [row for row in study.rows() if "n2" in row["reason"]]  # nothing ran there
    study.close()


def test_a_node_that_is_silent_at_the_end_is_named(net: Network, tmp_path: Path) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "1", "--budget", "120s", pace=300)
    assert until(lambda: study.says(" ok "), 60), study.said
    net.hosts[1].cut()
    study.process.send_signal(signal.SIGINT)
    assert study.ended() == 4
    assert study.says(SILENT)
    assert reported(study)
    study.close()


def test_a_candidate_is_in_the_table_once_where_too_few_nodes_are_left_for_it(
    net: Network, tmp_path: Path
) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "2", "--budget", "120s", pace=300)
    assert until(lambda: study.says(" ok "), 60), study.said
    net.hosts[1].cut()
    assert study.ended() == 4
    assert [row["reason"] for row in study.rows() if row["verdict"] == "skipped"] == [SILENT]
    assert reported(study)
    study.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_study_that_is_ended(
    net: Network, tmp_path: Path, number: signal.Signals
) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "2", "--budget", "120s")
    assert until(study.runs_ranks, 60), study.said
    study.process.send_signal(number)
    code = study.ended()
    assert code == -9 if number == signal.SIGKILL else code in (4, 5)
    for host in net.hosts:
        assert until(lambda host=host: not host.processes(), SLACK_S), host.processes()
    study.close()
    assert nothing_is_left(study)


def test_agents_of_a_stopped_study_leave_with_its_lease(net: Network, tmp_path: Path) -> None:
    study = Study(net, tmp_path / "study", "--world-size", "2", "--budget", "120s")
    assert until(study.runs_ranks, 60), study.said
    study.process.send_signal(signal.SIGSTOP)
    for host in net.hosts:
        assert until(lambda host=host: not host.processes(), LEASE_S + SLACK_S)
    study.process.send_signal(signal.SIGCONT)
    assert study.ended() in (0, 4, 5)
    assert "was lost" in "".join(study.said)
    study.close()
    assert nothing_is_left(study)
