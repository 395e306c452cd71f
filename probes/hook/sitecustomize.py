"""Reports on a user's training script from inside its processes.

A study puts this folder first on PYTHONPATH, and Python imports `sitecustomize` at its start. It
only uses the standard library: the script's interpreter may have no package of ours. Before torch
is imported it only waits for that. `_autotune_ranks` beside it looks at ranks.

An optimizer step is the first step of any of torch's optimizers after a backward pass. ZeRO steps
several of them, and so do scripts with two. The hook only reports numbers; the study decides when
it has seen enough, and ends the process.

Contracts:

- It costs microseconds a step, waits for no device, and patches no module's forward. An error in
  it leaves the script unwatched, not broken. `_autotune_phases` beside it restarts torch's peaks
  only at begin and end of an evaluation or a save.
- It asks CUDA only in the script's own threads, and never while a graph is captured. A query of an
  event from another thread breaks the capture.
- It dials before torch is imported, which may take a minute. It stays on `sys.meta_path` until
  torch is imported: libraries ask for torch's spec long before.
- It looks at a whole step or not at all. A look marks the batch in autograd's graph
  (`node.metadata`). A second loss of one forward pass is then no second micro-step, nor is a pass
  through the head alone. It unpacks nothing that a checkpoint would recompute.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

VERSION = 1  # of autotune.wire.messages
EVERY_S = 0.4
LOOK_SHARE = 0.0005
"""Share of the time for walks through autograd's graph for the batch's shape."""
VARIED = 6
"""So much more of it once two batches had unlike shapes."""
FIRST_LOOKS = 4
RELOOKS = 8
"""So often, a step with a new number of backward passes has the next step looked at."""
STEP_LOOKS = 256
"""The most looks in one step: an endless one is not looked at for ever."""
HOPS, UNKNOWN = 8, -1
"""The most edges of autograd's graph from a loss to values of the batch; those not known."""
EVEN, EACH = 32, 8
"""After so many losses of one size only each eighth is looked at."""
SIZED_S = 0.1
"""While steps are alike, the time from one look at a loss's size to the next."""
CUDA_GUARD = 0.97
ORDINARY = 100
"""A token of every vocabulary that ends no completion: one of its single characters."""
SENT_BYTES = 4096
"""Larger objects go by the store on emulated devices, where several may be one copy."""
_MET = "autotune"
_RESETS = ("_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats",
           "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats")  # fmt: skip
"""Functions of torch._C that reset the allocator's counts of a device."""
_PRODUCTS = {"AddmmBackward0", "MmBackward0", "BmmBackward0", "LinearBackward0"}
_LOSSES = "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "KlDiv"
"""Losses whose targets may be of any kind."""
_INPUT = {"EmbeddingBackward0": "_saved_indices", "ConvolutionBackward0": "_saved_input",
          "AddmmBackward0": "_saved_mat1"}  # fmt: skip
"""Where nodes keep what they got, which may be the batch."""
ERROR_CHARACTERS, TRACEBACK_CHARACTERS = 2000, 20_000


class _Link:
    """The connection to the study. Its end ends this process."""

    def __init__(self, address: str) -> None:
        import socket

        host, port, key = address.rsplit(":", 2)
        self._socket = socket.create_connection((host, int(port)))
        self._lock = threading.Lock()
        self._prove(bytes.fromhex(key))
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: str, body: dict[str, Any]) -> None:
        data = json.dumps({"v": VERSION, "type": kind, "body": body}).encode()
        with self._lock:
            self._send_frame(data)

    def _prove(self, key: bytes) -> None:
        """Both sides prove that they know the key, as in autotune/wire/stream.py."""
        import hmac

        theirs, mine = self._frame(), os.urandom(32)
        self._send_frame(mine + hmac.digest(key, b"dials" + theirs + mine, "sha256"))
        proof = hmac.digest(key, b"answers" + theirs + mine, "sha256")
        if not hmac.compare_digest(self._frame(), proof):
            raise ConnectionError("the answering peer does not know the key")

    def _send_frame(self, data: bytes) -> None:
        self._socket.sendall(len(data).to_bytes(4, "big") + data)

    def _frame(self) -> bytes:
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the study is gone")
            data += part
        return data

    def _listen(self) -> None:
        try:
            while True:
                self._frame()
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


class _Watch:
    """The events of this process so far."""

    def __init__(self, torch: Any, address: str) -> None:
        self._torch = torch
        self._address = address
        capacities = os.environ.get("AUTOTUNE_CAPACITY_BYTES", "0").split(",")
        self._capacities = list(map(int, capacities))
        self._is_of_cuda = os.environ.get("AUTOTUNE_DEVICE_KIND") == "cuda"
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self.reset: Callable[[int], None] | None = None
        """torch's own function that resets the peaks of a device's memory."""
        self.phases = _phases().Phases(
            torch, self._lock, read=self._read, restart=self._restart,
            least_values=lambda: self._trainable // (2 * self._world_size()),
        )  # fmt: skip
        self._begin()

    def _begin(self) -> None:
        self._link: _Link | None = None
        self._telling = False
        self._left = False
        self._limited = not self._capacities[0]
        self._inside = 0
        self._since = 0  # backward passes since the last step
        self._size = 0  # of the inputs of losses since the last step
        self._hops: int | None = None  # edges from a loss to its input
        self._one_size = self._even = 0  # of the last loss; so many in a row had it
        self._grads = 0  # calls of torch.autograd.grad, which a loop may use instead
        self._backwards = 0
        self._ended = 0
        self._trainable = 0
        self._frozen = 0
        self._explicit = False
        self._last: Any = None  # when the last step ended: seconds, or an event of CUDA
        self._pending: list[
            tuple[Any, Any, dict[str, Any]]
        ] = []  # events of steps that the device has not reached yet
        self._waited_s = 0.0
        self._waiting = 0
        self._began_s = time.perf_counter()
        self._look_s = 0.0
        self._looks = 0
        self._shapes: list[list[int]] = []
        self._weight = 1.0  # of looks' share
        self._looking = False
        self._found: list[_Found] = []  # by the looks of this step
        self._met: list[Any] = []  # weak references to memory of this step's batches
        self._first: Callable[[], Any] = lambda: None
        """The first parameter of the optimizer that ended the last step, by a weak reference."""
        self._steppers: set[int] = set()  # first parameters of those that stepped since then
        self._stepper, self._several = 0, False  # the only optimizer, and whether there are more
        self._version, self._moved = 0, False  # of its values at this step's first pass; and since
        self._captured: list[_Found | None] = []  # in a CUDA graph: None is a step
        self._whole_share = 1.0  # share of a step's backward passes with a batch of their own
        self._whole_shares: dict[int, float] = {}  # the same, by the number of passes
        self._relooks = RELOOKS
        self._quiet = False  # if the next step has as many passes, it is only counted
        self._counted: list[float] = []  # of such steps: begin, end, `_waited_s` and `_size`
        self._size_due = 0.0  # while steps are counted, the time of the next look at a loss
        self._passes = self._micro_steps = 0  # backward passes and micro-steps of the last one
        self._dtype = ""
        self._optimizers: set[type] = set()
        self._steps: list[dict[str, Any]] = []  # not told yet
        self._ranks: Any = None  # the look at this rank
        self._cuda = False
        self._device: Any = None
        self._used = 0  # used bytes of the device outside our allocator
        self._used_at = 0.0
        self.phases.begin(self._lock)

    def forked(self) -> None:
        """Forget the parent's events in this child process."""
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._begin()

    def greet(self) -> None:
        """Dial the study."""
        if self._link is not None:
            return
        try:
            self._link = _Link(self._address)
            self._send("Hello", self._hello())
        except OSError:  # the study ended already
            os.kill(os.getpid(), signal.SIGKILL)

    def dial(self) -> None:
        """Dial the study, and report to it from now on."""
        self.greet()
        if not self._telling:
            self._telling = True
            threading.Thread(target=self._tell_now_and_then, daemon=True).start()

    def _hello(self) -> dict[str, Any]:
        import socket

        rank = os.environ.get("RANK", "0")
        number = int(rank) if rank.isdigit() else 0
        host = socket.gethostname()
        return {"rank": number, "pid": os.getpid(), "host": host, "token": ""}

    def _send(self, kind: str, body: dict[str, Any]) -> None:
        assert self._link is not None
        with self._sending:
            if self._left:  # the last message; our thread runs as long as the process
                return
            self._left = kind == "Left"
            try:
                self._link.send(kind, body)
            except (OSError, ValueError):
                os.kill(os.getpid(), signal.SIGKILL)

    # Called from the script's threads.

    def uses(self, tensors: list[Any]) -> None:
        """Note the device of these tensors: our own thread would ask for another device."""
        on_cuda = [each.device for each in tensors if each.is_cuda]
        self._cuda = bool(on_cuda)
        self._device = on_cuda[0] if on_cuda else None

    def limit(self) -> None:
        """Let allocations beyond the capacity fail, as on such a device."""
        if self._limited or self._cuda != self._is_of_cuda:
            return
        self._limited = True
        # Ranks that one process forked may have no RANK, or that of their parent.
        joined = self._world_size() > 1
        rank = self._torch.distributed.get_rank() if joined else int(os.environ.get("RANK", "0"))
        capacity = self._capacities[rank % len(self._capacities)]
        if self._cuda:
            total = self._torch.cuda.mem_get_info(self._device)[1]
            share = min(1.0, CUDA_GUARD * capacity / total)
            self._torch.cuda.set_per_process_memory_fraction(share, self._device)
            return
        import resource

        self._torch.ones(2**20).add_(1)  # OpenMP cannot start its threads under a tight limit
        room = capacity - _status_bytes("VmRSS")[0]
        if room < 0:
            raise MemoryError(f"the process holds {-room} bytes more than the capacity")
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_status_bytes("VmData")[0] + room, hard))

    def backward(self, tensors: Any) -> None:
        """A backward pass of these tensors begins. Most passes only count."""
        self.phases.backward()
        if not self._since:  # a whole step or nothing: a batch may have several losses
            if self._quiet:
                seconds = self._last - self._began_s
                self._quiet = self._look_s >= LOOK_SHARE * self._weight * seconds
            self._looking = not self._quiet and self._has_time()
        if self._quiet:
            if self._last < self._size_due:
                self._since += 1
                self._backwards += 1
                self._size += self._one_size
                return
            self._size_due = self._last + SIZED_S
        if not self._ended:
            self.dial()
            self.uses(self._roots(tensors))
        if self._cuda:
            if self._is_capturing():
                self._captured.append(
                    _look([each.grad_fn for each in self._roots(tensors)], self._torch)
                )
                return
            self._look_at_device()
        if not self._limited:
            self.limit()
        self._since += 1
        self._backwards += 1
        if self._looking and self._since <= STEP_LOOKS:
            began = time.perf_counter()
            roots = self._roots(tensors)
            self.uses(roots)
            found = _look([each.grad_fn for each in roots], self._torch)
            self._note(found._replace(fresh=found.fresh and not self._is_again(found)))
            hops = _hops(roots)
            self._hops = hops if self._hops in (None, hops) else UNKNOWN
            self._looks += 1
            self._look_s += time.perf_counter() - began
        if self._hops is not None and self._hops != UNKNOWN:
            if self._quiet or self._even < EVEN or self._backwards % EACH == 0:
                try:
                    size = _size(tensors[0].grad_fn, self._hops)
                except (AttributeError, IndexError):
                    size = self._hops = UNKNOWN
                self._even = self._even + 1 if size == self._one_size else 0
                self._one_size = size
            self._size += self._one_size
            self._quiet = self._quiet and self._even >= EVEN

    def _has_time(self) -> bool:
        """Whether looks have not had their share of it."""
        seconds = time.perf_counter() - self._began_s
        return self._look_s < LOOK_SHARE * self._weight * seconds or self._looks < FIRST_LOOKS

    def _is_again(self, found: _Found) -> bool:
        """Whether this batch had a pass before in this step. Its gradients only moved the
        parameters, and were dropped: as in closures of LBFGS, and in SAM."""
        met = {id(each) for ref in self._met if (each := ref()) is not None}
        self._met += found.storages
        if (first := self._first()) is None or self._since == 1:
            self._version, self._moved = getattr(first, "_version", 0), False
            return False
        self._moved |= first.grad is None and first._version != self._version
        known = [id(ref()) in met for ref in found.storages]
        return self._moved and bool(known) and all(known)

    def _roots(self, tensors: Any) -> list[Any]:
        """Those of the tensors that a graph made."""
        each_of = [tensors] if isinstance(tensors, self._torch.Tensor) else tensors
        return [each for each in each_of if getattr(each, "grad_fn", None) is not None]

    def _note(self, found: _Found) -> None:
        self._found.append(found)
        if self._shapes and found.shapes != self._shapes:
            self._weight = VARIED
        self._shapes = found.shapes
        self._trainable = max(self._trainable, found.parameters)
        self._dtype = found.dtype or self._dtype

    def captured(self, graph: Any) -> None:
        """This CUDA graph has all captured events."""
        graph.autotune_captured, self._captured = self._captured, []

    def replayed(self, graph: Any) -> None:
        """The events of this CUDA graph happen again."""
        for found in getattr(graph, "autotune_captured", ()):
            if found is not None:
                self.phases.backward()
                self._since += 1
                self._backwards += 1
                self._note(found)
            elif self._since and not self._explicit:
                self._step(None)

    def _is_capturing(self) -> bool:
        return self._cuda and bool(self._torch.cuda.is_current_stream_capturing())

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """This optimizer has stepped."""
        try:
            if self._quiet and self._since == self._passes and id(optimizer) == self._stepper:
                now = time.perf_counter()
                self.phases.stepped()
                self._counted.extend((self._last, now, self._waited_s, self._size))
                self._last, self._since, self._waited_s, self._size = now, 0, 0.0, 0
                self._grads = 0
                self._ended += 1
            else:
                self._stepped(optimizer)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as for `_harmless`
            traceback.print_exc()

    def _stepped(self, optimizer: Any) -> None:
        self._optimizers.add(type(optimizer))
        if self._cuda and self._is_capturing():
            self._captured.append(None)
            return
        only_grads = 0 if self._since else self._grads
        self._since = self._since or only_grads
        if self._since and not self._ended:  # the first step is not told, so there is time for it
            self.dial()
            self._frozen, cut = _frozen(self._torch, *_modules(self._torch))
            self._trainable = max(self._trainable, cut)
        ends = self._since and not self._explicit
        if ends:
            self._step(None)
        if id(optimizer) != self._stepper:
            self._remember(optimizer, bool(ends))
        self._backwards += only_grads  # now that the step counts

    def _remember(self, optimizer: Any, ends: bool) -> None:
        """Note this optimizer; a step `ends` with it, or not. One that is alone is met once."""
        self._several |= self._stepper not in (0, id(optimizer))
        groups = optimizer.param_groups[:1]
        first = next((each for group in groups for each in group["params"]), None)
        if ends or not self._several:
            self._first = weakref.ref(first) if first is not None else lambda: None
        self._stepper = 0 if self._several else id(optimizer)
        self._steppers.add(id(first))

    def step(self, tokens: int | None, samples: int | None) -> None:
        """The script itself reports a step."""
        self.dial()
        was, self._explicit = self._explicit, True
        self._quiet = False
        if self._is_capturing():
            return  # capturing a graph runs nothing
        if was or self._since or not self._ended:  # else the first one was seen already
            self._step(tokens, samples)

    def _look_at_ranks(self) -> None:
        """Look at this rank in the steps after the first, if it is one of several."""
        if self._ranks is not None:
            self._ranks.stepped()
        elif self._world_size() > 1:
            self._ranks = importlib.import_module("_autotune_ranks").Look(
                self._torch, *_modules(self._torch), lambda: self._backwards
            )

    def _world_size(self) -> int:
        dist = self._torch.distributed
        joined = dist.is_available() and dist.is_initialized()
        return int(dist.get_world_size()) if joined else 1

    def _of_step(self) -> tuple[list[list[list[int]]], int, bool]:
        """The batches' shapes, calls and whether they are sure, by the looks of this step. Decides
        whether the next step may be quiet."""
        if not self._ended or (self._ranks is not None and self._ranks.place is None):
            _harmless(self._look_at_ranks)()
        shapes: list[list[list[int]]] = []
        calls, sure = 1, True
        if self._found:
            self._met.clear()
            all_fed = all(each.fed for each in self._found)  # a later stage, or with LoRA
            whole = [each for each in self._found if each.fresh and each.fed == all_fed]
            if whole:
                self._whole_share = len(whole) / len(self._found)
                self._whole_shares[self._since] = self._whole_share
            shown = [each for each in whole if each.shapes]
            shapes, self._found = [each.shapes for each in shown], []
            calls = max((each.calls for each in shown), default=1)
            sure = all(each.sure for each in shown)
        elif self._since not in self._whole_shares and self._relooks:
            self._relooks, self._looks = self._relooks - 1, 0
        if (share := self._whole_shares.get(self._since)) is None:
            counts = {round(share * passes) for passes, share in self._whole_shares.items()}
            one = len(counts) == 1 < len(self._whole_shares)  # whatever the number of passes
            share = counts.pop() / max(1, self._since) if one else self._whole_share
        self._passes = self._since
        self._micro_steps = round(share * self._since) or self._since or 1
        known = self._since in self._whole_shares and self._last is not None and self._limited
        placed = self._ranks is None or self._ranks.place is not None
        even = self._even >= EVEN or self._hops in (None, UNKNOWN)
        seen = known and placed and even and self._looks >= FIRST_LOOKS
        self._quiet = seen and not (self._cuda or self._explicit)
        return shapes, calls, sure

    def _step(self, tokens: int | None, samples: int | None = None) -> None:
        now: Any
        if self._cuda:
            now = self._torch.cuda.Event(enable_timing=True)
            # Events are compared on the device of the first one, not on the current device.
            device = getattr(self._last, "device", self._device)
            now.record(self._torch.cuda.current_stream(device))
        else:
            now = time.perf_counter()
        if self._counted:
            with self._lock:
                self._spell_out()
        shapes, calls, sure = self._of_step()
        self.phases.stepped()
        if self._last is None:
            self._looks = 0  # the first step is not told, so its looks are lost
        else:
            told = self._told(self._waited_s, self._size)
            told |= {"tokens": tokens, "samples": samples, "shapes": shapes, "calls": calls,
                     "sure": sure}  # fmt: skip
            self._pending.append((self._last, now, told))
        self._last, self._since, self._waited_s, self._grads = now, 0, 0.0, 0
        self._size = 0
        if self._several:
            self._steppers.clear()
        self._ended += 1
        if self._cuda:
            self._look_at_device()

    def _told(self, waited_s: float, size: float) -> dict[str, Any]:
        """The message on a step without a look."""
        return {
            "micro_steps": self._micro_steps,
            "waited_s": waited_s,
            "tokens": None,
            "samples": None,
            "shapes": [],
            "size": size * (self._hops != UNKNOWN),
            "calls": 1,
            "sure": True,
            "steppers": [*self._steppers] if self._several else [],
        }

    def _spell_out(self) -> None:
        """Have those steps told, too, that were only counted."""
        counted = self._counted[:]
        del self._counted[: len(counted)]
        for before, after, waited_s, size in zip(*[iter(counted)] * 4, strict=True):
            self._pending.append((before, after, self._told(waited_s, size)))

    def _look_at_device(self) -> None:
        """Ask CUDA in the script's own thread: else it would break the capture of a graph."""
        if self._on_cuda() and not self._is_capturing():
            self._settle()
            now = time.perf_counter()
            if now - self._used_at > EVERY_S:
                free, total = self._torch.cuda.mem_get_info(self._device)
                reserved = self._torch.cuda.memory_reserved(self._device)
                self._used, self._used_at = max(0, int(total - free - reserved)), now

    def _settle(self) -> None:
        """Set the seconds of steps that the device has finished. Our own thread asks no event."""
        with self._lock:
            self._spell_out()
            while self._pending:
                before, after, told = self._pending[0]
                if isinstance(after, float):
                    told["step_s"] = after - before
                elif self._cuda and after.query():
                    told["step_s"] = before.elapsed_time(after) / 1e3
                else:
                    break
                self._steps.append(told)
                del self._pending[0]

    def waiting(self, inner: Any, loader: Any) -> Any:
        """The next batch of a DataLoader; counts the time for it."""
        if self._waiting or threading.current_thread() is not threading.main_thread():
            return inner(loader)
        self._waiting, began = 1, time.perf_counter()
        try:
            return inner(loader)
        finally:
            self._waiting = 0
            self._waited_s += time.perf_counter() - began

    # Called from our own thread.

    def _tell_now_and_then(self) -> None:
        link, told = self._link, _harmless(self.tell)
        while self._link is link:
            told()
            time.sleep(EVERY_S)

    def tell(self) -> None:
        if self._link is None:
            return
        if not self._cuda:
            self._settle()
        with self._lock:
            steps, self._steps = self._steps, []
        world_size, phase = self._world_size(), self.phases.uncounted
        peaks, phases = self._peaks() if self._backwards else None, {}
        if peaks is not None:
            with self._lock:
                found = self.phases.found()
            phases = {
                name: {
                    "count": count,
                    "seconds": seconds,
                    "peaks": self._peaks_in(most),
                    "written_bytes": 0,
                }
                for name, (count, seconds, most) in found.items()
            }
        self._send(
            "Seen",
            {
                "backwards": self._backwards,
                "ended": self._ended,
                "world_size": world_size,
                "rank": self._torch.distributed.get_rank() if world_size > 1 else 0,
                "trainable": self._trainable,
                "frozen": self._frozen,
                "dtype": self._dtype,
                "optimizer": "+".join(
                    sorted({each.__name__.lower() for each in self._optimizers})
                ),
                "steps": steps,
                "place": self._ranks and self._ranks.place,
                "cpu_s": time.process_time(),
                "peaks": peaks,
                "phases": phases,
                "phase": phase,
                "cycle": self.phases.cycle,
                "used_bytes": self._used,
                "ooms": self.phases.most.get("num_ooms", 0),
                "oom_in": self.phases.oom_in,
            },
        )

    def keep(self, _: Any = None) -> None:
        """Keep the allocator's largest counts, which the script may reset."""
        with self._lock:
            self.phases.fold()

    def _read(self) -> dict[str, int]:
        """Memory of this process, and its peaks since `_restart`."""
        found = dict(zip(("host", "resident"), _status_bytes("VmHWM", "VmRSS"), strict=True))
        return found | (self._torch.cuda.memory_stats(self._device) if self._on_cuda() else {})

    def _restart(self) -> None:
        """Count peaks from here on."""
        with suppress(OSError):  # the kernel may not allow it
            Path("/proc/self/clear_refs").write_text("5")
        if self._on_cuda() and self.reset is not None:
            self.reset(self._torch.cuda._utils._get_device_index(self._device))

    def _on_cuda(self) -> bool:
        return self._cuda and bool(self._torch.cuda.is_initialized())

    def _peaks(self) -> dict[str, int]:
        self.keep()
        return self._peaks_in(self.phases.most)

    def _peaks_in(self, counts: dict[str, int]) -> dict[str, int]:
        host = counts["host"]
        names = ("device_bytes", "reserved_bytes", "allocated_bytes", "active_bytes")
        if not self._on_cuda():
            return dict.fromkeys(names, host) | {"host_bytes": host, "alloc_retries": 0}
        values = ("reserved_bytes", "reserved_bytes", "allocated_bytes", "active_bytes")
        found = {
            name: counts.get(f"{value}.all.peak", 0)
            for name, value in zip(names, values, strict=True)
        }
        retries = counts.get("num_alloc_retries", 0)
        return found | {"host_bytes": host, "alloc_retries": retries}

    def ended(self) -> None:
        """The interpreter ends, maybe after an uncaught error."""
        if self._link is None:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        _lift()
        with suppress(Exception):  # the device may have failed; the error itself is told anyway
            if not isinstance(error, BaseException):
                self.phases.end()
            self._look_at_device()
            self.tell()
        body: dict[str, Any] = {"error": "", "kinds": [], "traceback": "", "phase": ""}
        if isinstance(error, BaseException):
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            body = {
                "error": text[:ERROR_CHARACTERS],
                "kinds": _kinds(error),
                "traceback": lines[-TRACEBACK_CHARACTERS:],
                "phase": self.phases.failing,
            }
        self._send("Left", body)


def _kinds(error: BaseException | None) -> list[str]:
    """Class names of `error` and its causes."""
    names: list[str] = []
    while error is not None and len(names) < 64:
        names += [f"{cls.__module__}.{cls.__name__}" for cls in type(error).__mro__]
        error = error.__cause__
    return names


def _lift() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _status_bytes(*names: str) -> list[int]:
    text = Path("/proc/self/status").read_text()
    found = [text.partition(f"\n{name}:")[2].split(maxsplit=1) for name in names]
    return [int(each[0]) * 1024 if each else 0 for each in found]


def _numel(parameter: Any) -> int:
    """Number of values of a whole parameter: ZeRO and FSDP keep a part here, bitsandbytes
    packs."""
    if (flat := getattr(parameter, "_unpadded_unsharded_size", None)) is not None:
        return int(flat.numel())
    if (packed := getattr(parameter, "quant_state", None)) is not None:
        return int(packed.shape.numel())
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _modules(torch: Any) -> tuple[list[Any], list[Any]]:
    """All of torch's modules in this process, and the outermost ones. It touches every object of
    the process. Empty if a model refuses the look."""
    kind = torch.nn.Module
    with suppress(Exception):  # memory may be short, too
        # Not isinstance, and no methods of the object: its own `__class__` may have effects.
        modules = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        inner = {id(child) for module in modules for child in kind.children(module)}
        return modules, [each for each in modules if id(each) not in inner]
    return [], []


def _frozen(torch: Any, modules: list[Any], outermost: list[Any]) -> tuple[int, int]:
    """Untrained parameters of models that also have trained ones, such as LoRA's base, which no
    graph of autograd shows. And trained parameters, of which FSDP's first version only shows
    slices there. 0 if a model refuses the look."""
    kind = torch.nn.Module
    found: dict[int, int] = {}
    cut: dict[int, int] = {}
    trained = 0
    with suppress(Exception):
        for module in modules:
            if (flat := getattr(vars(module).get("_handle"), "flat_param", None)) is not None:
                whole = list(zip(flat._params or (), flat._numels, strict=False))
                cut |= {id(each): size for each, size in whole}
                trained += sum(size for each, size in whole if each.requires_grad)
        for module in outermost:
            held = list(kind.parameters(module))
            if any(each.requires_grad for each in held):
                found |= {
                    id(each): cut.get(id(each)) or _numel(each)
                    for each in held
                    if not each.requires_grad
                }
    return sum(found.values()), trained


class _Found(NamedTuple):
    """The result of one look at autograd's graph."""

    shapes: list[list[int]]
    """Shapes of the batch; the largest table's come first."""
    parameters: int
    """Number of parameters in the graph."""
    fresh: bool
    """Whether no earlier look met this batch."""
    fed: bool
    """Whether it ends at a part of the model whose own pass comes later, as for a chunked loss."""
    dtype: str
    """The dtype of most matrix products; empty if unknown."""
    calls: int
    """Calls of the model in this pass, each with one of the shapes."""
    sure: bool
    """Whether the shapes are surely the batch's."""
    storages: list[Any]
    """Weak references to the memory of the batch."""


def _look(roots: list[Any], torch: Any) -> _Found:
    """The batch, as far as autograd's graph under `roots` keeps it.

    Token ids are the input of the embedding with the most rows. Positions, which all samples
    share, do not count. Compiled graphs keep them as integers. Without either, a batch shows as
    the images of a convolution, or as labels. A frozen embedding, as in LoRA's base, is in no
    graph. Then tensors between layers tell the number of samples. Last come targets of other
    losses, and the rows that go into the first products.
    """
    graph = _Graph(torch)
    seen: set[Any] = set()
    left = list(roots)
    while left:
        node = left.pop()
        if node in graph.used:
            graph.used[node] += 1
        if node is None or node in seen:
            continue
        seen.add(node)
        graph.meet(node)
        left += [after for after, _ in node.next_functions]
    return graph.found()


class _Graph:
    """What autograd's graph has of a batch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.used: Counter[Any] = Counter()
        """Edges to each parameter."""
        self._tables: list[tuple[tuple[bool, bool, int], list[int], Any]] = []
        self._compiled: list[tuple[list[int], Any]] = []
        self._images: list[tuple[list[int], Any]] = []
        self._labels: list[Any] = []
        self._targets: list[Any] = []
        self._rows: list[tuple[int, Any]] = []
        self._between: dict[tuple[int, int], Any] = {}  # in their order
        self._parameters, self._fed = 0, False
        self._dtypes: list[Any] = []

    def meet(self, node: Any) -> None:
        torch, name = self._torch, node.name()
        gave: Any = getattr(node, "_input_metadata", ())[:1]
        if name in _PRODUCTS:
            self._dtypes += [each.dtype for each in gave]
            if name == "AddmmBackward0" and node.next_functions[1][0] is None:
                self._rows += [(int(each.shape[0]), node) for each in gave]
        elif name == "EmbeddingBackward0":
            rows = int(getattr(node, "_saved_weight_sym_argsize_0", 0))
            shape = [int(size) for size in gave[0].shape[:-1]]
            self._tables.append(((len(shape) > 1, shape[:1] > [1], rows), shape, node))
        elif name.startswith("CompiledFunctionBackward"):
            kept = _kept(node, "saved_tensors")
            self._compiled += [
                (list(each.shape), node)
                for each in kept
                if each.dtype == torch.int64 and each.dim() == 2
            ]
            halves = [each.dtype for each in kept if each.dtype in (torch.bfloat16, torch.half)]
            whole = any(each.is_floating_point() for each in kept)
            self._dtypes += halves or [torch.float] * whole
        elif name.startswith("Convolution"):
            self._images += [([int(size) for size in each.shape[:1]], node) for each in gave]
        elif name.startswith("NllLoss"):
            self._labels += _kept(node, "_saved_target")
        elif name.startswith(_LOSSES):
            self._targets += [each for each in _kept(node, "_saved_target") if each.dim()]
        elif name == "ViewBackward0" and len(size := node._saved_self_sym_sizes) == 3:
            self._between[int(size[0]), int(size[1])] = node
        elif name.endswith("AccumulateGrad"):
            if isinstance(node.variable, torch.nn.Parameter):
                self._parameters += _numel(node.variable)
                self.used[node] = 1
            else:
                self._fed = True

    def found(self) -> _Found:
        torch, between = self._torch, self._between
        most = max((kind for kind, _, _ in self._tables), default=None)
        ids = [(shape, node) for kind, shape, node in self._tables if kind == most]
        found = next((found for found in (ids, self._compiled, self._images) if found), [])
        shapes = [shape for shape, _ in found]
        nodes = list(dict.fromkeys(node for _, node in found))
        calls = self._calls(nodes)
        if calls > 1:
            shapes = sorted(shapes)[:: len(shapes) // calls]
            if ids and len(shapes[0]) == 1 and shapes[0] == shapes[-1]:  # column by column
                shapes, calls = [[*shapes[0], calls]], 1
        shapes = shapes or [_shaped(each.numel(), between) for each in self._labels]
        sure = bool(shapes)
        shapes = shapes or [_targeted(list(each.shape), between) for each in self._targets]
        if not shapes and self._rows:
            shapes = [_shaped(max(rows for rows, _ in self._rows), between)]
        nodes = nodes or list(between.values()) or [node for _, node in self._rows]
        names = {torch.float: "fp32", torch.bfloat16: "bf16", torch.half: "fp16"}
        dtype = names.get(max(self._dtypes, key=self._dtypes.count, default=None), "")
        return _Found(
            shapes, self._parameters, _is_new(nodes), self._fed, dtype, calls, sure,
            _storages(nodes) or _memory_of(self._labels + self._targets),
        )  # fmt: skip

    def _calls(self, nodes: list[Any]) -> int:
        """How often the model was called, if these `nodes` get the batches: as often as most of
        its parameters are used."""
        calls = sorted(self.used.values())[len(self.used) // 2] if nodes and self.used else 1
        return calls if len(nodes) % calls == 0 else 1


def _storages(nodes: list[Any]) -> list[Any]:
    """Weak references to the memory of what `nodes` got, as far as they keep that."""
    kept = [_kept(node, _INPUT[node.name()]) for node in nodes if node.name() in _INPUT]
    return _memory_of([each for found in kept for each in found])


def _memory_of(tensors: list[Any]) -> list[Any]:
    """Weak references to the memory of `tensors`."""
    with suppress(RuntimeError):  # some kinds of tensors have none
        return [weakref.ref(each.untyped_storage()) for each in tensors]
    return []


def _hops(roots: list[Any]) -> int:
    """Edges from the first root to a node with several values, which go with the batch."""
    with suppress(AttributeError, IndexError):
        return next(hops for hops in range(HOPS) if _size(roots[0].grad_fn, hops) > 1)
    return UNKNOWN


def _size(node: Any, hops: int) -> int:
    """Number of values that the node computed that is `hops` first edges away from `node`."""
    for _ in range(hops):
        node = node.next_functions[0][0]
    return math.prod(node._input_metadata[0].shape)


def _kept(node: Any, name: str) -> list[Any]:
    """Tensors that a node keeps under this name; none of a checkpoint. It would have to recompute
    them, and may fail later."""
    raw = getattr(node, f"_raw{name}" if name[0] == "_" else f"_raw_{name}", ())
    for each in raw if isinstance(raw, tuple) else [raw]:
        if "checkpoint" in getattr(getattr(each, "unpack_hook", None), "__module__", ""):
            return []
    found = getattr(node, name, ())
    return list(found) if isinstance(found, tuple) else [found]


def _is_new(nodes: list[Any]) -> bool:
    """Whether no earlier look marked any of these nodes."""
    known = [_MET in node.metadata for node in nodes]
    for node in nodes:
        node.metadata[_MET] = True
    return not any(known)


def _shaped(labels: int, between: Collection[tuple[int, int]]) -> list[int]:
    """The shape of a batch by its number of labels.

    There is a label for each token, if tensors of that shape passed `between` layers; the last one
    of each sample may be missing. Else there is one for each sample.
    """
    for samples, length in between:
        if length > 1 and labels == samples * length:
            whole = length + ((samples, length + 1) in between)  # of the logits the last is cut
            return [samples, whole]
        if length > 1 and labels == samples * (length - 1):
            return [samples, length]
    return [labels]


def _targeted(shape: list[int], between: Collection[tuple[int, int]]) -> list[int]:
    """The shape of a batch by that of a loss's target."""
    return shape[:2] if tuple(shape[:2]) in between else _shaped(shape[0], between)


class _Finder(importlib.abc.MetaPathFinder):
    """Has `around` load a module at its import, not before: many libraries only ask for torch's
    spec."""

    def __init__(self, name: str, around: Callable[[Any, Callable[[Any], None]], None]) -> None:
        self._name, self._around, self._asking = name, around, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                self._around(module, load)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watched(torch: Any, load: Callable[[Any], None]) -> None:
    watch = _Watch(torch, os.environ["AUTOTUNE_DIAL"])
    if not _only_loads():
        watch.greet()  # the import may take long
    load(torch)
    try:
        _attach(torch, watch)
    except Exception:  # noqa: BLE001 - a script runs whether it is watched or not
        traceback.print_exc()


def _saves(library: Any, load: Callable[[Any], None]) -> None:
    """Load a library that saves or loads; it may import torch."""
    load(library)
    for watch in _watches:
        _harmless(_phases().attach_library)(watch.phases, library)


def _phases() -> Any:
    return importlib.import_module("_autotune_phases")


def _unmasked(masking_utils: Any, load: Callable[[Any], None]) -> None:
    """On emulated devices, have transformers assume what real ones show: all tokens count, and a
    row is one sample. Else it would make a mask, since it looks at missing values."""
    load(masking_utils)
    masking_utils.fast_all = lambda tensor: True
    masking_utils.find_packed_sequence_indices = lambda position_ids: None


def _adam_of_torch(builder: Any, load: Callable[[Any], None]) -> None:
    """On emulated devices, have FusedAdam of DeepSpeed call torch's own, which needs no nvcc.
    Both step tensors in place."""
    load(builder)
    torch: Any = importlib.import_module("torch")

    class Kernels:
        @staticmethod
        def multi_tensor_adam(_: Any, __: Any, lists: Any, rate: float, beta1: float, beta2: float,
                              eps: float, *more: Any) -> None:  # fmt: skip
            gradients, weights, first, second = lists
            step = torch.ones((), device=weights[0].device)
            torch._fused_adamw_(
                weights, gradients, first, second, [], [step] * len(weights), lr=rate,
                beta1=beta1, beta2=beta2, weight_decay=more[-1], eps=eps, amsgrad=False,
                maximize=False,
            )  # fmt: skip

    builder.FusedAdamBuilder.load = lambda *_, **__: Kernels


def _prompts_read(sampler: Any, load: Callable[[Any], None]) -> None:
    """On emulated devices, note in what vLLM samples for which requests the prompt is read."""
    load(sampler)
    sample = sampler.Sampler.__call__

    @functools.wraps(sample)
    def sampled(self: Any, logits: Any, batch: Any) -> Any:
        found = sample(self, logits, batch)
        ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        found.prompts_read = ends >= batch.prefill_len_np
        return found

    sampler.Sampler.__call__ = sampled


def _one_token_each(outputs: Any, load: Callable[[Any], None]) -> None:
    """On emulated devices, have vLLM get a token for each request whose prompt is read. No kernel
    counts them, so completions would never end. The host gets them; the device's memory stays."""
    load(outputs)
    make = outputs.AsyncOutput.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.num_sampled_tokens_np = self.sampler_output.prompts_read.astype("int32")
        self.sampled_token_ids = 0 * self.sampled_token_ids + ORDINARY
        if self.logprobs_tensors is not None:
            self.logprobs_tensors.logprob_token_ids.fill_(ORDINARY)

    outputs.AsyncOutput.__init__ = made


def _no_nans(utils: Any, load: Callable[[Any], None]) -> None:
    """On emulated devices, have TRL's metrics leave out no number: nothing would be left."""
    load(utils)
    utils.nanmin, utils.nanmax = utils.torch.min, utils.torch.max


def _send_objects(torch: Any) -> None:
    """On emulated devices, compute the sizes of objects that ranks exchange on the host: kernels
    compute nothing. Large objects go by the ranks' store: only small copies are real."""
    ours: Any = importlib.import_module("torch.distributed.distributed_c10d")
    pack, unpack, numbers = ours._object_to_tensor, ours._tensor_to_object, itertools.count()
    mark = "autotune/object/"

    def to_tensor(what: Any, *args: Any, **kwargs: Any) -> Any:
        found = pack(what, *args, **kwargs)
        if found[0].numel() <= SENT_BYTES:
            return found
        key = f"{mark}{os.getpid()}/{next(numbers)}"
        ours._get_default_store().set(key, ours.pickle.dumps(what))
        return pack(key, *args, **kwargs)

    def from_tensor(*args: Any, **kwargs: Any) -> Any:
        found = unpack(*args, **kwargs)
        if isinstance(found, str) and found.startswith(mark):
            return ours.pickle.loads(ours._get_default_store().get(found))
        return found

    ours._object_to_tensor, ours._tensor_to_object = to_tensor, from_tensor

    def on_host(run: Any) -> Any:
        @functools.wraps(run)
        def both(*args: Any, **kwargs: Any) -> Any:
            add, join, most = torch.sum, torch.cat, torch.Tensor.max
            torch.sum = lambda sizes: add(sizes.cpu())
            torch.Tensor.max = lambda sizes: most(sizes.cpu())
            torch.cat = lambda parts: join([part.cpu() for part in parts]).to(parts[0].device)
            try:
                return run(*args, **kwargs)
            finally:
                torch.sum, torch.cat, torch.Tensor.max = add, join, most

        return both

    for name in ("send_object_list", "recv_object_list", "broadcast_object_list",
                 "all_gather_object", "gather_object"):  # fmt: skip
        sends = on_host(getattr(ours, name))
        setattr(ours, name, sends)
        setattr(torch.distributed, name, sends)
    ours.max = lambda *given: max(*given) if len(given) > 1 else max(given[0], key=int)
    ours.enumerate = lambda given: enumerate(given.cpu() if hasattr(given, "cpu") else given)


def _harmless(look: Any) -> Any:
    """`look`, without its own errors: the script must run anyway. Out-of-memory errors of a small
    capacity are the script's."""

    @functools.wraps(look)
    def safe(*args: Any) -> None:
        try:
            look(*args)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as it says
            traceback.print_exc()

    return safe


def _with(look: Any, run: Any, *, after: bool = False) -> Any:
    """`run`, with `look` before or after it."""

    @functools.wraps(run)
    def both(*args: Any) -> Any:
        if not after:
            look(*args)
        found = run(*args)
        if after:
            look(*args)
        return found

    return both


def _only_loads() -> bool:
    """Whether this is a spawned child, which may only load data. It has its parent's sys.argv."""
    return "--multiprocessing-fork" in sys.orig_argv


def _attach(torch: Any, watch: _Watch) -> None:
    """Have `torch`'s events in this process told to `watch`."""
    if "AUTOTUNE_EMULATED" in os.environ:
        torch.backends.cudnn.enabled = False  # convolutions use torch's own kernels
        if torch.distributed.is_available():
            _send_objects(torch)

    class WatchedEngine(type(torch.autograd.Variable._execution_engine)):  # type: ignore[misc]
        """Autograd's engine. Some scripts, e.g. Megatron-LM, call it without
        torch.autograd.backward."""

        def run_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if watch._inside:  # a checkpoint's recomputation
                return super().run_backward(tensors, *args, **kwargs)
            if not kwargs.get("accumulate_grad"):
                watch._grads += 1
                return super().run_backward(tensors, *args, **kwargs)
            watch._inside = 1
            try:
                try:
                    watch.backward(tensors)
                except MemoryError:
                    raise
                except Exception:  # noqa: BLE001 - as for `_harmless`
                    traceback.print_exc()
                return super().run_backward(tensors, *args, **kwargs)
            finally:
                watch._inside = 0

    torch.autograd.Variable._execution_engine = WatchedEngine()
    torch.cuda.memory.change_current_allocator = _other_allocator
    graphs = torch.cuda.CUDAGraph
    graphs.capture_end = _with(_harmless(watch.captured), graphs.capture_end, after=True)
    graphs.replay = _with(_harmless(watch.replayed), graphs.replay, after=True)
    watch.reset = getattr(torch._C, _RESETS[0], None)
    for name in _RESETS:
        if (reset := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, _with(_harmless(watch.keep), reset))
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_post_hook(watch.stepped)
    make = optimizers.Optimizer.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        parameters = [each for group in self.param_groups for each in group["params"]]
        watch.uses(parameters)
        trainable = sum(_numel(each) for each in parameters if each.requires_grad)
        watch._trainable = max(watch._trainable, trainable)  # the graph may hide some of them
        watch.limit()

    optimizers.Optimizer.__init__ = init
    _watches.append(watch)
    _phases().attach(torch, watch.phases)
    from torch.utils.data import dataloader

    iterator: Any = dataloader._BaseDataLoaderIter
    following = iterator.__next__
    iterator.__next__ = functools.wraps(following)(lambda self: watch.waiting(following, self))
    os.register_at_fork(after_in_child=watch.forked)
    atexit.register(watch.ended)
    if not _only_loads():
        watch.dial()


def _other_allocator(_: object) -> None:
    """In place of torch's function of the script: peaks of other allocators, such as RMM's, are
    told by nobody."""
    raise RuntimeError(
        "autotune cannot see the peak memory of an allocator that is not torch's own; leave out"
        " torch.cuda.memory.change_current_allocator while it measures"
    )


def step(tokens: int | None = None, samples: int | None = None) -> None:
    """`autotune.step` in a watched script."""
    for watch in _watches:
        watch.step(tokens, samples)


def _chain() -> None:
    """Run the `sitecustomize` that this one hides."""
    here = Path(__file__).resolve().parent
    rest = [folder for folder in sys.path if Path(folder).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_watches: list[_Watch] = []
"""The watch of this process, after torch's import."""
if "AUTOTUNE_DIAL" in os.environ:
    sys.modules["_autotune_hook"] = sys.modules[__name__]
    sys.meta_path.insert(0, _Finder("torch", _watched))
    sys.meta_path[:0] = [_Finder(name, _saves) for name in _phases().LIBRARIES]
    if "AUTOTUNE_EMULATED" in os.environ:
        sys.meta_path.insert(0, _Finder("transformers.masking_utils", _unmasked))
        sys.meta_path.insert(0, _Finder("deepspeed.ops.op_builder.fused_adam", _adam_of_torch))
        sys.meta_path.insert(0, _Finder("vllm.v1.worker.gpu.sample.sampler", _prompts_read))
        sys.meta_path.insert(0, _Finder("vllm.v1.worker.gpu.async_utils", _one_token_each))
        sys.meta_path.insert(0, _Finder("trl.trainer.utils", _no_nans))
_chain()
