"""Callbacks that say a step is done, for trainers of other libraries in a script that is tuned.

They are not needed where a Trainer steps torch's optimizers, which a study sees by itself.
"""

from __future__ import annotations

from typing import Any

from autotune import step


def transformers_callback() -> Any:
    """A `TrainerCallback` for `Trainer(callbacks=[...])`. Raises ImportError without
    transformers."""
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
            if trainer.global_step > self._made:  # of an accumulation, the last
                self._made = trainer.global_step
                step()

    return LightningSteps()
