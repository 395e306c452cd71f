"""The CPU as a device: what the machine and its cgroups leave us."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from autotune.device import open_device, remark
from autotune.device.cpu import CpuDevice, cores, host_memory_bytes, host_oom_kills
from autotune.device.device import EnergyCounters
from autotune.device.idle import check_idle
from autotune.wire.cores import CORES
from tests.support import rapl

GIB = 2**30
V2 = "0::/user/job\n"
V1 = "9:memory:/user/job\n8:cpu,cpuacct:/user/job\n1:name=systemd:/\n"


class Machine:
    """A tree of files that stands for /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.cgroups.mkdir()
        self.write(
            self.proc / "meminfo", f"MemTotal:       {64 * GIB // 1024} kB\nMemFree: 1 kB\n"
        )

    @property
    def roots(self) -> tuple[Path, Path]:
        return self.proc, self.cgroups

    def groups(self, text: str) -> None:
        self.write(self.proc / "self" / "cgroup", text)

    def cgroup(self, path: str, text: object) -> None:
        self.write(self.cgroups / path, f"{text}\n")

    def cpuinfo(self, text: str) -> None:
        self.write(self.proc / "cpuinfo", text)

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of 64 GiB that lets us use 16 cores, without cgroups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    return Machine(tmp_path)


def test_memory_without_cgroups_is_the_machine_s(machine: Machine) -> None:
    assert host_memory_bytes(*machine.roots) == 64 * GIB


def test_memory_without_proc_is_what_psutil_says(tmp_path: Path) -> None:
    assert host_memory_bytes(tmp_path, tmp_path) == psutil.virtual_memory().total


V1_MEMORY = "memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("groups", "name", "limit"),
    [
        (V2, "user/job/memory.max", 8 * GIB),
        (V2, "user/memory.max", 8 * GIB),
        (V2, "memory.max", 8 * GIB),
        (V1, f"memory/user/job/{V1_MEMORY}", 8 * GIB),
        (V1, f"memory/user/{V1_MEMORY}", 8 * GIB),
        (V1, f"memory/{V1_MEMORY}", 8 * GIB),
        ("9:memory:/docker/0123\n", f"memory/{V1_MEMORY}", 8 * GIB),  # a path of the host's alone
        (V1 + V2, "unified/user/job/memory.max", 8 * GIB),
        (V2, "user/job/memory.max", "max"),
        (V1, f"memory/user/job/{V1_MEMORY}", 9223372036854771712),
    ],
)
def test_memory_is_limited_by_our_cgroup_and_all_above(
    machine: Machine, groups: str, name: str, limit: int | str
) -> None:
    machine.groups(groups)
    machine.cgroup("user/job/memory.max", 16 * GIB)
    machine.cgroup(f"memory/user/job/{V1_MEMORY}", 16 * GIB)
    machine.cgroup(name, limit)
    limited = limit == 8 * GIB
    assert host_memory_bytes(*machine.roots) == (8 if limited else 64) * GIB
    assert (
        CpuDevice("--device", *machine.roots).infos[0].capacity_bytes
        == (8 if limited else 64) * GIB
    )


def test_memory_is_not_limited_by_a_cgroup_beside_ours(machine: Machine) -> None:
    machine.groups(V2)
    machine.cgroup("user/other/memory.max", GIB)
    assert host_memory_bytes(*machine.roots) == 64 * GIB


def test_cores_without_a_quota_are_those_we_may_run_on(machine: Machine) -> None:
    assert cores(*machine.roots) == 16


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {"user/job/cpu.max": "max 100000"}, 16),
        (V2, {"user/job/cpu.max": "400000 100000"}, 4),
        (V2, {"user/job/cpu.max": "150000 100000"}, 2),
        (V2, {"user/job/cpu.max": "1000 100000"}, 1),
        (V2, {"user/job/cpu.max": "6400000 100000"}, 16),  # more than we may run on
        (V2, {"user/job/cpu.max": "800000 100000", "user/cpu.max": "200000 100000"}, 2),
        (V1, {"cpu/user/job/cpu.cfs_quota_us": -1}, 16),
        (V1, {"cpu/user/job/cpu.cfs_quota_us": 400000}, 4),
        (V1, {"cpu/user/job/cpu.cfs_quota_us": 150000}, 2),
    ],
)
def test_cores_are_limited_by_quotas(
    machine: Machine, groups: str, files: dict[str, object], expected: int
) -> None:
    machine.groups(groups)
    for name, text in {"cpu/user/job/cpu.cfs_period_us": 100000, **files}.items():
        machine.cgroup(name, text)
    assert cores(*machine.roots) == expected


@pytest.mark.parametrize(
    ("groups", "name", "text", "kills"),
    [
        (V2, "user/job/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0", 3),
        (V1, "memory/user/job/memory.oom_control", "under_oom 0\noom_kill 3", 3),
        (V2, "other", "", 9),  # it does not tell
    ],
)
def test_oom_kills_are_of_our_cgroup_or_else_the_machine_s(
    machine: Machine, groups: str, name: str, text: str, kills: int
) -> None:
    assert host_oom_kills(*machine.roots) == 0
    machine.groups(groups)
    machine.cgroup(name, text)
    machine.write(machine.proc / "vmstat", "nr_free_pages 5\noom_kill 9\n")
    assert host_oom_kills(*machine.roots) == kills


@pytest.mark.parametrize(
    ("cpuinfo", "bf16"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu amx_tile amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("bugs\t\t: avx512_bf16\n", False),
    ],
)
def test_bf16_follows_the_instruction_sets(machine: Machine, cpuinfo: str, bf16: bool) -> None:
    machine.cpuinfo(cpuinfo)
    assert CpuDevice("--device", *machine.roots).infos[0].bf16 is bf16


@pytest.mark.parametrize(("world_size", "threads"), [(1, "16"), (3, "5"), (32, "1")])
def test_ranks_share_the_cores(machine: Machine, world_size: int, threads: str) -> None:
    environment = CpuDevice("--device", *machine.roots).rank_environment(world_size)
    assert (environment["OMP_NUM_THREADS"], environment["CUDA_VISIBLE_DEVICES"]) == (threads, "")


def test_parallel_groups_share_no_core(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda of: set(range(16)))
    device = CpuDevice("--device", *machine.roots)
    first, second = (each.rank_environment(2) for each in device.shares(2, 2))
    assert first["OMP_NUM_THREADS"] == second["OMP_NUM_THREADS"] == "4"
    assert first[CORES] == "0,1,2,3,4,5,6,7"
    assert second[CORES] == "8,9,10,11,12,13,14,15"
    assert CORES not in device.shares(1, 2)[0].rank_environment(2)


def test_groups_at_once_measure_no_energy_of_a_host(machine: Machine) -> None:
    first, _ = CpuDevice("--device", *machine.roots).shares(2, 1)
    assert first.energy().lack == "groups that run at once share the processors' counters"


def test_the_fingerprint_holds_processor_cores_and_memory(machine: Machine) -> None:
    machine.cpuinfo("model name\t: AMD EPYC\nflags\t\t: fpu\n\nmodel name\t: x\n")
    device = CpuDevice("--device", *machine.roots)
    (info,) = device.infos
    assert (info.index, info.uuid, info.name) == (0, "cpu", "AMD EPYC, 16 cores")
    check_idle(device, allow_busy=False)  # it is never too busy
    assert device.fingerprint() == {
        "kind": "cpu",
        "name": "AMD EPYC, 16 cores",
        "cores": 16,
        "capacity_bytes": 64 * GIB,
        "bf16": False,
    }


def test_this_machine_can_be_opened() -> None:
    (info,) = open_device("cpu").infos
    assert 0 < info.capacity_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize("node", ["nvidia0", "dxg"])
def test_a_gpu_that_auto_could_not_use_is_told_of(node: str, tmp_path: Path) -> None:
    by_itself = CpuDevice("auto: NVML is not available: Driver Not Loaded")
    assert remark(by_itself, tmp_path) == ""
    (tmp_path / node).touch()
    said = remark(by_itself, tmp_path)
    assert said.startswith(f"{tmp_path / node} is there, but NVML is not available: Driver Not")
    assert "--device cpu" in said
    assert remark(CpuDevice("--device"), tmp_path) == ""


def test_energy_is_counted_where_there_is_a_package(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path)
    found = CpuDevice(powercap=folder).energy()
    assert (found.at, found.lack) == (str(folder), "")
    (host,) = found.counters
    assert [counter.read() for counter in host.counters] == [0]


def test_without_a_package_energy_is_left_out(tmp_path: Path) -> None:
    found = CpuDevice(powercap=tmp_path).energy()
    assert found == EnergyCounters(lack=f"{tmp_path} has no RAPL counter of a processor")


def test_a_counter_for_root_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path) -> int:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("autotune.wire.energy._number", refuse)
    found = CpuDevice(powercap=rapl.powercap(tmp_path)).energy()
    assert (found.at, "chmod a+r" in found.lack) == ("", True)
