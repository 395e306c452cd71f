"""NVML of emulated cards, in the moods that real ones have."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import psutil
import pynvml
import pytest

from autotune.device.emulated.build import cuda_torch, libraries
from autotune.device.emulated.emulation import Driver, Emulation
from autotune.errors import UsageError
from tests.emulated.conftest import Emulate, begin, end

pytestmark = pytest.mark.emulated

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, UNKNOWN = 3, 4, 15, 999


def devices(cards: Emulation, *, visible: str | None = None) -> Any:
    """What `open_device` of a process on these cards finds."""
    if visible is not None:
        cards.environment["CUDA_VISIBLE_DEVICES"] = visible
    return json.loads(end(begin(cards, """
import json
from autotune.device import open_device
from autotune.errors import UsageError
try:
    device = open_device("cuda")
    print(json.dumps({
        "names": [info.name for info in device.infos],
        "uuids": [info.uuid for info in device.infos],
        "gib": [round(info.capacity_bytes / 2**30, 1) for info in device.infos],
        "held": list(device.in_use_bytes()),
        "processes": [[p.pid, p.used_bytes, p.device_index] for p in device.other_processes()],
        "utilisation": device.utilisation(),
        "energy": device.energy().lack,
        "remark": device.remark,
    }))
except UsageError as error:
    print(json.dumps(str(error)))
""")))  # fmt: skip


def test_whole_cards_and_their_users(emulate: Emulate) -> None:
    cards = emulate("2xRTX4090")
    cards.hold(os.getpid(), 3 << 30, unit=1, busy=70)
    found = devices(cards)
    assert found["names"] == ["NVIDIA GeForce RTX 4090"] * 2
    assert found["gib"] == [24.0, 24.0]
    assert found["held"] == [0, 3 << 30]
    assert found["processes"] == [[os.getpid(), 3 << 30, 1]]
    assert found["utilisation"] == [0, 70]
    assert found["energy"] == ""
    cards.hold(os.getpid(), 0, unit=1)
    found = devices(cards, visible="1")
    assert found["uuids"] == [cards.units[1].uuid.decode()]
    assert (found["held"], found["processes"]) == ([0], [])


def test_instances_of_a_card_in_mig_mode(emulate: Emulate) -> None:
    cards = emulate("1xA100-40GB", mig=2)
    found = devices(cards)
    assert found["gib"] == [20.0, 20.0]
    assert all(uuid.startswith("MIG-") for uuid in found["uuids"])
    assert "MIG" in found["energy"]
    with pytest.raises(UsageError, match="at most 7 instances"):
        emulate("1xA100-40GB", mig=8)
    seen = end(begin(cards, "import torch; print(torch.cuda.device_count())"))
    cards.environment["CUDA_VISIBLE_DEVICES"] = found["uuids"][1]
    one = end(
        begin(cards, "import torch; print(torch.cuda.get_device_properties(0).total_memory)")
    )
    assert seen == "1\n"  # torch counts GPUs by NVML; CUDA gives a process one instance
    assert 18 << 30 < int(one) < 20 << 30


@pytest.mark.parametrize(
    ("question", "answer", "gone"),
    [("processes", NO_PERMISSION, "processes"), ("utilization", NOT_SUPPORTED, "utilisation"),
     ("utilization", UNKNOWN, "utilisation"), ("memory_v2", NOT_SUPPORTED, None),
     ("energy", NOT_SUPPORTED, None)],
)  # fmt: skip
def test_a_question_without_an_answer_hides_no_card(
    emulate: Emulate, question: str, answer: int, gone: str | None
) -> None:
    cards = emulate("1xH100")
    cards.hold(os.getpid(), 1 << 30)
    setattr(cards.units[0], question, answer)
    found = devices(cards)
    assert found["names"] == ["NVIDIA H100 80GB HBM3"]
    if gone is not None:
        assert found[gone] in ([], [None])


def test_a_card_that_cannot_be_opened_leaves_the_others(emulate: Emulate) -> None:
    cards = emulate("2xH100")
    cards.units[1].opening = GPU_IS_LOST
    found = devices(cards)
    assert found["uuids"] == [cards.units[0].uuid.decode()]
    assert found["remark"] == "GPUs left out, for they cannot be read (1): GPU is lost"
    cards.units[0].opening = UNKNOWN
    assert "Unknown" in devices(cards)


def test_no_card_and_no_nvml_at_all(emulate: Emulate) -> None:
    cards = emulate("1xH100")
    cards.state.units = 0
    assert "NVML sees no device" in devices(cards)
    cards.state.opening = 18
    assert "mismatch" in devices(cards)


def test_a_driver_before_r510(emulate: Emulate) -> None:
    cards = emulate("1xT4", driver=Driver(version="470.82.01", before_r510=True))
    cards.hold(os.getpid(), 1 << 30)
    found = devices(cards)
    assert found["held"] == [(1 << 30) + (450 << 20)]  # the first version tells them together
    assert found["names"] == ["Tesla T4"]


def test_a_gpu_that_shares_the_hosts_memory_has_its_capacity(emulate: Emulate) -> None:
    found = devices(emulate("1xGB10"))
    host = psutil.virtual_memory()
    assert found["gib"] == [round(host.total / 2**30, 1)]
    assert found["held"][0] == pytest.approx(host.total - host.available, rel=0.2)
    assert "shares the host's memory" in found["remark"]


def test_the_largest_set_of_cards_that_are_alike_is_taken(emulate: Emulate) -> None:
    found = devices(emulate("1xT4+2xA100-40GB+1xH100"))
    assert found["names"] == ["NVIDIA A100-SXM4-40GB"] * 2
    assert found["remark"] == (
        "the GPUs are not alike: 2 NVIDIA A100-SXM4-40GB used, not 1 Tesla T4, 1 NVIDIA H100 80GB"
        " HBM3; name the ones to use, e.g. --device cuda:1,2"
    )
    assert devices(emulate("1xT4+1xH100"))["names"] == ["NVIDIA H100 80GB HBM3"]


TUNE = """
import sys
from autotune.__main__ import main
sys.argv = ["autotune", "--budget", "30s", "--out", sys.argv[1], "--device", sys.argv[2]]
main()
"""


@pytest.mark.parametrize(
    ("driver", "line"),
    [
        (Driver(version="550.54", cuda="12.4"), "update the driver, or pip install torch --index-"
         "url https://download.pytorch.org/whl/cu126"),
        (Driver(version="470.82.01", cuda="11.4"), "a driver of 2023 or later (525) is needed"),
    ],
)  # fmt: skip
def test_a_driver_that_torch_is_too_new_for_is_one_line_before_there_is_a_folder(
    emulate: Emulate, tmp_path: Any, driver: Driver, line: str
) -> None:
    if cuda_torch().cuda.startswith("12") and driver.cuda.startswith("12"):
        pytest.skip("this torch runs on any driver of CUDA 12")
    process = begin(emulate("1xH100", driver=driver), TUNE, str(tmp_path / "out"), "cuda")
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (2, "")
    assert f"driver {driver.version} runs {driver.cuda} at most; {line}" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_driver_that_is_too_old_has_no_device_for_torch(
    emulate: Emulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)  # as accelerate sets it
    cards = emulate("1xH100", driver=Driver(version="470.82.01", cuda="11.4"))
    assert end(begin(cards, "import torch; print(torch.cuda.is_available())")) == "False\n"


def test_what_cannot_be_built_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch = cuda_torch()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UsageError, match="need a C compiler"):
        libraries()
    monkeypatch.delenv("CC")
    with pytest.raises(UsageError, match=r"need cuda_runtime_api.h"):
        libraries(replace(torch, site=tmp_path))
    monkeypatch.setenv("CC", "false -O2")  # with flags, as make reads it
    with pytest.raises(UsageError, match=r"do not compile: false: exit code 1"):
        libraries()
    assert not list(tmp_path.iterdir())


OTHERS = """
import json, os, sys, pynvml
from autotune.wire.sensors import Sensors
pynvml.nvmlInit()
sensors = Sensors(pynvml, sys.argv[1], lambda: [int(sys.argv[2])])
for _ in range(2):
    sensors.sample()
print(json.dumps(sensors.worst.others_share))
"""


@pytest.mark.parametrize(
    ("answers", "own", "share"),
    [({}, os.getpid(), 0.7), ({}, 1, None), ({"utilization": NOT_SUPPORTED}, os.getpid(), None),
     ({"utilization": NO_PERMISSION}, os.getpid(), None),
     ({"processes": NO_PERMISSION}, os.getpid(), None)],
    ids=["ours and others", "none of ours", "unsupported", "no permission", "no list"],
)  # fmt: skip
def test_what_others_compute_beside_our_processes(
    emulate: Emulate, answers: dict[str, int], own: int, share: float | None
) -> None:
    """Nothing is said where NVML does not tell, or knows processes by other ids than we do."""
    cards = emulate("1xH100")
    cards.hold(os.getpid(), 1 << 30, busy=30)
    cards.hold(os.getppid(), 1 << 30, busy=70)
    for question, answer in answers.items():
        setattr(cards.units[0], question, answer)
    seen = end(begin(cards, OTHERS, cards.units[0].uuid.decode(), str(own)))
    assert json.loads(seen) == share


def test_nobody_else_computes(emulate: Emulate) -> None:
    cards = emulate("1xH100")
    cards.hold(os.getpid(), 1 << 30, busy=90)
    seen = end(begin(cards, OTHERS, cards.units[0].uuid.decode(), str(os.getpid())))
    assert json.loads(seen) == 0.0


def test_a_card_that_is_hot_says_so_and_one_at_its_power_cap_is_not(emulate: Emulate) -> None:
    cards = emulate("1xH100")
    program = """
import json, sys, pynvml
from autotune.wire.sensors import Sensors
pynvml.nvmlInit()
sensors = Sensors(pynvml, sys.argv[1], list)
sensors.sample()
worst = sensors.worst
print(json.dumps([worst.thermally_throttled, worst.sm_clock_mhz, worst.temperature_c]))
"""
    seen = []
    for reasons in (0, pynvml.nvmlClocksThrottleReasonSwPowerCap,
                    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown):  # fmt: skip
        cards.units[0].throttle = reasons
        seen.append(json.loads(end(begin(cards, program, cards.units[0].uuid.decode()))))
    assert seen == [[False, 1800, 45], [False, 1200, 45], [True, 1200, 90]]
