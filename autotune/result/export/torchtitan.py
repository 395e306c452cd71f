"""torchtitan's Python config. Names: torchtitan 0.3, and what came after it until late 2026:
config/ (token keys since #4121), trainer.py."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, exported, fallback, otherwise
from autotune.space.axes import DEGREES
from autotune.wire.recipe import CLIP_NORM

_PYTHON = '''\
"""A result for torchtitan: call `apply` on the config that your function returns."""

from torchtitan.config import CompileConfig
{imports}

def apply(config):
    """`config` with the settings of the result."""
    if hasattr(config.training, "local_batch_size"):  # torchtitan 0.3
{older}
    else:  # after it (its pull request 4121)
{newer}
{lines}
    return config
'''
_AC = {"full": "FullAC", "selective": "SelectiveAC"}
_COMPILE = {
    # After torchtitan 0.3 None is off, and there is no `enable`.
    "off": 'CompileConfig() if hasattr(CompileConfig, "enable") else None',
    "on": 'CompileConfig(components=["model"])',
}
_DTYPE = {"bf16": "bfloat16"}
_DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context"}


def export(best: Best) -> Exported:
    """`torchtitan_config.py`. For a script it only has known settings."""
    config = best.config
    says = {*BATCHES, "seq_len", "compile", "reduce_dtype"}
    says |= set() if config.dtype == "fp16" else {"dtype"}
    sharded = config.engine == "fsdp"
    says |= {"zero_stage"} if sharded else set()
    says |= {"world_size"} if best.known is None else set()
    older = {
        "training.local_batch_size": config.micro_batch,
        "training.global_batch_size": config.global_batch_samples,
        "training.seq_len": config.seq_len,
    }
    newer = {
        "training.num_tokens_per_microbatch_per_dp_rank": config.micro_batch * config.seq_len,
        "training.num_tokens_per_train_step": config.global_batch_tokens,
        "training.max_context_length": config.seq_len,
    }
    after = "always" if config.zero_stage == 3 else "never"
    settings = {  # with the field of a result
        "training.max_norm": ("", CLIP_NORM),
        "training.mixed_precision_param": ("dtype", _DTYPE.get(config.dtype, "float32")),
        "training.mixed_precision_reduce":
            ("reduce_dtype", _DTYPE.get(config.reduce_dtype, "float32")),
        # They are on by default; the measurement had none.
        "training.disable_cuda_graphs": ("", True),
        "parallelism.data_parallel_replicate_degree": ("", 1 if sharded else config.world_size),
        "parallelism.data_parallel_shard_degree": ("", config.world_size if sharded else 1),
        **({"parallelism.fsdp_reshard_after_forward": ("zero_stage", after)} if sharded else {}),
    }  # fmt: skip
    lines = _lines({name: value for name, (of, value) in settings.items() if best.knows(of)}, 4)
    if config.splits is not None:
        degrees = {f"parallelism.{_DEGREES[name]}_parallel_degree": size
                   for name, size in config.splits.items()}  # fmt: skip
        if best.known is not None and best.knows("ep"):
            degrees["parallelism.expert_parallel_degree"] = config.ep
        if best.known is not None and best.knows("dp_shard"):
            replicate, shard = config.sharded
            degrees["parallelism.data_parallel_replicate_degree"] = replicate
            degrees["parallelism.data_parallel_shard_degree"] = shard
        lines += _lines(degrees, 4)
        says |= {*DEGREES, "dp_shard"}
    if best.knows("compile"):
        lines.append(f"    config.compile = {_COMPILE[config.compile]}")
        if config.compile == "on":
            lines += [
                '    if hasattr(config.compile, "enable"):',
                "        config.compile.enable = True",
            ]
    imports = ""
    instead: tuple[str, ...] = ()
    if best.knows("checkpointing"):
        instead = () if config.checkpointing in _AC else fallback(config.checkpointing)
        kept = "full" if instead else config.checkpointing
        if kept == "none":
            says.add("checkpointing")
            lines.append("    config.activation_checkpoint = None")
        elif (kind := _AC.get(kept)) is not None:
            says.add("checkpointing")
            imports = f"from torchtitan.distributed.activation_checkpoint import {kind}\n"
            lines.append(f"    config.activation_checkpoint = {kind}.Config()")
    text = _PYTHON.format(
        imports=imports,
        older="\n".join(_lines(older, 8)),
        newer="\n".join(_lines(newer, 8)),
        lines="\n".join(lines),
    )
    return exported(
        best, says, {"torchtitan_config.py": text}, instead=instead, comments=otherwise(best)
    )


def _lines(settings: dict[str, Any], indent: int) -> list[str]:
    return [f"{' ' * indent}config.{name} = {value!r}" for name, value in settings.items()]
