"""DeepSpeed's JSON. Keys and defaults: deepspeed 0.19.8, runtime/config.py and zero/config.py."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from autotune.advise.check.deepspeed_names import NAMES, REMOVED
from autotune.advise.check.reading import (
    ALIKE_OF_ALL,
    AUTO,
    DEVICES,
    LEAST_STAGE,
    MOVED,
    STAGES,
    Finding,
    Reading,
    facts,
    is_on,
    offload_of,
    refused_choice,
    refused_counts,
    refused_offload,
    section,
    with_misspelled,
)

_KEYS = {
    "micro_batch": "train_micro_batch_size_per_gpu",
    "grad_accum": "gradient_accumulation_steps",
    "global_batch": "train_batch_size",
    "zero_stage": "zero_optimization.stage",
    "offload": "zero_optimization.offload_optimizer",
    "offload_param": "zero_optimization.offload_param",
    "dtype": "bf16.enabled",
}
_OLD = {
    "cpu_offload": "offload_optimizer: {device: cpu}",
    "cpu_offload_param": "offload_param: {device: cpu}",
    "cpu_offload_use_pin_memory": "offload_optimizer: {pin_memory: true}",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
_TELLING = ("stage", "type", "enabled", "device")
"""Names that identify a section."""
_DEEPEST = 8
"""The most levels to read: YAML may contain itself. DeepSpeed's config has three."""
_LARGE = 5e8
"""Elements of a default bucket: 1 GB with two bytes each, and there are several."""


def is_one(body: dict[str, Any]) -> bool:
    return (
        "zero_optimization" in body
        or "train_micro_batch_size_per_gpu" in body
        or ("train_batch_size" in body and isinstance(body.get("optimizer"), dict))
        or (
            2 * sum(map(_may_be_meant, body)) > len(body)
            and any(_is_section(body, name) for name in body)
        )
    )


def _may_be_meant(name: Any) -> bool:
    """Whether DeepSpeed knows, or knew, `name` or a similar one."""
    known = (*NAMES[()], *REMOVED[()])
    return name in known or bool(get_close_matches(str(name), known, 1, ALIKE_OF_ALL))


def _is_section(body: dict[str, Any], name: str) -> bool:
    """Whether `name` has the section that DeepSpeed reads there."""
    return not NAMES.get((name,), frozenset()).isdisjoint(section(body, name))


def read(name: str, body: dict[str, Any]) -> Reading:
    zero = section(body, "zero_optimization")
    stage = zero.get("stage", 0)
    reading = Reading(
        name=name,
        tool="deepspeed",
        **facts(_KEYS, body, zero_stage=0),
        offload=_offload(zero),
        dtype=_dtype(body),
        autos=tuple(_autos(body)),
        findings=(*_checkpointing(name, body), *_findings(name, body, zero, stage)),
        keys=_KEYS | {"dtype": _dtype_key(body)},
    )
    kept = {key: value for key, value in body.items() if key not in REMOVED[()]}
    if zero:
        gone = REMOVED["zero_optimization",]
        kept["zero_optimization"] = {key: zero[key] for key in zero.keys() - gone.keys()}
    return with_misspelled(reading, kept, NAMES)


def _offload(zero: dict[str, Any]) -> str:
    optimizer, param = (
        section(zero, f"offload_{what}").get("device") in MOVED for what in LEAST_STAGE
    )
    return offload_of(optimizer=optimizer or is_on(zero.get("cpu_offload")), param=param)


def _dtype(body: dict[str, Any]) -> str | None:
    for name in ("bf16", "fp16"):
        enabled = section(body, name).get("enabled")
        if enabled == AUTO:
            return None
        if is_on(enabled):
            return name
    cast = section(body, "torch_autocast")
    if is_on(cast.get("enabled")):
        return {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(str(cast.get("dtype")))
    # A tool around DeepSpeed may fill in a missing section.
    return "fp32" if "bf16" in body or "fp16" in body else None


def _dtype_key(body: dict[str, Any]) -> str:
    for name in ("bf16", "fp16", "torch_autocast"):
        if is_on(section(body, name).get("enabled")):
            return f"{name}.dtype" if name == "torch_autocast" else f"{name}.enabled"
    return "fp16.enabled" if "fp16" in body and "bf16" not in body else "bf16.enabled"


def _autos(body: dict[str, Any], where: str = "", deep: int = 0) -> Iterator[str]:
    for key, value in body.items() if deep < _DEEPEST else ():
        if value == AUTO:
            yield f"{where}{key}"
        elif isinstance(value, dict):
            yield from _autos(value, f"{where}{key}.", deep + 1)


def _checkpointing(name: str, body: dict[str, Any]) -> Iterator[Finding]:
    """Source: runtime/activation_checkpointing/checkpointing.py; transformers never calls it."""
    if "activation_checkpointing" in body:
        yield Finding(
            "warning", f"{name}: activation_checkpointing",
            "does nothing for models of transformers, only for those that call"
            " deepspeed.checkpointing; leave it out, and set gradient_checkpointing of"
            " TrainingArguments (activation_checkpointing from transformers 5.23 on)",
        )  # fmt: skip


def _findings(
    name: str, body: dict[str, Any], zero: dict[str, Any], stage: Any
) -> Iterator[Finding]:
    def at(key: str) -> str:
        return f"{name}: {key}"

    yield from _refused(name, body, zero, stage)
    for old, new in _OLD.items():
        if old in zero:
            yield Finding("warning", at(f"zero_optimization.{old}"), f"old name; write {new}")
    for what in LEAST_STAGE:
        key = f"zero_optimization.offload_{what}"
        part = section(zero, f"offload_{what}")
        yield from refused_offload(at(key), what, part.get("device"), stage)
        if part.get("device") == "cpu" and not is_on(part.get("pin_memory")):
            yield Finding(
                "warning", at(f"{key}.pin_memory"),
                "copies of memory that is not pinned are synchronous and slow; set it to true",
            )  # fmt: skip
    if all(is_on(section(body, kind).get("enabled")) for kind in ("bf16", "fp16")):
        yield Finding("error", at("bf16.enabled"), "fp16 is enabled as well; keep one of them")
    if is_on(body.get("wall_clock_breakdown")):
        yield Finding(
            "warning", at("wall_clock_breakdown"),
            "waits for the device several times a step; set it to false if nobody reads it",
        )  # fmt: skip
    if isinstance(stage, int) and stage >= 1:
        for key in ("reduce_bucket_size", "allgather_bucket_size"):
            size = zero.get(key, _LARGE)
            if stage < 3 and isinstance(size, int | float) and size >= _LARGE:
                said = "" if key in zero else " (the default)"
                yield Finding(
                    "warning", at(f"zero_optimization.{key}"),
                    f"{size:.0e} elements{said} are made for many billions of parameters and cost"
                    " gigabytes; the size of one block's weights is enough",
                )  # fmt: skip
        if zero.get("contiguous_gradients") is False:
            yield Finding(
                "warning", at("zero_optimization.contiguous_gradients"),
                "gradients in fragments, whose memory is hard to use again; set it to true",
            )  # fmt: skip


def _refused(
    name: str, body: dict[str, Any], zero: dict[str, Any], stage: Any
) -> Iterator[Finding]:
    """Findings that end deepspeed.initialize."""
    for path, gone in REMOVED.items():
        for key, new in gone.items():
            if key in (zero if path else body):
                instead = f", or write {new} instead" if new else ""
                yield Finding(
                    "error", f"{name}: {'.'.join((*path, key))}",
                    f"DeepSpeed removed it, and 0.19.8 refuses it; leave it out{instead}",
                )  # fmt: skip
    counts = (_KEYS["micro_batch"], _KEYS["grad_accum"], _KEYS["global_batch"])
    yield from refused_counts(name, body, dict.fromkeys(counts, 1))
    for path in filter(None, NAMES):
        value = {(): body, ("zero_optimization",): zero}.get(path[:-1], {}).get(path[-1])
        older = path == ("zero_optimization",) and isinstance(value, bool)
        if value is not None and not isinstance(value, dict) and not older:
            such = next((each for each in _TELLING if each in NAMES[path]), min(NAMES[path]))
            yield Finding(
                "error", f"{name}: {'.'.join(path)}",
                f"is {value!r:.40}; DeepSpeed takes a section there, as in {{{such}: ...}}",
            )  # fmt: skip
    yield from refused_choice(f"{name}: zero_optimization.stage", stage, STAGES)
    for what in LEAST_STAGE:
        if "device" in (part := section(zero, f"offload_{what}")):
            where = f"{name}: zero_optimization.offload_{what}.device"
            yield from refused_choice(where, part["device"], DEVICES)
