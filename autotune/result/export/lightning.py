"""A Trainer of Lightning. Names: lightning 2.6, pytorch/trainer/trainer.py and strategies/."""

from __future__ import annotations

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, OF_DEEPSPEED, Exported, exported, machines
from autotune.wire.recipe import CLIP_NORM

_PYTHON = '''\
"""A Trainer of a result: lightning_trainer.trainer(max_steps=100)."""

from lightning import Trainer
{imports}
MICRO_BATCH = {micro_batch}
"""Samples that the data loader gives each device at a time."""
SEQ_LEN = {seq_len}


def trainer(**own):
    """`own` come first."""
    found = dict(
        accelerator="{accelerator}",
        devices={devices},{nodes}
        strategy={strategy},
        precision="{precision}",
        {schedule}
    )
    return Trainer(**found | own)
'''
_SCHEDULE = """accumulate_grad_batches={grad_accum},
        gradient_clip_val={clip},"""
_MIXED = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def export(best: Best) -> Exported:
    """`lightning_trainer.py`."""
    config = best.config
    says = {*BATCHES, *machines(config), "seq_len", "dtype", "param_dtype"}
    precision = "bf16-true" if config.param_dtype == "bf16" else _MIXED[config.dtype]
    schedule = _SCHEDULE.format(grad_accum=config.grad_accum, clip=CLIP_NORM)
    imports = strategy = ""
    match config.engine:
        case "deepspeed":
            says |= {*OF_DEEPSPEED, "optimizer"}
            imports = "from lightning.pytorch.strategies import DeepSpeedStrategy\n"
            # Lightning refuses these in DeepSpeed's config: it sets them itself.
            own = ("gradient_accumulation_steps", "train_batch_size")
            probed = {k: v for k, v in best.exports["deepspeed"].items() if k not in own}
            strategy = f"DeepSpeedStrategy(config={probed!r})"
            autocast = "torch_autocast" in probed
            precision = "32-true" if autocast else _MIXED[config.dtype].replace("-mixed", "-true")
            schedule = f"accumulate_grad_batches={config.grad_accum},"
        case "fsdp":
            # Lightning has FSDP1: the user says which modules are sharded together.
            sharding = "FULL_SHARD" if config.zero_stage == 3 else "SHARD_GRAD_OP"
            imports = "from lightning.pytorch.strategies import FSDPStrategy\n"
            strategy = f'FSDPStrategy(sharding_strategy="{sharding}")'
            schedule = (
                f"accumulate_grad_batches={config.grad_accum},\n"
                "        # FSDP1, and not the FSDP2 of the result: pass FSDPStrategy an\n"
                "        # auto_wrap_policy. Gradients are not clipped."
            )
        case _:
            strategy = '"ddp"' if config.world_size > 1 else '"auto"'
    text = _PYTHON.format(
        imports=imports,
        micro_batch=config.micro_batch,
        seq_len=config.seq_len,
        accelerator="cpu" if best.device_kind == "cpu" else "gpu",
        devices=config.ranks_on_a_node,
        nodes=f"\n        num_nodes={config.nodes}," if config.nodes > 1 else "",
        strategy=strategy,
        precision=precision,
        schedule=schedule,
    )
    return exported(best, says, {"lightning_trainer.py": text})
