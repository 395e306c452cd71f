"""How the ranks of a script share the work, as one of them sees it.

The look is at the two steps after a rank's first, if it is one of several. Then all hooks are
removed. It reads one batch, so those steps may wait for the device. It only uses the standard
library, as `sitecustomize` does. An error in it leaves the script as it is.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

STEPS = 2
CALLS = 4
"""The most calls of outermost modules in a step whose batches are in the digest."""
ELEMENTS = 2**16
"""The most elements of a tensor in the digest, evenly spread: usually all token ids."""
MOST_OF_GRADIENTS = 0.9
"""Ranks that reduce this share of a module's gradients train on different data. Those of tensor
parallelism may reduce the gradients of what each has whole, such as an embedding."""
_ROLES = {
    "dp": "dp ddp data batch fsdp hsdp shard replicate dp_shard dp_replicate",
    "tp": "tp mp tensor model tensor_model",
    "pp": "pp pipe pipeline stage pipeline_model",
    "cp": "cp sp seq sequence context ring ulysses",
}
"""Names of a mesh's dimensions, which may end in "_parallel"."""
_ROLE = {name: role for role, names in _ROLES.items() for name in names.split()}
_REDUCING = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter",
             "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
             "reduce_scatter_tensor_coalesced", "all_reduce", "all_reduce_",
             "all_reduce_coalesced", "reduce_scatter_tensor")  # fmt: skip
_MOVING = ("allgather", "all_gather_single", "_allgather_base", "allgather_coalesced",
           "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "alltoall",
           "alltoall_base", "all_to_all_single", "send", "recv", "all_gather_into_tensor",
           "all_gather_into_tensor_coalesced")  # fmt: skip
"""Methods of torch's ProcessGroup, and functional collectives, in all its releases."""
_FUNCTIONAL = "_c10d_functional", "_c10d_functional_autograd"
_SWAPPING = "alltoall", "all_to_all"
_DATA_GROUPS = ("process_group", "_inter_node_pg", "seq_data_parallel_group",
                "data_parallel_group")  # fmt: skip
"""Attributes of modules of torch and DeepSpeed that average gradients."""
_looks: list[Look] = []
"""The look of this process, while it lasts."""


class Look:
    """The look at one rank, from its first step on."""

    def __init__(
        self, torch: Any, modules: list[Any], outermost: list[Any], passes: Callable[[], int]
    ) -> None:
        """`passes` returns the number of backward passes so far."""
        self._torch, self._dist, self._passes = torch, torch.distributed, passes
        self._rank = self._dist.get_rank()
        parameters = {id(p): p for each in outermost
                      for p in torch.nn.Module.parameters(each) if p.requires_grad}  # fmt: skip
        stepped = _stepped(torch.optim.Optimizer)
        if parameters.keys() <= stepped.keys():  # some are of no module
            parameters = stepped
        local = [_local(each) for each in parameters.values()]
        self._shapes: Counter[tuple[int, ...]] = Counter()  # elements of the local parameters
        for each in local:
            self._shapes[tuple(each.shape)] += each.numel()
        self._gradients = self._shapes.total()
        parts: dict[tuple[int, ...], list[int]] = {}
        for each in parameters.values():
            whole = hasattr(each, "placements") or hasattr(each, "_unpadded_unsharded_size")
            if not whole and self._is_readable(each):
                part = parts.setdefault(tuple(each.shape), [0, 0])
                with suppress(Exception):
                    part[1] = zlib.crc32(_bytes(each, torch), part[1])
                part[0] += sys.modules["_autotune_hook"]._numel(each)
        self._parts = [parts[shape] for shape in sorted(parts)]
        self._degrees = _of_megatron(modules) or _of_meshes(self._dist.get_world_size())
        self._averages = _wrapped(modules, self._dist)
        self._shares = _sharded(parameters.values(), self._averages, self._dist)
        self._swaps: set[tuple[int, ...]] = set()
        self._features: set[tuple[int, ...]] = set()
        self._samples = 0  # of the last batch
        self._reduced: Counter[tuple[tuple[int, ...], Any]] = Counter()  # by ranks and shape
        self._fed = self._got = False
        self._calls = self._digest = self._steps = 0
        self._before = passes()  # of them, when a step or a forward pass began
        self._batches: list[int] = []
        self._undo: list[Any] = []
        self.place: dict[str, Any] | None = None
        """The result, once it is known."""
        _looks[:] = [self]
        for module in outermost:
            with suppress(Exception):  # some modules take no hooks
                handle = module.register_forward_pre_hook(_called, with_kwargs=True)
                self._undo.append(handle.remove)
        owners = [self._dist.ProcessGroup, *(getattr(torch.ops, each) for each in _FUNCTIONAL)]
        for names, look in ((_REDUCING, self._reduces), (_MOVING, self._moves)):
            for owner, name in itertools.product(owners, names):
                self._watch(owner, name, look)

    def _watch(self, owner: Any, name: str, look: Any) -> None:
        """Have `look` told of calls of that method or operator."""
        # torch makes an operator, and its `default`, when they are first asked for.
        getattr(getattr(owner, name, None), "default", None)
        run = vars(owner).get(name)
        if run is None:
            return

        @functools.wraps(run)
        def both(*args: Any, **kwargs: Any) -> Any:
            if not self._torch.compiler.is_compiling():
                with suppress(Exception):
                    look(name, *self._ranks_of(args))
            return run(*args, **kwargs)

        setattr(owner, name, both)
        self._undo.append(lambda: setattr(owner, name, run))

    def _ranks_of(self, args: Any) -> tuple[list[int], Any]:
        """The ranks of a collective with these arguments, and the other arguments."""
        group, *rest = args
        if not isinstance(group, self._dist.ProcessGroup):
            group, rest = args[-1], args[:-1]  # by its name
        if isinstance(group, str):
            group = self._dist.distributed_c10d._resolve_process_group(group)
        return self._dist.get_process_group_ranks(group), rest

    def stepped(self) -> None:
        """An optimizer step is over."""
        self._steps += 1
        if self._calls:
            self._batches.append(self._digest)
        self._calls = self._digest = 0
        self._before = self._passes()
        if self._steps < STEPS:
            return
        self.end()
        least = MOST_OF_GRADIENTS * STEPS * self._gradients
        reduced: Counter[tuple[int, ...]] = Counter()
        for (ranks, shape), size in self._reduced.items():
            # More than a parameter's are activations of the same shape.
            reduced[ranks] += min(size, STEPS * self._shapes.get(shape, size))
        self._averages |= {ranks for ranks, size in reduced.items() if size > least}
        self.place = {
            "batches": self._batches,
            "fed": self._fed and not self._got,
            "averages": sorted(self._averages),
            "shares": sorted(self._shares),
            "swaps": sorted(self._swaps),
            "features": sorted(self._features - self._shares - self._swaps),
            "degrees": self._degrees,
            "parts": self._parts,
        }

    def end(self) -> None:
        """Unhook everything."""
        _looks.clear()
        while self._undo:
            self._undo.pop()()

    def called(self, args: Any, kwargs: Any) -> None:
        """An outermost module is called with these arguments."""
        self._before = self._passes()
        tensors = list(_tensors([args, kwargs], self._torch.Tensor))
        if not tensors or not self._torch.is_grad_enabled():
            return
        if any(each.requires_grad for each in tensors):
            self._fed = True  # by another module, here or on another rank
            return
        self._got = True
        self._samples = max((each.shape[0] for each in tensors if each.dim() > 1), default=0)
        if self._calls < CALLS and all(map(self._is_readable, tensors)):
            self._calls += 1
            for each in tensors:
                self._digest = zlib.crc32(_bytes(each, self._torch), self._digest)

    def _is_readable(self, tensor: Any) -> bool:
        if not tensor.is_cuda:
            return True
        # An emulated device computes no values.
        capturing = self._torch.cuda.is_current_stream_capturing()
        return "AUTOTUNE_EMULATED" not in os.environ and not capturing

    def _reduces(self, name: str, ranks: list[int], args: Any) -> None:
        """These ranks add up tensors: gradients, averaged parameters, or activations."""
        for each in self._largest(args):
            shape: tuple[int, ...] | None = tuple(each.shape)
            after = shape not in self._shapes and self._is_after()
            if each.dim() == 1 or after:  # several may be flattened or stacked
                shape = None
            if shape is None or shape in self._shapes:
                self._reduced[tuple(ranks), shape] += each.numel()
            else:
                self._moves(name, ranks, args)

    def _moves(self, name: str, ranks: list[int], args: Any) -> None:
        """These ranks exchange tensors: activations, unless they have a parameter's shape, or
        come after a backward pass. Gradients may be gathered there."""
        if self._is_after():
            if "gather" in name:
                size = sum(each.numel() for each in self._largest(args)) // len(ranks)
                self._reduced[tuple(ranks), None] += size
            return
        if name in ("send", "recv"):
            ranks = sorted({self._rank, ranks[args[1]]})
        found = self._swaps if name.startswith(_SWAPPING) else self._shares
        by_sample = 1, self._samples, self._samples * len(ranks)  # statistics have one row
        for each in self._largest(args):
            activation = each.dim() > 1 and each.is_floating_point()
            if activation and tuple(each.shape) not in self._shapes and len(ranks) > 1:
                row = each.dim() == 2 and each.shape[0] in by_sample
                (self._features if row else found).add(tuple(ranks))

    def _is_after(self) -> bool:
        """Whether a backward pass is over, and neither a step nor a forward pass began since."""
        inside = self._torch._C._current_graph_task_id() != -1
        return not inside and self._passes() > self._before

    def _largest(self, args: Any) -> list[Any]:
        """The input or the output tensors of a collective, whichever are larger."""
        sides = [list(_tensors(each, self._torch.Tensor)) for each in args[:2]]
        largest: list[Any] = max(sides, key=lambda side: sum(each.numel() for each in side))
        return largest


def _called(module: Any, args: Any, kwargs: Any) -> None:
    """A hook of outermost modules. It can be pickled with them, and compilers ignore it."""
    if sys.modules["torch"].compiler.is_compiling() or not _looks:
        return
    with suppress(Exception):
        _looks[0].called(args, kwargs)


def _tensors(value: Any, kind: type) -> Iterator[Any]:
    """All tensors in nested containers."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, kind)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each, kind)


def _stepped(kind: Any) -> dict[int, Any]:
    """Trained tensors of this process's optimizers, by identity."""
    import gc

    groups = [group for each in gc.get_objects() if issubclass(type(each), kind)
              for group in each.param_groups]  # fmt: skip
    return {id(p): p for group in groups for p in group["params"] if p.requires_grad}


def _local(tensor: Any) -> Any:
    """This rank's part of a DTensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def _bytes(tensor: Any, torch: Any) -> bytes:
    flat = _local(tensor.detach()).reshape(-1)
    flat = flat[:: max(1, flat.numel() // ELEMENTS)].contiguous().cpu()
    shape = str(tuple(tensor.shape)).encode()
    return shape + ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _of_megatron(modules: list[Any]) -> dict[str, list[int]]:
    """The degrees, and this rank's places, from Megatron's core. The grid of DeepSpeed's pipelines
    has functions of the same names."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        ours = (each for each in modules if type(each).__module__.startswith("deepspeed."))
        state = next((grid for each in ours if (grid := vars(each).get("_grid"))), None)
    names = {"dp": "data_parallel", "tp": "tensor_model_parallel",
             "pp": "pipeline_model_parallel", "cp": "context_parallel"}  # fmt: skip
    return {
        role: [getattr(state, f"get_{name}_world_size")(), getattr(state, f"get_{name}_rank")()]
        for role, name in names.items()
        if hasattr(state, f"get_{name}_rank")
    }


def _of_meshes(world_size: int) -> dict[str, list[int]]:
    """The same from the most detailed mesh of all ranks; empty if it has an unknown name."""
    import gc

    module = sys.modules.get("torch.distributed.device_mesh")
    found: list[dict[str, list[int]]] = []
    for mesh in gc.get_objects() if module is not None else ():
        if type(mesh) is not module.DeviceMesh:  # type: ignore[union-attr]
            continue
        names = [each.lower().removesuffix("_parallel") for each in mesh.mesh_dim_names or ()]
        place = mesh.get_coordinate()
        if mesh.size() != world_size or place is None or not set(names) <= _ROLE.keys():
            continue
        degrees: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            size, at = degrees.get(_ROLE[name], (1, 0))
            own = mesh.size(number)
            degrees[_ROLE[name]] = [size * own, at * own + place[number]]
        found.append(degrees)
    # If ranks with parts of a sequence also shard parameters, one dimension may mean both.
    return max(found, key=lambda each: ("cp" in each, len(each)), default={})


def _wrapped(modules: list[Any], dist: Any) -> set[tuple[int, ...]]:
    """Sets of ranks over which modules average gradients: DDP, both FSDPs, DeepSpeed."""
    groups: list[Any] = []
    for module in modules:
        with suppress(Exception):
            if type(module).__module__.startswith(("torch.nn.parallel", "torch.distributed.fsdp",
                                                   "deepspeed.")):  # fmt: skip
                groups += [vars(module).get(name) for name in _DATA_GROUPS]
            if hasattr(type(module), "_get_fsdp_state"):
                state = module._get_fsdp_state()
                several = getattr(state, "_fsdp_param_groups", None)
                for each in several or filter(None, [state._fsdp_param_group]):
                    mesh = each.mesh_info
                    groups += [getattr(mesh, "shard_process_group", None),
                               getattr(mesh, "replicate_process_group", None)]  # fmt: skip
    known = {id(each): each for each in groups if isinstance(each, dist.ProcessGroup)}
    ranks = [tuple(dist.get_process_group_ranks(each)) for each in known.values()]
    return {each for each in ranks if len(each) > 1}


def _sharded(parameters: Any, averages: set[tuple[int, ...]], dist: Any) -> set[tuple[int, ...]]:
    """Sets of ranks that share parameters without averaging them."""
    cut = {
        (id(each.device_mesh), number): each.device_mesh.get_group(number)
        for each in parameters
        for number, placed in enumerate(getattr(each, "placements", ()))
        if placed.is_shard()
    }
    found = {tuple(dist.get_process_group_ranks(each)) for each in cut.values()}
    return {each for each in found if len(each) > 1} - averages
