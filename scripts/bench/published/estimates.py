"""Plans beside other people's formulas: DeepSpeed's estimates, and activations by layer."""

from __future__ import annotations

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from shared import table

from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.workload import Workload
from autotune.wire.helpers import Describe
from autotune.wire.ranks import ModelSpec
from probes.describe import describe

_GB = 1e9
HIDDEN, HEADS, LENGTH = 1024, 16, 1024
"""Sizes of the traced GPT-2."""


def deepspeed_states() -> str:
    """State of a model of 7 billion parameters a GPU, by stage and offload."""
    workload = Workload(
        model="gpt", width=4096, vocab_size=32768, dtype="bf16", engine="deepspeed", world_size=8,
        global_batch=None,
    )  # fmt: skip
    depth = 32
    shape = workload.shape(depth)
    rows = []
    for stage, offload in ((2, "none"), (2, "optimizer"), (3, "none"), (3, "optimizer"),
                           (3, "all")):  # fmt: skip
        c = Candidate(depth=depth, seq_len=2048, micro_batch=1, zero_stage=stage, offload=offload)
        engine = engine_of(workload, c)
        state = engine.state(workload, c)
        device = state.device + engine.updating_bytes(workload, c)
        host = 8 * (state.host + state.passing)
        n = shape.parameters
        if stage == 2:
            cpu, gpu = estimate_zero2_model_states_mem_needs(
                n, num_gpus_per_node=8, cpu_offload=offload != "none"
            )
        else:
            cpu, gpu, _ = estimate_zero3_model_states_mem_needs(
                n, shape.largest_block, num_gpus_per_node=8, cpu_offload=offload != "none",
                cpu_offload_params=offload == "all",
            )  # fmt: skip
        sizes = (
            f"{gpu / _GB:.2f}",
            f"{device / _GB:.2f}",
            f"{cpu / _GB:.1f}",
            f"{host / _GB:.1f}",
        )
        rows.append((stage, offload, *sizes))
    head = "stage | offload | DeepSpeed | here | DeepSpeed, host | here, host"
    return (
        f"{shape.parameters / 1e9:.2f} B parameters, 8 GPUs, bf16; GB of a GPU and of the host."
        f"\n\n{table(head, rows)}"
    )


def activations() -> str:
    """Bytes a token and channel that one layer of GPT-2 keeps, traced, beside a formula. It is
    from Korthikanti et al. 2022 (arXiv 2205.05198, equation 2): 34 + 5 a s / h, or 34 without
    scores."""
    rows = []
    for attention, checkpointing, formula in (
        ("eager", "none", 34 + 5 * HEADS * LENGTH / HIDDEN),
        ("sdpa", "none", 34.0),
        ("sdpa", "full", 2.0),
    ):
        found = describe(Describe(
            models=[_gpt2(layers, attention, checkpointing)
                    for layers in (2, 4)],
            seq_lens=[LENGTH], micro_batches=[4], dtype="bf16",
            optimizer="adamw", device_kind="cuda", gradients_stay=True,
        ))  # fmt: skip
        low, high = (each.peak_bytes[0][0] - each.held_bytes for each in found.models)
        kept = (high - low) / 2 / (4 * LENGTH * HIDDEN)
        rows.append((attention, checkpointing, f"{formula:.0f}", f"{kept:.1f}"))
    return table("attention | checkpointing | formula | traced", rows)


def _gpt2(layers: int, attention: str, checkpointing: str) -> ModelSpec:
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": HIDDEN,
        "n_layer": layers, "n_head": HEADS, "n_positions": LENGTH, "vocab_size": 1024,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    recipe = {
        "config": config, "task": "causal", "target_len": None, "code": "", "lora": None,
        "seq_len": LENGTH, "dtype": "bf16",
    }  # fmt: skip
    return ModelSpec(
        name="hf", depth=layers, width=HIDDEN, vocab_size=1024, checkpointing=checkpointing,
        attention=attention, param_dtype="bf16", recipe=recipe,
    )  # fmt: skip
