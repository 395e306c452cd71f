"""NCCL among ranks on emulated cards."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.emulated.conftest import JOIN, Emulate, begin, end, ranks

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


def test_small_collectives_have_their_values(emulate: Emulate, tmp_path: Any) -> None:
    """In each type, over all ranks and over subgroups."""
    found = ranks(emulate("4xH100"), """
out = []
for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
              torch.float32, torch.float64):
    value = there(rank + 1, 3, dtype=dtype)
    dist.all_reduce(value)
    out.append(here(value))
for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
    value = there(rank + 1.0)
    dist.all_reduce(value, op)
    out += here(value)
half = there(rank + 0.5, dtype=torch.float16)
dist.all_reduce(half, dist._make_nccl_premul_sum(0.5))
out += here(half)
value = there(rank * 10)
dist.broadcast(value, 2)
out += here(value)
many = there(0, 0, 0, 0)
dist.all_gather_into_tensor(many, there(rank))
out.append(here(many))
one = there(0)
dist.reduce_scatter_tensor(one, there(0, 1, 2, 3))
out += here(one)
turned = there(0, 0, 0, 0)
dist.all_to_all_single(turned, there(*(10 * rank + i for i in range(4))))
out.append(here(turned))
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
value = there(rank)
dist.all_reduce(value, group=pairs[rank // 2])
out += here(value)
halves = dist.split_group(split_ranks=[[0, 2], [1, 3]])
value = there(rank)
dist.all_reduce(value, group=halves)
out += here(value)
print(json.dumps(out))
""", tmp_path / "store")  # fmt: skip
    for rank, out in enumerate(found):
        assert out[:8] == [[10, 12]] * 8
        assert out[8:12] == [4, 1, 24, 2.5]
        assert out[12:14] == [4, 20]
        assert out[14] == [0, 1, 2, 3]
        assert out[15] == 4 * rank
        assert out[16] == [rank, 10 + rank, 20 + rank, 30 + rank]
        assert out[17] == (1 if rank < 2 else 5)
        assert out[18] == (2 if rank % 2 == 0 else 4)


def test_tensors_are_held_until_the_watchdog_looks_by_the_clock_of_the_card(
    emulate: Emulate, tmp_path: Any
) -> None:
    """Of a collective that the program does not wait for."""
    found = ranks(emulate("4xH100"), """
import time
many = torch.empty(32768, 32768, device="cuda", dtype=torch.bfloat16)
def take():
    for _ in range(3):
        many @ many
def held():
    dist.all_reduce(one)  # at its start, torch lets go of all that the watchdog saw
    return torch.cuda.memory_allocated() > before
one = there(1)
dist.all_reduce(one)
take()
torch.cuda.synchronize()
before = torch.cuda.memory_allocated() + (1 << 20)
take()
dist.all_reduce(torch.empty(1 << 26, device="cuda"), async_op=True)
early = []
for _ in range(10):
    time.sleep(0.05)
    early.append(held())
torch.cuda.synchronize()
take()
torch.cuda.synchronize()
late = one
for _ in range(600):
    time.sleep(0.05)
    late = there(int(held()))
    dist.all_reduce(late)
    if here(late) == [0]:
        break
print(json.dumps([all(early), here(late)]))
""", tmp_path / "store")  # fmt: skip
    assert found == [[True, [0]]] * 4


def test_sends_and_receives_meet_in_any_order_and_large_ones_do_not_wait(
    emulate: Emulate, tmp_path: Any
) -> None:
    found = ranks(emulate("4xA100-80GB"), """
left, right = (rank - 1) % ranks, (rank + 1) % ranks
got = [there(-1), there(-1), there(-1)]
moves = [dist.P2POp(dist.isend, there(rank), right), dist.P2POp(dist.irecv, got[0], left),
         dist.P2POp(dist.isend, there(rank + 10), left), dist.P2POp(dist.irecv, got[1], right),
         dist.P2POp(dist.isend, there(rank + 20), right), dist.P2POp(dist.irecv, got[2], left)]
for work in dist.batch_isend_irecv(moves):
    work.wait()
large = torch.empty(1 << 28, device="cuda")
dist.all_reduce(large)
dist.all_gather_into_tensor(torch.empty(1 << 30, device="cuda"), large)
if rank == 0:
    dist.send(there(7), 1)
if rank == 1:
    dist.recv(got[0], 0)
dist.barrier()
print(json.dumps([each.item() for each in got]))
""", tmp_path / "store")  # fmt: skip
    for rank, (first, second, third) in enumerate(found):
        left, right = (rank - 1) % 4, (rank + 1) % 4
        assert first == (7 if rank == 1 else left)
        assert (second, third) == (right + 10, left + 20)


def test_a_communicator_takes_memory_outside_of_torch(emulate: Emulate, tmp_path: Any) -> None:
    cards = emulate("2xA100-80GB")
    found = ranks(cards, """
dist.barrier()
left, total = torch.cuda.mem_get_info()
print(json.dumps([total - left - torch.cuda.memory_reserved() >> 20]))
dist.barrier()
""", tmp_path / "store", count=2)  # fmt: skip
    assert found == [[510 + 545]] * 2  # context and NCCL, as `overheads.py` has them


def test_so_does_one_of_a_rank_that_is_alone(emulate: Emulate, tmp_path: Any) -> None:
    """As DeepSpeed's is on one GPU: `results/real.md`."""
    [found] = ranks(emulate("1xH200"), """
def beside():
    left, total = torch.cuda.mem_get_info()
    return total - left - torch.cuda.memory_reserved() >> 20
dist.all_reduce(there(1.0))
held = beside()
dist.destroy_process_group()
print(json.dumps([held, beside()]))
""", tmp_path / "store", count=1)  # fmt: skip
    assert found == [767 + 560, 767]


def test_the_others_do_not_wait_for_a_rank_that_died(emulate: Emulate, tmp_path: Any) -> None:
    program = (
        JOIN
        + """
dist.barrier()
print("there", flush=True)
if rank == 1:
    import time
    time.sleep(300)
try:
    dist.all_reduce(there(1))
    print("done", flush=True)
except RuntimeError as error:
    print("gone" in str(error), flush=True)
os._exit(0)
"""
    )
    cards = emulate("3xH100")
    each = [begin(cards, program, str(i), "3", str(tmp_path / "store")) for i in range(3)]
    for process in each:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
    each[1].send_signal(signal.SIGKILL)
    start = time.monotonic()
    assert {end(process) for process in (each[0], each[2])} == {"True\n"}
    assert time.monotonic() - start < 60  # not torch's timeout of ten minutes
    each[1].communicate()


def test_two_ranks_on_one_card_are_refused_as_nccl_does(emulate: Emulate, tmp_path: Any) -> None:
    found = ranks(emulate("2xH100"), """
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
try:
    dist.all_reduce(there(1))
    print(json.dumps("worked"), flush=True)
except dist.DistBackendError as error:
    print(json.dumps("Duplicate GPU detected" in str(error)), flush=True)
os._exit(0)
""", tmp_path / "store", count=2, join=False)  # fmt: skip
    assert found == [True, True]


def test_symmetric_memory_is_refused(emulate: Emulate, tmp_path: Any) -> None:
    found = ranks(emulate("2xH100"), """
import torch.distributed._symmetric_memory as symmetric
try:
    symmetric.rendezvous(symmetric.empty(1024, device="cuda"), dist.group.WORLD)
    print(json.dumps("worked"), flush=True)
except RuntimeError as error:
    print(json.dumps("not supported" in str(error)), flush=True)
os._exit(0)
""", tmp_path / "store", count=2)  # fmt: skip
    assert found == [True, True]
