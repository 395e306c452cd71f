"""A process that ranks are forked from: `python -m probes.forkserver ENGINE FAMILY`.

It imports torch and the libraries of engine and model family once, and touches no device. A forked
rank has them at once. Open drivers and threads do not survive a fork: if there are any, no rank is
forked.

Its stdin is a socket to the study. Each rank becomes a child of the study, which has to be a
subreaper (prctl(2), PR_SET_CHILD_SUBREAPER).

Contracts:

- Before each fork the server checks that it has one thread and no open driver. It keeps NVML
  closed, which some libraries open on import.
- A process between server and rank ends at once, so the study becomes the rank's parent. Ranks
  die with the study, which waits for them as for spawned ones.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pynvml

from autotune.wire.forks import Fork, Forkable, Forked
from autotune.wire.messages import MAX_MESSAGE_BYTES, decode, encode
from autotune.wire.stream import Stream
from probes import __main__ as rank

_PR_SET_PDEATHSIG = 1
_DRIVERS = ("/dev/nvidia", "/dev/dxg")
_PAGE = os.sysconf("SC_PAGESIZE")
_PRESENT = 63  # a bit in entries of /proc/self/pagemap (the kernel's admin-guide/mm/pagemap)


def main() -> None:
    """Import, report it, and fork a rank at each request, until the study is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    study = Stream(socket.socket(fileno=os.dup(0)))
    with rank.uncollected():
        import_libraries(*sys.argv[1:])
    gc.collect()
    gc.freeze()  # a collection would write to pages that ranks share
    with suppress(EOFError, ConnectionError):
        pages = list(file_pages())
        study.send(encode(Forkable(why_not())))
        while True:
            request = decode(study.receive(MAX_MESSAGE_BYTES))
            assert isinstance(request, Fork)
            but = why_not()
            study.send(encode(Forkable(but) if but else Forked(fork(request, study, pages))))


def import_libraries(engine: str, model: str) -> None:
    """Import the libraries of ranks of `engine` and that family. A rank reports missing ones."""
    with suppress(Exception), _nvml_closed():
        from probes import models, worker
        from probes.engines import load

        assert worker
        load(engine)
        models.family(model).import_library()


@contextmanager
def _nvml_closed() -> Iterator[None]:
    """Keep NVML closed. DeepSpeed opens it on import, and torch if a library asks for GPUs. NVML
    of 2025's drivers leaves a thread behind after closing. Ranks open it themselves."""
    import torch

    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a rank has an environment of its own
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    opens, counts = pynvml.nvmlInit, torch.cuda._device_count_nvml
    pynvml.nvmlInit = lambda: None
    torch.cuda._device_count_nvml = lambda: len(visible)
    try:
        yield
    finally:
        pynvml.nvmlInit, torch.cuda._device_count_nvml = opens, counts


def why_not() -> str:
    """Why a fork of this process would differ from a new process; empty if it would not."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"imports started {threads - 1} threads"
    opened = [name for name in _open_files() if name.startswith(_DRIVERS)]
    return f"what was imported opened {opened[0]}" if opened else ""


def _open_files() -> Iterator[str]:
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself is closed now
            yield str(opened.readlink())


def fork(request: Fork, study: Stream, pages: Sequence[int]) -> int:
    """The process id of a new rank, which is a child of the study. The process between this one
    and the rank ends at once, which hands the rank over."""
    study_pid, (heard, told) = os.getppid(), os.pipe()
    between = os.fork()
    if between == 0:
        try:
            between = os.getpid()
            if os.fork() == 0:
                os.setsid()  # before the study knows of the rank: it signals the session
                os.write(told, str(os.getpid()).encode())
                for inherited in (heard, told, study.fileno()):
                    os.close(inherited)
                while os.getppid() == between:
                    time.sleep(0.0005)
                if os.getppid() == study_pid:  # the study has adopted this process
                    become(request, pages)
        except BaseException:  # noqa: BLE001 - nothing may return to the server's loop
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(told)
    pid = int(os.read(heard, 32))
    os.close(heard)
    os.waitpid(between, 0)
    return pid


def become(request: Fork, pages: Sequence[int]) -> NoReturn:
    """Become the rank of `request`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, opened in enumerate((nothing, log, log)):
        os.dup2(opened, number)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None
    for page in pages:
        ctypes.string_at(page, 1)
    rank.run(request.dial)


def file_pages() -> Iterator[int]:
    """Addresses of this process's pages of files. The kernel maps them into a child only at its
    first touch. In a process that imports its libraries itself, they count towards the peak."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, permissions, _, _, _, *path = line.split(maxsplit=5)
            if not path or not path[0].startswith("/") or permissions[0] != "r":
                continue
            first, end = (int(address, 16) // _PAGE for address in span.split("-"))
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (end - first)), dtype=np.uint64)
            for place in np.flatnonzero(entries >> np.uint64(_PRESENT)):
                yield (first + int(place)) * _PAGE


if __name__ == "__main__":
    main()
