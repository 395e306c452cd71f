"""The search space: axes, what is valid on them, and `Candidate`, one point of it."""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from autotune.device import Device
from autotune.engines.state import StateBytes, state_bytes
from autotune.models.gpt import GptShape, gpt_shape
from autotune.options import ENGINE_STAGES, GlobalBatch, Options, UsageError, gib

AXES = ("depth", "seq_len", "micro_batch", "zero_stage", "offload", "checkpointing")
RANKS_PER_CORE = 2
MAX_POINTS = 200_000

# Chosen so that a 2-core CPU sees most of its space in two minutes and a data-centre GPU has a
# 30-minute search in which the largest candidates do not fit. A small vocabulary on the CPU keeps
# the head from taking the whole step of a small model.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"depth": (2, 4), "seq_len": (64, 128), "micro_batch": tuple(range(1, 17)),
            "vocab_size": 4096},
    "cuda": {"depth": (12, 16, 20, 24), "seq_len": (1024, 2048),
             "micro_batch": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128), "vocab_size": 32768},
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Build:
    """The part of a candidate that needs a new engine."""

    depth: int
    zero_stage: int
    offload: str
    checkpointing: str


@dataclass(frozen=True, order=True)
class Candidate:
    """One point of the space. `micro_batch` counts samples per rank and micro-step."""

    depth: int
    seq_len: int
    micro_batch: int
    zero_stage: int = 0
    offload: str = "none"
    checkpointing: str = "none"

    @property
    def build(self) -> Build:
        return Build(self.depth, self.zero_stage, self.offload, self.checkpointing)

    @property
    def cell(self) -> tuple[int, int]:
        return (self.depth, self.seq_len)

    @property
    def tokens(self) -> int:
        """Tokens per rank and micro-step: what activation memory grows with."""
        return self.micro_batch * self.seq_len

    @property
    def key(self) -> str:
        """Canonical name, e.g. `d4-s256-b8-z0-none-none`."""
        return (
            f"d{self.depth}-s{self.seq_len}-b{self.micro_batch}"
            f"-z{self.zero_stage}-{self.offload}-{self.checkpointing}"
        )

    @property
    def exists(self) -> bool:
        """Whether stage and offload go together: stage 0 keeps all, only 3 offloads weights."""
        least_stage = {"none": 0, "optimizer": 1, "all": 3}
        return self.zero_stage >= least_stage[self.offload]

    def covers(self, other: Candidate) -> bool:
        """Whether this needs at least the memory of `other`: the same kind, nowhere smaller."""
        return (
            (self.zero_stage, self.offload, self.checkpointing)
            == (other.zero_stage, other.offload, other.checkpointing)
            and self.depth >= other.depth
            and self.seq_len >= other.seq_len
            and self.micro_batch >= other.micro_batch
        )


@dataclass(frozen=True)
class Workload:
    """What all candidates of a study share."""

    model: str
    width: int | None
    """Channels; None means 64 x depth."""
    vocab_size: int
    dtype: str
    optimizer: str
    engine: str
    """As asked: "auto" is ddp for stage 0 and deepspeed for the others."""
    world_size: int
    global_batch: GlobalBatch | None

    def engine_of(self, candidate: Candidate | Build) -> str:
        """The engine that runs `candidate`: ddp, deepspeed or fsdp."""
        if self.engine != "auto":
            return self.engine
        return "deepspeed" if candidate.zero_stage else "ddp"

    def state_bytes(self, candidate: Candidate | Build) -> StateBytes:
        """Model state of one rank."""
        return state_bytes(
            self.shape(candidate.depth),
            engine=self.engine_of(candidate),
            zero_stage=candidate.zero_stage,
            offload=candidate.offload,
            dtype=self.dtype,
            optimizer=self.optimizer,
            world_size=self.world_size,
        )

    def shape(self, depth: int) -> GptShape:
        return gpt_shape(depth, self.width, self.vocab_size)

    def grad_accum(self, candidate: Candidate) -> int | None:
        """Micro-steps per optimizer step; None where the global batch is no multiple of one."""
        if self.global_batch is None:
            return 1
        accum, rest = divmod(self.global_batch.amount, self._unit(candidate))
        return accum if accum and not rest else None

    def global_batch_samples(self, candidate: Candidate) -> int:
        accum = self.grad_accum(candidate)
        if accum is None:
            raise ValueError(f"{candidate.key} does not divide the global batch")
        return candidate.micro_batch * self.world_size * accum

    def nearest_global_batch(self, candidates: list[Candidate]) -> GlobalBatch:
        """The global batch nearest to the asked one that one of `candidates` divides."""
        if self.global_batch is None:
            raise ValueError("no global batch was asked for")
        asked = self.global_batch.amount
        units = {self._unit(c) for c in candidates}
        amounts = {max(1, asked // u + up) * u for u in units for up in (0, 1)}
        return GlobalBatch(min(amounts, key=lambda a: (abs(a - asked), a)), self.global_batch.unit)

    def _unit(self, candidate: Candidate) -> int:
        """What one micro-step over all ranks adds to the global batch."""
        samples = candidate.micro_batch * self.world_size
        in_tokens = self.global_batch is not None and self.global_batch.unit == "tokens"
        return samples * candidate.seq_len if in_tokens else samples


@dataclass(frozen=True)
class Fixed:
    """Something the study does not search over, and why it has this value."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Limits:
    """What a configuration may use, per device and on the host."""

    capacity_bytes: int
    ceiling: float
    host_capacity_bytes: int
    host_ceiling: float

    @property
    def limit_bytes(self) -> int:
        return int(self.capacity_bytes * self.ceiling)

    @property
    def host_limit_bytes(self) -> int:
        return int(self.host_capacity_bytes * self.host_ceiling)


@dataclass(frozen=True)
class Space:
    """All valid candidates of one study, ascending, with what is fixed about them."""

    workload: Workload
    limits: Limits
    axes: dict[str, tuple[Any, ...]]
    candidates: tuple[Candidate, ...]
    fixed: tuple[Fixed, ...]

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        return tuple(sorted({c.build for c in self.candidates}))

    @cached_property
    def opening(self) -> tuple[Build, ...]:
        """The build in the middle, and those that differ from it in one axis alone.

        Every depth, stage with offload, and checkpointing occurs, and what each of them does can
        be told from what the others do.
        """
        depths = sorted({b.depth for b in self.builds})
        stages = sorted({(b.zero_stage, b.offload) for b in self.builds})
        middle = Build(
            depths[len(depths) // 2], *stages[0], max(b.checkpointing for b in self.builds)
        )
        spokes = (
            [middle]
            + [replace(middle, depth=depth) for depth in depths]
            + [replace(middle, zero_stage=stage, offload=moved) for stage, moved in stages]
            + [replace(middle, checkpointing=b.checkpointing) for b in self.builds]
        )
        return tuple(dict.fromkeys(build for build in spokes if build in self.builds))

    def manifest(self) -> dict[str, Any]:
        """The space as JSON types, for the study folder."""
        workload = asdict(self.workload)
        batch = self.workload.global_batch
        workload["global_batch"] = None if batch is None else str(batch)
        return {"workload": workload, "limits": asdict(self.limits),
                "axes": {name: list(values) for name, values in self.axes.items()},
                "size": len(self.candidates)}  # fmt: skip


def resolve(options: Options, device: Device, host_bytes: int, cores: int) -> Space:
    """The space that `options` means on `device`.

    Args:
        host_bytes: memory of the host, all processes together.
        cores: processor cores this process may use.

    Raises:
        UsageError: more ranks than devices, a capacity above the device's, or a global batch that
            no candidate divides; of a replay, what was not recorded.
    """
    from autotune.replay.device import ReplayDevice

    if isinstance(device, ReplayDevice):
        return device.space(options)
    defaults = _DEFAULTS[device.kind]
    world_size, world_why = _world_size(options, device, cores)
    capacity_bytes, capacity_why = _capacity(options, device, world_size)
    dtype, dtype_why = _dtype(options, device)
    vocab_size = options.vocab_size or int(defaults["vocab_size"])
    optimizer = options.optimizer or "adamw"
    workload = Workload(
        options.model, options.width, vocab_size, dtype, optimizer, options.engine,
        world_size, options.global_batch,
    )  # fmt: skip
    limits = Limits(capacity_bytes, options.ceiling, host_bytes, options.host_ceiling)
    depths = options.depth or defaults["depth"]
    stages, offloads, stages_why = _stages(options, workload, limits, max(depths), device.kind)
    axes: dict[str, tuple[Any, ...]] = {
        "depth": depths,
        "seq_len": options.seq_len or defaults["seq_len"],
        "micro_batch": options.micro_batch or defaults["micro_batch"],
        "zero_stage": stages,
        "offload": offloads,
        "checkpointing": options.checkpointing or ("none", "full"),
    }
    _check_size(axes)
    points = [c for c in map(_candidate, itertools.product(*axes.values())) if c.exists]
    candidates = [c for c in points if workload.grad_accum(c) is not None]
    if not candidates:
        nearest = workload.nearest_global_batch(points)
        raise UsageError(
            f"--global-batch {options.global_batch}: no candidate divides it"
            f" (micro_batch x seq_len x {world_size} ranks x grad_accum); the nearest that works"
            f" is --global-batch {nearest}"
        )
    width_why = "--width" if options.width else "64 x depth, the gpt family's rule"
    fixed = [
        Fixed("model", options.model, "--model"),
        Fixed("width", str(options.width or "64 x depth"), width_why),
        Fixed(
            "vocab_size", str(vocab_size), _why(options.vocab_size, "--vocab-size", device.kind)
        ),
        Fixed("dtype", dtype, dtype_why),
        Fixed("optimizer", optimizer, "--optimizer"),
        Fixed("device", device.infos[0].name, device.why),
        Fixed("world_size", str(world_size), world_why),
        Fixed("capacity", f"{gib(capacity_bytes)} a rank", capacity_why),
        Fixed("ceiling", f"{options.ceiling:.0%}", "--ceiling"),
    ]
    if options.global_batch is not None:
        fixed.append(Fixed("global_batch", str(options.global_batch), "--global-batch"))
    fixed.append(Fixed("engine", options.engine, "--engine"))
    for name, values in axes.items():
        if len(values) == 1:
            why = stages_why if name in ("zero_stage", "offload") else "the only value"
            fixed.append(Fixed(name, str(values[0]), why))
    return Space(workload, limits, axes, tuple(sorted(candidates)), tuple(fixed))


def _check_size(axes: dict[str, tuple[Any, ...]]) -> None:
    size = math.prod(len(values) for values in axes.values())
    if size > MAX_POINTS:
        name, values = max(axes.items(), key=lambda axis: len(axis[1]))
        flag = "--" + name.replace("_", "-")
        raise UsageError(
            f"{flag}: {len(values)} values make a space of {size} points, at most {MAX_POINTS}"
            f" are searched; name fewer values or give a step, e.g. {flag} 1:64:8"
        )


def _why(asked: object, flag: str, kind: str) -> str:
    return flag if asked else f"default on {kind}"


def _candidate(values: tuple[Any, ...]) -> Candidate:
    return Candidate(*values)


def _stages(
    options: Options, workload: Workload, limits: Limits, deepest: int, kind: str
) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """Stages and offloads to search, and why these.

    They matter where there are ranks to share with, or where stage 0 cannot hold the deepest
    model. On the CPU the host is the device, and an offload moves nothing.
    """
    known = ENGINE_STAGES[options.engine]
    without = _without_deepspeed(options)
    offloads = options.offload or ("none",)
    if options.zero is not None:
        return options.zero, offloads, "--zero"
    if options.engine in ("ddp", "fsdp"):
        return known, offloads, "all the engine has"
    if without:
        return (0,), offloads, without
    if set(offloads) != {"none"}:
        return known, offloads, "--offload"
    offloads = options.offload or _offloads_for(workload, limits, deepest, kind)
    if workload.world_size > 1:
        return known, offloads, "several ranks can share"
    if offloads == ("none",):
        return (0,), offloads, "one rank has nobody to share with"
    return (0, 2, 3), offloads, "stage 0 cannot hold the deepest model"


def _offloads_for(workload: Workload, limits: Limits, deepest: int, kind: str) -> tuple[str, ...]:
    whole = workload.state_bytes(Build(deepest, 0, "none", "none"))
    if kind == "cuda" and whole.device > limits.limit_bytes:
        return ("none", "optimizer", "all")
    return ("none",)


def _without_deepspeed(options: Options) -> str:
    """Why stages 1 to 3 are left out; empty where they are not.

    Raises:
        UsageError: they were asked for.
    """
    if importlib.util.find_spec("deepspeed") is not None:
        return ""
    missing = "DeepSpeed is not installed: pip install deepspeed (Linux)"
    moved = any(offload != "none" for offload in options.offload or ())
    if options.engine == "deepspeed" or moved:
        raise UsageError(f"--engine deepspeed: {missing}, or use --engine ddp")
    if options.engine == "auto" and any(options.zero or ()):
        asked = ",".join(map(str, options.zero or ()))
        raise UsageError(f"--zero {asked}: {missing}, or use --zero 0, or --engine fsdp")
    return f"stages 1 to 3 are left out: {missing}"


def _world_size(options: Options, device: Device, cores: int) -> tuple[int, str]:
    if device.kind == "cpu":
        available, all_of_it = cores * RANKS_PER_CORE, 1
        what = f"{cores} cores, {RANKS_PER_CORE} ranks a core"
    elif any(info.uuid.startswith("MIG-") for info in device.infos):
        # CUDA gives a process one MIG instance, and NCCL does not join several.
        available, all_of_it, what = 1, 1, "a MIG instance trains alone"
    else:
        available = all_of_it = len(device.infos)
        what = "devices"
    if options.world_size is None:
        return all_of_it, f"default on {device.kind}"
    if options.world_size > available:
        raise UsageError(
            f"--world-size {options.world_size}: at most {available} here ({what});"
            f" use --world-size {available}"
        )
    return options.world_size, "--world-size"


def _capacity(options: Options, device: Device, world_size: int) -> tuple[int, str]:
    """Bytes a rank may call its device's, and where they come from."""
    on_cpu = device.kind == "cpu"
    smallest = min(info.capacity_bytes for info in device.infos)
    own = smallest // world_size if on_cpu else smallest
    if options.capacity_bytes is None:
        return own, "the host's memory over its ranks" if on_cpu else "the smallest device"
    if options.capacity_bytes > own:
        raise UsageError(
            f"--capacity {gib(options.capacity_bytes)}: the device has {gib(own)} a rank;"
            f" use --capacity {own // 2**20}MiB or less"
        )
    return options.capacity_bytes, "--capacity"


def _dtype(options: Options, device: Device) -> tuple[str, str]:
    if options.dtype != "auto":
        return options.dtype, "--dtype"
    if device.kind == "cpu":
        return "fp32", "auto: fastest on most CPUs"
    if all(info.bf16 for info in device.infos):
        return "bf16", "auto: the device has bf16"
    return "fp16", "auto: the device has no bf16"
