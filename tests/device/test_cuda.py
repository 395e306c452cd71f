"""CUDA devices: which are ours, in which order, and who else is on them."""

from __future__ import annotations

import os
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

    def __call__(
        self, *gpus: FakeGpu, error: int | None = None, as_bytes: bool = False
    ) -> FakeNvml: ...


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def _install(*gpus: FakeGpu, error: int | None = None, as_bytes: bool = False) -> FakeNvml:
        fake = FakeNvml(*gpus, error=error, as_bytes=as_bytes)
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


def test_all_devices_are_visible_where_the_variable_is_not_set(three: FakeNvml) -> None:
    assert uuids(open_device("cuda")) == [A, B, C]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
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
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert uuids(open_device("cuda")) == expected


@pytest.mark.parametrize("variable", ["", "-1", "9", "GPU-aa"])
def test_a_variable_that_names_no_device_hides_all(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    message = rf"--device cuda: CUDA_VISIBLE_DEVICES='{variable}' hides all that NVML sees \(3\)"
    with pytest.raises(UsageError, match=message):
        open_device("cuda")


@pytest.mark.parametrize("variable", ["0,1,0", f"{A},GPU-aa11"])
def test_a_device_named_twice_in_the_variable_hides_all(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(UsageError, match="twice: CUDA sees none"):
        open_device("cuda")


def test_positions_count_among_the_visible_devices_in_the_order_written(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    assert uuids(open_device("cuda:2,0")) == [A, C]


def test_indices_are_positions_among_the_chosen_devices(three: FakeNvml) -> None:
    assert [info.index for info in open_device("cuda:2,0").infos] == [0, 1]


def test_a_position_out_of_range_names_what_would_work(install: Install) -> None:
    install(FakeGpu(uuid=A), FakeGpu(uuid=B))
    with pytest.raises(
        UsageError, match=r"cuda:0,2: there is no device 2 .*use --device cuda:0,1$"
    ):
        open_device("cuda:0,2")


def test_a_position_written_twice_is_refused(three: FakeNvml) -> None:
    with pytest.raises(UsageError, match=r"named twice; use --device cuda:1$"):
        open_device("cuda:1,1")


@pytest.mark.parametrize("spec", ["gpu", "cuda:", "cuda:a", "cuda:-1", "cuda:0,", "cpu:0", ""])
def test_an_unknown_device_is_refused(three: FakeNvml, spec: str) -> None:
    with pytest.raises(UsageError, match=f"^--device {spec}: unknown; write auto, cpu, cuda or"):
        open_device(spec)


def test_auto_is_cuda_where_there_is_a_device(three: FakeNvml) -> None:
    assert open_device("auto").kind == "cuda"


def test_auto_is_cpu_where_the_variable_hides_all_devices(
    three: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert open_device("auto").kind == "cpu"


def test_auto_is_cpu_without_a_driver(install: Install) -> None:
    install(error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert open_device("auto").kind == "cpu"


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
    install(split_gpu(), FakeGpu(uuid=B))
    assert uuids(open_device("cuda")) == ["MIG-1", "MIG-2", B]


def test_a_mig_instance_has_its_own_memory(install: Install) -> None:
    install(split_gpu())
    device = open_device("cuda")
    assert [info.capacity_bytes for info in device.infos] == [16 * GIB, 66 * GIB]
    assert device.in_use_bytes() == (GIB, 2 * GIB)


def test_a_mig_instance_has_its_own_name(install: Install) -> None:
    install(split_gpu())
    assert open_device("cuda:1").infos[0].name == "NVIDIA H200 MIG 3g.71gb"


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


def test_a_gpu_with_mig_mode_off_is_one_device(install: Install) -> None:
    install(FakeGpu(uuid=A, mig=[]))
    assert uuids(open_device("cuda")) == [A]


def test_mig_mode_without_an_instance_says_so(install: Install) -> None:
    install(FakeGpu(uuid=A, mig=[None]))
    with pytest.raises(UsageError, match="NVML sees only GPUs in MIG mode without an instance"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((12, 0), True)]
)
def test_bf16_needs_sm_80(install: Install, capability: tuple[int, int], bf16: bool) -> None:
    install(FakeGpu(uuid=A, capability=capability))
    assert open_device("cuda").infos[0].bf16 is bf16


def test_capacity_is_what_nvml_says_the_device_has(install: Install) -> None:
    install(FakeGpu(uuid=A, total=24 * GIB))
    assert open_device("cuda").infos[0].capacity_bytes == 24 * GIB


def test_memory_in_use_is_asked_anew_each_time(install: Install) -> None:
    gpu = FakeGpu(uuid=A, used=GIB)
    install(gpu)
    device = open_device("cuda")
    gpu.used = 3 * GIB
    assert device.in_use_bytes() == (3 * GIB,)


def test_text_may_come_as_bytes(install: Install) -> None:
    install(FakeGpu(uuid=A), as_bytes=True)
    device = open_device("cuda")
    assert (device.infos[0].uuid, device.infos[0].name) == (A, "NVIDIA H200")


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
    install(FakeGpu(uuid=A))
    assert open_device("cuda").fingerprint() == {
        "kind": "cuda",
        "driver": "580.65.06",
        "cuda_driver": "13.0",
        "devices": [
            {
                "name": "NVIDIA H200",
                "uuid": A,
                "capacity_bytes": 140 * GIB,
                "ecc": True,
                "mig": False,
            }
        ],
    }


def test_the_fingerprint_tells_the_minor_version_of_the_cuda_driver(install: Install) -> None:
    install(FakeGpu(uuid=A)).cuda_version = 12080
    assert open_device("cuda").fingerprint()["cuda_driver"] == "12.8"


def test_the_fingerprint_knows_no_ecc_on_a_device_without_it(install: Install) -> None:
    install(FakeGpu(uuid=A, ecc=None))
    assert open_device("cuda").fingerprint()["devices"][0]["ecc"] is None


def test_the_fingerprint_marks_a_mig_instance(install: Install) -> None:
    install(split_gpu())
    assert open_device("cuda").fingerprint()["devices"][0]["mig"] is True


def test_a_process_in_both_lists_counts_once(install: Install) -> None:
    process = FakeProcess(NO_SUCH_PID, GIB)
    install(FakeGpu(uuid=A, compute=[process], graphics=[process]))
    assert [p.used_bytes for p in open_device("cuda").other_processes()] == [GIB]


def test_a_process_is_listed_with_the_index_of_its_device(install: Install) -> None:
    install(FakeGpu(uuid=A), FakeGpu(uuid=B, graphics=[FakeProcess(NO_SUCH_PID, GIB)]))
    assert [p.device_index for p in open_device("cuda").other_processes()] == [1]


def test_a_process_of_unknown_size_counts_as_nothing(install: Install) -> None:
    install(FakeGpu(uuid=A, compute=[FakeProcess(NO_SUCH_PID, None)]))
    assert [p.used_bytes for p in open_device("cuda").other_processes()] == [0]


def test_a_process_has_its_name(install: Install) -> None:
    install(FakeGpu(uuid=A, compute=[FakeProcess(os.getpid(), GIB)]))
    (process,) = open_device("cuda").other_processes()
    assert process.name == psutil.Process().name()


def test_a_process_that_cannot_be_seen_has_a_question_mark_for_a_name(install: Install) -> None:
    install(FakeGpu(uuid=A, compute=[FakeProcess(NO_SUCH_PID, GIB)]))
    (process,) = open_device("cuda").other_processes()
    assert process.name == "?"


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


def test_processes_that_are_small_alone_are_too_much_together(install: Install) -> None:
    install(busy(3 * GIB, 3 * GIB))
    with pytest.raises(UsageError, match="is busy"):
        check_idle(open_device("cuda"), allow_busy=False)


def test_a_share_of_five_percent_is_idle_enough(install: Install) -> None:
    install(busy(2 * GIB, 3 * GIB))
    check_idle(open_device("cuda"), allow_busy=False)


def test_small_processes_on_different_devices_do_not_add_up(install: Install) -> None:
    install(busy(3 * GIB), busy(3 * GIB))
    check_idle(open_device("cuda"), allow_busy=False)


def test_a_busy_device_that_was_not_chosen_does_not_matter(install: Install) -> None:
    install(FakeGpu(uuid=B), busy(50 * GIB))
    check_idle(open_device("cuda:0"), allow_busy=False)


def test_memory_of_hidden_processes_is_reported_as_theirs(install: Install) -> None:
    install(busy(used=6 * GIB))
    with pytest.raises(UsageError, match=r"6\.00 GiB of 100\.00 GiB .* NVML does not name"):
        check_idle(open_device("cuda"), allow_busy=False)


def test_a_process_of_unknown_size_does_not_hide_what_it_holds(install: Install) -> None:
    install(busy(None, used=6 * GIB))
    with pytest.raises(UsageError, match=r"6\.00 GiB of 100\.00 GiB .* gives no size for"):
        check_idle(open_device("cuda"), allow_busy=False)


def test_the_driver_s_own_share_is_not_somebody_s(install: Install) -> None:
    install(busy(used=GIB))
    check_idle(open_device("cuda"), allow_busy=False)


def test_a_busy_device_is_taken_where_that_is_allowed(install: Install) -> None:
    install(busy(50 * GIB))
    check_idle(open_device("cuda"), allow_busy=True)


def test_what_the_driver_keeps_for_itself_is_nobodys_use(install: Install) -> None:
    install(FakeGpu(uuid=A, used=GIB, driver=8 * GIB))
    device = open_device("cuda")
    assert device.in_use_bytes() == (GIB,)
    check_idle(device, allow_busy=False)


def test_an_old_driver_counts_its_own_share(install: Install) -> None:
    install(FakeGpu(uuid=A, used=GIB, driver=GIB, old_driver=True))
    assert open_device("cuda").in_use_bytes() == (2 * GIB,)


def test_a_desktop_on_a_small_card_is_no_reason_to_refuse(install: Install) -> None:
    install(FakeGpu(uuid=A, total=16 * GIB, used=GIB + GIB // 2))
    check_idle(open_device("cuda"), allow_busy=False)


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
        if len(asked) > 2:  # it was opened by then
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return SimpleNamespace(total=gpu.total, used=0)

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", unknown)
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
    assert open_device("cuda").energy() == EnergyCounters(lack=lack)
    assert open_device("cuda:0").energy().at == "nvml"


def test_the_energy_of_mig_instances_is_left_out(install: Install) -> None:
    install(split_gpu())
    assert "share the energy counter" in open_device("cuda").energy().lack
