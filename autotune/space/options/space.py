"""The searched values, and the engine and batch of all candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from autotune.errors import UsageError
from autotune.space import engines
from autotune.space.axes import AXES, DEGREES, ZERO_STAGES
from autotune.space.engines import stages_of
from autotune.space.mix import RUN_STEPS
from autotune.space.models import gpt
from autotune.space.options.flag import Flag, as_it_is, listed, option, word
from autotune.space.workload import Dtype, GlobalBatch, parse_global_batch
from autotune.units import parse_int, parse_ints
from autotune.wire.ranks import ROUTINGS, SAVES
from autotune.wire.settings import Axis

_ON_CUDA, _ON_CPU = gpt.FAMILY.defaults({}, "cuda"), gpt.FAMILY.defaults({}, "cpu")
_DEFAULTS = {
    "depth": "the model's own, 1 of a factory; of gpt"
    f" {listed(_ON_CUDA.depth)}, on cpu {listed(_ON_CPU.depth)}",
    "seq_len": f"{listed(_ON_CUDA.seq_len)}; on cpu {listed(_ON_CPU.seq_len)}",
    "micro_batch": f"{len(_ON_CUDA.micro_batch)} sizes from {_ON_CUDA.micro_batch[0]} to"
    f" {_ON_CUDA.micro_batch[-1]}; on cpu {_ON_CPU.micro_batch[0]}:{_ON_CPU.micro_batch[-1]}",
}


def _words(text: str, flag: str, axis: Axis) -> tuple[str, ...]:
    """The comma-separated values of `text`, each one of `axis`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if not axis.takes(name):
            own = (
                f'; where a script takes {name}, write --axis "{axis.name[:2]}=True,False", and'
                f" {{{axis.name[:2]}}} in --script"
            ) * (name in ("True", "False"))
            if axis.name == "dp_shard":
                own = "; a number is at least 1, and divides dp: ranks / (tp x pp x cp)"
            if axis.name == "micro_batch_per_rank":
                own = "; or auto; a vector has at least 1 sample for each rank, joined by +"
            raise UsageError(f"{flag} {name}: unknown; known: {', '.join(axis.known)}{own}")
    return names


def _flag(axis: Axis) -> Flag:
    """The option that sets the values of `axis`."""
    default = f" (default: {_DEFAULTS[axis.name]})." if axis.name in _DEFAULTS else ""
    read = partial(parse_ints, least=axis.least)
    return Flag(
        name=axis.flag, help=axis.help + default, metavar=axis.metavar,
        read=partial(_words, axis=axis) if axis.known else read,
    )  # fmt: skip


AXIS_FLAGS = {axis.option: (axis.name, _flag(axis)) for axis in AXES.values() if axis.help}
"""Name and flag of an axis, by the key of its option."""


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that the user gave, by axis."""
    # fmt: off
    tokens_per_batch: tuple[int, ...] | None = option(
        "--tokens-per-batch", parse_ints, "INTS",
        "Tokens per rank and micro-step, instead of --micro-batch, for data in buckets of"
        " lengths. micro_batch becomes the number of samples of each seq_len that fit.")
    length_mix: str | None = option(
        "--length-mix", as_it_is, "FILE",
        "Lengths of your samples: a CSV of length,count, a .npy of lengths, or a .jsonl of"
        " numbers or of objects with length or input_ids. The search uses the longest sample, or"
        " --seq-len to truncate. Finals run on padded batches of this mix.")
    run_steps: int | None = option(
        "--run-steps", parse_int, "N",
        "Optimizer steps of your run. With samples of several lengths and --compile on, the time"
        f" to compile all shapes is spread over them (default: {RUN_STEPS}).")
    engine: str = word(
        "--engine", engines.NAMES,
        "Training engine (auto: ddp for ZeRO stage 0, deepspeed for the others).", engines.AUTO)
    dtype: Dtype = word(
        "--dtype", (*get_args(Dtype), "fp8"),
        "Type of the matrix products (auto: bf16 if the GPU supports it, else fp16; on cpu"
        " fp32). fp8 is bf16 with --float8 tensorwise.", "auto")
    global_batch: GlobalBatch | None = option(
        "--global-batch", parse_global_batch, "BATCH",
        "Batch of one optimizer step over all ranks, in tokens (65536tok) or samples (256)."
        " Candidates that do not divide it are left out (default: one micro-step per rank).")
    routing: str | None = word(
        "--routing", (*ROUTINGS, ",".join(ROUTINGS)),
        "How tokens spread over the experts of a mixture of experts: balanced; hot, about as in"
        " trained models; or balanced steps, then a few hot ones, whose peak counts, too"
        " (default: balanced,hot).")
    eval_batch: int | None = option(
        "--eval-batch", parse_int, "N",
        "Samples of a rank's evaluation batch. The winner evaluates such a batch after its finals,"
        " its logits kept, and the ceiling holds there, too.")
    save: str | None = word(
        "--save", SAVES,
        "How your run saves: full, as one file of the whole state, or sharded. The winner makes"
        " such a checkpoint after its finals, and the ceiling holds there, too.")
    # fmt: on

    def __post_init__(self) -> None:
        self._check_stages()
        if self.eval_batch is not None and self.eval_batch < 1:
            raise UsageError(f"--eval-batch {self.eval_batch}: must be at least 1, e.g. 8")
        if self.tokens_per_batch is not None and "micro_batch" in self.axes:
            raise UsageError(
                f"--tokens-per-batch {listed(self.tokens_per_batch)}: --micro-batch"
                f" {listed(self.axes['micro_batch'])} sets it too; leave one of them out"
            )
        if vectors := self.axes.get("micro_batch_per_rank"):
            self._check_vectors(vectors)
        if self.run_steps is not None and self.run_steps < 1:
            raise UsageError(f"--run-steps {self.run_steps}: must be at least 1, e.g. 10000")
        if self.length_mix is not None:
            self._check_mix()

    def _check_vectors(self, vectors: tuple[str, ...]) -> None:
        """Refuses options that micro-batches by rank exclude."""
        others = {
            AXES["micro_batch"].flag: self.axes.get("micro_batch"),
            "--tokens-per-batch": self.tokens_per_batch,
            "--length-mix": self.length_mix,
            **{AXES[name].flag: self.axes.get(name) for name in (*DEGREES, "dp_shard")},
        }
        flag = f"{AXES['micro_batch_per_rank'].flag} {listed(vectors)}"
        for other, value in others.items():
            if value is not None:
                raise UsageError(f"{flag}: does not go with {other}; leave one of them out")
        able = [name for name, engine in engines.ENGINES.items() if engine.unlike_ranks]
        if self.engine not in (engines.AUTO, *able):
            raise UsageError(
                f"{flag}: --engine {self.engine} has one micro-batch for all ranks; use --engine"
                f" {' or '.join(able)}"
            )
        if any(self.axes.get("zero_stage", ())) and self.engine == engines.AUTO:
            raise UsageError(f"{flag}: --zero needs an engine; add --engine {able[-1]}")

    def _check_mix(self) -> None:
        """Refuses options that samples of different lengths exclude."""
        mixed, packs = f"--length-mix {self.length_mix}", self.axes.get("pack", ("off",))
        batch, tokens = self.global_batch, self.tokens_per_batch
        if tokens is not None and "on" in packs:
            raise UsageError(
                f"--tokens-per-batch {listed(tokens)}: rows of --pack on are full already; leave"
                " one of them out"
            )
        if batch is not None and (tokens is not None or len(packs) > 1):
            flag = "--tokens-per-batch" if tokens is not None else "--pack off,on"
            raise UsageError(
                f"--global-batch {batch}: with {mixed} and {flag}, batches differ in samples;"
                " leave one of them out"
            )
        if batch is not None and batch.unit == "tokens":
            raise UsageError(
                f"--global-batch {batch}: with {mixed} steps differ in tokens; write it in"
                " samples, e.g. --global-batch 256"
            )
        if "flex_attention" in self.axes.get("attention", ()) and packs != ("on",):
            raise UsageError(
                f"--attention flex_attention: compiles anew for each shape, and {mixed} has many;"
                " use --attention sdpa, or --pack on"
            )

    def _check_stages(self) -> None:
        """Refuses an engine, stages and offloads that exclude each other."""
        asked, stages = self.axes.get("zero_stage"), stages_of(self.engine)
        for stage in asked or ():
            if stage not in ZERO_STAGES:
                raise UsageError(f"--zero {stage}: no such stage; known: 0, 1, 2, 3")
            if stage not in stages:
                raise UsageError(
                    f"--zero {stage}: --engine {self.engine} has no such stage;"
                    f" use --zero {listed(stages)}"
                )
        moved = [offload for offload in self.axes.get("offload", ()) if offload != "none"]
        if not moved:
            return
        if not engines.engine_for(self.engine, max(stages)).offloads:
            raise UsageError(
                f"--offload {moved[0]}: --engine {self.engine} does not offload here;"
                " use --engine deepspeed, or --offload none"
            )
        if asked is not None and not any(asked):
            raise UsageError(
                f"--offload {moved[0]}: stage 0 cannot offload; add a stage, e.g. --zero 2"
            )
        if "all" in moved and asked is not None and 3 not in asked:
            raise UsageError("--offload all: only stage 3 can offload parameters; add --zero 3")
