"""Callbacks that report steps of other libraries' trainers in a tuned script.

A study sees torch's optimizers by itself: a Trainer with one of them needs no callback.
"""

from __future__ import annotations

from typing import Any

from autotune import step


def transformers_callback() -> Any:
    """A `TrainerCallback` for `Trainer(callbacks=[...])`. Needs transformers: ImportError."""
    from transformers import TrainerCallback

    class TrainerSteps(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            step()

    return TrainerSteps()


def lightning_callback() -> Any:
    """A `Callback` for `Trainer(callbacks=[...])`. Raises ImportError without lightning."""
    from lightning.pytorch import Callback

    class LightningSteps(Callback):
        def __init__(self) -> None:
            self._made = 0

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.global_step > self._made:  # only the last of an accumulation
                self._made = trainer.global_step
                step()

    return LightningSteps()
