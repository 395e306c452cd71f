"""`accelerate launch --config_file accelerate.yaml`. Keys: accelerate 1.15,
commands/config/config_args.py and utils/dataclasses.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import BESIDE, OF_DEEPSPEED, Exported, exported, machines

_DEEPSPEED = "accelerate-deepspeed.json"
_HERE = Path()
_MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def export(best: Best, folder: Path = _HERE) -> Exported:
    """`accelerate.yaml`; with DeepSpeed also its config in `folder`, which it names."""
    config, on_cpu = best.config, best.device_kind == "cpu"
    says = {"dtype", *machines(config)}
    files: dict[str, dict[str, Any]] = {}
    comments = []
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": config.nodes,
        **({"machine_rank": 0} if config.nodes == 1 else {"same_network": True}),
        "num_processes": config.world_size,
        "main_training_function": "main",
        "use_cpu": on_cpu,
    }
    if config.engine == "deepspeed":
        says |= {*OF_DEEPSPEED, "micro_batch", "grad_accum", "param_dtype"}
        probed = dict(best.exports["deepspeed"])
        if config.offload == "none":
            # A script of accelerate has its own optimizer, and must not have two.
            probed.pop("optimizer", None)
            probed["zero_force_ds_cpu_optimizer"] = False
            probed["zero_allow_untested_optimizer"] = True
        else:
            says.add("optimizer")
        files[_DEEPSPEED] = probed
        comments.append(BESIDE.format(_DEEPSPEED))
        found |= {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {
                "deepspeed_config_file": str(folder / _DEEPSPEED),
                "zero3_init_flag": config.zero_stage == 3,
                # Started on each node, and not from one by ssh.
                **({"deepspeed_multinode_launcher": "standard"} if config.nodes > 1 else {}),
            },
        }
    elif config.engine == "fsdp":
        says |= {"zero_stage"}
        full = config.checkpointing == "full"
        says |= {"checkpointing"} if full else set()
        found |= {
            "distributed_type": "FSDP",
            "mixed_precision": _MIXED[config.dtype],
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_reshard_after_forward": config.zero_stage == 3,
                "fsdp_offload_params": False,
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_activation_checkpointing": full,
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            },
        }
    else:
        several = "MULTI_CPU" if on_cpu else "MULTI_GPU"
        found |= {
            "distributed_type": several if config.world_size > 1 else "NO",
            "mixed_precision": _MIXED[config.dtype],
        }
    if config.float8 == "tensorwise":
        says.add("float8")
        found["mixed_precision"] = "fp8"
        found["fp8_config"] = {
            "backend": "AO", "pad_inner_dim": False, "enable_fsdp_float8_all_gather": False,
        }  # fmt: skip
    if config.compile == "on":
        says.add("compile")
        found["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_use_dynamic": False,
            "dynamo_use_regional_compilation": True,
        }
    if config.nodes > 1:
        comments.append("On each node: --machine_rank, and the first one's --main_process_ip.")
    if config.engine == "deepspeed" and config.offload != "none":
        comments.append(
            "DeepSpeed brings the optimizer: pass accelerate.utils.DummyOptim to prepare()."
        )
    if on_cpu and config.world_size > 1 and config.engine != "deepspeed":
        comments.append(
            "accelerate starts several ranks on CPUs only through MPI (mpirun_config)."
        )
    return exported(best, says, {**files, "accelerate.yaml": found}, comments=comments)
