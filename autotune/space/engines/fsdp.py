"""torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

from dataclasses import replace

from autotune.space.candidate import Build, Candidate
from autotune.space.engines.engine import BYTES, EngineFacts, Lack, StateBytes
from autotune.space.workload import Workload


class Fsdp(EngineFacts):
    """fp32 weights, cast for products, unless bf16 ones are asked for; stage 3 frees them."""

    name = "fsdp"
    unused = (0.23, 0.34)
    stages = (2, 3)
    axes = ("float8", "reduce_dtype")

    def lacks(self, of: Candidate | Build, device_kind: str) -> Lack | None:
        if of.quantized:
            return Lack(("base",), "it shards weights of one type; use --engine ddp")
        return super().lacks(of, device_kind)

    def computes_with(self, dtype: str, of: Candidate | Build) -> str:
        """Its mixed precision gathers weights in the products' dtype."""
        return dtype

    def reduces_in(self, dtype: str, of: Candidate | Build) -> str:
        return "fp32" if of.reduce_dtype == "auto" else of.reduce_dtype

    def state(self, workload: Workload, of: Candidate | Build) -> StateBytes:
        """Between steps all weights are sharded, also in stage 2. So are gradients of one
        micro-step. Those of several wait unsharded for the last one, in the dtype that ranks send
        (`accumulate_unsharded_grad_if_needed` of _fsdp_param.py)."""
        whole = super().state(workload, of)
        share = 1 if of.zero_stage == 3 else workload.replicas(of)
        gradients = whole.gradients
        if isinstance(of, Candidate) and (workload.grad_accum(of) or 1) > 1:
            gradients = self._reduced_bytes(workload, of)
        return replace(whole, weights=whole.weights / share, gradients=gradients)

    def sent_bytes(self, workload: Workload, of: Candidate) -> float:
        """Weights are gathered in every micro-step, twice in stage 3; gradients once."""
        gathers = workload.micro_steps(of) * (2 if of.zero_stage == 3 else 1)
        weight = BYTES[self.computes_with(workload.dtype, of)]
        gathered = gathers * weight * workload.shape(of.depth).parameters
        return gathered + self._reduced_bytes(workload, of)

    def library_bytes(self, device_kind: str) -> int:
        """DTensor, and gloo's memory of collectives, from the grid of 2 ranks."""
        return 60 * 2**20 if device_kind == "cpu" else 0

    def passing_bytes(self, workload: Workload, of: Candidate | Build, device_kind: str) -> float:
        """Weights of this block and the next one, or of all; weights of the root: embedding and
        head; a block's gradients, and their buffer of reduction. Source: torch's
        distributed/fsdp/_fully_shard/_fsdp_collectives.py."""
        shape = workload.shape(of.depth)
        low, block = BYTES[self.computes_with(workload.dtype, of)], shape.largest_block
        # One matrix if they are tied, else two.
        matrix = shape.vocab_size * shape.width
        root = min(2 * matrix, max(matrix, shape.parameters - shape.block_matrices))
        gathered = shape.parameters if of.zero_stage == 2 else 2 * block + root
        reduced = block * shape.trainable / shape.parameters
        return low * (gathered + reduced) + BYTES[self.reduces_in(workload.dtype, of)] * reduced
