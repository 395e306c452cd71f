"""What `--launch` takes, and what it refuses before anything starts."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest

from autotune.commands.app import main
from autotune.errors import UsageError
from autotune.measure import launch
from autotune.measure.launch import slurm, slurm_job
from autotune.measure.launch.client import Client, end
from autotune.measure.launch.launcher import LaunchRequest
from tests.support.dialed import dialed
from tests.support.namespaces import free_port


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may be in one."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


def refused(text: str | None, nodes: int | None = None, **asked: int | str) -> str:
    with pytest.raises(UsageError) as caught:
        launch.checked(text, nodes, **asked)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def hostfile(folder: Path, text: str) -> str:
    path = folder / "hosts"
    path.write_text(text)
    return f"ssh:{path}"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("mpi", "known: "),
        ("ssh", "ssh:HOSTFILE"),
        ("ssh:", "ssh:HOSTFILE"),
        ("slurm:n1", "--launch slurm"),
    ],
)
def test_no_such_launcher(text: str, valid: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--launch", text]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"--launch {text}" in line
    assert valid in line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--launch", "slurm"],
            "not in a Slurm allocation; start the study within sbatch --nodes=2,"
            " or salloc --nodes=2",
        ),
        (["--launch", "ssh:none"], "--launch ssh:none: No such file or directory"),
        (["--launch", "wait"], "the number of agents is missing; add e.g. --nodes 2"),
        (["--launch", "wait", "--nodes", "0"], "--nodes 0: must be at least 1"),
        (["--nodes", "2"], "--nodes 2: needs --launch"),
        (["--launch", "wait", "--device", "replay:a.csv"], "--launch wait: replay:a.csv needs"),
    ],
)
def test_what_cannot_work_is_one_line_before_a_device_is_touched(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(spec: str) -> None:
        raise AssertionError(spec)

    monkeypatch.setattr("autotune.device.open_device", touched)
    assert main([*argv, "--device", "cpu"] if "--device" not in argv else argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_one_machine_needs_no_launcher() -> None:
    assert launch.checked(None, None) is None
    assert launch.checked(None, 1) is None


@pytest.mark.parametrize("path", ["/nowhere", None])
def test_slurm_may_not_be_asked(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": "7", "NODELIST": "n[1-2]", "NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    else:
        monkeypatch.setattr(slurm_job, "ask", lambda *command: "")
    why = "is not here" if path else "(is not here|says nothing)"
    with pytest.raises(UsageError, match=rf"in Slurm job 7 .* scontrol {why}.*--nodes 1"):
        launch.checked(None, None)
    assert launch.checked(None, 1) is None  # this machine alone


def test_the_last_line_of_an_agent_is_found_behind_any_label(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(" 1: starting\n 1: no room here\n11: fine\n")
    client = Client(["true"], "", log)
    assert client.last_line("1: ") == "no room here"
    end([client])


def test_nodes_and_an_interface_need_a_launcher() -> None:
    assert "ssh:HOSTFILE" in refused(None, 2)
    assert refused(None, interface="eth0").startswith("--interface eth0: needs --launch")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n1 slots=2\nn2 slots=2\nn1 slots=4\n", "line 3: n1 stands there twice"),
        ("n1 slots=2\n\nn2 slots=0\n", "line 3: n2 has no slots; write `n2 slots=1`"),
        ("n1\n", "line 1, 'n1': not a host with slots; write `node1 slots=8`"),
        ("n1 slots=-1\n", "line 1, 'n1 slots=-1'"),
        ("-oProxyCommand=x slots=1\n", "line 1, '-oProxyCommand=x slots=1'"),
        ("# nobody\n", "has no hosts; write lines such as `node1 slots=8`"),
    ],
)
def test_a_bad_hostfile_is_refused(tmp_path: Path, text: str, said: str) -> None:
    message = refused(hostfile(tmp_path, text))
    assert message.startswith(f"--launch ssh:{tmp_path / 'hosts'}: ")
    assert said in message


def test_a_hostfile_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    assert "is no text" in refused(f"ssh:{tmp_path / 'hosts'}")


def test_more_ranks_than_slots_are_refused(tmp_path: Path) -> None:
    hosts = hostfile(tmp_path, "n1 slots=4\nn2 slots=4\nn3 slots=4 # new\n")
    assert launch.checked(hosts, None, world_size=12) is not None
    message = refused(hosts, 2, world_size=16)
    assert message.startswith("--world-size 16: ")
    assert message.endswith("has 8 slots on 2 nodes; use --world-size 8")


def test_more_nodes_than_hosts_are_refused(tmp_path: Path) -> None:
    message = refused(hostfile(tmp_path, "n1 slots=4\nn2 slots=4\n"), 3)
    assert message.startswith("--nodes 3: ")
    assert message.endswith("use --nodes 2")


def test_a_missing_ssh_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_SSH", "no-such-ssh -v")
    message = refused(hostfile(tmp_path, "n1 slots=4\n"))
    assert "no-such-ssh not found" in message
    assert "AUTOTUNE_SSH" in message


def test_the_first_hosts_of_a_file_take_part(tmp_path: Path) -> None:
    made = launch.checked(
        hostfile(tmp_path, "b slots=2\n# c slots=1\na slots=4 x=1\nd slots=1"), 2
    )
    assert made is not None
    assert dict(made.slots) == {"b": 2, "a": 4}
    assert made.nodes == 2


def test_slurm_is_refused_to_studies_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert "start it without srun" in refused("slurm")
    assert launch.checked(None, None) is None


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray: pip install ray")
def test_ray_is_refused_where_no_cluster_is(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    message = refused("ray")
    assert message.startswith(
        f"--launch ray: no Ray cluster found: {address}: Connection refused; "
    )
    assert message.endswith("or set RAY_ADDRESS=HOST:6379")


def test_an_interface_is_named_or_is_an_address() -> None:
    for interface in ("lo", "127.0.0.1"):
        made = launch.checked("wait", 1, interface=interface)
        assert made is not None
        assert made.address() == "127.0.0.1"


def test_an_interface_that_there_is_not_is_refused() -> None:
    made = launch.checked("wait", 1, interface="eth99")
    assert made is not None
    with pytest.raises(
        UsageError, match=(r"--interface eth99: no such interface here; use one of .*lo ")
    ):
        made.address()


LATE = """#!/bin/sh
read key
echo "0: of something else"
echo "srun: error: n1: task 0: Exited with exit code 3" >&2
sleep 0.3
echo "0: no room here"
sleep 60
"""
GONE = """#!/bin/sh
read key
while [ ! -e "$GO" ]; do sleep 0.02; done
echo "0: no room here"
echo "srun: error: n1: task 0: Exited with exit code 3" >&2
exit 3
"""


@pytest.mark.parametrize("srun", [LATE, GONE])
def test_a_task_of_slurm_that_left_is_told_of_with_its_last_line(
    srun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"srun": srun, "scontrol": "#!/bin/sh\necho n1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    monkeypatch.setattr(slurm, "LATE_S", 2.0)  # the machine may be busy
    read = Client.new_lines
    waited: list[int] = []

    def read_before_the_end(client: Client) -> list[str]:
        """The first time: all comes just after it was read, and the client ends."""
        if srun is LATE or waited:
            return read(client)
        (tmp_path / "go").touch()
        waited.append(client._process.wait())
        return []

    monkeypatch.setattr(Client, "new_lines", read_before_the_end)
    job = slurm_job.SlurmJob("7", ("n1",), ("127.0.0.1",))
    with dialed(slurm.Slurm(job, LaunchRequest(nodes=1)), tmp_path) as agents:
        agents.launcher.start("127.0.0.1:9", "{}", tmp_path / "key", tmp_path)
        told = agents.polled(1)
        time.sleep(0.1)
        told += agents.launcher.poll()
    assert told == ["n1: srun: Exited with exit code 3: no room here"]
