"""Listings of a machine that are pasted into a log: what is read in each, and who is scarce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.advise.diagnose.listing import Listing
from tests.support.logs import oom, told

LISTINGS = {
    "nvidia-smi of before 530": (
        """\
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0    61W / 400W |  40960MiB / 81920MiB |     23%      Default |
""",
        "device 0: 50% full, computes 23 %",
        "not memory",
    ),
    "nvidia-smi": (
        """\
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0            118W /  700W |   40000MiB /  81559MiB |     97%      Default |
|                                         |                        |             Disabled |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |
| N/A   34C    P0            118W /  700W |   80000MiB /  81559MiB |      7%      Default |
|                                         |                        |             Disabled |
| Processes:                                                                              |
|    0   N/A  N/A      1234      C   python                                     40000MiB |
""",
        "device 0: 49% full, computes 97 %; device 1: 98% full, computes 7 %",
        "device memory",
    ),
    "nvidia-smi as CSV": (
        """\
index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, NVIDIA A100-SXM4-80GB, 40960 MiB, 81920 MiB, 12 %
1, NVIDIA A100-SXM4-80GB, 0 MiB, 81920 MiB, 0 %
""",
        "device 0: 50% full, computes 12 %; device 1: 0% full, computes 0 %",
        "not memory",
    ),
    "CSV without units": (
        """\
name, memory.total [MiB], memory.free [MiB], utilization.gpu [%]
NVIDIA A100-SXM4-80GB, 81920, 1000, 99
NVIDIA A100-SXM4-80GB, 81920, 81000, 0
""",
        "device 0: 99% full, computes 99 %; device 1: 1% full, computes 0 %",
        "device memory",
    ),
    "CSV without a header": (
        """\
0, 40960 MiB, 81920 MiB, 12 %
1, 80000 MiB, 81920 MiB, 12 %
""",
        "device 0: 50% full, computes 12 %; device 1: 98% full, computes 12 %",
        "device memory",
    ),
    "gpustat": (
        """\
node1                    Thu Nov 23 10:00:00 2023  535.104.05
[0] NVIDIA A100-SXM4-80GB | 45°C,  97 % | 12345 / 81920 MB | me(12000M)
[1] NVIDIA A100-SXM4-80GB | 45'C,   3 % | 80345 / 81920 MB | me(12000M)
""",
        "device 0: 15% full, computes 97 %; device 1: 98% full, computes 3 %",
        "device memory",
    ),
    "rocm-smi": (
        """\
========================= ROCm System Management Interface =========================
=================================== Concise Info ===================================
GPU  Temp (DieEdge)  AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    43.0c           91.0W   800Mhz   1600Mhz  0%   auto  560.0W   98%   99%
1    43.0c           91.0W   800Mhz   1600Mhz  0%   auto  560.0W    0%   0%
""",
        "device 0: 98% full, computes 99 %; device 1: 0% full, computes 0 %",
        "device memory",
    ),
    "rocm-smi --showmeminfo": (
        """\
GPU[0]		: VRAM Total Memory (B): 68702699520
GPU[0]		: VRAM Total Used Memory (B): 10960896
GPU[1]		: VRAM Total Memory (B): 68702699520
GPU[1]		: VRAM Total Used Memory (B): 67960896000
""",
        "device 0: 0% full; device 1: 99% full",
        "device memory",
    ),
    "nvitop": (
        """\
│   0  A100-SXM4-80GB      On   │ 00000000:07:00.0 Off │                    0 │
│ N/A   45C    P0    61W / 400W │  12000MiB / 81920MiB │     97%      Default │ MEM: ███ 14.
[ CPU: ███ 5.2%                                      UPTIME: 1.1 days ]  ( Load Average:  3.
[ MEM: ██████████████▏ 94.1%                          USED: 236.8GiB ]  [ SWP: ▏ 0.0%
""",
        "device 0: 15% full, computes 97 %; host memory: 94% in use; swap: 0% in use",
        "host memory",
    ),
    "nvtop": (
        """\
Device 0 [NVIDIA A100-SXM4-80GB] PCIe GEN 4@16x RX: 1.0 MiB/s TX: 1.0 MiB/s
GPU 1410MHz MEM 1593MHz TEMP  45°C FAN N/A% POW  61 / 400 W
GPU[||||||||||          23%] MEM[|||||||||||       40.000Gi/80.000Gi]
""",
        "device 0: 50% full, computes 23 %",
        "not memory",
    ),
    "htop": (
        """\
  Mem[|||||||||||||||||||||||||||||236G/251G]   Tasks: 80, 300 thr; 17 running
  Swp[                               0K/0K]   Load average: 16.2 15.1 14.0
""",
        "host memory: 94% in use; swap: 0% in use",
        "host memory",
    ),
    "top": (
        """\
top - 10:00:00 up 10 days,  1:00,  1 user,  load average: 16.1, 15.0, 14.1
Tasks: 400 total,  17 running, 383 sleeping,   0 stopped,   0 zombie
%Cpu(s): 98.0 us,  1.0 sy,  0.0 ni,  1.0 id,  0.0 wa,  0.0 hi,  0.0 si,  0.0 st
MiB Mem : 257654.9 total,   2345.6 free, 243210.1 used,  12099.2 buff/cache
MiB Swap:   8192.0 total,   8000.0 free,    192.0 used.  12345.6 avail Mem
""",
        "host memory: 95% in use; swap: 2% in use",
        "host memory",
    ),
    "top that cuts digits off": (
        """\
KiB Mem : 26383456+total,  1234567 free, 25000000+used,  7600000 buff/cache
KiB Swap:        0 total,        0 free,        0 used.  8234567 avail Mem
""",
        "host memory: 97% in use",
        "host memory",
    ),
    "free -g": (
        """\
               total        used        free      shared  buff/cache   available
Mem:             251         230           2           1          18          15
Swap:              7           6           1
""",
        "host memory: 94% in use; swap: 86% in use",
        "host memory",
    ),
    "free -h": (
        """\
              total        used        free      shared  buff/cache   available
Mem:          251Gi       230Gi       2.1Gi       1.0Gi        18Gi        15Gi
Swap:            0B          0B          0B
""",
        "host memory: 94% in use",
        "host memory",
    ),
    "free of before 2014": (
        """\
             total       used       free     shared    buffers     cached
Mem:        257654     250000       7654          0        200      50000
-/+ buffers/cache:     199800      57854
Swap:         8191          0       8191
""",
        "host memory: 78% in use; swap: 0% in use",
        None,
    ),
    "/proc/meminfo": (
        """\
MemTotal:       263840000 kB
MemFree:          1840000 kB
MemAvailable:    12000000 kB
""",
        "host memory: 95% in use",
        "host memory",
    ),
    "df": (
        """\
Filesystem      Size  Used Avail Use% Mounted on
shm              64M   64M     0 100% /dev/shm
""",
        "/dev/shm: 100% in use",
        "/dev/shm",
    ),
    "a sentence": (
        """\
GPU 0 memory is half empty, host RAM at 94 %
""",
        "host memory: 94% in use",
        "host memory",
    ),
    "a listing that is repeated": (
        """\
index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, NVIDIA A100-SXM4-80GB, 40960 MiB, 81920 MiB, 12 %
1, NVIDIA A100-SXM4-80GB, 0 MiB, 81920 MiB, 0 %
index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, NVIDIA A100-SXM4-80GB, 81000 MiB, 81920 MiB, 12 %
1, NVIDIA A100-SXM4-80GB, 0 MiB, 81920 MiB, 0 %
""",
        "device 0: 99% full, computes 12 %; device 1: 0% full, computes 0 %",
        "device memory",
    ),
    "a log that lists nothing": (
        """\
step 1 loss 2.0 0.5s/it 10%
[0] starting
{'loss': 1.0, 'lr': 2, 'epoch': 3}, 5, 6
Downloading 100MiB / 200MiB | 50%
tensor total 3, 4
""",
        "",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says", "name"), LISTINGS.values(), ids=LISTINGS)
def test_a_listing_is_read(text: str, says: str, name: str | None) -> None:
    listing = Listing()
    for number, line in enumerate(text.splitlines(), 1):
        listing.look(line, number, "log")
    assert listing.text() == says
    found = listing.bottleneck()
    assert (found and found.name) == name


def test_a_full_host_beside_a_half_empty_device_is_named_with_what_to_do(tmp_path: Path) -> None:
    both = LISTINGS["nvidia-smi of before 530"][0] + LISTINGS["htop"][0]
    found = told(tmp_path, f"--num_workers 16\n{both}")
    assert found["verdict"].startswith(
        "No error found; host memory: 94% in use; device 0 is only 50% full"
    )
    assert (found["event"]["kind"], found["event"]["line"], found["oom"]) == ("listing", 3, False)
    settings = {each["name"]: each["setting"] for each in found["advice"]}
    assert settings["fewer workers"] == "--num_workers 8"
    assert "more on the device" in settings
    free = told(tmp_path, "        total   used   free\nMem:     31Gi   3.0Gi   28Gi\n")
    assert free["verdict"].endswith("the listing shows no bottleneck")


@pytest.mark.parametrize(
    ("name", "advised"),
    [
        ("nvtop", "more workers"),
        ("nvidia-smi", "smaller micro-batch"),
        ("df", "larger /dev/shm"),
        ("rocm-smi --showmeminfo", "smaller micro-batch"),
    ],
)
def test_each_bottleneck_has_its_advice(name: str, advised: str, tmp_path: Path) -> None:
    found = told(tmp_path, LISTINGS[name][0])
    assert found["advice"][0]["name"] == advised


PROCESSES = """\
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0            118W /  700W |   80000MiB /  81559MiB |     97%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |
| N/A   34C    P0            118W /  700W |   40960MiB /  81559MiB |      7%      Default |
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A            4321      G   /usr/lib/xorg/Xorg                      46MiB |
|    0   N/A  N/A            1234      C   ...envs/my env/bin/python            71680MiB |
|    1     1235      C   python                                                40960MiB |
"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("", "device 0 at 98%; process 1234 (...envs/my env/bin/python) holds 70.00 GiB"),
        ("RuntimeError: CUDA error: out of memory\n", "process 1235 (python) holds 40.00 GiB"),
    ],
)
def test_who_holds_much_of_a_full_device_is_named(error: str, says: str, tmp_path: Path) -> None:
    cause = told(tmp_path, error + PROCESSES)["cause"]["sentence"]
    assert says in cause
    assert ("1235" in cause) == bool(error)
    assert "Xorg" not in cause


def test_users_in_a_row_of_gpustat_are_named() -> None:
    listing = Listing()
    listing.look("[1] A100 | 45'C,   3 % | 80345 / 81920 MB | ann(70345M) gdm(6M)", 1, "log")
    found = listing.bottleneck()
    assert found is not None
    assert found.sentence.endswith("; ann holds 68.70 GiB of device 1")


def test_an_error_counts_more_than_a_listing_whose_devices_are_counted(tmp_path: Path) -> None:
    found = told(tmp_path, LISTINGS["nvidia-smi"][0] + oom())
    assert found["oom"]
    assert found["context"]["world_size"] == 2


@pytest.mark.parametrize(
    "line",
    [
        "Mem: 10.2.0.1 11Gi 12Gi",
        "MiB Mem :  1.2.3 total, 512.2 free, 400.1 used",
        "Mem[|||| 1.2.3G/62.0G]",
        "Mem[|||| 9.9.9%]",
        "[ MEM: ███ 9.4.1%  USED: 236.8GiB ]",
        "RAM 99.9.9%",
        "Allocation of 93763584 exceeds 10% of system memory.",
        "9.9.9% of RAM",
        f"Mem: {'9' * 400} {'9' * 400} 1",
    ],
)
def test_what_is_no_number_is_no_size(line: str) -> None:
    listing = Listing()
    listing.look(line, 1, "log")
    assert listing.text() == ""


@pytest.mark.parametrize("name", ["top", "free -h", "htop", "nvitop", "a sentence"])
def test_a_decimal_comma_is_read_as_a_point(name: str) -> None:
    text, says, _ = LISTINGS[name]
    if name == "htop":
        text = text.replace("236G/251G", "236.0G/251.0G")
    if name == "a sentence":
        text = text.replace("94 %", "94.0 %")
    listing = Listing()
    for line in re.sub(r"(\d)\.(\d)", r"\1,\2", text).splitlines():
        listing.look(line, 1, "log")
    assert listing.text() == says
