"""A rank's parts on emulated cards: its process group, its limit, its meter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated.conftest import Emulate, answers, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


def test_the_group_of_a_single_rank_is_not_bound_to_its_device(emulate: Emulate) -> None:
    assert answers(emulate("1x24GiB"), """
from types import SimpleNamespace
import torch.distributed as dist
from probes.world import join
join(0, SimpleNamespace(device_kind="cuda", local_rank=0, world_size=1, local_ranks=1,
                        store_host="", store_port=0, address="127.0.0.1", alone=False),
     lambda store: None)
value = torch.tensor([3.0]).cuda()
dist.all_reduce(value, group=dist.new_group([0]))
print(json.dumps([dist.group.WORLD.bound_device_id is None, value.tolist()]))
""") == [True, [3.0]]  # fmt: skip


def test_deepspeed_sees_the_free_memory_of_a_card_of_the_capacity(emulate: Emulate) -> None:
    free_bytes = answers(emulate("1x80GiB"), """
import pynvml
from deepspeed.accelerator import get_accelerator
from probes.engines.deepspeed import free_memory_from_torch
from probes.memory import CudaMeter
pynvml.nvmlInit()
uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
CudaMeter(uuid, 1).limit(24 << 30)
free_memory_from_torch(get_accelerator())
block = torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
print(get_accelerator().available_memory())
""")  # fmt: skip
    assert 3 << 30 < free_bytes < 4 << 30


def test_pinned_memory_that_a_driver_does_not_call_resident_counts_for_the_host(
    emulate: Emulate,
) -> None:
    with_it, without = answers(emulate("1x24GiB"), """
import pynvml
from probes.memory import CudaMeter
pynvml.nvmlInit()
meter = CudaMeter(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)), 1)
meter.limit(24 << 30)
meter.reset()
kept = torch.zeros(64 << 20, dtype=torch.uint8, pin_memory=True)
found = []
for meter._pinned_is_resident in (False, True):
    found.append(meter.peaks().host_bytes)
print(json.dumps(found))
""")  # fmt: skip
    # Of what else the process has, a page or some may come between the two looks.
    assert 63 << 20 <= with_it - without < 72 << 20


def test_a_second_group_of_many_ranks_is_no_other_programs_memory(
    emulate: Emulate, tmp_path: Path
) -> None:
    cards = emulate("2xH100")
    for unit in cards.units:
        unit.nccl = 2200 << 20  # as of many more ranks
    program = """
import sys, pynvml, torch
import torch.distributed as dist
from probes.memory import CudaMeter
rank = int(sys.argv[1])
pynvml.nvmlInit()
meter = CudaMeter(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(rank)), 2)
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2,
                        device_id=device)
meter.limit(80 << 30)
dist.all_reduce(torch.ones(1, device=device), group=dist.new_group([0, 1]))
meter.built()
meter.reset()
meter.warmed()
print(meter.foreign_bytes())
"""
    both = [begin(cards, program, str(rank), str(tmp_path / "store")) for rank in range(2)]
    assert [end(each) for each in both] == ["0\n", "0\n"]
