"""A report for a terminal, and with the same content as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from autotune.advise.diagnose import Diagnosis
from autotune.advise.diagnose.amounts import balance
from autotune.advise.diagnose.causes import BY_NOW, NOT_SAID
from autotune.advise.diagnose.events import Event, spans
from autotune.advise.diagnose.kinds import Kind
from autotune.units import gib

VERSION = 1
"""Version of the JSON. New fields keep the number; a new number means another structure."""

_THUMB = "a rule of thumb"
_OF_LATER = 160
"""The most characters of a later event."""
_SAYS = {
    Kind.HOST: "host memory ran out",
    Kind.SHARED: "shared memory (/dev/shm) ran out",
    Kind.MEMORY: "memory ran out, in training mostly a device's (a rule of thumb); the log does"
    " not say which",
    Kind.KILLED: "a process was killed (SIGKILL); probably for host memory, which the log does not"
    " prove",
    Kind.BUS: "a process was killed (SIGBUS); probably for shared memory, which the log does not"
    " prove",
    Kind.DISK: "no memory ran out: the disk is full, or its quota",
    Kind.FILES: "no memory ran out as far as the log says: data-loading workers could not share a"
    " tensor, mostly for too many open files; `ulimit -n 65536`, or"
    ' torch.multiprocessing.set_sharing_strategy("file_system")',
    Kind.LIBRARY: "a CUDA library could not start; often for lack of device memory, which the log"
    " does not prove: see nvidia-smi for who holds it, or try a smaller batch",
    Kind.BATCH: "no memory ran out: the batch sizes do not multiply",
    Kind.TIMEOUT: "no memory ran out: a collective operation timed out; another rank hung or died"
    " before",
    Kind.ASSERT: "no memory ran out: the device reported a fault",
    Kind.SHAPE: "no memory ran out: shapes do not match",
    Kind.KERNEL: "no device memory ran out: a kernel wants more on-chip memory than there"
    " is; smaller blocks or num_stages help",
    Kind.SCHEDULED: "no memory ran out as far as the log says: the scheduler ended the job",
    Kind.ENDED: "no memory ran out as far as the log says: a launcher or a worker ended or was"
    " interrupted; the first failure, if any, is in another log",
    Kind.WARNING: "no error: memory was short, and the allocator recovered",
    Kind.LISTING: "no error found",
    Kind.OTHER: "no memory ran out as far as the log says: another error",
}


_UNCERTAIN = (Kind.KILLED, Kind.BUS, Kind.LIBRARY, Kind.ENDED)
_OF_INDICES = re.compile(r"[Ii]ndex|n_classes|srcSelectDimSize")


def verdict(report: Diagnosis) -> str:
    """The failure in one sentence."""
    event = report.event
    if event is None:
        return "No error found" + (
            "; the log ends within a traceback, whose error is missing" if report.cut else ""
        )
    if event.kind is Kind.DEVICE:
        said = _device(event)
    else:
        said = _SAYS[event.kind]
        a = event.amounts
        if event.kind is Kind.HOST and a.asked and a.total:
            said += f": {gib(a.asked)} in use, the limit is {gib(a.total)}"
        elif event.kind is Kind.HOST and a.asked:
            held = event.wording.name == "kernel"
            said += f": {gib(a.asked)} {'held by what was killed' if held else 'asked'}"
        elif event.kind is Kind.LISTING:
            [why] = report.causes or (None,)
            scarce = f"{why.name}: {why.sentence}" if why else "the listing shows no bottleneck"
            said += f"; {scarce}"
        elif event.kind is Kind.SCHEDULED:
            said += f": {dict(event.groups).get('why', 'it was cancelled').lower()}"
        elif event.kind is Kind.ASSERT and _OF_INDICES.search(event.text):
            said += ": an index is out of range, as of a token beyond the vocabulary, or a label"
        if event.who:
            said = f"{event.who}: {said}"
    if event.weak and event.kind.ran_out:
        said = f"it looks as if {said if said[1].isupper() else said[0].lower() + said[1:]}"
    if event.recovered:
        said += "; training went on"
    elif report.causes and event.kind is Kind.DEVICE:
        said += f"; cause: {report.causes[0].name}"
    return said[0].upper() + said[1:]


def _device(event: Event) -> str:
    a = event.amounts
    word = event.backend if event.backend in ("NPU", "XPU", "MLU", "MUSA", "TPU") else "GPU"
    devices = f"{word}{'' if len(event.devices) == 1 else 's'} {spans(event.devices)}"
    who = " on ".join(filter(None, (event.who, devices if event.devices else "")))
    said = f"{who or 'a device'} ran out of memory"
    if a.asked is not None and a.free is not None and a.total is not None and not a.is_limit:
        return f"{said}: {gib(a.asked)} asked, {gib(a.free)} of {gib(a.total)} free"
    if a.asked is None:
        return said + (", probably: a library got none" if _is_library(event) else "")
    there = f" of {gib(a.total)}" if a.total is not None else ""
    there += " allowed" if a.is_limit else ""
    there += f", {gib(a.free)} free" if a.free is not None else ""
    return f"{said}: {gib(a.asked)} asked{there}"


def _unsure(event: Event) -> bool:
    """Whether the log does not prove that memory ran out."""
    return event.weak or event.kind in _UNCERTAIN or _is_library(event)


def _is_library(event: Event) -> bool:
    return event.wording.name == "libraries"


def lines(report: Diagnosis) -> list[str]:
    """The lines of the report, without control characters."""
    said = [verdict(report)]
    event = report.event
    if event is not None:
        said += ["", f"{event.log}:{event.line}: {event.text.split(' If reserved')[0]}"]
        if event.step is not None:
            said.append(f"after step {event.step}")
        if event.times > 1:
            said.append(f"said {event.times} times")
        sums = balance(event.amounts) if event.kind.is_oom else ()
        if report.causes or sums:
            said += ["", "Why"]
            said += [f"  {each}" for each in sums]
            for cause in report.causes:
                said.append(f"  {cause.name}: {cause.sentence}")
                said += [f"    {each}" for each in cause.arithmetic]
    said += _to_do(report)
    if report.later:
        said += ["", "Also in the log"]
        for later in report.later[:12]:
            count = f" ({later.times} times)" if later.times > 1 else ""
            who = f" {later.who}" if later.who else ""
            went_on = ", training went on" if later.recovered else ""
            text = later.text if len(later.text) <= _OF_LATER else f"{later.text[:_OF_LATER]}..."
            said.append(f"  line {later.line}:{who} {later.kind.value}{went_on}{count}: {text}")
        if len(report.later) > 12:
            said.append(f"  and {len(report.later) - 12} more")
    if report.interrupted:
        said += ["", f"Stopped after {gib(report.bytes_read)}; there is more."]
    if any(_THUMB in each for each in said):
        said = [each.replace(f" ({_THUMB})", "*") for each in said]
        said += ["", f"* {_THUMB}; all other numbers are the log's, or follow from them"]
    return [clean(each) for each in said]


def _to_do(report: Diagnosis) -> list[str]:
    """Advice, and command lines."""
    said = []
    if report.advice:
        said += ["", "What to do, the cheapest in training speed first"]
        for number, each in enumerate(report.advice, 1):
            said.append(f"  {number}. {each.what}")
            said.append(f"       {each.setting}")
            said.append(f"     saves {each.saving}; costs {each.costs}")
    if report.again:
        numbers = " and ".join(map(str, report.again.numbers))
        said += ["", f"To start it again with {numbers}, the first that this line can say:"]
        said.append(f"  {report.again.command}")
    if report.command:
        said += ["", "To measure which of them is fastest and fits:", f"  {report.command}"]
    return said


def clean(text: str) -> str:
    """`text` with control characters written out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def body(report: Diagnosis) -> dict[str, Any]:
    """The report as JSON: sizes in bytes, None for unknown values."""
    event, context = report.event, report.context
    return {
        "version": VERSION,
        "logs": list(report.logs),
        "bytes_read": report.bytes_read,
        "interrupted": report.interrupted,
        "verdict": clean(verdict(report)),
        "oom": event is not None and event.kind.is_oom and not event.recovered,
        "certain": event is None
        or not (
            _unsure(event) or any(cause.name in (NOT_SAID, BY_NOW) for cause in report.causes[:1])
        ),
        "event": None if event is None else _event(event),
        "cause": asdict(report.causes[0]) if report.causes else None,
        "also": [asdict(each) for each in report.causes[1:]],
        "advice": [asdict(each) for each in report.advice],
        "command": report.command,
        "again": report.again and report.again.command,
        "again_with": list(report.again.numbers) if report.again else [],
        "later": [_event(each) for each in report.later],
        "context": {
            "framework": context.framework,
            "frameworks": sorted(context.seen),
            "settings": context.settings,
            "on": sorted(context.switches),
            "model": context.text("model"),
            "optimizer": context.text("optimizer"),
            "parameters": context.parameters,
            "allocator": context.allocator[1] or None,
            "launch": context.text("launch"),
            "world_size": context.world_size,
            "last_step": context.last_step,
        },
    }


def _event(event: Event) -> dict[str, Any]:
    a = event.amounts
    return {
        "kind": event.kind.name.lower(),
        "oom": event.kind.is_oom,
        "wording": event.wording.name,
        "source": event.wording.source,
        "log": event.log,
        "line": event.line,
        "text": clean(event.text),
        "time": event.time,
        "ranks": list(event.ranks),
        "devices": list(event.devices),
        "backend": event.backend,
        "pid": event.pid,
        "step": event.step,
        "times": event.times,
        "recovered": event.recovered,
        "asked_bytes": a.asked,
        "total_bytes": None if a.is_limit else a.total,
        "free_bytes": a.free,
        "allocated_bytes": a.allocated,
        "reserved_unallocated_bytes": a.unallocated,
        "process_bytes": a.process,
        "others_bytes": a.others_bytes,
        "others": [{"pid": pid, "bytes": size} for pid, size in a.others],
        "allowed_bytes": a.total if a.is_limit else a.allowed,
        "missing_bytes": a.short,
        "arithmetic": list(balance(event.amounts)) if event.kind.is_oom else [],
    }
