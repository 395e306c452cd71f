"""CUDA devices: which are ours, in which order, and who else is on them."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import NoReturn, Protocol

import psutil
import pynvml
import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.device import cuda, open_device
from autotune.device.device import Device, EnergyCounters
from autotune.device.idle import check_idle
from autotune.errors import UsageError
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml, FakeProcess

A, B, C = "GPU-aa11-0000", "GPU-aa22-0000", "GPU-bb33-0000"
NO_SUCH_PID = 2**31 - 1


class Install(Protocol):
    """Puts a fake NVML with these GPUs in place and CUDA_VISIBLE_DEVICES out of the way."""

    def __call__(self, *gpus: FakeGpu, error: int | None = None) -> FakeNvml: ...


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def _install(*gpus: FakeGpu, error: int | None = None) -> FakeNvml:
        fake = FakeNvml(*gpus, error=error)
        monkeypatch.setattr(cuda, "nvml", fake)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return fake

    return _install


@pytest.fixture
def three(install: Install) -> FakeNvml:
    return install(FakeGpu(uuid=A), FakeGpu(uuid=B), FakeGpu(uuid=C))


def uuids(device: Device) -> list[str]:
    return [info.uuid for info in device.infos]


def split_gpu() -> FakeGpu:
    """A GPU in MIG mode with two instances and an empty slot between them."""
    small = FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", total=16 * GIB, used=GIB)
    large = FakeGpu(uuid="MIG-2", name="NVIDIA H200 MIG 3g.71gb", total=66 * GIB, used=2 * GIB)
    return FakeGpu(uuid=A, mig=[small, None, large])


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("0,-1,1", [A]),
        ("0,9,1", [A]),
        ("0,nonsense,1", [A]),
        ("1gpu", [B]),
        (f"{C},{A}", [C, A]),
        ("GPU-bb,GPU-aa22", [C, B]),
        ("GPU-bb,GPU-aa", [C]),
        ("0,GPU-bb", [A]),
        ("GPU-bb,0", [C]),
        ("0,9,0", [A]),
    ],
)
def test_the_variable_is_read_by_the_rules_of_cuda(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: list[str]
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert uuids(open_device("cuda")) == expected


HIDDEN = "hides all that NVML sees \\(3\\)"
TWICE = "twice: CUDA sees none"


@pytest.mark.parametrize(
    ("variable", "why"),
    [("", HIDDEN), ("-1", HIDDEN), ("9", HIDDEN), ("GPU-aa", HIDDEN), ("0,1,0", TWICE),
     (f"{A},GPU-aa11", TWICE)],
)  # fmt: skip
def test_a_variable_may_hide_all_devices(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str, why: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert open_device("auto").kind == "cpu"
    with pytest.raises(
        UsageError, match=rf"--device cuda: CUDA_VISIBLE_DEVICES='{variable}'.* {why}"
    ):
        open_device("cuda")


def test_positions_count_among_the_visible_devices_in_the_order_written(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    device = open_device("cuda:2,0")
    assert uuids(device) == [A, C]
    assert [info.index for info in device.infos] == [0, 1]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("cuda:0,3", r"cuda:0,3: there is no device 3 .*use --device cuda:0,1,2$"),
        ("cuda:1,1", r"named twice; use --device cuda:1$"),
        ("emulated:8xH100", r"only for a study on this machine$"),
        *((each, f"^--device {each}: unknown; write auto, cpu, cuda, cuda:0,2, ")
          for each in ("gpu", "cuda:", "cuda:a", "cuda:-1", "cuda:0,", "cpu:0", "")),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_refused(three: FakeNvml, spec: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        open_device(spec)


def test_auto_is_cuda_where_there_is_a_device(three: FakeNvml) -> None:
    assert open_device("auto").kind == "cuda"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch"),
    ],
)
def test_a_missing_driver_suggests_the_cpu(install: Install, error: int, reason: str) -> None:
    install(error=error)
    assert open_device("auto").kind == "cpu"
    with pytest.raises(UsageError) as caught:
        open_device("cuda")
    assert str(caught.value) == (
        f"--device cuda: NVML is not available: {reason}; use --device cpu"
    )


def test_cuda_without_a_device_says_so(install: Install) -> None:
    install()
    with pytest.raises(UsageError, match="--device cuda: NVML sees no device; use --device cpu"):
        open_device("cuda")


def test_a_driver_that_fails_is_a_reason(three: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_gpu: FakeGpu) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(three, "nvmlDeviceGetMemoryInfo", lost)
    with pytest.raises(UsageError, match="NVML is not available: GPU is lost"):
        open_device("cuda")


def test_the_instances_of_a_gpu_in_mig_mode_are_the_devices(install: Install) -> None:
    install(split_gpu(), FakeGpu(uuid=B, mig=[]))  # the second one's mode is off
    device = open_device("cuda:0,1,2")
    assert uuids(device) == ["MIG-1", "MIG-2", B]
    assert [info.capacity_bytes for info in device.infos[:2]] == [16 * GIB, 66 * GIB]
    assert device.in_use_bytes()[:2] == (GIB, 2 * GIB)
    assert device.infos[1].name == "NVIDIA H200 MIG 3g.71gb"
    assert device.fingerprint()["devices"][0]["mig"] is True
    assert "share the energy counter" in device.energy().lack


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("MIG-2", ["MIG-2"]), ("MIG-2,MIG-1", ["MIG-2", "MIG-1"]), ("1,0", [B, "MIG-1", "MIG-2"])],
)
def test_the_variable_names_mig_instances(
    install: Install, monkeypatch: pytest.MonkeyPatch, variable: str, expected: list[str]
) -> None:
    install(split_gpu(), FakeGpu(uuid=B))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert uuids(open_device("cuda")) == expected


def test_mig_mode_without_an_instance_says_so(install: Install) -> None:
    install(FakeGpu(uuid=A, mig=[None]))
    with pytest.raises(UsageError, match="NVML sees only GPUs in MIG mode without an instance"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("capability", "bf16", "fp8"),
    [((7, 5), False, False), ((8, 6), True, False), ((8, 9), True, True), ((12, 0), True, True)],
)
def test_bf16_needs_sm_80_and_fp8_sm_89(
    install: Install, capability: tuple[int, int], bf16: bool, fp8: bool
) -> None:
    install(FakeGpu(uuid=A, capability=capability))
    [info] = open_device("cuda").infos
    assert (info.bf16, info.fp8) == (bf16, fp8)


def test_memory_in_use_is_asked_anew_each_time(install: Install) -> None:
    gpu = FakeGpu(uuid=A, used=GIB)
    install(gpu)
    device = open_device("cuda")
    gpu.used = 3 * GIB
    assert device.in_use_bytes() == (3 * GIB,)


def test_ranks_see_the_chosen_devices_by_uuid_in_our_order(three: FakeNvml) -> None:
    environment = open_device("cuda:2,0").rank_environment(2)
    assert environment["CUDA_VISIBLE_DEVICES"] == f"{C},{A}"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_ranks_see_no_device_that_none_of_them_uses(three: FakeNvml) -> None:
    assert open_device("cuda").rank_environment(2)["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"


def test_groups_at_once_have_devices_of_their_own_and_share_the_cores(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cores", lambda: 16)
    shares = open_device("cuda:2,0,1").shares(3, 1)
    environments = [share.rank_environment(1) for share in shares]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == [C, A, B]
    assert {each["OMP_NUM_THREADS"] for each in environments} == {"5"}
    assert [info.uuid for share in shares for info in share.infos] == [C, A, B]


@pytest.mark.parametrize(("world_size", "threads"), [(1, "16"), (3, "5"), (32, "1")])
def test_ranks_share_the_cores(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, world_size: int, threads: str
) -> None:
    monkeypatch.setattr(cuda, "cores", lambda: 16)
    assert open_device("cuda").rank_environment(world_size)["OMP_NUM_THREADS"] == threads


def test_the_fingerprint_names_driver_and_devices(install: Install) -> None:
    install(FakeGpu(uuid=A, ecc=None, total=24 * GIB)).cuda_version = 12080
    assert open_device("cuda").fingerprint() == {
        "kind": "cuda",
        "driver": "580.65.06",
        "cuda_driver": "12.8",
        "devices": [
            {
                "name": "NVIDIA H200",
                "uuid": A,
                "capacity_bytes": 24 * GIB,
                "ecc": None,
                "mig": False,
            }
        ],
    }


def test_processes_of_others_are_listed_once_with_name_size_and_device(install: Install) -> None:
    twice, mine = FakeProcess(NO_SUCH_PID, GIB), FakeProcess(os.getpid(), None)
    install(FakeGpu(uuid=A, compute=[twice], graphics=[twice]), FakeGpu(uuid=B, graphics=[mine]))
    found = open_device("cuda").other_processes()
    assert [(p.device_index, p.used_bytes, p.name) for p in found] == [
        (0, GIB, "?"), (1, 0, psutil.Process().name()),
    ]  # fmt: skip


def test_processes_may_be_hidden(three: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_gpu: FakeGpu) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    monkeypatch.setattr(three, "nvmlDeviceGetComputeRunningProcesses", denied)
    assert open_device("cuda").other_processes() == ()


def busy(*sizes: int | None, used: int = 0) -> FakeGpu:
    """A GPU of 100 GiB whose processes hold `sizes`."""
    processes = [FakeProcess(NO_SUCH_PID - i, size) for i, size in enumerate(sizes)]
    used = used or sum(size or 0 for size in sizes)
    return FakeGpu(uuid=A, total=100 * GIB, used=used, compute=processes)


def test_a_busy_device_is_refused_by_the_name_of_its_largest_process(install: Install) -> None:
    install(busy(GIB, 6 * GIB))
    with pytest.raises(UsageError) as caught:
        check_idle(open_device("cuda"), allow_busy=False)
    assert str(caught.value) == (
        f"--device: NVIDIA H200 ({A}) is busy: process {NO_SUCH_PID - 1} (?) holds 6.00 GiB,"
        " 7.00 GiB with 1 more; wait, choose another --device, or pass --allow-busy"
    )


UNNAMED = r"6\.00 GiB of 100\.00 GiB .* "


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([busy(3 * GIB, 3 * GIB)], "is busy"),  # together they are too much
        ([busy(2 * GIB, 3 * GIB)], ""),  # 5 % are idle enough
        ([busy(3 * GIB), busy(3 * GIB)], ""),  # of two devices
        ([busy(used=6 * GIB)], UNNAMED + "NVML does not name"),
        ([busy(None, used=6 * GIB)], UNNAMED + "gives no size for"),
        ([busy(used=GIB)], ""),  # the driver's own
        ([FakeGpu(uuid=A, total=16 * GIB, used=GIB + GIB // 2)], ""),  # a desktop, a small card
    ],
)
def test_a_device_is_busy_from_a_share_of_its_memory_on(
    install: Install, gpus: list[FakeGpu], why: str
) -> None:
    install(*gpus)
    with pytest.raises(UsageError, match=why) if why else nullcontext():
        check_idle(open_device("cuda"), allow_busy=False)
    check_idle(open_device("cuda"), allow_busy=True)


def test_a_busy_device_that_was_not_chosen_does_not_matter(install: Install) -> None:
    install(FakeGpu(uuid=B), busy(50 * GIB))
    check_idle(open_device("cuda:0"), allow_busy=False)


def test_what_the_driver_keeps_for_itself_is_nobodys_use(install: Install) -> None:
    install(FakeGpu(uuid=A, used=GIB, driver=8 * GIB))
    device = open_device("cuda")
    assert device.in_use_bytes() == (GIB,)
    check_idle(device, allow_busy=False)


def test_an_old_driver_counts_its_own_share(install: Install) -> None:
    install(FakeGpu(uuid=A, used=GIB, driver=GIB, old_driver=True))
    assert open_device("cuda").in_use_bytes() == (2 * GIB,)


def test_a_gpu_that_may_not_be_opened_is_left_out(install: Install) -> None:
    install(FakeGpu(uuid=B, closed=True), FakeGpu(uuid=A))
    assert uuids(open_device("cuda")) == [A]


def test_a_silent_gpu_is_left_out(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(FakeGpu(uuid=B), FakeGpu(uuid=A))
    known = nvml.nvmlDeviceGetMemoryInfo

    def lost(gpu: FakeGpu, *how: int, **more: int) -> object:
        if gpu.uuid == B:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return known(gpu, *how, **more)

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", lost)
    assert uuids(open_device("cuda")) == [A]


def test_a_driver_that_fails_later_is_one_line(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml = install(FakeGpu(uuid=A))
    asked = []

    def unknown(gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:
        asked.append(version)
        if len(asked) > 4:  # it was opened by then
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return SimpleNamespace(total=gpu.total, used=0)

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", unknown)
    monkeypatch.setattr("autotune.device.cuda.torch_build", lambda: None)
    assert main(["--device", "cuda", "--dry-run"]) == ExitCode.NO_MEASUREMENT
    said = capsys.readouterr().err
    assert said == "autotune: the NVIDIA driver fails: Unknown Error; see what nvidia-smi says\n"


def test_gpus_of_which_none_may_be_opened_are_a_reason(install: Install) -> None:
    install(FakeGpu(uuid=A, closed=True), FakeGpu(uuid=B, closed=True))
    with pytest.raises(UsageError, match="NVML is not available: Insufficient Permissions"):
        open_device("cuda")


def test_old_drivers_leave_answers_out(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    nvml = install(FakeGpu(uuid=A))
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", unknown)
    monkeypatch.setattr(nvml, "nvmlDeviceGetEccMode", unknown)
    monkeypatch.setattr(nvml, "nvmlSystemGetDriverVersion", unknown)
    device = open_device("cuda")
    assert device.other_processes() == ()
    assert device.fingerprint()["devices"][0]["ecc"] is None


def test_energy_is_counted_by_nvml(three: FakeNvml) -> None:
    found = open_device("cuda").energy()
    assert (found.at, found.lack) == ("nvml", "")
    assert [each.covers for each in found.counters] == [i.uuid for i in open_device("cuda").infos]
    assert [counter.read() for each in found.counters for counter in each.counters] == [0] * 3


def test_one_gpu_without_a_counter_leaves_the_energy_of_all_out(install: Install) -> None:
    install(FakeGpu(uuid=A), FakeGpu(uuid=B, name="Tesla K80", energy_mj=None))
    lack = "NVML has no energy counter of Tesla K80"
    assert open_device("cuda:0,1").energy() == EnergyCounters(lack=lack)
    assert open_device("cuda:0").energy().at == "nvml"
