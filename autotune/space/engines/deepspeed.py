"""DeepSpeed ZeRO 0 to 3, with offload.

Probes and exports use the same config, from `DeepSpeed.config`.

Buffers are sized to the model. DeepSpeed's defaults (5e8 elements a bucket, 1e9 live parameters)
suit models of many billions. They would take most of the memory of a small one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.space.candidate import Build, Candidate
from autotune.space.engines.engine import BYTES, EngineFacts, Lack, StateBytes
from autotune.space.workload import Workload
from autotune.wire.recipe import CLIP_NORM, LEARNING_RATE, MUON_LEARNING_RATE

_NEVER = 2**31 - 1
_SUB_GROUP = 100_000_000
"""Parameters that stage 3 steps through at a time."""
_TORCH = {"bf16": "bfloat16", "fp16": "float16"}


class DeepSpeed(EngineFacts):
    """Weights and gradients in the training dtype; ZeRO steps on an fp32 copy of its partition.

    With `param_dtype` fp32 it stores fp32 weights and casts for products (`torch_autocast`). With
    bf16 the copy is bf16, too (`bf16_master_weights_and_grads`).
    """

    name = "deepspeed"
    unused = (0.18, 0.41)
    stages = (0, 1, 2, 3)
    axes = ("reduce_dtype",)
    offloads = True
    unlike_ranks = False
    first_start_s = 6.0
    package = "deepspeed"

    def lacks(self, of: Candidate | Build, device_kind: str) -> Lack | None:
        low = of.param_dtype == "bf16"
        if of.optimizer == "adamw8bit":
            return Lack(("optimizer",), "it has no 8-bit AdamW of its own")
        if of.quantized and of.zero_stage == 3:
            return Lack(("base", "zero_stage"), "its stage 3 shards no weights of 4 or 8 bits")
        if low and of.zero_stage == 0:
            reason = "its stage 0 steps bf16 weights on an fp32 copy"
            return Lack(("param_dtype", "zero_stage"), reason)
        if low and of.offload != "none" and device_kind == "cpu":
            reason = "only its CPU Adam steps bf16 state that is offloaded"
            return Lack(("param_dtype", "offload"), reason)
        if of.reduce_dtype != "auto" and of.param_dtype == "fp32":
            reason = "its torch_autocast sends each gradient in the type of its product"
            return Lack(("reduce_dtype", "param_dtype"), reason)
        return super().lacks(of, device_kind)

    def reduces_in(self, dtype: str, of: Candidate | Build) -> str:
        """Under `torch_autocast`, ranks send gradients of linear layers in the products' dtype."""
        if of.reduce_dtype != "auto":
            return of.reduce_dtype
        return dtype if of.param_dtype == "fp32" else self.weights_in(dtype, of)

    def state(self, workload: Workload, of: Candidate | Build) -> StateBytes:
        whole = super().state(workload, of)
        if of.offload == "none":
            return whole
        # Gradients go to the host as they come; in stage 1, those of others' partitions stay. The
        # host also keeps a partition that passes through: updated weights in stages 1 and 2, fp32
        # gradients in stage 3 (runtime/zero/stage_1_and_2.py and stage3.py).
        low = self.weights_in(workload.dtype, of) != "fp32"
        passing = 4.0 if of.zero_stage == 3 or not low else 2.0
        others = 1 - 1 / workload.replicas(of) if of.zero_stage == 1 else 0.0
        moved = replace(
            whole,
            gradients=others * whole.gradients,
            optimizer=0.0,
            host=whole.optimizer,
            passing=passing * workload.shape(of.depth).trainable / workload.replicas(of),
        )
        if of.offload == "all":
            moved = replace(moved, weights=0.0, host=moved.host + whole.weights)
        return moved

    def weights_in(self, dtype: str, of: Candidate | Build) -> str:
        return dtype if of.param_dtype == "auto" else of.param_dtype

    def steps_copies_in(self, dtype: str, of: Candidate | Build) -> str:
        """Only plain fp32 training steps on the weights themselves."""
        if of.param_dtype == "bf16":
            return "bf16"
        return "fp32" if of.zero_stage > 0 or self.weights_in(dtype, of) != "fp32" else ""

    def passing_bytes(self, workload: Workload, of: Candidate | Build, device_kind: str) -> float:
        """Buckets as `_zero` sets them: two are in use if communication overlaps. Stage 3 adds the
        weights that are live at once, and prefetched ones. On the CPU, two to
        three copies of gradients were measured, flattened or on their way."""
        if not of.zero_stage:
            return 0.0
        shape = workload.shape(of.depth)
        if device_kind == "cpu":
            return 2 * BYTES["fp32"] * shape.trainable
        block, low = shape.largest_block, BYTES[self.weights_in(workload.dtype, of)]
        # A mostly frozen block has few gradients.
        trained = shape.trainable / shape.parameters
        reduced = (2 if workload.world_size > 1 else 1) * block * trained
        if of.zero_stage < 3:
            return low * (reduced + block)
        return low * (reduced + 3 * block + shape.vocab_size * shape.width)

    def sent_bytes(self, workload: Workload, of: Candidate) -> float:
        """Stages 2 and 3 reduce gradients in every micro-step. Stage 3 gathers weights twice in
        each, the others gather updated ones once (runtime/zero/stage_1_and_2.py, stage3.py)."""
        if not of.zero_stage:
            return super().sent_bytes(workload, of)
        shape, steps = workload.shape(of.depth), workload.micro_steps(of)
        weight = BYTES[self.weights_in(workload.dtype, of)]
        reduced = self._reduced_bytes(workload, of)
        if of.zero_stage == 3:
            return steps * (2 * weight * shape.parameters + reduced)
        return (steps if of.zero_stage == 2 else 1) * reduced + weight * shape.trainable

    def updating_bytes(self, workload: Workload, of: Candidate | Build) -> float:
        """A rank's gradients in fp32: of its partition in stages 1 and 2, of a sub-group in stage
        3 (runtime/zero/stage_1_and_2.py, stage3.py). With offload the host has them."""
        if not of.zero_stage or of.offload != "none":
            return 0.0
        stepped = workload.shape(of.depth).trainable / workload.replicas(of)
        return BYTES["fp32"] * (min(stepped, _SUB_GROUP) if of.zero_stage == 3 else stepped)

    def library_bytes(self, device_kind: str) -> int:
        return 80 * 2**20 if device_kind == "cpu" else 0

    def config(self, candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
        """DeepSpeed's config."""
        if workload.of_script:
            return _of_script(candidate, workload, device_kind)
        own = workload.shape(candidate.depth).own_optimizer
        return _batch(candidate, workload) | {
            **(
                {"zero_allow_untested_optimizer": True}
                if own
                else {"optimizer": _optimizer(candidate, workload, device_kind)}
            ),
            # Without a GPU the offloaded optimizer is torch's own, not DeepSpeed's CPU Adam.
            "zero_force_ds_cpu_optimizer": device_kind == "cuda" and not own,
            "zero_optimization": _zero(candidate, workload, device_kind),
            "wall_clock_breakdown": False,
        }

    def ops(self, candidate: Candidate, workload: Workload, device_kind: str) -> set[str]:
        """Builders of the ops that an engine of `config` loads, by DeepSpeed's names."""
        if workload.shape(candidate.depth).own_optimizer:
            return set()
        torch_adam = _optimizer(candidate, workload, device_kind)["params"]["torch_adam"]
        return set() if torch_adam else {"CPUAdamBuilder"}


_NO_TIMERS = {"throughput": {"enabled": False}}
"""Timers would wait for the device twice a micro-step."""
_BUCKET = 500_000_000
"""DeepSpeed's default, in elements (runtime/zero/config.py)."""


def _even(elements: int) -> int:
    """An even number of at least `elements`, as stage_1_and_2.py of DeepSpeed wants it."""
    return elements + elements % 2


def _of_script(candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
    """For a model of unknown size: DeepSpeed's own buckets, in proportion on a small device. The
    optimizer is the script's, unless the user set a learning rate."""
    bucket = min(_BUCKET, _even(workload.shape(candidate.depth).largest_block))
    zero: dict[str, Any] = {
        "stage": candidate.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    config = _batch(candidate, workload) | {
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero | _offloaded(candidate, device_kind),
    }
    if rate := workload.recipe["set"].get("lr"):
        optimizer = _optimizer(candidate, workload, device_kind)
        config["optimizer"] = optimizer | {"params": optimizer["params"] | {"lr": float(rate)}}
    return config


def _batch(candidate: Candidate, workload: Workload) -> dict[str, Any]:
    """Entries of every configuration."""
    return {
        "train_micro_batch_size_per_gpu": candidate.micro_batch,
        "gradient_accumulation_steps": workload.grad_accum(candidate),
        "train_batch_size": workload.global_batch_samples(candidate),
        "gradient_clipping": CLIP_NORM,
        **_precision(candidate, workload),
        "steps_per_print": _NEVER,
        "timers": _NO_TIMERS,
    }


def _offloaded(candidate: Candidate, device_kind: str) -> dict[str, Any]:
    """Offload entries. Pinned memory makes copies to and from a GPU asynchronous and fast."""
    moved = {"none": (), "optimizer": ("optimizer",), "all": ("optimizer", "param")}
    place = {"device": "cpu", "pin_memory": device_kind == "cuda"}
    return {f"offload_{name}": place for name in moved[candidate.offload]}


def _precision(candidate: Candidate, workload: Workload) -> dict[str, Any]:
    if candidate.param_dtype == "fp32":
        return {"torch_autocast": {"enabled": True, "dtype": f"torch.{_TORCH[workload.dtype]}"}}
    bf16 = {"enabled": workload.dtype == "bf16"}
    if candidate.param_dtype == "bf16":
        bf16 |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    sent = {} if candidate.reduce_dtype == "auto" else {
        "communication_data_type": candidate.reduce_dtype,
    }  # fmt: skip
    return {"bf16": bf16, "fp16": {"enabled": workload.dtype == "fp16"}, **sent}


def _optimizer(candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
    """AdamW, or Muon for the blocks' matrices with AdamW for the rest.

    torch's AdamW needs no compiler. With a GPU, an offloaded optimizer is DeepSpeed's CPU Adam. On
    a host it is several times faster than torch's (arXiv 2101.06840, section 5.1).
    """
    adam = {
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
        "torch_adam": device_kind == "cpu" or candidate.offload == "none",
    }
    if candidate.optimizer == "muon":
        return {
            "type": "Muon",
            "params": adam | {"muon_lr": MUON_LEARNING_RATE, "adam_lr": LEARNING_RATE},
        }
    if device_kind == "cuda" and adam["torch_adam"]:
        adam["fused"] = True  # one kernel for all parameters
    return {"type": "AdamW", "params": adam | {"lr": LEARNING_RATE}}


def _zero(candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
    shape = workload.shape(candidate.depth)
    # One block's gradients are reduced during the backward pass of the block before it. Embedding
    # and head are larger and get buckets of their own.
    block = _even(shape.largest_block)
    on_gpu = device_kind == "cuda"
    zero: dict[str, Any] = {
        "stage": candidate.zero_stage,
        "reduce_bucket_size": block,
        "allgather_bucket_size": block,
        # Gradients in one buffer instead of fragments: freed memory can be used again.
        "contiguous_gradients": True,
        # Communication beside backward needs a second stream, which a CPU does not have.
        "overlap_comm": on_gpu and workload.world_size > 1,
        # Muon orthogonalises whole matrices, so stage 3 must not scatter their gradients.
        "reduce_scatter": candidate.optimizer != "muon",
    }
    if candidate.zero_stage == 3:
        zero |= {
            # The next block is gathered while this one runs.
            "stage3_prefetch_bucket_size": block,
            # Norms stay where they are: gathering a vector costs more than holding it.
            "stage3_param_persistence_threshold": 10 * shape.width,
            # This block, the next one, and the head or the embedding.
            "stage3_max_live_parameters": 2 * block + shape.vocab_size * shape.width,
            # A parameter that is used again within a block is not given back in between.
            "stage3_max_reuse_distance": block,
            # Parameters that the optimizer steps through at a time: its peak beside the state.
            "sub_group_size": _SUB_GROUP,
        }
    return zero | _offloaded(candidate, device_kind)
