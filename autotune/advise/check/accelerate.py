"""accelerate's YAML. Keys: accelerate 1.15, config_args.py and utils/dataclasses.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.advise.check.reading import (
    DEVICES,
    LEAST_STAGE,
    MOVED,
    STAGES,
    Finding,
    Reading,
    facts,
    is_on,
    named,
    offload_of,
    refused_choice,
    refused_counts,
    refused_offload,
    section,
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
_IGNORED = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "zero3_save_16bit_model",
)  # fmt: skip


def is_one(body: dict[str, Any]) -> bool:
    return "distributed_type" in body or "compute_environment" in body


def read(name: str, body: dict[str, Any]) -> Reading:
    deepspeed, fsdp = (section(body, key) for key in ("deepspeed_config", "fsdp_config"))
    said, offload = facts(_KEYS, body), None
    if str(body.get("distributed_type")).upper() == "DEEPSPEED":
        optimizer, param = (
            deepspeed.get(f"offload_{part}_device") in MOVED for part in LEAST_STAGE
        )
        if optimizer or param or "zero_stage" in deepspeed:
            offload = offload_of(optimizer=optimizer, param=param)
    else:
        older = fsdp.get("fsdp_sharding_strategy") in ("SHARD_GRAD_OP", 2)
        kept = older or fsdp.get("fsdp_reshard_after_forward") is False
        said["zero_stage"] = (2 if kept else 3) if fsdp else None
    mixed = body.get("mixed_precision")
    reading = Reading(
        name=name,
        tool="accelerate",
        **said,
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
    for what in LEAST_STAGE:
        key, stage = f"offload_{what}_device", deepspeed.get("zero_stage")
        yield from refused_offload(f"{name}: {at}{key}", what, deepspeed.get(key), stage)
