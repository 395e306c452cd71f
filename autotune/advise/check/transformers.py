"""TrainingArguments of transformers, and of tools on top: LLaMA-Factory, Axolotl, TRL.

Names: transformers 5.23 and 4.57 training_args.py, LLaMA-Factory 0.9.5, Axolotl 0.19, TRL 1.x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from autotune.advise.check.deepspeed import read as read_deepspeed
from autotune.advise.check.reading import (
    Finding,
    Reading,
    facts,
    is_on,
    named,
    refused_counts,
    section,
    with_misspelled,
)

_KEYS = {
    "micro_batch": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "dtype": "bf16",
    "checkpointing": "gradient_checkpointing",
    "loss": "use_liger_kernel",
    "optimizer": "optim",
}
_AXOLOTL = {
    "micro_batch": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "seq_len": "sequence_len",
    "dtype": "bf16",
    "checkpointing": "gradient_checkpointing",
    "loss": "liger_fused_linear_cross_entropy",
    "optimizer": "optimizer",
    "adapters": "adapter",
    "base": "load_in_4bit",
}
_FACTORY = {
    "seq_len": "cutoff_len", "adapters": "finetuning_type", "loss": "enable_liger_kernel",
    "base": "quantization_bit",
}  # fmt: skip
_OF_TRL = ("loss_type", "max_length", "model_init_kwargs", "packing", "dataset_text_field")
"""Keys of TRL. Its version decides whether its loss is whole or chunked."""
_OLD = {
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length (TRL)",
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_config: {transformer_layer_cls_to_wrap: [...]}",
    "fsdp_min_num_params": "fsdp_config: {min_num_params: ...}",
    "gradient_checkpointing": "activation_checkpointing, from transformers 5.23 on",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs, from transformers 5.23 on",
}
_LOADING = (
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory",
    "dataloader_persistent_workers",
)  # fmt: skip
_ADAMW = re.compile(r"adamw(?!.*(?:4bit|anyprecision))(?P<small>.*8bit)?")
"""Names of AdamW; others are named as they are."""
_COMPILE = {True: "on", False: "off", None: None}
_QUIET = ("gradient_checkpointing", "gradient_checkpointing_kwargs")
"""Old names in one tool only: Axolotl, LLaMA-Factory and TRL still take them."""


def is_one(body: dict[str, Any]) -> bool:
    return any(name in body for name in ("per_device_train_batch_size", *_OLD, *_LOADING)) or (
        "gradient_accumulation_steps" in body and "learning_rate" in body
    )


def is_llama_factory(body: dict[str, Any]) -> bool:
    return "cutoff_len" in body or "finetuning_type" in body


def is_axolotl(body: dict[str, Any]) -> bool:
    return "sequence_len" in body or ("micro_batch_size" in body and "base_model" in body)


def read(name: str, body: dict[str, Any]) -> Reading:
    of_factory = is_llama_factory(body)
    found = _switch(body, "activation_checkpointing", "gradient_checkpointing")
    if of_factory:
        found = not is_on(body.get("disable_gradient_checkpointing"))
    held = body.get("deepspeed")
    inner = (read_deepspeed(f"{name}: deepspeed", held),) if isinstance(held, dict) else ()
    if (part := body.get("fsdp_config")) and isinstance(part, dict):
        found = found or is_on(part.get("activation_checkpointing"))
    length = next((n for n in ("cutoff_len", "max_length", "max_seq_length") if n in body), "")
    keys = _KEYS | {"dtype": _dtype_key(body), "seq_len": length or "max_length"}
    reading = Reading(
        name=name,
        tool="llama-factory" if of_factory else "transformers",
        **facts(keys, body, grad_accum=1, **({} if of_factory else {"micro_batch": 8})),
        dtype=_dtype(body),
        checkpointing=None if found is None else _kind(body) if found else "none",
        compile=_COMPILE[_switch(body, "torch_compile")],
        optimizer=_optimizer(body.get("optim")),
        loss=_loss(body, of_factory=of_factory),
        base=_base(body.get("quantization_bit")) if of_factory else None,
        adapters=_adapters_of_factory(body) if of_factory else None,
        inner=inner,
        files=named(deepspeed=held),
        fills_auto=True,
        findings=tuple(_findings(name, body, () if of_factory else _OLD)),
        keys=keys | (_FACTORY if of_factory else {"seq_len": "max_length"}),
    )
    return with_misspelled(reading, body)


def _optimizer(name: Any) -> str | None:
    """The value of --optimizer for transformers' `name`; the name itself if there is none."""
    found = _ADAMW.match(str(name))
    if found is None:
        return None if name is None else str(name)
    return "adamw8bit" if found["small"] else "adamw"


def read_axolotl(name: str, body: dict[str, Any]) -> Reading:
    kept = body.get("gradient_checkpointing")
    moved = kept == "offload" or body.get("activation_offloading") not in (None, False)
    keys = _AXOLOTL | {"dtype": _dtype_key(body)}
    reading = Reading(
        name=name,
        tool="axolotl",
        **facts(keys, body, micro_batch=1, grad_accum=1),
        dtype=_dtype(body),
        checkpointing="host" if moved else "full" if is_on(kept) else "none",
        compile=_COMPILE[_switch(body, "torch_compile")],
        optimizer=_optimizer(body.get("optimizer")),
        loss="chunked" if _is_chunked_by_axolotl(body) else "whole",
        base=_base_of_axolotl(body),
        adapters=_adapters_of_axolotl(body),
        files=named(deepspeed=body.get("deepspeed")),
        fills_auto=True,
        findings=tuple(_findings(name, body, ())),
        keys=keys,
    )
    return with_misspelled(reading, body)


def _adapters_of_axolotl(body: dict[str, Any]) -> str:
    kind, rank = body.get("adapter"), f"r={body.get('lora_r')}"
    if kind == "qlora" and is_on(body.get("load_in_4bit")):  # what it needs
        return rank
    return {"None": "none", "lora": rank}.get(str(kind), f"{kind} {rank}")


def _base(bits: object) -> str:
    return {"4": "nf4", "8": "int8"}.get(str(bits), "not quantized")


def _base_of_axolotl(body: dict[str, Any]) -> str:
    loads = {bits: is_on(body.get(f"load_in_{bits}bit")) for bits in (4, 8)}
    return _base(next((bits for bits, on in loads.items() if on), None))


def _adapters_of_factory(body: dict[str, Any]) -> str | None:
    kind = body.get("finetuning_type", "lora")  # its default, of rank 8
    return {"lora": f"r={body.get('lora_rank', 8)}", "full": "none"}.get(str(kind))


def _kind(body: dict[str, Any]) -> str:
    """The kind of checkpointing that is on."""
    kept = section(body, "activation_checkpointing_kwargs")
    if is_on(kept.get("offload")):
        return "host"
    nth = kept.get("every_n_layers", 1)
    return "full" if nth == 1 else f"1/{nth}"


def _loss(body: dict[str, Any], *, of_factory: bool) -> str | None:
    """The loss. Liger's kernels chunk it by default."""
    if of_factory:
        return "chunked" if is_on(body.get("enable_liger_kernel")) else "whole"
    if any(name in body for name in _OF_TRL):
        return "chunked" if body.get("loss_type") == "chunked_nll" else None
    fused = section(body, "liger_kernel_config").get("fused_linear_cross_entropy", True)
    return "chunked" if is_on(body.get("use_liger_kernel")) and is_on(fused) else "whole"


def _is_chunked_by_axolotl(body: dict[str, Any]) -> bool:
    """Its chunked_cross_entropy holds all logits (monkeypatch/loss/chunked.py)."""
    return any(
        is_on(body.get(name)) for name in ("liger_fused_linear_cross_entropy", "cut_cross_entropy")
    )


def _switch(body: dict[str, Any], *names: str) -> bool | None:
    return next((is_on(body[name]) for name in names if name in body), None)


def _dtype(body: dict[str, Any]) -> str | None:
    if body.get("bf16") == "auto":
        return None
    if is_on(body.get("bf16")) or is_on(body.get("pure_bf16")):
        return "bf16"
    if is_on(body.get("fp16")):
        return "fp16"
    # With DeepSpeed, its own config has the dtype.
    return None if body.get("deepspeed") else "fp32"


def _dtype_key(body: dict[str, Any]) -> str:
    return next((key for key in ("bf16", "pure_bf16", "fp16") if is_on(body.get(key))), "bf16")


def _loading(name: str, body: dict[str, Any], workers: int | None) -> Iterator[Finding]:
    """Findings about the data loader; `workers` is the default. Sources: transformers
    training_args.py, `__post_init__`; torch/utils/data/dataloader.py."""
    for names in (_LOADING, tuple(each.removeprefix("dataloader_") for each in _LOADING)):
        of_workers, of_prefetch, of_pinned, of_persistent = names
        yield from refused_counts(name, body, {of_workers: 0})
        if body.get(of_workers, workers if names is _LOADING else None) != 0:
            continue
        if body.get(of_prefetch) is not None:
            yield Finding(
                "error", f"{name}: {of_prefetch}",
                f"torch and transformers refuse it with 0 workers; set {of_workers} to 1 or more,"
                f" or leave {of_prefetch} out",
            )  # fmt: skip
        if is_on(body.get(of_persistent)):
            yield Finding(
                "error", f"{name}: {of_persistent}",
                f"torch refuses it with 0 workers; set {of_workers} to 1 or more, or"
                f" {of_persistent} to false",
            )  # fmt: skip
        if body.get(of_pinned) is False:
            yield Finding(
                "warning", f"{name}: {of_pinned}",
                "false, with 0 workers: each step waits until its batch is loaded and copied; set"
                f" {of_workers} to 2 or more and {of_pinned} to true",
            )  # fmt: skip


def _findings(name: str, body: dict[str, Any], old: Any) -> Iterator[Finding]:
    for key in old:
        if key in body and key not in _QUIET:
            yield Finding("warning", f"{name}: {key}", f"old name; write {_OLD[key]}")
        elif (
            key in body
            and key != (new := key.replace("gradient", "activation", 1))
            and new in body
        ):
            yield Finding("error", f"{name}: {key}", f"two names for one thing; keep {_OLD[key]}")
    if is_on(body.get("bf16")) and is_on(body.get("fp16")):
        yield Finding("error", f"{name}: bf16", "fp16 is set as well; keep one of them")
    batches = ("per_device_train_batch_size", "micro_batch_size", "gradient_accumulation_steps")
    yield from refused_counts(name, body, dict.fromkeys(batches, 1))
    # Axolotl chooses the number itself.
    yield from _loading(name, body, None if is_axolotl(body) else 0)
    if is_on(body.get("auto_find_batch_size")):
        yield Finding(
            "warning", f"{name}: auto_find_batch_size",
            "may silently make the batch smaller, and different on each rank",
        )  # fmt: skip
    kwargs = body.get("gradient_checkpointing_kwargs", body.get("activation_checkpointing_kwargs"))
    on = _switch(body, "activation_checkpointing", "gradient_checkpointing")
    if on and isinstance(kwargs, dict) and is_on(kwargs.get("use_reentrant")):
        yield Finding(
            "warning", f"{name}: use_reentrant",
            "reentrant checkpointing fails with inputs that need no gradients, and in DDP with"
            " parameters that are used twice; set it to false",
        )  # fmt: skip
