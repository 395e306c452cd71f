"""torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

from dataclasses import replace

from autotune.space.candidate import Build, Candidate
from autotune.space.engines.engine import BYTES, EngineFacts, StateBytes
from autotune.space.workload import Workload


class Fsdp(EngineFacts):
    """fp32 weights in every dtype, cast for the products, unless they are to be bf16 alone.

    Stage 3 gives parameters back after the forward pass, stage 2 keeps them.
    """

    name = "fsdp"
    stages = (2, 3)
    axes = ("reduce_dtype",)

    def computes_with(self, dtype: str, of: Candidate | Build) -> str:
        """Its mixed precision gathers weights in the products' type."""
        return dtype

    def reduces_in(self, dtype: str, of: Candidate | Build) -> str:
        return "fp32" if of.reduce_dtype == "auto" else of.reduce_dtype

    def state(self, workload: Workload, of: Candidate | Build) -> StateBytes:
        """Between steps all weights are in shards, in stage 2 as well. Gradients are, if they are
        reduced at once: those of several micro-steps wait whole for the last one, in what they are
        sent as (`accumulate_unsharded_grad_if_needed` of its _fsdp_param.py)."""
        whole = super().state(workload, of)
        share = 1 if of.zero_stage == 3 else workload.replicas(of)
        gradients = whole.gradients
        if isinstance(of, Candidate) and (workload.grad_accum(of) or 1) > 1:
            gradients = self._reduced_bytes(workload, of)
        return replace(whole, weights=whole.weights / share, gradients=gradients)

    def sent_bytes(self, workload: Workload, of: Candidate) -> float:
        """Weights are gathered in every micro-step, in stage 3 twice; gradients are reduced in the
        last one."""
        gathers = workload.micro_steps(of) * (2 if of.zero_stage == 3 else 1)
        weight = BYTES[self.computes_with(workload.dtype, of)]
        gathered = gathers * weight * workload.shape(of.depth).parameters
        return gathered + self._reduced_bytes(workload, of)

    def library_bytes(self, device_kind: str) -> int:
        """DTensor, and what gloo keeps of collectives, as in the grid of 2 ranks."""
        return 60 * 2**20 if device_kind == "cpu" else 0

    def passing_bytes(self, workload: Workload, of: Candidate | Build, device_kind: str) -> float:
        """This block's weights and the next one's, or those of all; those of the root, which is
        embedding and head; a block's gradients, and what they are reduced in (torch's
        distributed/fsdp/_fully_shard, _fsdp_collectives.py)."""
        shape = workload.shape(of.depth)
        low, block = BYTES[self.computes_with(workload.dtype, of)], shape.largest_block
        # One matrix where they are tied, two where they are not.
        matrix = shape.vocab_size * shape.width
        root = min(2 * matrix, max(matrix, shape.parameters - shape.block_matrices))
        gathered = shape.parameters if of.zero_stage == 2 else 2 * block + root
        reduced = block * shape.trainable / shape.parameters
        return low * (gathered + reduced) + BYTES[self.reduces_in(workload.dtype, of)] * reduced
