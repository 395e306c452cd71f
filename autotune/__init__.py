"""autotune finds the fastest training configuration that fits, by running real steps.

`tune` runs a study, as the command line does. `load_best` and `load_trials` read its results.
`step` reports a step of your own script to a study, and `share` tells it the samples of its rank.
`emulate` gives this process emulated GPUs. None of them imports torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from autotune.installed import VERSION

if TYPE_CHECKING:
    from autotune.commands.running import NothingFoundError, tune
    from autotune.device.emulated.emulation import emulate
    from autotune.result.folder.table import load_trials
    from autotune.result.loading import OtherHardwareError, load_best

__version__ = VERSION
__all__ = [
    "NothingFoundError", "OtherHardwareError", "__version__", "emulate", "load_best",
    "load_trials", "share", "step", "tune",
]  # fmt: skip
_PLACES = {
    "NothingFoundError": "commands.running", "OtherHardwareError": "result.loading",
    "emulate": "device.emulated.emulation", "load_best": "result.loading",
    "load_trials": "result.folder.table",
    "tune": "commands.running",
}  # fmt: skip


def step(tokens: int | None = None, samples: int | None = None) -> None:
    """Report an optimizer step of this process, with its tokens and samples.

    It is for scripts under `--script` whose optimizer is none of torch's, or whose batches hide
    their number of tokens. Both numbers are of this rank alone. The study adds up the tokens of
    ranks, and counts ranks with the same data once. It adds up the `samples` of all ranks: of
    those with the same data, all but one report 0. From the first call on, only calls count as
    steps. Does nothing in any other process.
    """
    hook = sys.modules.get("_autotune_hook")
    if hook is not None:
        hook.step(tokens, samples)


def share(vector: str) -> tuple[int, float]:
    """Samples of a micro-step of this rank, and the factor of its loss, for a `vector` of
    micro-batches by rank: 2,4 as `{micro_batch_per_rank}` fills it in, or 2+4 as best.json has it.

    Multiply the mean loss over these samples by the factor. The mean of all ranks' gradients,
    which DDP and FSDP take, is then that over all samples. The rank is that of torch.distributed
    if it was initialized, else of the variable RANK. Raises ValueError if the vector has no
    micro-batch for each rank.
    """
    from autotune.wire.ranks import loss_scale

    sizes = [int(size) for size in vector.replace("+", ",").split(",")]
    job: Any = sys.modules.get("torch.distributed")
    if job is not None and job.is_available() and job.is_initialized():
        rank, ranks = job.get_rank(), job.get_world_size()
    else:
        rank, ranks = (
            int(os.environ.get(name, own)) for name, own in (("RANK", 0), ("WORLD_SIZE", 1))
        )
    if len(sizes) != ranks:
        raise ValueError(f"{vector}: {len(sizes)} micro-batches for {ranks} ranks")
    return sizes[rank], loss_scale(sizes, rank)


def __getattr__(name: str) -> Any:
    """Import names of the API at their first use: `--help` needs none of them."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
