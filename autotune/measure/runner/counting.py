"""Helper processes count and trace models that have no closed form."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.device import crowding
from autotune.errors import ModelError, UsageError
from autotune.measure.runner import local
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.helper import NO_GPU, Helper, Start
from autotune.measure.runner.process import RankProcess
from autotune.space.engines import ENGINES
from autotune.wire.dial import Dial
from autotune.wire.helpers import Count, Counted, Describe, Described
from autotune.wire.ranks import Fault

LIMIT_S = 300.0
POLL_S = 0.02
MOST_HELPERS = 4
"""Helpers at once: each imports torch, about half a GiB."""
PREFIX = "autotune-count-"
"""Of folders for logs."""


def by(forks: Forks, engine: str, family: str) -> Start:
    """Starts helpers by the server of `engine`: the first one waits for its imports."""

    def start(dial: Dial, log: Path, environment: dict[str, str]) -> RankProcess:
        forks.prepare(engine, family, lambda: False, time.monotonic() + LIMIT_S)
        return forks.start_rank(engine, dial, log, environment)

    return start


@contextmanager
def forked(family: str) -> Iterator[Start]:
    """Starts helpers that share their imports."""
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as logs,
        closing(Forks(Path(logs), NO_GPU, lambda _: None)) as forks,
    ):
        yield by(forks, next(iter(ENGINES)), family)


def count(asked: Count, model: str, start: Start = local.start_rank) -> Counted:
    """The answer of a helper that `start` starts.

    Raises:
        UsageError: the model cannot be built with these options.
        ModelError: its own code failed.
    """
    (helper,) = _helped([asked], LIMIT_S, start)
    if isinstance(helper.found, Counted):
        return helper.found
    if helper.fault is None:
        raise UsageError(f"--model {model}: {helper.why}")
    raise failure(f"--model {model}", helper.fault)


def failure(what: str, fault: Fault) -> UsageError | ModelError:
    """The error to raise for a helper's `fault`; `what` names the user's input."""
    if fault.cause == "unsupported":
        return UsageError(f"{what}: {fault.error.removeprefix('UnsupportedError: ')}")
    return ModelError(f"{what}: {fault.error}", fault.traceback)


def describe(asked: Describe, limit_s: float, start: Start = local.start_rank) -> Described | str:
    """The trace of models, several a helper, or why there is none after `limit_s`."""
    each = max(2, -(-len(asked.models) // _at_once()))
    parts = [slice(start, start + each) for start in range(0, len(asked.models), each)]
    shares = [replace(asked, models=asked.models[part]) for part in parts]
    helpers = _helped(shares, limit_s, start)
    found = [each.found for each in helpers if isinstance(each.found, Described)]
    if len(found) < len(shares):
        return next(each.why for each in helpers if each.found is None)
    return replace(found[0], models=[each for one in found for each in one.models])


def _at_once() -> int:
    return min(MOST_HELPERS, len(crowding.usable_cores()))


def _helped(asked: Sequence[Count | Describe], limit_s: float, start: Start) -> list[Helper]:
    """Helpers that have ended, one for each of `asked`. A few run at once."""
    helpers: list[Helper] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        while len(helpers) < len(asked) or any(each.works for each in helpers):
            if len(helpers) < len(asked) and sum(each.works for each in helpers) < _at_once():
                logs = Path(folder) / str(len(helpers))
                logs.mkdir()
                helpers.append(Helper(asked[len(helpers)], start, logs=logs, limit_s=limit_s))
                stack.callback(helpers[-1].close)
            for helper in helpers:
                helper.poll()
            time.sleep(POLL_S)
    return helpers
