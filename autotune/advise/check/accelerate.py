"""accelerate's YAML. Keys: accelerate 1.15, commands/config/config_args.py and
utils/dataclasses.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.advise.check.reading import (
    DEVICES,
    STAGES,
    Finding,
    Reading,
    is_on,
    named,
    number,
    offload_of,
    refused_choice,
    refused_counts,
    with_misspelled,
)

_KEYS = {
    "world_size": "num_processes",
    "nodes": "num_machines",
    "grad_accum": "deepspeed_config.gradient_accumulation_steps",
    "zero_stage": "deepspeed_config.zero_stage",
    "offload": "deepspeed_config.offload_optimizer_device",
    "offload_param": "deepspeed_config.offload_param_device",
    "dtype": "mixed_precision",
}
_OLD = {
    "fsdp_sharding_strategy": "fsdp_reshard_after_forward, with fsdp_version: 2",
    "fsdp_backward_prefetch_policy": "fsdp_backward_prefetch",
    "fsdp_transformer_layer_cls_to_wrap_class": "fsdp_transformer_layer_cls_to_wrap",
}
_MOVED = ("cpu", "nvme")
_IGNORED = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "zero3_save_16bit_model",
)  # fmt: skip


def is_one(body: dict[str, Any]) -> bool:
    return "distributed_type" in body or "compute_environment" in body


def read(name: str, body: dict[str, Any]) -> Reading:
    deepspeed, fsdp = (_part(body, key) for key in ("deepspeed_config", "fsdp_config"))
    stage, offload = None, None
    if str(body.get("distributed_type")).upper() == "DEEPSPEED":
        found = deepspeed.get("zero_stage")
        stage = found if isinstance(found, int) else None
        optimizer, param = (
            deepspeed.get(f"offload_{part}_device") in _MOVED for part in ("optimizer", "param")
        )
        if optimizer or param or "zero_stage" in deepspeed:
            offload = offload_of(optimizer=optimizer, param=param)
    elif fsdp:
        older = fsdp.get("fsdp_sharding_strategy") in ("SHARD_GRAD_OP", 2)
        stage = 2 if older or fsdp.get("fsdp_reshard_after_forward") is False else 3
    mixed, ranks = body.get("mixed_precision"), body.get("num_processes")
    nodes = body.get("num_machines")
    reading = Reading(
        name=name,
        tool="accelerate",
        grad_accum=number(deepspeed.get("gradient_accumulation_steps")),
        world_size=ranks if isinstance(ranks, int) else None,
        nodes=nodes if isinstance(nodes, int) else None,
        zero_stage=stage,
        offload=offload,
        dtype="fp32" if mixed in ("no", False) else mixed,
        checkpointing="full" if is_on(fsdp.get("fsdp_activation_checkpointing")) else None,
        files=named(deepspeed_config_file=deepspeed.get("deepspeed_config_file")),
        fills_auto=True,
        findings=(
            *refused_counts(name, body, {"num_processes": 1, "num_machines": 1}),
            *_findings(name, deepspeed, fsdp),
        ),
        keys=_KEYS | ({"zero_stage": "fsdp_config.fsdp_reshard_after_forward"} if fsdp else {}),
    )
    return with_misspelled(reading, body)


def _part(body: dict[str, Any], key: str) -> dict[str, Any]:
    part = body.get(key)
    return part if isinstance(part, dict) else {}


def _findings(name: str, deepspeed: dict[str, Any], fsdp: dict[str, Any]) -> Iterator[Finding]:
    for old, new in _OLD.items():
        if old in fsdp:
            yield Finding("warning", f"{name}: fsdp_config.{old}", f"old name; write {new}")
    if "deepspeed_config_file" in deepspeed:
        for key in _IGNORED:
            if key in deepspeed:
                yield Finding(
                    "error", f"{name}: deepspeed_config.{key}",
                    "accelerate refuses it beside deepspeed_config_file; leave it out",
                )  # fmt: skip
    at = "deepspeed_config."
    yield from refused_counts(name, deepspeed, {"gradient_accumulation_steps": 1}, at)
    for key, choices in (("zero_stage", STAGES), ("offload_optimizer_device", DEVICES),
                         ("offload_param_device", DEVICES)):  # fmt: skip
        if deepspeed.get(key) is not None:
            yield from refused_choice(f"{name}: {at}{key}", deepspeed[key], choices)
    stage = deepspeed.get("zero_stage")
    for key, least in (("offload_optimizer_device", 1), ("offload_param_device", 3)):
        if deepspeed.get(key) in _MOVED and isinstance(stage, int) and stage < least:
            yield Finding(
                "error", f"{name}: deepspeed_config.{key}",
                f"stage {stage} does not offload that; it needs stage {least} or more",
            )  # fmt: skip
