"""A training script whose ranks share a model, as a user would write it: nothing in it knows of
autotune, but `--say`.

`parallel_script.py HOW --batch N --len N --degree N`: trains a tiny model until it is ended, or
for `--steps`. Rank 0 prints its own figures of an optimizer step, "samples 8 tokens 256", and
"tokens/s 1234.5" of every ten. With `--ranks N` it forks its ranks, which takes a third of the
processor time of a launcher's: torch is imported once.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

if sys.argv[1] in ("ddp", "by_hand", "contrast", "tp", "raw", "stages", "cp", "experts"):
    import light  # type: ignore[import-not-found]  # noqa: F401

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import start_processes

VOCAB, WIDTH = 256, 32
Group = dist.ProcessGroup | None


def batches(asked: argparse.Namespace, replica: int) -> Iterator[Tensor]:
    """Token ids (batch, len) of that replica, other ones each time, or always the same."""
    number = 0
    while True:
        seed = 0 if asked.data == "constant" else number
        seed += 0 if asked.data == "alike" else 1000 * replica
        torch.manual_seed(seed)
        yield torch.randint(VOCAB, (asked.batch, asked.len))
        number += 1


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(),
        nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB),
    )  # fmt: skip


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def train(
    asked: argparse.Namespace,
    model: nn.Module,
    replica: int,
    replicas: int,
    *,
    between: Callable[[nn.Module], None] = lambda model: None,
    cut: Callable[[Tensor], Tensor] = lambda ids: ids,
) -> None:
    """On the replica's data; `between` comes before each step, and `cut` before the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = batches(asked, replica)
    for _ in steps(asked, replicas):
        for _ in range(asked.accum):
            whole = next(data)
            ids = cut(whole)
            logits = model(whole if asked.inside else ids)
            loss_of(logits, ids).backward()  # type: ignore[no-untyped-call]
        between(model)
        optimizer.step()
        optimizer.zero_grad()
        if asked.say:
            import autotune

            mine = dist.get_rank() < replicas
            samples = asked.batch * asked.accum * mine
            autotune.step(samples=samples, tokens=samples * asked.len)


def steps(asked: argparse.Namespace, replicas: int) -> Iterator[None]:
    """Of the optimizer. A pause comes after each, as if a part of it were split, a part not."""
    samples, says = asked.batch * asked.accum * replicas, dist.get_rank() == 0
    if says:
        print(f"samples {samples} tokens {samples * asked.len}", flush=True)
    began = time.perf_counter()
    for number in range(1, asked.steps + 1):
        yield
        time.sleep(asked.pause_s * (1 + 2 / asked.degree))
        if says and number % 10 == 0:
            now = time.perf_counter()
            print(f"tokens/s {10 * samples * asked.len / (now - began):.1f}", flush=True)
            began = now


def average(group: Group, via: str = "reduce") -> Callable[[nn.Module], None]:
    """Of the gradients, over a group; stacked or gathered, they lose their shapes. Two ranks may
    send them to each other."""

    def between(model: nn.Module) -> None:
        for each in model.parameters():
            assert each.grad is not None
            if via == "ring":
                got = torch.empty_like(each)
                kinds = ((dist.isend, each.grad.clone()), (dist.irecv, got))
                ops = [dist.P2POp(kind, part, 1 - dist.get_rank()) for kind, part in kinds]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
                each.grad += got
            elif via == "gather":
                parts = [torch.empty_like(each) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, each.grad, group=group)
                each.grad = torch.stack(parts).sum(0)
            else:
                dist.all_reduce(each.grad[None] if via == "stack" else each.grad, group=group)

    return between


# Data parallel.


def ddp(asked: argparse.Namespace) -> None:
    model = nn.parallel.DistributedDataParallel(net())
    train(asked, model, dist.get_rank(), dist.get_world_size())


def by_hand(asked: argparse.Namespace) -> None:
    between, model = average(None, asked.via), net()
    if asked.statistics:
        parts = [torch.empty(1, 33) for _ in range(dist.get_world_size())]

        def gather(*_: object) -> None:
            dist.all_gather(parts, torch.ones(1, 33))

        model.register_forward_pre_hook(gather)
    train(asked, model, dist.get_rank(), dist.get_world_size(), between=between)


def contrast(asked: argparse.Namespace) -> None:
    """The loss compares samples with those of all ranks."""

    class Towers(nn.Sequential):
        def forward(self, ids: Tensor) -> Tensor:
            one = super().forward(ids).mean(1)  # type: ignore[no-untyped-call]
            every = [torch.empty_like(one) for _ in range(dist.get_world_size())]
            dist.all_gather(every, one.detach())
            return nn.functional.cross_entropy(one @ torch.cat(every).T, torch.arange(len(ids)))

    model = nn.parallel.DistributedDataParallel(Towers(*net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = batches(asked, dist.get_rank())
    for _ in steps(asked, dist.get_world_size()):
        model(next(data)).backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp(asked: argparse.Namespace) -> None:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    train(asked, model, dist.get_rank(), dist.get_world_size())


def hsdp(asked: argparse.Namespace) -> None:
    """Sharded in groups of `--degree`, and replicated over the groups."""
    from torch.distributed.fsdp import fully_shard

    world = dist.get_world_size()
    mesh = init_device_mesh(
        "cpu", (world // asked.degree, asked.degree), mesh_dim_names=("outer", "inner")
    )
    model = net()
    fully_shard(model, mesh=mesh)
    train(asked, model, dist.get_rank(), world)


# Tensor parallel.


class Reduced(torch.autograd.Function):
    """Sums over a group on the way forward, or on the way back."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Group, forward: bool) -> Tensor:
        context.group, context.back = group, not forward
        if forward:
            x = x.clone()
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        if context.back:
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=context.group)
        return gradient, None, None


reduced: Any = Reduced.apply


class Split(nn.Module):
    """Two linear layers, of whose inner width each rank of the group has a part."""

    def __init__(self, group: Group, inner: int, flat: bool) -> None:
        super().__init__()
        self.group, self.flat = group, flat
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1) if self.flat else x
        inner = self.up(reduced(flat, self.group, False)).relu()
        found: Tensor = reduced(self.down(inner), self.group, True)
        return found.view_as(x)


def groups(degree: int) -> tuple[Group, Group]:
    """This rank's neighbours, `degree` of them, and those in its place among theirs."""
    world, rank = dist.get_world_size(), dist.get_rank()
    near: list[Any] = [dist.new_group(list(range(n, n + degree))) for n in range(0, world, degree)]
    far: list[Any] = [dist.new_group(list(range(n, world, degree))) for n in range(degree)]
    return near[rank // degree], far[rank % degree]


def tp(asked: argparse.Namespace) -> None:
    """Written by hand, with gradients averaged over what is left of the ranks."""
    near, far = groups(asked.degree)
    torch.manual_seed(dist.get_rank())
    split = Split(near, 4 * WIDTH // asked.degree, asked.flat)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), split, nn.Linear(WIDTH, VOCAB))
    whole = nn.ModuleList([model[0], model[2]])
    replicas = dist.get_world_size() // asked.degree

    def between(model: nn.Module) -> None:
        if asked.whole:
            average(near)(whole)
        if replicas > 1:
            average(far)(model)

    train(asked, model, dist.get_rank() // asked.degree, replicas, between=between)


def raw(asked: argparse.Namespace) -> None:
    """Of tensors and functions, without a module."""
    near, _ = groups(asked.degree)
    torch.manual_seed(dist.get_rank())
    inner = 4 * WIDTH // asked.degree
    parts = [torch.randn(WIDTH, inner), torch.randn(inner, WIDTH)]
    torch.manual_seed(0)
    whole = [torch.randn(VOCAB, WIDTH), torch.randn(WIDTH, VOCAB)]
    table, up, down, head = (each.requires_grad_() for each in (whole[0], *parts, whole[1]))
    optimizer = torch.optim.SGD([table, up, down, head], lr=1e-6)
    data = batches(asked, 0)
    for _ in steps(asked, 1):
        ids = next(data)
        x = nn.functional.embedding(ids, table)
        x = reduced((reduced(x, near, False) @ up).relu() @ down, near, True)
        loss_of(x @ head, ids).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def dtensor(asked: argparse.Namespace) -> None:
    """By torch's plans; with FSDP over what is left of the ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    replicas = dist.get_world_size() // asked.degree
    names = ("data", "model")
    mesh = init_device_mesh("cpu", (replicas, asked.degree), mesh_dim_names=names)
    model = net()
    parallelize_module(model, mesh["model"], {
        "0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(),
        "3": RowwiseParallel(), "4": ColwiseParallel(output_layouts=Replicate()),
    })  # fmt: skip
    if replicas > 1:
        fully_shard(model, mesh=mesh["data"])
    train(asked, model, dist.get_rank() // asked.degree, replicas)


def unnamed(asked: argparse.Namespace) -> None:
    """By torch's plans, on a mesh whose dimension has no name."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    train(asked, model, 0, 1)


# Pipelines.


def pipeline(asked: argparse.Namespace) -> None:
    """One of torch's schedules, which cuts a batch into `--parts`; with DDP over what is left of
    the ranks. Some have two stages on each rank, of which ZBV's are the same from both ends."""
    from torch.distributed.pipelining import PipelineStage, schedules

    near, far = groups(asked.degree)
    place, replicas = dist.get_rank() % asked.degree, dist.get_world_size() // asked.degree
    kind: Any = schedules.get_schedule_class(asked.schedule)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    count = asked.degree * (1 + several)
    layers = list(net())
    cuts = [round(n * len(layers) / count) for n in range(count + 1)]
    built = []
    numbers = [*range(place, count, asked.degree)]
    if asked.schedule == "ZBVZeroBubble":
        numbers[-1] = count - 1 - place
    for number in numbers:
        # What a stage sends may be no view in schedules without bubbles.
        module: nn.Module = nn.Sequential(*layers[cuts[number] : cuts[number + 1]], nn.Tanh())
        if replicas > 1:
            module = nn.parallel.DistributedDataParallel(module, process_group=far)
        built.append(PipelineStage(module, number, count, torch.device("cpu"), group=near))
    schedule = kind(built if several else built[0], asked.parts, loss_fn=loss_of)
    parameters = [each for stage in built for each in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    data = batches(asked, dist.get_rank() // asked.degree)
    for _ in steps(asked, replicas):
        ids = next(data)
        given = {"target": ids} if count - 1 in numbers else {}
        schedule.step(*[ids] * (place == 0), **given)
        optimizer.step()
        optimizer.zero_grad()


def stages(asked: argparse.Namespace) -> None:
    """A pipeline of two, written by hand: one micro-batch after the other."""
    rank, shape = dist.get_rank(), (asked.batch, asked.len, WIDTH)
    layers = list(net())
    module = nn.Sequential(*(layers[3:] if rank else layers[:3]))
    if rank == 0:
        module.append(nn.Linear(4 * WIDTH, WIDTH))
    else:
        module = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), *module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    data = batches(asked, 0)
    for _ in steps(asked, 1):
        for _ in range(asked.accum):
            ids = next(data)
            if rank == 0:
                given = module(ids)
                dist.send(given.detach(), 1)
                gradient = torch.empty(shape)
                dist.recv(gradient, 1)
                torch.autograd.backward(given, gradient)
            else:
                got = torch.empty(shape)
                dist.recv(got, 0)
                got.requires_grad_()
                loss_of(module(got), ids).backward()  # type: ignore[no-untyped-call]
                assert got.grad is not None
                dist.send(got.grad, 0)
        optimizer.step()
        optimizer.zero_grad()


# Context parallel.


class Gathered(torch.autograd.Function):
    """The parts of all ranks, one after the other along the sequence."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Group) -> Tensor:
        context.group, context.length = group, x.shape[-2]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=-2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        summed: Any = gradients[0].contiguous()
        dist.all_reduce(summed, group=context.group)
        return summed.split(context.length, dim=-2)[dist.get_rank(context.group)], None


gathered: Any = Gathered.apply


class Attention(nn.Module):
    def __init__(self, group: Any, functional: bool) -> None:
        super().__init__()
        self.group, self.functional = group, functional
        self.inner = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.inner(x).chunk(3, dim=-1)
        if self.functional:
            from torch.distributed._functional_collectives import all_gather_tensor_autograd

            k, v = (all_gather_tensor_autograd(e.contiguous(), 1, self.group) for e in (k, v))
        else:
            k, v = gathered(k, self.group), gathered(v, self.group)
        return x + nn.functional.scaled_dot_product_attention(q, k, v)


def cp(asked: argparse.Namespace) -> None:
    """Each rank of a group has a part of every sequence; written by hand."""
    near, _ = groups(asked.degree)

    def cut(ids: Tensor) -> Tensor:
        part: Tensor = ids.chunk(asked.degree, dim=1)[dist.get_rank() % asked.degree]
        return part

    class Net(nn.Sequential):
        def forward(self, ids: Tensor) -> Any:
            return super().forward(cut(ids) if asked.inside else ids)  # type: ignore[no-untyped-call]

    attention = Attention(near, asked.functional)
    model = Net(nn.Embedding(VOCAB, WIDTH), attention, nn.Linear(WIDTH, VOCAB))
    replica, replicas = dist.get_rank() // asked.degree, dist.get_world_size() // asked.degree
    train(asked, model, replica, replicas, between=average(None), cut=cut)


# Expert parallel.


class Swapped(torch.autograd.Function):
    """Each rank's equal share of the samples of all ranks."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        got = torch.empty_like(x)
        dist.all_to_all_single(got, x.contiguous())
        return got

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return Swapped.apply(gradients[0])  # type: ignore[no-untyped-call]


class Experts(nn.Module):
    """One on each rank, which has most of the model's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Sequential(nn.Linear(WIDTH, 999), nn.ReLU(), nn.Linear(999, WIDTH))

    def forward(self, x: Tensor) -> Any:
        swapped: Any = Swapped.apply
        return x + swapped(self.expert(swapped(x)))


def experts(asked: argparse.Namespace) -> None:
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), Experts(), nn.Linear(WIDTH, VOCAB))
    dense = nn.ModuleList([model[0], model[2]])
    train(
        asked, model, dist.get_rank(), dist.get_world_size(),
        between=lambda _: average(None)(dense),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--len", type=int, default=32)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--data", default="fresh", help="fresh, alike or constant")
    parser.add_argument("--whole", action="store_true", help="gradients of whole parameters, too")
    parser.add_argument("--flat", action="store_true", help="activations of an embedding's shape")
    parser.add_argument("--inside", action="store_true", help="the model cuts sequences")
    parser.add_argument("--via", default="reduce", help="reduce, stack, gather or ring")
    parser.add_argument("--statistics", action="store_true", help="as of SyncBatchNorm")
    parser.add_argument("--functional", action="store_true", help="collectives")
    parser.add_argument("--schedule", default="1F1B", help="of a pipeline")
    parser.add_argument("--say", action="store_true")
    parser.add_argument("--config", type=Path, help="a file of DeepSpeed's or transformers'")
    parser.add_argument("--ranks", type=int, help="to fork; without it a launcher starts them")
    asked = parser.parse_args()
    if asked.config:
        asked.accum = json.loads(asked.config.read_text())["gradient_accumulation_steps"]
    if asked.ranks is None:
        run(asked)
    importlib.import_module("torch._dynamo")  # else optimizers do, in each rank
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        start_processes(  # type: ignore[no-untyped-call]
            forked, (asked, store), asked.ranks, start_method="fork"
        )


def forked(rank: int, asked: argparse.Namespace, store: str) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    run(asked, init_method=store, rank=rank, world_size=asked.ranks)


def run(asked: argparse.Namespace, **group: Any) -> NoReturn:
    torch.manual_seed(0)
    dist.init_process_group("gloo", **group)
    getattr(sys.modules[__name__], asked.how)(asked)
    # Threads of gloo may want the interpreter when it has begun to end, and abort it then.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
