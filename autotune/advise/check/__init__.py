"""Checks training configurations before an expensive launch, alone or against a result.

A row of `READERS` turns each tool's files into a `Reading`. Rules only see readings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from autotune.advise.check import accelerate, deepspeed, transformers
from autotune.advise.check.against import against
from autotune.advise.check.reading import Finding, Reading
from autotune.advise.check.rules import agree, alone
from autotune.errors import UsageError

MOST_BYTES = 2**20
"""Larger files are no configurations."""
_MOST_BESIDE = 100
"""The most files of a folder to read in search of one that names another."""


@dataclass(frozen=True)
class ReaderRow:
    is_one: Callable[[dict[str, Any]], bool]
    """Recognises the file by its content."""
    read: Callable[[str, dict[str, Any]], Reading]


OTHERS = {
    "a result of autotune; to compare with it, write check CONFIG... --against":
        ("schema_version",),
    "the state of transformers' Trainer, not its configuration; give its TrainingArguments":
        ("log_history",),
    "a configuration of adapters, not a training one": ("peft_type",),
    "a tokenizer's configuration, not a training one":
        ("tokenizer_class", "added_tokens_decoder", "pre_tokenizer"),
    "a preprocessor's configuration, not a training one":
        ("image_processor_type", "feature_extractor_type", "processor_class"),
    "an index of a model's weights, not a training configuration": ("weight_map",),
    "a model's configuration, not a training one": ("model_type", "architectures"),
    "a configuration of generation, not a training one":
        ("eos_token_id", "max_new_tokens", "do_sample", "transformers_version"),
}  # fmt: skip
"""Files that users pass by mistake, and the keys that identify them."""

READERS = {
    "deepspeed": ReaderRow(deepspeed.is_one, deepspeed.read),
    "accelerate": ReaderRow(accelerate.is_one, accelerate.read),
    "axolotl": ReaderRow(transformers.is_axolotl, transformers.read_axolotl),
    "llama-factory": ReaderRow(transformers.is_llama_factory, transformers.read),
    "transformers": ReaderRow(transformers.is_one, transformers.read),
}
"""By the tool's name. The first row that recognises a file reads it."""

__all__ = [
    "READERS", "Finding", "Reading", "against", "findings", "of_command", "read", "with_inner",
]  # fmt: skip


def read(path: Path) -> Reading:
    """The configuration in `path`, with those in the files that it names. Raises UsageError if a
    file cannot be read, or is of no known tool."""
    reading = _followed(_read(path), path.parent)
    if reading.autos and not reading.fills_auto:
        return replace(reading, fills_auto=_is_named_beside(path))
    return reading


def _is_named_beside(path: Path) -> bool:
    """Whether a configuration in the same folder, whose tool fills in "auto", names `path`."""
    for other in islice(path.absolute().parent.iterdir(), _MOST_BESIDE):
        if other.suffix in (".json", ".yaml", ".yml") and other.name != path.name:
            with suppress(UsageError):
                found = _read(other)
                named = {Path(each).name for each in found.files.values()}
                if found.fills_auto and path.name in named:
                    return True
    return False


def _read(path: Path) -> Reading:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(
                f"{path}: too large for a configuration: it has over {MOST_BYTES >> 20} MiB"
            )
        text = path.read_text(encoding="utf-8")
        body = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except IsADirectoryError as error:
        raise UsageError(
            f"{path}: is a folder; name the .json or .yaml files in it that configure the launch"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: neither JSON nor YAML: {first:.200}") from error
    if isinstance(body, dict):
        for row in READERS.values():
            if row.is_one(body):
                return row.read(path.name, body)
        other = next((what for what, names in OTHERS.items() if body.keys() & set(names)), None)
        if other is not None:
            raise UsageError(f"{path}: is {other}")
    raise UsageError(
        f"{path}: unknown kind of configuration; known: {', '.join(READERS)}; e.g. with the key"
        " train_micro_batch_size_per_gpu, per_device_train_batch_size, micro_batch_size or"
        " distributed_type"
    )


def _followed(reading: Reading, folder: Path) -> Reading:
    """Adds the files that it names, from the working directory or from its own `folder`."""
    inner, found = list(reading.inner), list(reading.findings)
    for key, name in reading.files.items():
        place = next((each for each in (Path(name), folder / name) if each.is_file()), None)
        if place is None:
            where = reading.called(key)
            found.append(Finding("error", where, f"{name}: no such file, here or beside it"))
        else:
            inner.append(_read(place))
    return replace(reading, inner=tuple(inner), findings=tuple(found))


def of_command(world_size: int | None) -> list[Reading]:
    """The settings on the command line, which replace those of files."""
    if world_size is None:
        return []
    keys = {"world_size": "--world-size"}
    return [Reading(name="command line", tool="autotune", world_size=world_size, keys=keys)]


def findings(readings: Sequence[Reading]) -> list[Finding]:
    """All findings in `readings`, which belong to one launch."""
    every = with_inner(readings)
    found = [finding for reading in every for finding in alone(reading, every)]
    return [*found, *agree(every)]


def with_inner(readings: Sequence[Reading]) -> list[Reading]:
    """`readings`, and the configurations of other tools inside them."""
    every: list[Reading] = []
    for each in (one for reading in readings for one in (reading, *reading.inner)):
        if each not in every:  # given, and also named by another file
            every.append(each)
    return every
