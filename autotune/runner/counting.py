"""What models have that no closed form tells: asked of a helper, before there is a space."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from autotune.errors import ModelError, UsageError
from autotune.runner import local
from autotune.runner.helper import Helper
from autotune.wire.messages import Count, Counted

LIMIT_S = 300.0
POLL_S = 0.02


def count(asked: Count, model: str) -> Counted:
    """The helper's answer.

    Raises:
        UsageError: the model cannot be built as it was asked for.
        ModelError: its own code failed.
    """
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="autotune-count-") as folder:
        helper = Helper(
            asked, local.start_rank, logs=Path(folder), note=said.append, limit_s=LIMIT_S,
            # Counting has no use for a GPU, and must not leave a context on one.
            environment={"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        try:
            while (found := helper.poll()) is None and helper.works:
                time.sleep(POLL_S)
        finally:
            helper.close()
    if isinstance(found, Counted):
        return found
    if helper.fault is None:
        raise UsageError(f"--model {model}: {''.join(said).partition(';')[0]}")
    if helper.fault.cause == "unsupported":
        why = helper.fault.error.removeprefix("UnsupportedError: ")
        raise UsageError(f"--model {model}: {why}")
    raise ModelError(f"--model {model}: {helper.fault.error}", helper.fault.traceback)
