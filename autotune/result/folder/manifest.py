"""manifest.json: a study's options, devices and software; and their changes since.

A study is resumed only if new measurements compare with its own: the same space, devices and
software. The user may accept named differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import msgspec

from autotune.errors import UsageError
from autotune.result.earlier import Earlier
from autotune.result.files import MANIFEST, write_whole
from autotune.space.options import Options
from autotune.space.space import Limits, Space
from autotune.space.workload import Workload

SCHEMA_VERSION: Literal[1] = 1
IN_JOURNAL = "autotune"
"""The name of Optuna's study in the journal of a folder."""
_FOR_GOOD = ("space.workload", "space.axes", "space.size")
"""Paths that no `--accept-changed` can accept: they mean other candidates."""

Changes = dict[str, tuple[Any, Any]]
"""Path of a field to its old and new value."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Its fields are JSON types."""

    schema_version: Literal[1]
    argv: list[str]
    options: dict[str, Any]
    folder: str
    space: dict[str, Any]
    fingerprint: dict[str, Any]
    earlier: list[Earlier]
    """Measurements of earlier studies, kept here, since their folders may be deleted."""
    study_name: str = IN_JOURNAL
    part: str = ""
    """The part of a joined folder in the study; empty for the first folder."""

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        write_whole(folder / MANIFEST, self.text())

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def asked(self, flag: str = "") -> Options:
        """The study's options, checked as those of a command line.

        `flag` is for messages; if empty, `--resume` of the folder. Raises UsageError if this
        version does not know or accept an option.
        """
        try:
            return Options.from_json(self.options)
        except UsageError as error:
            flag = flag or f"--resume {self.folder}"
            raise UsageError(f"{flag}: its options: {error}") from error

    def limits(self) -> Limits:
        """Memory limits. A resumed study keeps them, since its verdicts depend on them. Raises
        UsageError if the manifest has none."""
        try:
            return msgspec.convert(self.space.get("limits"), Limits)
        except ValueError as error:
            raise UsageError(f"--resume {self.folder}: {MANIFEST}: {error}") from error

    def workload(self) -> Workload:
        """The workload of the study's space. Raises as `Workload.from_json` does."""
        return Workload.from_json(self.space["workload"])

    def of_any_devices(self) -> Manifest:
        """A copy with kinds of devices, without identity and number, in which processes differ."""
        known = self.fingerprint.get("devices", {})
        devices = {k: v for k, v in known.items() if k not in ("nodes", "unlike")}
        kinds: list[dict[str, Any]] = []
        for each in devices.get("devices", ()):
            kind = {name: value for name, value in each.items() if name != "uuid"}
            if all(any(_differences("", other, kind)) for other in kinds):
                kinds.append(kind)
        if kinds:
            devices["devices"] = kinds
        return replace(self, fingerprint=self.fingerprint | {"devices": devices})

    def changes(self, now: Manifest, of: Sequence[str] = ("space", "fingerprint")) -> Changes:
        return {
            path: (before, after)
            for name in of
            for path, before, after in _differences(name, getattr(self, name), getattr(now, name))
        }


def manifest_of(
    options: Options, space: Space, fingerprint: dict[str, Any], folder: Path, argv: Sequence[str]
) -> Manifest:
    """The manifest of a new study; `fingerprint` has devices and software."""
    in_storage = f"{folder.absolute().name}-{token_hex(4)}"
    made = Manifest(
        schema_version=SCHEMA_VERSION,
        argv=list(argv),
        options=options.to_json(),
        folder=str(folder),
        space=space.manifest(),
        fingerprint=fingerprint,
        earlier=[],
        study_name=in_storage if options.output.storage else IN_JOURNAL,
    )
    return parsed(json.loads(made.text()))  # exactly as it is read back


def read(folder: Path, flag: str = "--resume ") -> Manifest:
    """The manifest of the study in `folder`, which `flag` named. Raises UsageError if there is no
    study, or this version cannot go on with it."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{flag}{folder}: not a study folder: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{flag}{folder}: {MANIFEST}: {reason}") from error
    try:
        return parsed(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{flag}{folder}: {MANIFEST} is not of version {SCHEMA_VERSION}: {error!s:.200}"
        ) from error


def check(then: Manifest, now: Manifest, accepted: Set[str], flag: str = "--resume") -> Changes:
    """The changes since `then`, all of them `accepted`: by the name of a field, or of its parent.

    `flag` is for messages. Raises UsageError if something else changed.
    """
    changes = then.changes(now)
    anew = f"start a new study in another folder than {now.folder}"
    for path, (before, after) in changes.items():
        if path.startswith(_FOR_GOOD):
            raise UsageError(f"{flag}: {path} was {_short(before)} and is {_short(after)}; {anew}")
    left = {path: pair for path, pair in changes.items() if accepted.isdisjoint(path.split("."))}
    if left:
        path, (before, after) = next(iter(left.items()))
        others = f", and {len(left) - 1} more differ" if len(left) > 1 else ""
        passed = sorted(accepted & {part for path in changes for part in path.split(".")})
        names = dict.fromkeys([*passed, *(path.rpartition(".")[2] for path in left)])
        raise UsageError(
            f"{flag}: {path} was {_short(before)} and is {_short(after)}{others}; old and new"
            f" measurements may not be comparable: {anew}, or pass --accept-changed"
            f" {','.join(names)}"
        )
    return changes


def parsed(body: Any) -> Manifest:
    """A manifest from JSON types. Raises ValueError."""
    return msgspec.convert(body, Manifest)


def _differences(path: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from _differences(f"{path}.{name}", then.get(name), now.get(name))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, pair in enumerate(zip(then, now, strict=True)):
            yield from _differences(f"{path}.{index}", *pair)
    elif then != now and not (path.endswith("_bytes") and _about_equal(then, now)):
        yield path, then, now


def _about_equal(then: Any, now: Any) -> bool:
    """Sizes to 1 %: a kernel keeps another amount of memory after each boot."""
    known = isinstance(then, int | float) and isinstance(now, int | float)
    return known and abs(then - now) <= 0.01 * abs(then)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
