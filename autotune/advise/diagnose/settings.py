"""Names of advised settings in each framework: one row a framework, "torch" for all others."""

from __future__ import annotations

MICRO = {
    "transformers": ("per_device_train_batch_size={micro}", "gradient_accumulation_steps={accum}"),
    "axolotl": ("micro_batch_size: {micro}", "gradient_accumulation_steps: {accum}"),
    "llamafactory": ("per_device_train_batch_size: {micro}",
                     "gradient_accumulation_steps: {accum}"),
    "deepspeed": ('"train_micro_batch_size_per_gpu": {micro}',
                  '"gradient_accumulation_steps": {accum}'),
    "lightning": ("DataLoader(batch_size={micro})", "Trainer(accumulate_grad_batches={accum})"),
    "accelerate": ("DataLoader(batch_size={micro})",
                   "Accelerator(gradient_accumulation_steps={accum})"),
    "torch": ("DataLoader(batch_size={micro})",
              "step the optimizer every {accum} micro-batches, loss / {accum}"),
    "jax": ("batch_size={micro}", "optax.MultiSteps(optimizer, {accum})"),
    "paddle": ("batch_size={micro}", "step the optimizer every {accum} micro-batches"),
    "tensorflow": ("batch_size={micro}", "keras optimizer(gradient_accumulation_steps={accum})"),
}  # fmt: skip
SERVING = {
    "vllm": "--max-num-seqs and --max-num-batched-tokens lower",
    "sglang": "--mem-fraction-static and --chunked-prefill-size lower",
    "llama.cpp": "-c (context) and -ub lower, or fewer layers on the device: -ngl lower",
    "quantization": "fewer or shorter calibration samples, one at a time",
    "conversion": 'on the CPU: device_map="cpu", map_location="cpu"',
    "preprocessing": "fewer processes, and less in each of their batches",
    "inference": "a smaller batch, image, or context",
}
"""Servers, which do not train: how to keep fewer tokens at a time."""
CHECKPOINTING = {
    "transformers": "gradient_checkpointing=True",
    "axolotl": "gradient_checkpointing: true",
    "deepspeed": "model.gradient_checkpointing_enable(), or deepspeed.checkpointing.checkpoint",
    "lightning": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) in forward",
    "accelerate": "fsdp_config: {fsdp_activation_checkpointing: true}, or"
    " model.gradient_checkpointing_enable()",
    "torch": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    "jax": "jax.checkpoint(block)",
    "tensorflow": "tf.recompute_grad(block)",
    "paddle": "paddle.distributed.fleet.utils.recompute(block, x)",
}
STAGE = {
    "transformers": 'deepspeed="ds.json" with "zero_optimization": {{"stage": {stage}}}, or'
    " fsdp=True",
    "axolotl": "deepspeed: deepspeed_configs/zero{stage}.json",
    "llamafactory": "deepspeed: examples/deepspeed/ds_z{stage}_config.json",
    "deepspeed": '"zero_optimization": {{"stage": {stage}}}',
    "lightning": 'Trainer(strategy="deepspeed_stage_{stage}"), or strategy="fsdp"',
    "accelerate": "deepspeed_config: {{zero_stage: {stage}}}",
    "torch": "torch.distributed.fsdp.fully_shard(model)",
    "jax": "jax.sharding.NamedSharding for parameters and optimizer state",
}
OFFLOAD = {
    "transformers": 'deepspeed="ds.json" with "zero_optimization": {"stage": 2,'
    ' "offload_optimizer": {"device": "cpu", "pin_memory": true}}',
    "axolotl": "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json",
    "llamafactory": "deepspeed: examples/deepspeed/ds_z3_offload_config.json",
    "deepspeed": '"offload_optimizer": {"device": "cpu", "pin_memory": true}',
    "lightning": 'Trainer(strategy="deepspeed_stage_2_offload")',
    "accelerate": "deepspeed_config: {offload_optimizer_device: cpu}",
    "torch": "fully_shard(model, offload_policy=CPUOffloadPolicy())",
    "jax": 'memory_kind="pinned_host" in the sharding of the optimizer state',
}
LENGTH = {
    "transformers": "max_length={length} (SFTConfig) or the tokenizer's max_length;"
    ' train_sampling_strategy="group_by_length"',
    "llamafactory": "cutoff_len: {length}",
    "axolotl": "sequence_len: {length}; group_by_length: true, or sample_packing: true",
    "torch": "truncate to {length} tokens; batch samples of similar length",
    "vllm": "--max-model-len {length}",
    "sglang": "--context-length {length}",
    "llama.cpp": "-c {length}",
}
FUSED_LOSS = {
    "transformers": "use_liger_kernel=True",
    "axolotl": "plugins: [axolotl.integrations.liger.LigerPlugin]; "
    "liger_fused_linear_cross_entropy: true",
    "llamafactory": "enable_liger_kernel: true",
    "torch": "compute loss over chunks of tokens; LigerFusedLinearCrossEntropyLoss",
}
LOADING = {
    "axolotl": "deepspeed: deepspeed_configs/zero3_bf16.json, or adapter: qlora",
    "transformers": "dtype=torch.bfloat16; with ZeRO 3 make TrainingArguments before"
    " from_pretrained",
    "llamafactory": "deepspeed: examples/deepspeed/ds_z3_config.json, or quantization_bit: 4",
    "deepspeed": "with deepspeed.zero.Init(config_dict_or_path=ds_config): model = Model(...)",
    "vllm": "--tensor-parallel-size 2, or a quantised model",
    "sglang": "--tp-size 2, or a quantised model",
    "llama.cpp": "-ngl lower, or a smaller quantisation",
    "quantization": 'device_map="cpu" as it loads, so only one layer is on the device',
    "conversion": "dtype=torch.bfloat16, low_cpu_mem_usage=True, one shard at a time",
    "inference": "dtype=torch.bfloat16, quantised weights, or enable_model_cpu_offload()",
    "torch": "make the model on torch.device('meta'), shard it, then load the shards",
}
LISTS = {
    "HIP": "rocm-smi", "NPU": "npu-smi info", "XPU": "xpu-smi ps", "MPS": "top -o mem",
    "MUSA": "mthreads-gmi", "MLU": "cnmon", "TPU": "tpu-info", "VULKAN": "nvtop",
}  # fmt: skip
"""The tools that list who holds the devices of a backend; nvidia-smi for all others."""
VARIABLE = {"HIP": "PYTORCH_HIP_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF"}
