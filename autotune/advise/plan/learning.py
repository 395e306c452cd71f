"""Corrections for a plan from the measurements of studies, also on other GPUs."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from autotune.advise.plan.expected import KIND, PlanRequest
from autotune.device.cards import CARDS, Card, plain_name
from autotune.errors import UsageError
from autotune.result.earlier import Earlier, seen_in
from autotune.result.folder import manifest
from autotune.result.folder.earlier import MOST_SEEN, MOST_STUDIES, newest_first
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in


def learn(asked: PlanRequest, place: Path) -> tuple[PlanRequest, list[str]]:
    """`asked` with the measurements of studies on GPUs, the newest first, and remarks for the
    user. `place` is a study, or a folder of studies. Raises UsageError if there is no such folder,
    or it has no useful study."""
    if not place.is_dir():
        what = "is no folder" if place.exists() else "there is no such folder"
        raise UsageError(f"--learn-from {place}: {what}; name one that has studies in it")
    found: list[Earlier] = []
    others: set[str] = set()
    left = MOST_SEEN
    on_cpu = 0
    for folder in newest_first(place):
        if left == 0 or len(found) == MOST_STUDIES:
            break
        with suppress(Exception):  # the plan does without a damaged study
            then = manifest.read(folder)
            if then.fingerprint["kind"] != KIND:
                on_cpu += 1
                continue
            seen = seen_in(records_in(Folder(folder)))[:left]
            if not seen:
                continue
            name = str(then.fingerprint["devices"]["devices"][0]["name"])
            emulated = bool(then.fingerprint["devices"].get("emulated"))
            timed = is_such(asked.card, name) and not emulated
            found.append(Earlier(folder=str(folder), workload=then.workload(), seen=seen,
                                 timed=timed))  # fmt: skip
            left -= len(seen)
            if not timed:
                others.add(f"emulated {name}" if emulated else name)
    if not found:
        why = "those in it ran on a CPU, whose memory says nothing of a GPU's" if on_cpu else (
            "no study in it measured anything")  # fmt: skip
        raise UsageError(f"--learn-from {place}: {why}")
    count = sum(len(study.seen) for study in found)
    said = [f"learns from {count} measurements of {len(found)} "
            f"stud{'y' if len(found) == 1 else 'ies'}"]  # fmt: skip
    if others:
        said.append(
            f"measured on other hardware: {', '.join(sorted(others))}; its memory is taken over,"
            " its speed is not"
        )
    return replace(asked, earlier=found), said


def is_such(card: Card, name: str) -> bool:
    """Whether `name` is NVML's name of this card."""
    words = re.split(r"[\s_-]", name)
    known = {plain_name(each.name): each for each in CARDS}
    # Longer names come first: an "H100 PCIe" is no "H100".
    named = (known.get(plain_name("".join(words[:n]))) for n in range(len(words), 0, -1))
    return next((each for each in named if each), None) == card
