"""One emulation: emulated cards for this process and its children."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autotune.device.cards import Card, parse_gpus
from autotune.device.emulated.build import cuda_torch, libraries, preloads
from autotune.device.emulated.layout import MOST_PROCESSES, MOST_UNITS, SharedState, UnitRow
from autotune.device.emulated.overheads import (
    context_bytes,
    limits,
    nccl_bytes,
    reserved_bytes,
)
from autotune.device.emulated.rates import SHARED, rates
from autotune.errors import UsageError, refused
from autotune.wire.emulated import VARIABLE

_MIG_SLICES = 7
_MOST_BYTES = 1 << 46
"""Half of the address space of a process on x86-64."""
FLAG = "--device emulated"
NOT_SUPPORTED = 3
"""NVML's answer if a device does not support a function."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    version: str = "580.65.06"
    cuda: str = ""
    """The newest CUDA that it runs, e.g. "12.8"; by default torch's."""
    before_r510: bool = False
    """Whether NVML lacks the functions that came with R510."""


class Emulation:
    """Emulated cards until `close`.

    If entered as a context before torch is imported, this process has them, too. Else only
    processes with `environment` have them. `units` may be changed at any time.
    """

    def __init__(self, spec: str, driver: Driver | None = None, mig: int = 0) -> None:
        """Cards as in "8xH100", "4x24GiB" or "1xH100+2xT4", each in `mig` instances if not 0. With
        two machines, "2x8xH100", only the time of collectives differs. Raises UsageError: an
        unknown card, no compiler, no room for files, or a torch without CUDA."""
        driver = driver or Driver()
        nodes, each = _machines(spec)
        named = [parse_gpus(part, FLAG) for part in each.split("+")]
        if any(len(gpus.counts) > 1 for gpus in named):
            raise UsageError(f"{FLAG} {spec}: one number of GPUs, e.g. 8xH100")
        cards = nodes * [card for gpus in named for card in [gpus.card] * gpus.counts[0]]
        if sum(card.memory_bytes for card in cards) > _MOST_BYTES:
            raise UsageError(f"{FLAG} {spec}: more memory than a process can address")
        if mig > _MIG_SLICES:
            raise UsageError(f"mig={mig}: at most {_MIG_SLICES} instances of a card")
        if len(cards) * max(1, mig) > MOST_UNITS:
            raise UsageError(f"{FLAG} {spec}: at most {MOST_UNITS} devices")
        torch = cuda_torch()
        folder = libraries(torch)
        self._stand_ins = preloads(folder, before_r510=driver.before_r510)
        self.state = SharedState()
        major, minor = (driver.cuda or torch.cuda).split(".")[:2]
        self.state.cuda = int(major) * 1000 + int(minor) * 10
        self.state.driver = driver.version.encode()
        self.state.machine = len(cards) // nodes * max(1, mig)
        for gpu, card in enumerate(cards):
            for instance in range(max(1, mig)):
                self._add(card, gpu, instance, mig, ranks=len(cards))
        with refused(f"{FLAG} {spec}: no file in TMPDIR"):
            path = self._share()
        preloaded = [*map(str, self._stand_ins), *filter(None, [os.environ.get("LD_PRELOAD")])]
        real = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        self.environment = real | {
            VARIABLE: str(path),
            "LD_PRELOAD": ":".join(preloaded),
            "TRITON_LIBCUDA_PATH": str(folder),
            # cuDNN is not emulated: torch uses its own kernels of attention. The first name is for
            # torch 2.9 and 2.10.
            "TORCH_CUDNN_SDPA_PREFERRED": "0",
            "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
        }

    def _share(self) -> Path:
        """Move `state` to a file for all processes; returns its path."""
        self._home = Path(tempfile.mkdtemp(prefix="emulated-gpus-"))
        path = self._home / "state"
        try:
            path.write_bytes(bytes(self.state))
            with path.open("r+b") as file:
                self.state = SharedState.from_buffer(mmap.mmap(file.fileno(), 0))
        except BaseException:
            self.close()
            raise
        return path

    def close(self) -> None:
        """Remove the cards. Processes that use them keep their mapping."""
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        self._before = dict(os.environ)
        with ExitStack() as undo:
            undo.push(self)
            if "torch" in sys.modules:
                raise UsageError("emulated GPUs: torch is imported already; emulate before that")
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            os.environ.update(self.environment)
            for library in self._stand_ins:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._before)
        self.close()

    @property
    def units(self) -> list[UnitRow]:
        """The devices, in NVML's order."""
        return list(self.state.unit[: self.state.units])

    def held_bytes(self, unit: int = 0) -> int:
        """Memory of processes on a device. Dead ones count until the next question to it."""
        return sum(each.used[unit] for each in self.state.process if each.pid)

    def know(self, context: Mapping[str, int]) -> None:
        """Set the bytes of a process's context, by the name of the card."""
        for unit in self.units:
            unit.context = context.get(unit.name.decode(), unit.context)

    def hold(self, pid: int, used_bytes: int, unit: int = 0, busy: int = 0) -> None:
        """Have a live process hold memory, and use the device for `busy` percent of the time."""
        rows = list(self.state.process)
        row = next((each for each in rows if each.pid == pid), None)
        row = row or next(each for each in rows[MOST_PROCESSES // 2 :] if not each.pid)
        row.used[unit] = used_bytes
        row.busy = busy
        row.pid = pid

    def _add(self, card: Card, gpu: int, instance: int, mig: int, ranks: int) -> None:
        unit: UnitRow = self.state.unit[self.state.units]
        share = max(1, mig)
        kind = "MIG" if mig else "GPU"
        unit.name = (card.nvml_name or f"emulated {card.name}").encode()
        unit.uuid = f"{kind}-{gpu:08x}-0000-0000-0000-{instance:012x}".encode()
        unit.total = card.memory_bytes // share
        unit.reserved = reserved_bytes(card) // share
        unit.context = context_bytes(card)
        unit.nccl = nccl_bytes(card, ranks)
        unit.gpu, unit.mig = gpu, int(mig > 0)
        unit.major, unit.minor = card.capability
        unit.sms = card.sms // share
        each = limits(card)
        unit.shared_per_block, unit.shared_per_sm = each.shared_per_block, each.shared_per_sm
        unit.threads_per_sm = each.threads
        for name, rate in rates(card).items():
            setattr(unit, name, rate / share if name in SHARED else rate)
        if card.unified:
            unit.unified = 1
            unit.memory = unit.memory_v2 = NOT_SUPPORTED
        self.state.units += 1


def nodes_of(spec: str) -> int:
    """Machines in "2x8xH100"; 1 in "8xH100"."""
    return _machines(spec)[0]


def _machines(spec: str) -> tuple[int, str]:
    """Their number, and the cards of each."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX*×]\s*(\d+\s*[xX*×].+)", spec)
    if match is None:
        return 1, spec
    if int(match[1]) < 1:
        raise UsageError(f"{FLAG} {spec}: at least one machine, e.g. 2x8xH100")
    return int(match[1]), match[2]


emulate = Emulation
