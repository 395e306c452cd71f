"""The time of emulated cards, as events tell it: by the work, not by this machine."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.device.cards import parse_gpus
from tests.emulated.conftest import Emulate, Told, ranks

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CLOCK = """
import json, sys, torch
import torch.nn.functional as F
busy = torch.empty(16384, 16384, device="cuda", dtype=torch.bfloat16)
def ms(work, times=3, ahead=True):
    # Where the host is `ahead`, the card has enough to do: the host's time is nowhere in it.
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    torch.cuda.synchronize()
    if ahead:
        busy @ busy
    first.record()
    for _ in range(times):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / times
def matrix(*sizes, dtype=torch.bfloat16):
    return torch.empty(*sizes, device="cuda", dtype=dtype, requires_grad=True)
"""


@pytest.fixture(scope="module")
def told(told: Told) -> Told:
    return lambda card, program: told(card, CLOCK + program)


@pytest.mark.parametrize("card", ["A100-80GB", "H100", "RTX4090"])
def test_large_products_run_at_most_of_the_data_sheets_rate(told: Told, card: str) -> None:
    found = told(
        card,
        """
a, b = matrix(8192, 8192), matrix(8192, 8192)
bias = matrix(8192)
print(json.dumps([ms(lambda: a @ b), ms(lambda: torch.addmm(bias, a, b))]))
""",
    )
    peak = parse_gpus(card).card.flops_per_s
    assert peak is not None
    for each in found:
        assert 0.6 < 2 * 8192**3 / (each * 1e-3) / peak < 1.1


def test_twice_the_work_takes_twice_as_long(told: Told) -> None:
    """Of products, of attention, of what passes memory, and of optimizers."""
    found = told(
        "A100-80GB",
        """
def all_of(batch):
    x, w = matrix(batch, 1024, 4096), matrix(4096, 4096)
    q = matrix(batch, 16, 1024, 64)
    o = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    p = torch.nn.Parameter(torch.empty(batch, 1024, 4096, device="cuda"))
    p.grad = torch.empty_like(p)
    ln = F.layer_norm(x, (4096,))
    works = dict(
        product=lambda: x @ w, batched=lambda: q @ q.mT,
        attention=lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        attention_back=lambda: o.backward(o, retain_graph=True),
        single=lambda: F.scaled_dot_product_attention(*[q.float()] * 3, is_causal=True),
        gelu=lambda: F.gelu(x), cast=lambda: x.float(), turned=lambda: x.mT.contiguous(),
        softmax=lambda: x.softmax(-1), norm=lambda: F.layer_norm(x, (4096,)),
        norm_back=lambda: ln.backward(x, retain_graph=True),
        sum=lambda: x.sum(1), fused=torch.optim.AdamW([p], fused=True).step,
        foreach=torch.optim.AdamW([p], foreach=True).step,
        joined=lambda: torch.cat([q, q], -1), turned_and_cast=lambda: q.mT.contiguous().float(),
        to_host=lambda: x.cpu(), fill=lambda: torch.zeros_like(x),
    )
    return {name: ms(work) for name, work in works.items()}
small, large = all_of(8), all_of(16)
print(json.dumps({name: large[name] / small[name] for name in small}))
""",
    )
    assert {name: each for name, each in found.items() if not 1.8 < each < 2.2} == {}


def test_shapes_and_types_count(told: Told) -> None:
    found = told(
        "A100-80GB",
        """
x, q = matrix(4096, 4096), matrix(8, 16, 2048, 64)
single = matrix(4096, 4096, dtype=torch.float32)
thin, narrow = matrix(4096, 16), matrix(64, 64)
now = dict(
    half=ms(lambda: x @ x), single=ms(lambda: single @ single), narrow=ms(lambda: narrow @ narrow),
    thin=ms(lambda: thin @ thin.mT),
    all=ms(lambda: F.scaled_dot_product_attention(q, q, q)),
    causal=ms(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)),
    math=ms(lambda: (q @ q.mT).softmax(-1) @ q),
)
torch.backends.cuda.matmul.allow_tf32 = True
now["tf32"] = ms(lambda: single @ single)
torch.backends.cuda.matmul.allow_tf32 = False
print(json.dumps(now))
""",
    )
    assert found["half"] < 0.6 * found["tf32"] < 0.6 * found["single"]
    assert found["narrow"] < 0.02 * found["half"]
    assert 0.03 * found["half"] < found["thin"] < 0.2 * found["half"]  # by what it writes
    assert found["causal"] < 0.8 * found["all"] < 0.4 * found["math"]


def test_kernels_that_compute_places_are_slower_than_their_bytes(told: Told) -> None:
    """Joined tensors and transposed ones, by `results/real.md`."""
    joined, turned, plain = told(
        "H200",
        """
x = matrix(16, 2048, 12, 64, dtype=torch.float32).detach()
half = x[..., :32]
print(json.dumps([ms(work) for work in (
    lambda: torch.cat([half, half], -1), lambda: x.transpose(1, 3).contiguous(), x.clone)]))
""",
    )
    assert 1.4 < joined / plain < 4
    assert 1.2 < turned / plain < 4


def test_attention_of_hopper_is_cudnns_unless_a_program_forbids_it(told: Told) -> None:
    cudnn, flash = told(
        "H200",
        """
q = matrix(16, 12, 2048, 64).detach()
attend = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)
first = ms(attend)
torch.backends.cuda.enable_cudnn_sdp(False)
print(json.dumps([first, ms(attend)]))
torch.backends.cuda.enable_cudnn_sdp(True)
""",
    )
    assert flash == pytest.approx(1.5 * cudnn, rel=0.05)


def test_streams_overlap_and_events_order_them(told: Told) -> None:
    apart, waiting, alone = told(
        "A100-80GB",
        """
x = matrix(8192, 8192).detach()
side = torch.cuda.Stream()
def apart():
    done = torch.cuda.Event()
    with torch.cuda.stream(side):
        x @ x
        done.record()
    x @ x
    torch.cuda.current_stream().wait_event(done)
def waiting():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.current_stream().wait_stream(side)
    x @ x
print(json.dumps([ms(apart, 1), ms(waiting, 1), ms(lambda: x @ x, 1)]))
""",
    )
    assert apart == pytest.approx(alone, rel=0.05)
    assert waiting == pytest.approx(2 * alone, rel=0.05)


def test_the_host_waits_for_results_and_many_small_kernels_wait_for_it(told: Told) -> None:
    asked, free, small, slow = told(
        "H100",
        """
x, y = matrix(8192, 8192).detach(), torch.zeros(8, device="cuda")
def asked():
    x @ x
    y.sum().item()
    for _ in range(100):
        y.add_(1)
def free():
    x @ x
    for _ in range(100):
        y.add_(1)
def small():
    for _ in range(100):
        y.add_(1)
slow = lambda: sum(range(1_000_000)) and small()
print(json.dumps([ms(each, ahead=False) for each in (asked, free, small, slow)]))
""",
    )
    assert 0.3 < small < 10
    assert asked > free + 0.3 * small
    assert slow > small + 3  # what Python does counts


def test_a_graph_takes_its_longest_chain_and_one_launch(told: Told) -> None:
    eager, small, one, two, chain, refused = told(
        "A100-80GB",
        """
x, y, side = matrix(8192, 8192).detach(), torch.zeros(8, device="cuda"), torch.cuda.Stream()
def many():
    for _ in range(100):
        y.add_(1)
def apart(waits=False):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    x @ x
    torch.cuda.current_stream().wait_stream(side)
def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return ms(graph.replay, ahead=False)
x @ x
refused = ""
try:
    captured(torch.cuda.synchronize)
except RuntimeError as error:
    refused = str(error)
print(json.dumps([ms(many, ahead=False), captured(many), captured(lambda: x @ x),
                  captured(apart), captured(lambda: apart(True)), refused]))
""",
    )
    assert small < 0.9 * eager  # whose kernels wait for the host
    assert two == pytest.approx(one, rel=0.05)
    assert chain == pytest.approx(2 * one, rel=0.05)
    assert "when stream is capturing" in refused


def test_compiled_kernels_take_the_time_of_what_they_move(told: Told) -> None:
    small, large, eager = told(
        "A100-80GB",
        """
def f(x):
    return F.gelu(x * 2 + 1) * x
compiled = torch.compile(f, dynamic=False)
x, y = matrix(4096, 4096).detach(), matrix(8192, 4096).detach()
print(json.dumps([ms(lambda: compiled(x)), ms(lambda: compiled(y)), ms(lambda: f(y))]))
""",
    )
    assert large == pytest.approx(2 * small, rel=0.1)
    assert 2.5 < eager / large < 5
    assert large == pytest.approx(2 * 2 * 8192 * 4096 / 1.8e9, rel=0.15)


def test_collectives_take_the_time_of_their_bytes(emulate: Emulate, tmp_path: Any) -> None:
    program = """
def of(gib):
    x = torch.empty(gib << 28, device="cuda")
    parts = torch.empty((gib << 28) // ranks, device="cuda")
    return [ms(work, 1) for work in (
        lambda: dist.all_reduce(x), lambda: dist.all_gather_into_tensor(x, parts),
        lambda: dist.reduce_scatter_tensor(parts, x))]
print(json.dumps([of(1), of(2)]))
"""
    linked, bus = (ranks(emulate(f"2x{card}"), CLOCK + program, tmp_path / card, 2)[0]
                   for card in ("H100", "RTX4090"))  # fmt: skip
    for once, twice in (linked, bus):
        assert twice == pytest.approx([2 * each for each in once], rel=0.05)
        assert once[0] == pytest.approx(2 * once[1], rel=0.05)
    assert bus[0][0] > 5 * linked[0][0]
    assert linked[0][0] == pytest.approx(2**30 / 360e9 * 1e3, rel=0.1)
