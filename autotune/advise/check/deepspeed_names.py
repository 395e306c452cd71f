"""The names that DeepSpeed 0.19.8 reads, by section.

They are in its pydantic classes, in runtime/config.py, and in each section's constants.py.
"""

_BY_SECTION = {
    "": "activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comet comms_logger"
    " communication_data_type compile csv_monitor data_efficiency data_parallel_size data_types"
    " dataloader_drop_last datastates_ckpt disable_allgather disable_python_gc dump_state"
    " expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op"
    " gradient_clipping gradient_predivide_factor hybrid_engine log_level"
    " managed_gradient_accumulation memory_breakdown optimizer pipeline prescale_gradients"
    " scheduler seq_parallel_communication_data_type sequence_parallel_size steps_per_print"
    " tensor_parallel tensorboard timers torch_autocast train_batch_size"
    " train_micro_batch_size_per_gpu use_data_before_expert_parallelism vocabulary_size"
    " wall_clock_breakdown wandb weight_quantization zero_allow_untested_optimizer"
    " zero_force_ds_cpu_optimizer zero_optimization",
    "activation_checkpointing": "contiguous_memory_optimization cpu_checkpointing"
    " number_checkpoints partition_activations profile synchronize_checkpoint_boundary",
    "aio": "block_size intra_op_parallelism overlap_events queue_depth single_submit use_gds",
    "autotuning": "arg_mappings enabled end_profile_step exps_dir fast max_train_batch_size"
    " max_train_micro_batch_size_per_gpu metric metric_path min_train_batch_size"
    " min_train_micro_batch_size_per_gpu model_info model_info_path mp_size"
    " num_tuning_micro_batch_sizes overwrite results_dir start_profile_step"
    " tuner_early_stopping tuner_num_trials tuner_type",
    "bf16": "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled"
    " immediate_grad_update",
    "checkpoint": "checkpoint_serialization load_universal parallel_write tag_validation"
    " use_node_local_storage writer",
    "comet": "api_key enabled experiment_key experiment_name mode online project"
    " samples_log_interval workspace",
    "comms_logger": "debug enabled prof_all prof_ops verbose",
    "compile": "autoep_non_moe debug_log deepcompile double_buffer free_activation"
    " free_activation_threshold keep_all_input_tensors keep_int_input_tensors offload_activation"
    " offload_activation_pin_memory offload_opt_states offload_parameters passes symmetric_memory"
    " sync_after_allgather sync_after_reduce sync_before_allgather sync_before_reduce",
    "csv_monitor": "enabled job_name output_path",
    "data_efficiency": "data_routing data_sampling enabled seed",
    "data_efficiency.data_sampling": "curriculum_learning dynamic_batching enabled num_epochs"
    " num_workers pin_memory",
    "data_types": "buffer_dtype grad_accum_dtype keep_in_fp32_modules param_dtype",
    "flops_profiler": "detailed enabled module_depth output_file profile_step"
    " recompute_fwd_factor top_modules",
    "fp16": "auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis"
    " initial_scale_power loss_scale loss_scale_window min_loss_scale",
    "hybrid_engine": "enable_cuda_graph enabled inference_tp_size max_out_tokens pin_parameters"
    " release_inference_cache tp_gather_partition_size",
    "optimizer": "legacy_fusion params type",
    "pipeline": "activation_checkpoint_interval grad_partitioned partition pipe_partitioned"
    " seed_layers stages",
    "scheduler": "params type",
    "tensor_parallel": "autotp_size dtype injection_policy_tuple keep_module_on_host"
    " kernel_inject partition_config preset_model replace_with_kernel_inject tensor_parallel tp"
    " tp_overlap_comm vocab_parallel_ce_backend vocab_parallel_lm_head",
    "tensorboard": "enabled job_name output_path",
    "timers": "throughput",
    "timers.throughput": "enabled synchronized",
    "torch_autocast": "dtype enabled lower_precision_safe_modules",
    "wandb": "enabled group project team",
    "weight_quantization": "enabled num_bits post_init_quant q_groups q_type"
    " quantized_initialization",
    "zero_optimization": "allgather_bucket_size allgather_partitions allgather_sequential"
    " compute_grad_norm contiguous_gradients cpu_offload cpu_offload_param"
    " cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks"
    " gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1"
    " load_from_fp32_weights log_trace_cache_warnings max_live_parameters max_reuse_distance"
    " memory_efficient_linear model_persistence_threshold module_granularity_threshold"
    " offload_optimizer offload_param overlap_comm override_module_apply"
    " param_persistence_threshold parameter_alignment pipeline_loading_checkpoint"
    " prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients"
    " save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential"
    " stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save"
    " stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold"
    " stage3_module_granularity_threshold stage3_param_persistence_threshold"
    " stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size"
    " use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow"
    " zero_hpz_partition_size zero_quantized_gradients zero_quantized_nontrainable_weights"
    " zero_quantized_weights",
    "zero_optimization.leaf_module": "classes name_suffixes names",
    "zero_optimization.offload_optimizer": "buffer_count cpuadam_cores_perc device fast_init"
    " nvme_path pin_memory pipeline_read pipeline_write ratio super_offload",
    "zero_optimization.offload_param": "buffer_count buffer_size device max_in_cpu nvme_path"
    " pin_memory",
    "zero_optimization.zenflow": "auto_ratio full_warm_up_rounds offload overlap_step"
    " pt_reserved_cores_perc select_interval select_strategy steps_per_epoch topk_ratio"
    " update_interval",
}
NAMES = {
    tuple(section.split(".")) if section else (): frozenset(names.split())
    for section, names in _BY_SECTION.items()
}
"""By the path of the section; () is the file itself."""
REMOVED = {
    (): {
        "amp": "fp16, bf16 or torch_autocast",
        "compression_training": "",
        "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
        "eigenvalue": "",
        "elasticity": "the batch sizes themselves",
        "graph_harvesting": "",
        "nebula": "",
        "progressive_layer_drop": "",
        "quantize_training": "",
        "sparse_attention": "",
        "sparse_gradients": "",
    },
    ("zero_optimization",): {
        "mics_hierarchical_params_gather": "",
        "mics_shard_size": "",
        "zeropp_loco_param": "",
    },
}
"""Removed names that DeepSpeed 0.19.8 refuses, and their replacements, by section."""
