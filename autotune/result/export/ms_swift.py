"""ms-swift's YAML. Names: ms-swift 4.6, arguments/ (base_args/model_args.py, template_args.py,
sft_args.py, tuner_args.py), and TrainingArguments of transformers before 5.20."""

from __future__ import annotations

from autotune.result.best import Best
from autotune.result.export.format import LIGER_WHOLE, Exported, exported, machines
from autotune.result.export.hf import TORCH, arguments, quantized

_MUON = "muon of Moonlight's repository, which it clones"
_COMPILED = {
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "false",
}
"""As in probes: only blocks are compiled, for fixed shapes."""
_USAGE = "Usage: swift sft ms-swift.yaml --model MODEL --dataset DATA"
_SEEN = (
    "Let it see {} GPUs, by CUDA_VISIBLE_DEVICES: it spreads a model over those that no rank has."
)


def export(best: Best) -> Exported:
    """`ms-swift.yaml`, whose `ENV` sets up its torchrun."""
    config, comments = best.config, [_USAGE]
    found, says, instead = arguments(best, older=True)
    says |= {"seq_len", "attention", "lora", "base", "param_dtype", "allocator"}
    says |= machines(config)
    packs = config.pack == "on" and config.attention == "flash_attention_2"  # it takes no other
    says |= {"pack"} if packs else set()
    variables = dict(best.exports.get("env", {}))
    if config.compile == "on":
        variables |= _COMPILED
    if machines(config):
        ranks = config.world_size // config.nodes
        variables["NPROC_PER_NODE"] = str(ranks)
        if best.device_kind != "cpu":
            comments.append(_SEEN.format(ranks))
        if config.nodes > 1:
            variables["NNODES"] = str(config.nodes)
            comments.append(f"Run it on {config.nodes} nodes, with NODE_RANK and MASTER_ADDR.")
    low = config.stored_in(config.dtype)
    if config.engine == "deepspeed" and config.param_dtype == "auto":
        low = config.dtype
    weights = TORCH[low]
    found |= {
        "ENV": variables,
        "max_length": config.seq_len,
        "packing": packs,
        "torch_dtype": weights,
        "tuner_type": "full",  # the default is adapters
    }
    if config.engine != "deepspeed" and low == "bf16":
        found["bf16"] = False  # it means autocast; weights in bf16 need none
    if config.attention != "auto":
        found["attn_impl"] = config.attention
    if (lora := best.lora) is not None:
        found |= {
            "tuner_type": "lora",
            "lora_rank": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "lora_dtype": weights,
            "target_modules": list(lora.targets) or ["all-linear"],
        }
    if base := quantized(config):
        how = {name: value for name, value in base.items() if name.startswith("bnb")}
        found |= {"quant_method": "bnb", "quant_bits": 4 if how else 8, **how}
    if config.engine == "fsdp":  # one argument takes both
        found["fsdp"] = {name: found.pop(name) for name in ("fsdp", "fsdp_config")}
    if config.optimizer == "muon" and config.engine == "ddp":
        says.add("optimizer")
        found["optimizer"] = "muon"
        instead += (_MUON,)
    if config.loss == "chunked" and best.device_kind != "cpu":
        says.add("loss")
        found["use_liger_kernel"] = True  # liger_kernel_config is refused on a command line
        instead += LIGER_WHOLE
    return exported(best, says, {"ms-swift.yaml": found}, instead=instead, comments=comments)
