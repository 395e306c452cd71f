"""One training engine as the study knows it: arithmetic and configuration, without its library."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.space.candidate import Build, Candidate
from autotune.space.workload import Workload


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of model state per rank, buffers and activations not counted.

    On the CPU host and device are the same memory: add them.
    """

    weights: float
    gradients: float
    optimizer: float
    host: float = 0.0
    """Of the three, what offload moved to the host; the others hold what is left on the device."""
    passing: float = 0.0
    """What the engine keeps on the host beside that, of what passes between it and the device."""

    @property
    def device(self) -> float:
        return self.weights + self.gradients + self.optimizer


class Engine:
    """What holds for an engine unless its own class says otherwise."""

    name: ClassVar[str]
    stages: ClassVar[tuple[int, ...]]
    """The ZeRO stages that it has, or what corresponds to them."""
    offloads: ClassVar[bool] = False
    """Whether it can move state to host memory."""
    package: ClassVar[str | None] = None
    """What has to be installed for it beside torch."""
    package_name: ClassVar[str] = ""
    """The same in words."""

    first_start_s: ClassVar[float] = 3.0
    """What starting its first group takes, its library not imported yet; roughly."""

    def missing(self) -> str:
        """Why it cannot run here, and what to do; empty where it can."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return ""
        return f"{self.package_name} is not installed: pip install {self.package} (Linux)"

    def state(self, workload: Workload, of: Candidate | Build) -> StateBytes:
        """What a rank keeps between steps, and its gradients.

        Source: ZeRO (arXiv 1910.02054), table 1 and section 3.1, in which Adam with mixed
        precision takes 2 bytes a parameter for weights, 2 for gradients and 12 for the optimizer,
        and each stage divides one more of them by the number of ranks. The rest is the same count
        for what the engines keep.
        """
        shape, stage, ranks = workload.shape(of.depth), of.zero_stage, workload.world_size
        n, stepped = shape.parameters, shape.trainable
        weight = self.weight_bytes(workload.dtype)
        muon = shape.block_matrices if workload.optimizer == "muon" else 0
        moments = 8.0 * (stepped - muon) + 4.0 * muon
        copies = 4.0 * stepped if self.keeps_copies(workload.dtype, stage) else 0.0
        return StateBytes(
            weights=n * weight / (ranks if stage == 3 else 1),
            gradients=stepped * weight / (ranks if stage >= 2 else 1),
            optimizer=(moments + copies) / (ranks if stage >= 1 else 1),
        )

    def weight_bytes(self, dtype: str) -> float:
        """Of one parameter, and of its gradient, where products are of `dtype`."""
        return 4.0

    def keeps_copies(self, dtype: str, zero_stage: int) -> bool:
        """Whether the optimizer steps on an fp32 copy of the weights."""
        return False

    def dtypes(self, dtype: str, zero_stage: int) -> dict[str, str]:
        """What is held, computed and sent in which dtype, where products are of `dtype`."""
        held = "fp32" if self.weight_bytes(dtype) == 4.0 else dtype
        return {
            "weights": held,
            "master_weights": "fp32" if self.keeps_copies(dtype, zero_stage) else held,
            "compute": dtype,
            "gradients": held,
            "reduction": held,
            "optimizer": "fp32",
        }

    def gradient_copies(self, zero_stage: int) -> float:
        """Of the whole gradient in fp32: what a step holds beside the state, roughly."""
        return 0.0

    def library_bytes(self, device_kind: str) -> int:
        """What its library adds to a rank's memory on the device, roughly."""
        return 0

    def config(self, candidate: Candidate, workload: Workload, device_kind: str) -> dict[str, Any]:
        """What probes build the engine from and exports hand on; empty where it takes nothing."""
        return {}

    def ops(self, candidate: Candidate, workload: Workload, device_kind: str) -> set[str]:
        """Names of what it may have to compile first on a machine."""
        return set()
