"""Memory of emulated cards: as torch, NVML and other processes see it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from autotune.device.cards import CARDS
from autotune.device.emulated.build import libraries
from autotune.device.emulated.layout import ProcessRow, SharedState, UnitRow
from tests.emulated.conftest import Emulate, Told, answers, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow]
MIB = 1 << 20


def test_python_and_c_agree_on_the_shared_file() -> None:
    import ctypes

    core = ctypes.CDLL(str(libraries() / "libautotune_emulated.so"))
    sizes = (ctypes.c_uint64 * 3).in_dll(core, "layout_sizes")
    assert list(sizes) == [ctypes.sizeof(each) for each in (UnitRow, ProcessRow, SharedState)]


def test_every_card_is_seen_as_it_is(emulate: Emulate) -> None:
    cards = emulate("+".join(f"1x{card.name}" for card in CARDS))
    found = answers(cards, """
cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
assert torch.cuda._raw_device_count_nvml() == len(cards)
print(json.dumps([
    (c.name, [c.major, c.minor], c.multi_processor_count, c.total_memory) for c in cards
]))
""")  # fmt: skip
    assert len(found) == len(CARDS)
    for card, (name, capability, sms, total) in zip(CARDS, found, strict=True):
        assert (name, tuple(capability), sms) == (card.nvml_name, card.capability, card.sms)
        assert 0.96 * card.memory_bytes < total <= card.memory_bytes


def test_torch_and_nvml_agree_on_what_is_held_and_out_of_memory_is_torchs_own(
    emulate: Emulate,
) -> None:
    cards = emulate("1xA100-40GB")
    found = answers(cards, """
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
def seen():
    info = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    mine = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)]
    left, total = torch.cuda.mem_get_info()
    return [info.used, sum(mine), total - left, info.total - info.reserved - total]
kept = torch.zeros(1, device="cuda")
start = seen()
block = torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
full = seen()
try:
    torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    text = str(error)
del block
torch.cuda.empty_cache()
print(json.dumps([start, full, seen(), text]))
""")  # fmt: skip
    start, full, after, text = found
    assert start == after == [512 * MIB, 512 * MIB, 512 * MIB, 0]  # context and one segment
    assert full == [512 * MIB + (10 << 30)] * 3 + [0]
    assert "Tried to allocate 40.00 GiB. GPU 0 has a total capacity of 39.49 GiB" in text


@pytest.mark.parametrize(
    "allocator", ["backend:native", "expandable_segments:True", "backend:cudaMallocAsync"]
)
def test_each_allocator_of_torch_runs_out_and_goes_on(emulate: Emulate, allocator: str) -> None:
    cards = emulate("1x24GiB")
    cards.environment["PYTORCH_ALLOC_CONF"] = allocator
    cards.environment["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    said = end(begin(cards, """
import json, torch
assert torch.cuda.get_allocator_backend() in ("native", "cudaMallocAsync")
fitted = []
for turn in range(40):  # more addresses than one card has
    held = []
    try:
        for _ in range(100):
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        fitted.append(len(held))
    del held
    torch.cuda.empty_cache()
print(json.dumps([sorted(set(fitted)), torch.cuda.max_memory_allocated() >> 30]))
"""))  # fmt: skip
    assert json.loads(said) == [[23], 23]


def test_small_values_are_real_and_pinned_memory_is_known(told: Told) -> None:
    assert told("H100", """
there = torch.arange(1000).cuda()
pinned = torch.empty(100, pin_memory=True)
print(json.dumps([there.cpu().sum().item(), pinned.is_pinned(), torch.empty(9).is_pinned(),
                  torch.zeros(1 << 24, device="cuda").cpu().sum().item()]))
""") == [499500, True, False, 0]  # fmt: skip


def test_a_number_that_is_computed_is_zero_whatever_was_there(told: Told) -> None:
    """What looks at a norm or a loss, as DeepSpeed does, finds a number that can be one."""
    assert told("H100", """
some, one = torch.tensor([1.0, 2.0, 3.0]).cuda(), torch.tensor(2.0).cuda()
large = torch.empty(1 << 20, device="cuda", dtype=torch.bfloat16)
def after(compute):
    held = [torch.tensor(-3.5).cuda() for _ in range(64)]
    del held
    return compute().item()
print(json.dumps([
    [after(compute) for compute in (
        some.sum, some.half().sum, some.max, some.argmax, some.norm, large.mean,
        large.float().norm, one.sqrt, one.double, lambda: one + 1, lambda: one**2.0,
        lambda: one > 1,
    )],
    [one.add_(1).item(), some.mul_(2).tolist()],
]))
""") == [[0] * 12, [2, [1, 2, 3]]]  # fmt: skip


def test_all_is_true_and_nothing_is_any(told: Told) -> None:
    """Masks leave nothing out, and numbers are finite."""
    assert told("H100", """
numbers, counts = torch.randn(1000, device="cuda"), torch.ones(4, 64, device="cuda")
print(json.dumps([bool(numbers.isfinite().all()), bool((counts == 1).all()),
                  bool(numbers.isnan().any()), bool(numbers.sum().isfinite())]))
""") == [True, True, False, True]  # fmt: skip


def test_managed_memory_takes_none_of_a_card(told: Told) -> None:
    """As paged optimizers have it."""
    assert told("H100", """
import ctypes
cuda, at = ctypes.CDLL(None), ctypes.c_void_p()
free = torch.cuda.mem_get_info()[0]
size = ctypes.c_size_t(90 << 30)
made = cuda.cudaMallocManaged(ctypes.byref(at), size, 1)
ctypes.memset(at.value + (90 << 30) - 1, 7, 1)
print(json.dumps([made, cuda.cudaMemPrefetchAsync(at, size), ctypes.string_at(at, 2)[0],
                  free - torch.cuda.mem_get_info()[0], cuda.cudaFree(at)]))
""") == [0, 0, 0, 0, 0]  # fmt: skip


def test_memory_of_a_killed_process_goes_back_and_neighbours_count(emulate: Emulate) -> None:
    cards = emulate("1x24GiB")
    other = begin(cards, """
import time, torch
block = torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
print("there", flush=True)
time.sleep(300)
""")  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "there\n"
    assert cards.held_bytes() > 20 << 30
    program = """
import sys
try:
    torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
    print(json.dumps("fits"))
except torch.OutOfMemoryError as error:
    print(json.dumps(str(error)))
"""
    said = answers(cards, program)
    assert f"Process {other.pid} has 20." in said
    assert "this process has 500.00 MiB" in said
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing
    assert answers(cards, program) == "fits"
    other.communicate()


def test_a_context_is_where_a_device_is_used_and_nowhere_else(emulate: Emulate) -> None:
    held = """
import pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
def held():
    return [sum(p.usedGpuMemory >> 20 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card))
            for card in cards]
"""
    assert answers(emulate("2xA100-80GB"), f"""{held}
before = held()
block = torch.zeros(1, device="cuda:1")
there = held()
torch.cuda.Event(enable_timing=True).record()
print(json.dumps([before, there, held()]))
""") == [[0, 0], [0, 512], [510, 512]]  # fmt: skip


def test_kernels_of_cub_run_on_cards_that_nothing_was_built_for(emulate: Emulate) -> None:
    """CUB takes the newest architecture that it is told for one that it has kernels for."""
    # torch's thread of a backward pass aborts a Python that ends while it frees the graph.
    program = """
import os, torch
for device in ("cuda:0", "cuda:1", "cuda:2"):
    table = torch.nn.Embedding(30000, 64, device=device)
    table(torch.zeros(4, 1024, dtype=torch.long, device=device)).sum().backward()  # sorts
print("ran", flush=True)
os._exit(0)
"""
    assert end(begin(emulate("1xL40S+1xGB10+1xH100"), program)) == "ran\n"
