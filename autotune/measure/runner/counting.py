"""What models have that no closed form tells: asked of helpers and waited for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.device import crowding
from autotune.errors import ModelError, UsageError
from autotune.measure.runner import local
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.helper import Helper, Start
from autotune.measure.runner.process import RankProcess
from autotune.space.engines import ENGINES
from autotune.wire.dial import Dial
from autotune.wire.helpers import Count, Counted, Describe, Described, Loaded
from autotune.wire.ranks import Fault

LIMIT_S = 300.0
POLL_S = 0.02
MOST_HELPERS = 4
"""At once: each imports torch, in about half a GiB."""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Counting has no use for one, and must not leave a context on it."""
_ENGINE = next(iter(ENGINES))
"""That models are traced in: torch's own."""


@dataclass
class _Answer:
    """Of one helper."""

    found: Counted | Described | Loaded | None = None
    fault: Fault | None = None
    said: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """Why nothing was found."""
        return "".join(self.said).partition(";")[0]


@contextmanager
def forked(family: str) -> Iterator[Start]:
    """What starts helpers that share what they import: the first one waits for it."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-count-") as logs,
        closing(Forks(Path(logs), _NO_GPU, lambda _: None)) as forks,
    ):

        def start(dial: Dial, log: Path, environment: dict[str, str]) -> RankProcess:
            forks.prepare(_ENGINE, family, lambda: False, time.monotonic() + LIMIT_S)
            return forks.start_rank(_ENGINE, dial, log, environment)

        yield start


def count(asked: Count, model: str, start: Start = local.start_rank) -> Counted:
    """The answer of a helper that `start` starts.

    Raises:
        UsageError: the model cannot be built as it was asked for.
        ModelError: its own code failed.
    """
    (answer,) = _answers([asked], LIMIT_S, start)
    if isinstance(answer.found, Counted):
        return answer.found
    if answer.fault is None:
        raise UsageError(f"--model {model}: {answer.why}")
    raise failure(f"--model {model}", answer.fault)


def failure(what: str, fault: Fault) -> UsageError | ModelError:
    """What to raise for a helper's `fault`, in which `what` names the user's input."""
    if fault.cause == "unsupported":
        return UsageError(f"{what}: {fault.error.removeprefix('UnsupportedError: ')}")
    return ModelError(f"{what}: {fault.error}", fault.traceback)


def describe(asked: Describe, limit_s: float, start: Start = local.start_rank) -> Described | str:
    """What a trace of models found; in words why there is none, at the latest after `limit_s`.
    Each helper traces several models: of its first operations each takes long."""
    each = max(2, -(-len(asked.models) // _at_once()))
    parts = [slice(start, start + each) for start in range(0, len(asked.models), each)]
    shares = [replace(asked, models=asked.models[part]) for part in parts]
    answers = _answers(shares, limit_s, start)
    found = [each.found for each in answers if isinstance(each.found, Described)]
    if len(found) < len(shares):
        return next(each.why for each in answers if each.found is None)
    return replace(found[0], models=[each for one in found for each in one.models])


def _at_once() -> int:
    return min(MOST_HELPERS, len(crowding.usable_cores()))


def _answers(asked: Sequence[Count | Describe], limit_s: float, start: Start) -> list[_Answer]:
    """The answers to `asked`, each from a helper of its own, a few of which run at once."""
    answers = [_Answer() for _ in asked]
    waiting = list(range(len(asked)))[::-1]
    running: dict[int, Helper] = {}
    most = _at_once()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="autotune-count-"))
        while waiting or running:
            while waiting and len(running) < most:
                place = waiting.pop()
                logs = Path(folder) / str(place)
                logs.mkdir()
                running[place] = Helper(
                    asked[place], start, logs=logs, note=answers[place].said.append,
                    limit_s=limit_s,
                    environment=_NO_GPU,
                )  # fmt: skip
                stack.callback(running[place].close)
            for place, helper in list(running.items()):
                answers[place].found = helper.poll()
                if answers[place].found is not None or not helper.works:
                    answers[place].fault = helper.fault
                    del running[place]
            time.sleep(POLL_S)
    return answers
