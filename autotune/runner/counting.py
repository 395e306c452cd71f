"""What models have that no closed form tells: asked of a helper and waited for."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from autotune.errors import ModelError, UsageError
from autotune.runner import local
from autotune.runner.helper import Helper
from autotune.wire.messages import Count, Counted, Describe, Described

LIMIT_S = 300.0
POLL_S = 0.02


def count(asked: Count, model: str) -> Counted:
    """The helper's answer.

    Raises:
        UsageError: the model cannot be built as it was asked for.
        ModelError: its own code failed.
    """
    found, helper, why = _answer(asked, LIMIT_S)
    if isinstance(found, Counted):
        return found
    if helper.fault is None:
        raise UsageError(f"--model {model}: {why}")
    if helper.fault.cause == "unsupported":
        why = helper.fault.error.removeprefix("UnsupportedError: ")
        raise UsageError(f"--model {model}: {why}")
    raise ModelError(f"--model {model}: {helper.fault.error}", helper.fault.traceback)


def describe(asked: Describe, limit_s: float) -> Described | str:
    """What a trace of models found; in words why there is none, at the latest after `limit_s`."""
    found, _, why = _answer(asked, limit_s)
    return found if isinstance(found, Described) else why


def _answer(
    asked: Count | Describe, limit_s: float
) -> tuple[Counted | Described | None, Helper, str]:
    """The answer to `asked`, or None and why not."""
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="autotune-count-") as folder:
        helper = Helper(
            asked, local.start_rank, logs=Path(folder), note=said.append, limit_s=limit_s,
            # Counting has no use for a GPU, and must not leave a context on one.
            environment={"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        try:
            while (found := helper.poll()) is None and helper.works:
                time.sleep(POLL_S)
        finally:
            helper.close()
    return found, helper, "".join(said).partition(";")[0]
