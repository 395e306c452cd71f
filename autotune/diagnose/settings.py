"""How each framework calls what is advised: one row a framework, "torch" for all without one."""

from __future__ import annotations

MICRO = {
    "transformers": ("per_device_train_batch_size={micro}", "gradient_accumulation_steps={accum}"),
    "axolotl": ("micro_batch_size: {micro}", "gradient_accumulation_steps: {accum}"),
    "deepspeed": ('"train_micro_batch_size_per_gpu": {micro}',
                  '"gradient_accumulation_steps": {accum}'),
    "lightning": ("DataLoader(batch_size={micro})", "Trainer(accumulate_grad_batches={accum})"),
    "accelerate": ("DataLoader(batch_size={micro})",
                   "Accelerator(gradient_accumulation_steps={accum})"),
    "torch": ("DataLoader(batch_size={micro})",
              "step the optimizer every {accum} micro-batches, loss / {accum}"),
    "vllm": ("--max-num-seqs {micro}", "--max-num-batched-tokens lower"),
}  # fmt: skip
CHECKPOINTING = {
    "transformers": "gradient_checkpointing=True",
    "axolotl": "gradient_checkpointing: true",
    "deepspeed": "model.gradient_checkpointing_enable(), or deepspeed.checkpointing.checkpoint",
    "lightning": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) in forward",
    "accelerate": "fsdp_config: {fsdp_activation_checkpointing: true}, or"
    " model.gradient_checkpointing_enable()",
    "torch": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
}
STAGE = {
    "transformers": 'deepspeed="ds.json" with "zero_optimization": {{"stage": {stage}}}, or'
    ' fsdp="full_shard auto_wrap"',
    "axolotl": "deepspeed: deepspeed_configs/zero{stage}.json",
    "deepspeed": '"zero_optimization": {{"stage": {stage}}}',
    "lightning": 'Trainer(strategy="deepspeed_stage_{stage}"), or strategy="fsdp"',
    "accelerate": "deepspeed_config: {{zero_stage: {stage}}}",
    "torch": "torch.distributed.fsdp.fully_shard(model)",
}
OFFLOAD = {
    "transformers": 'in ds.json, "offload_optimizer": {"device": "cpu", "pin_memory": true}',
    "axolotl": "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_params.json",
    "deepspeed": '"offload_optimizer": {"device": "cpu", "pin_memory": true}',
    "lightning": 'Trainer(strategy="deepspeed_stage_2_offload")',
    "accelerate": "deepspeed_config: {offload_optimizer_device: cpu}",
    "torch": "fully_shard(model, offload_policy=CPUOffloadPolicy())",
}
LENGTH = {
    "transformers": "max_length={length} (SFTConfig) or the tokenizer's max_length;"
    " group_by_length=True",
    "axolotl": "sequence_len: {length}; group_by_length: true, or sample_packing: true",
    "torch": "truncate to {length} tokens; batch samples of similar length",
    "vllm": "--max-model-len {length}",
}
FUSED_LOSS = {
    "transformers": "use_liger_kernel=True",
    "axolotl": "plugins: [axolotl.integrations.liger.LigerPlugin]; "
    "liger_fused_linear_cross_entropy: true",
    "torch": "compute loss over chunks of tokens; LigerFusedLinearCrossEntropyLoss",
}
LOADING = {
    "transformers": "with ZeRO 3 make TrainingArguments before from_pretrained; "
    "low_cpu_mem_usage=True, dtype=torch.bfloat16",
    "deepspeed": "with deepspeed.zero.Init(config_dict_or_path=ds_config): model = Model(...)",
    "vllm": "--gpu-memory-utilization lower than what is free, or --tensor-parallel-size 2",
    "torch": "make the model on torch.device('meta'), shard it, then load the shards",
}
VARIABLE = {"HIP": "PYTORCH_HIP_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF"}
