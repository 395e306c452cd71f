"""Lightning's `Tuner.scale_batch_size`: `python with_lightning.py TASK`.

The task has the mode; all other arguments are the defaults.
"""

from __future__ import annotations

import sys
from typing import Any

from peer_tools.task import Answer, Task
from peer_tools.training import FAMILY, build, limit, ooms_counted, tokens
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.wire.recipe import CLIP_NORM
from probes.engines.ddp import optimizers

# The tool is imported last, so the memory of its libraries can be measured.
# isort: split
from lightning.pytorch import LightningModule, Trainer  # type: ignore[import-not-found, unused-ignore]
from lightning.pytorch.tuner.tuning import Tuner  # type: ignore[import-not-found, unused-ignore]


class Training(LightningModule):  # type: ignore[misc, unused-ignore]
    """The GPT with the attribute that the tuner varies."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.batch_size = 1
        self._task = task
        self._model = build(task)
        self._tokens = tokens(task)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self._tokens, self.batch_size)

    def configure_optimizers(self) -> Optimizer:
        (optimizer,) = optimizers(self._model, "adamw", FAMILY)
        return optimizer

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = self._model(*batch)
        return loss

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        # Forward and backward run in the optimizer's closure.
        with ooms_counted(self._task):
            super().optimizer_step(*arguments, **options)


def main() -> None:
    task = Task.read(sys.argv[1])
    limit(task)
    trainer = Trainer(
        accelerator="cpu", devices=1, gradient_clip_val=CLIP_NORM, default_root_dir=task.folder,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    found = Tuner(trainer).scale_batch_size(Training(task), mode=task.mode)
    if found is None:
        sys.exit("the tuner found no batch size")
    task.tell(Answer(found))


if __name__ == "__main__":
    main()
