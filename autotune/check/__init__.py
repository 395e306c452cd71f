"""Training configurations before an expensive launch: what contradicts, costs, or is not measured.

Each tool's files have one row of `READERS`, which turns them into a `Reading`; the rules work on
readings alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from autotune.check import accelerate, deepspeed, transformers
from autotune.check.against import against
from autotune.check.reading import Finding, Reading
from autotune.check.rules import agree, alone
from autotune.errors import UsageError

MOST_BYTES = 2**20
"""No configuration of any tool is larger."""


@dataclass(frozen=True)
class Row:
    """A kind of file."""

    is_one: Callable[[dict[str, Any]], bool]
    """By what it holds."""
    read: Callable[[str, dict[str, Any]], Reading]


READERS = {
    "deepspeed": Row(deepspeed.is_one, deepspeed.read),
    "accelerate": Row(accelerate.is_one, accelerate.read),
    "axolotl": Row(transformers.is_axolotl, transformers.read_axolotl),
    "llama-factory": Row(transformers.is_llama_factory, transformers.read),
    "transformers": Row(transformers.is_one, transformers.read),
}
"""By the tool's name; the first whose file it may be reads it."""

__all__ = ["READERS", "Finding", "Reading", "against", "findings", "read", "with_inner"]


def read(path: Path) -> Reading:
    """The configuration in `path`, with those in the files that it names.

    Raises:
        UsageError: one cannot be read, or is of no known tool.
    """
    return _followed(_read(path), path.parent)


def _read(path: Path) -> Reading:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: is no configuration: it has over {MOST_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        body = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: neither JSON nor YAML: {first:.200}") from error
    if isinstance(body, dict):
        for row in READERS.values():
            if row.is_one(body):
                return row.read(path.name, body)
    raise UsageError(
        f"{path}: no configuration that is known; expected one of {', '.join(READERS)}: e.g."
        " train_micro_batch_size_per_gpu, per_device_train_batch_size, micro_batch_size or"
        " distributed_type in it"
    )


def _followed(reading: Reading, folder: Path) -> Reading:
    """With the files that it names, which lie where the launch begins or in its own `folder`."""
    inner, found = list(reading.inner), list(reading.findings)
    for key, name in reading.files.items():
        place = next((each for each in (Path(name), folder / name) if each.is_file()), None)
        if place is None:
            where = reading.called(key)
            found.append(Finding("error", where, f"{name}: no such file, here or beside it"))
        else:
            inner.append(_read(place))
    return replace(reading, inner=tuple(inner), findings=tuple(found))


def findings(readings: Sequence[Reading], world_size: int | None) -> list[Finding]:
    """What is wrong with `readings`, which one launch uses together on `world_size` ranks."""
    every = with_inner(readings)
    found = [finding for reading in every for finding in alone(reading, every, world_size)]
    return [*found, *agree(every)]


def with_inner(readings: Sequence[Reading]) -> list[Reading]:
    """These, and what they hold of other tools."""
    every: list[Reading] = []
    for each in (one for reading in readings for one in (reading, *reading.inner)):
        if each not in every:  # named by one file, and given as well
            every.append(each)
    return every
