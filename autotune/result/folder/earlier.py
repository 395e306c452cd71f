"""Earlier studies with comparable measurements, found in the folder of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from autotune.errors import UsageError
from autotune.result.earlier import Earlier, seen_in
from autotune.result.files import MANIFEST, is_ours
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from autotune.result.folder.manifest import IN_JOURNAL, Manifest

NOTHING = "none"
MOST_STUDIES = 8
MOST_SEEN = 60
"""The most measurements in all: each makes every proposal slower."""


def learn(now: Manifest, asked: str | None, by_default: bool) -> Manifest:
    """`now` with measurements of the studies in the folder `asked`, or of that one study.

    Without `asked`, `by_default` takes the folder around the study of `now`, if it `is_ours`. The
    newest come first. Devices and software have to be the same; emulated devices tell memory
    alone, scripts only of themselves. Raises UsageError if there is no such folder.
    """
    place = _place(Path(now.folder), asked) if by_default or asked else None
    if place is None:
        return now
    if asked is not None and not place.is_dir():
        what = "is no folder" if place.exists() else "there is no such folder"
        raise UsageError(
            f"--learn-from {asked}: {what}; name one that has studies in it, or {NOTHING}"
        )
    found: list[Earlier] = []
    left = MOST_SEEN
    for folder in newest_first(place):
        if left == 0 or len(found) == MOST_STUDIES:
            break
        with suppress(Exception):  # this study does without a damaged one
            study = _earlier(folder, now)
            if study is not None:
                found.append(replace(study, seen=study.seen[:left]))
                left -= len(found[-1].seen)
    return replace(now, earlier=found)


def context_bytes(out: Path, asked: str | None) -> dict[str, int]:
    """Bytes of a process on a GPU beside torch's, by its name, of the newest one-rank study."""
    place = _place(out, asked)
    found: dict[str, int] = {}
    for folder in newest_first(place) if place is not None else ():
        with suppress(Exception):  # skip a damaged one
            of = manifest.read(folder)
            devices = of.fingerprint["devices"]
            name = devices["devices"][0]["name"]
            if name in found or devices.get("emulated") or of.workload().world_size > 1:
                continue
            peaks = [r.outcome.measurement.peaks for r in records_in(Folder(folder))
                     if r.outcome.measurement is not None]  # fmt: skip
            found[name] = int(median(each.device_bytes - each.reserved_bytes for each in peaks))
    return found


def _place(out: Path, asked: str | None) -> Path | None:
    """The folder in which a study in `out` looks for earlier ones."""
    if asked is not None:
        return None if asked == NOTHING else Path(asked)
    return out.parent if is_ours(out.parent) else None


def newest_first(place: Path) -> Iterator[Path]:
    """Folders of studies: `place`, and those in it; one for each study."""
    known: set[str] = set()
    for folder in _folders(place):
        with suppress(UsageError):
            name = manifest.read(folder).study_name
            if name in known:
                continue
            known |= {name} - {IN_JOURNAL}
        yield folder


def _folders(place: Path) -> Iterator[Path]:
    def written(folder: Path) -> float:
        return (folder / MANIFEST).stat().st_mtime

    folders = [place]
    with suppress(OSError):
        folders += [path for path in place.iterdir() if path.is_dir()]
    with suppress(OSError):
        yield from sorted(
            (f for f in folders if (f / MANIFEST).is_file()), key=written, reverse=True
        )


def _earlier(folder: Path, now: Manifest) -> Earlier | None:
    """The measurements of the study in `folder`; None if there are no comparable ones."""
    then = manifest.read(folder)
    then.asked()  # raises if this version does not know an option
    same = not then.changes(now, of=("fingerprint",))
    if not same and not _weighs(then.fingerprint, now.fingerprint):
        return None
    of, own = then.workload(), now.workload()
    if of.model != own.model and (of.of_script or own.of_script):
        return None  # nobody knows what a script's optimizer holds
    seen = seen_in(records_in(Folder(folder)))
    return Earlier(folder=str(folder), workload=of, seen=seen, timed=same) if seen else None


def _weighs(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether `then` has emulated devices with the memory and software of `now`."""
    if not then["devices"].get("emulated") or then["software"] != now["software"]:
        return False
    of_then, of_now = (each["devices"]["devices"][0]["name"] for each in (then, now))
    return bool(of_then == of_now)
