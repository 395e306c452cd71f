"""The storage of a study: the journal in its folder, or a database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol
from urllib.parse import quote, unquote

import optuna

from autotune.errors import UsageError
from autotune.result.folder import manifest
from autotune.result.folder.databases import (
    DATABASES,
    MANIFEST_IN_STUDY,
    Database,
    without_password,
)
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal_file import JournalFile
from autotune.result.folder.manifest import Manifest


class Storage(Protocol):
    where: str
    """The name of the place, for messages."""
    shared: bool
    """Whether other processes may work on the study."""
    part: str
    """The name of the folder's part in the study."""

    def exists(self) -> bool:
        """Whether the study is there."""

    def open(self) -> tuple[optuna.Study, int]:
        """The study, made if there is none, and the number of torn bytes that were cut off. Raises
        UsageError if the study is damaged, or another folder's."""

    def read(self) -> optuna.Study:
        """The study as it is; nothing is written. Raises all kinds of errors."""

    def again(self) -> optuna.Study:
        """The study that `open` found, without memory of failed writes."""

    def together(self) -> AbstractContextManager[None]:
        """A context that sends all writes together at its end; no other process writes.

        Raises:
            UnreachableError: a retry may work, or only the answer got lost.
            OSError: nothing was written.
        """


def storage_of(folder: Folder, of: Manifest) -> Storage:
    """The storage of the study in `folder`. Raises UsageError for an unknown one."""
    url = of.options.get("storage")
    if url is None:
        return JournalFile(folder.optuna_log)
    return _kind(url)(folder, url, of)


def checked(url: str) -> str:
    """`url` with an absolute path, after a check that it can hold studies. Nothing is written.
    Raises UsageError if it cannot."""
    return _kind(url).checked(url)


def place_of(url: str, name: str) -> str:
    """The place of the study `name` in the database at `url`, for `--join`."""
    path, query, rest = url.partition("?")
    return f"{path}/{quote(name, safe='')}{query}{rest}"


def manifest_in(place: str) -> tuple[str, Manifest]:
    """The database of `place`, and the manifest of the study there. Raises UsageError if there is
    no such study, or this version cannot join it."""
    path, query, rest = place.partition("?")
    path, _, name = path.rpartition("/")
    try:
        url, name = checked(f"{path}{query}{rest}"), unquote(name)
    except UsageError as error:
        why = str(error).removeprefix("--storage ")
        raise UsageError(
            f"--join: write URL/NAME, as the study prints it; the URL before the last /: {why}"
        ) from error
    names = _kind(url).names(url)
    if name not in names:
        known = f"it has {', '.join(sorted(names)[:5])}" if names else "it has none"
        raise UsageError(f"--join {place}: no study {name!a:.80} in {url}; {known}")
    try:
        study = optuna.load_study(study_name=name, storage=_kind(url).as_it_is(url))
        kept = study.user_attrs[MANIFEST_IN_STUDY]
        return url, manifest.parsed(kept)
    except (LookupError, ValueError, RecursionError) as error:
        why = f"it was written by another version: {error!s:.200}"
    raise UsageError(f"--join {place}: {why}")


def _kind(url: str) -> type[Database]:
    scheme = url.partition(":")[0]
    if scheme not in DATABASES:
        known = " or ".join(database.example for database in DATABASES.values())
        raise UsageError(
            f"--storage {without_password(url)}: unknown; write it as {known}, or leave it out"
            " for the journal in the study's folder"
        )
    return DATABASES[scheme]
