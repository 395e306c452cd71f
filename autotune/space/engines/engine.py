"""One training engine as the study knows it: arithmetic and configuration, without its library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.installed import missing
from autotune.space.axes import AXES
from autotune.space.candidate import Build, Candidate
from autotune.space.workload import Workload

BYTES = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "8 bit": 1.0 + 4.0 / 256,
    "nf4": 0.5 + 1.0 / 64 + 4.0 / (64 * 256), "int8": 1.0,
}  # fmt: skip
"""Bytes of a number. 256 numbers of 8 bits share an fp32 scale (arXiv 2110.02861, section 2.1).
64 of nf4 share a scale of 8 bits, and 256 of these one of fp32 (arXiv 2305.14314, section 3). A
row of int8 shares one, which is next to nothing."""


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of model state per rank, without buffers. On the CPU add host and device."""

    weights: float
    gradients: float
    optimizer: float
    host: float = 0.0
    """The part that offload moved to the host; the fields above hold the device's part."""
    passing: float = 0.0
    """Buffers on the host for data that passes between it and the device."""

    @property
    def device(self) -> float:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, order=True)
class Lack:
    """A combination that an engine does not support."""

    axes: tuple[str, ...]
    """The axes whose values are the cause."""
    reason: str


class EngineFacts:
    """The defaults of an engine; its class overrides them."""

    name: ClassVar[str]
    stages: ClassVar[tuple[int, ...]]
    """Its ZeRO stages, or their equivalents."""
    axes: ClassVar[tuple[str, ...]] = ()
    """Axes that other engines may lack."""
    unlike_ranks: ClassVar[bool] = True
    """Whether ranks may have micro-batches of their own."""
    offloads: ClassVar[bool] = False
    """Whether it can move state to host memory."""
    package: ClassVar[str | None] = None
    """The package that it needs beside torch."""

    unused: ClassVar[tuple[float, float]]
    """Unused bytes that torch's allocator reserves: a share of the peak over weights and optimizer
    state, without checkpointing and with it. Medians of what `scripts/bench/unused.py`
    weighed on emulated cards (results/plan.md); single runs have 3 to 95 %. On an H100, ddp had 4
    to 15 % and 25 to 45 % (results/grids)."""
    first_start_s: ClassVar[float] = 3.0
    """Rough seconds to start its first group, which imports its library."""

    def missing(self) -> str:
        """Why it cannot run here, and a remedy; empty if it can."""
        return "" if self.package is None else missing(self.package)

    def lacks(self, of: Candidate | Build, device_kind: str) -> Lack | None:
        """Why it does not run that candidate or build; None if it may."""
        for name, axis in AXES.items():
            if axis.of_engines and name not in self.axes and getattr(of, name) != axis.plain:
                return Lack((name,), "it has nothing to set there; use another --engine")
        if of.dynamic == "on" and of.compile == "off":
            return Lack(("dynamic", "compile"), "nothing is compiled then; use --compile on")
        if of.base == "bf16" and of.param_dtype == "fp32":
            return Lack(("base", "param_dtype"), "all of it is stored in one type, or quantized")
        return None

    def state(self, workload: Workload, of: Candidate | Build) -> StateBytes:
        """A rank's state between steps, and its gradients.

        Source: ZeRO (arXiv 1910.02054), table 1 and section 3.1. There, Adam with mixed precision
        takes 2 bytes a parameter for weights, 2 for gradients and 12 for the optimizer. Each stage
        divides one more of them by the number of ranks. This is the same count for these engines.
        """
        shape, stage, ranks = workload.shape(of.depth), of.zero_stage, workload.replicas(of)
        n, stepped = shape.parameters, shape.trainable
        weight = BYTES[self.weights_in(workload.dtype, of)]
        muon = min(stepped, shape.block_matrices) if of.optimizer == "muon" else 0
        moment = BYTES[self.moments_in(workload.dtype, of)]
        moments = 2.0 * moment * (stepped - muon) + moment * muon
        copy = self.steps_copies_in(workload.dtype, of)
        copies = BYTES[copy] * stepped if copy else 0.0
        packed = shape.linear if of.quantized else 0
        held = (n - packed) * weight + packed * BYTES.get(of.base, 0.0)
        return StateBytes(
            weights=held / (ranks if stage == 3 else 1),
            gradients=stepped * weight / (ranks if stage >= 2 else 1),
            optimizer=(moments + copies) / (ranks if stage >= 1 else 1),
        )

    def weights_in(self, dtype: str, of: Candidate | Build) -> str:
        """The dtype of stored weights and gradients, if products are in `dtype`."""
        return of.stored_in(dtype)

    def computes_with(self, dtype: str, of: Candidate | Build) -> str:
        """The dtype of the weights while a block computes; casts in products do not count."""
        return self.weights_in(dtype, of)

    def reduces_in(self, dtype: str, of: Candidate | Build) -> str:
        """The dtype of the gradients that ranks send."""
        return self.weights_in(dtype, of)

    def steps_copies_in(self, dtype: str, of: Candidate | Build) -> str:
        """The dtype of the weights' copy that the optimizer steps on; empty without a copy."""
        return ""

    def moments_in(self, dtype: str, of: Candidate | Build) -> str:
        if of.optimizer == "adamw8bit":
            return "8 bit"
        return self.steps_copies_in(dtype, of) or self.weights_in(dtype, of)

    def dtypes(self, dtype: str, of: Candidate | Build) -> dict[str, str]:
        """The dtypes of held, computed and sent numbers, if products are in `dtype`."""
        held = self.weights_in(dtype, of)
        return {
            "weights": held,
            "master_weights": self.steps_copies_in(dtype, of) or held,
            "compute": dtype,
            "gradients": held,
            "reduction": self.reduces_in(dtype, of),
            "optimizer": self.moments_in(dtype, of),
        }

    def passing_bytes(self, workload: Workload, of: Candidate | Build, device_kind: str) -> float:
        """Rough bytes in flight between ranks in mid-step: gathered weights, gradients."""
        return 0.0

    def sent_bytes(self, workload: Workload, of: Candidate) -> float:
        """Bytes that ranks reduce and gather in an optimizer step; each sends all but its own
        share. An all-reduce counts as both. Source: ZeRO (arXiv 1910.02054, section 7)."""
        return 2 * self._reduced_bytes(workload, of)

    def _reduced_bytes(self, workload: Workload, of: Candidate | Build) -> float:
        """Bytes of all gradients, as they are sent."""
        trainable = workload.shape(of.depth).trainable
        return BYTES[self.reduces_in(workload.dtype, of)] * trainable

    def updating_bytes(self, workload: Workload, of: Candidate | Build) -> float:
        """Bytes that a GPU holds while the optimizer steps, beside the state."""
        return 0.0

    def library_bytes(self, device_kind: str) -> int:
        """Rough bytes that its library adds to a rank's device memory."""
        return 0

    def config(self, candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
        """The engine's configuration, for probes and exports; empty without one."""
        return {}

    def ops(self, candidate: Candidate, workload: Workload, device_kind: str) -> set[str]:
        """Names of the operations that it may have to compile first."""
        return set()
