"""Loading, evaluation and saving between a script's steps, and the memory of each.

Evaluation is a forward pass of a trained model between a step and the next backward pass. It is
without gradients or in eval mode. A frozen average of that model counts, too. Saving is a call of
a function that writes trained parameters, from `state_dict` on. Loading is a call of a function
that reads as many numbers, before the first step, too; what it read may be held until the next
forward pass, which ends the phase. Work in every gap between steps, or in every other one, is part
of the step: a teacher, a reference model, the two steps of a GAN.

Contracts:

- In a step without a phase it only costs a microsecond for each `no_grad`. It reads and restarts
  the peaks of memory only at the borders of a phase.
- A hook of all modules sees the first module of a forward pass, and is then removed. A script that
  compiles has no such hook, which would cause a new compilation: there, `eval()` shows evaluation.
  A patch of `Module.__call__` shows its inputs. It is undone before the call.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

TRAIN, ROLLOUT, EVALUATE, SAVE, LOAD = "train", "rollout", "evaluate", "save", "load"
REGULAR = 3
"""Work in so many gaps between steps is part of the step; every other gap may lack it."""
ASKED = (ROLLOUT, EVALUATE)
"""Phases in which the model is asked."""
MAY_ROLL = (EVALUATE, False)
"""The kind of phase that may be a rollout: without gradients, in training mode."""
OF_AVERAGE = (EVALUATE, None)
"""The kind of phase in which an average of the trained model is evaluated."""
ROLLOUT_S = 0.1
"""A shorter rollout is part of the step only, and costs nothing."""
LONGEST_CYCLE = 32
"""The most steps from one rollout to the next."""
ARMED = 32
"""The most looks for a forward pass in one gap between steps."""
CALLS = 256
"""The most modules in such a look."""
FROZEN = 3
"""The most calls of frozen models in one gap that do not end a look: encoders run before the
trained model."""
SAMPLE = 4
"""An evaluation has inputs of at least one such part of a training sample. Samples that are
generated for a log begin with less, as with a prompt."""
PARTS, LEAVES = 1000, 100_000
"""The most parts of a module's inputs, and of what is saved, that are looked at."""
SAVERS = {
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save", "save_file", "save_model"),
    "deepspeed.runtime.engine": (
        "DeepSpeedEngine.save_checkpoint", "DeepSpeedEngine.save_16bit_model",
    ),
}  # fmt: skip
"""Functions that save, by their module."""
GATHERERS = {
    "torch.distributed.checkpoint.state_dict": (
        "get_state_dict", "get_model_state_dict", "get_optimizer_state_dict",
    ),
}  # fmt: skip
"""Functions that may gather parameters before saving."""
EXPORTERS = (
    "jit.save", "jit.ScriptModule.save", "jit.RecursiveScriptModule.save", "export.save",
    "onnx.export",
)  # fmt: skip
"""Functions of torch that save a model in another form."""
COPIERS = (
    "jit.trace", "export.export", "nn.Parameter.__deepcopy__", "nn.Module.state_dict",
    "optim.Optimizer.state_dict",
)  # fmt: skip
"""Functions of torch that may gather parameters, copy them, or ask the model, before saving."""
LOADERS = {
    "torch.distributed.checkpoint.state_dict_loader": ("load", "load_state_dict"),
    "torch.distributed.checkpoint.state_dict": (
        "set_state_dict", "set_model_state_dict", "set_optimizer_state_dict",
    ),
    "safetensors.torch": ("load_file", "load_model"),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.load_checkpoint",),
    "transformers.modeling_utils": ("PreTrainedModel._load_pretrained_model",),
}  # fmt: skip
"""Functions that load, by their module."""
GENERATORS = {"vllm.entrypoints.llm": ("LLM.generate",)}
LIBRARIES = {*SAVERS, *GATHERERS, *LOADERS, *GENERATORS}
SIZED = "load_file", "_load_pretrained_model"
"""Those that may load little; their result or their first argument has the numbers."""


class Phases:
    """The phases of this process, and the peaks of memory in each."""

    def __init__(
        self,
        torch: Any,
        lock: Any,
        *,
        read: Callable[[], dict[str, int]],
        restart: Callable[[], None],
        least_values: Callable[[], int],
    ) -> None:
        """`read` returns counts of memory, with their peaks since `restart`. A checkpoint has at
        least `least_values` numbers."""
        self._torch, self._lock, self._read, self._restart = torch, lock, read, restart
        self._least_values = least_values
        self.compiled = False
        """Whether the script compiles anything of its own, or a model."""
        self.hidden = False
        """Whether it compiles functions, in which calls of modules may be hidden."""
        self.begin(lock)

    def begin(self, lock: Any) -> None:
        """Begin anew, in this process."""
        self._lock = lock
        self._thread = threading.main_thread().ident
        self.now = ""
        """The open phase; empty in training."""
        self.failed_in = ""
        """The phase that an error ended."""
        self.oom_in = ""
        """The phase in which an allocation failed last."""
        self.most: dict[str, int] = {}
        """The largest value of each count, over all phases."""
        self._of: dict[str, dict[str, int]] = {TRAIN: {}}
        self._count: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._open: dict[str, int] = {}  # counts of the open phase
        self._loaded, self._load_s = 0, 0.0  # numbers and seconds of an open one of loading
        self._sure = False  # whether the kind of the open phase is certain
        self._began = 0.0
        self._held = 0  # bytes that the last phase left behind
        self.between = False
        """Whether a step has ended, and no backward pass has begun since."""
        self._stepped = False
        self._gap: set[tuple[str, bool | None]] = set()  # kinds of phases since the last step
        self._uncounted: dict[str, float] = {}  # seconds of this gap's phases, which may go on
        self._most_asked = 0.0  # values of an evaluation's largest input in this gap
        self._passes = 0  # forward passes of that, up to two; one in eval mode is as two
        self._sample = self._batch = 0.0  # values in training; 0 while they are not known
        self._gaps = 0
        self._last_in: defaultdict[tuple[str, bool | None], deque[int]] = defaultdict(
            lambda: deque(maxlen=REGULAR)
        )  # numbers of gaps
        self._regular: set[tuple[str, bool | None]] = set()
        self.cycle = 0
        """Steps from one rollout to the next; 1 without any; 0 while that is not known."""
        self.rolls = False
        """Whether rollouts are a phase of their own."""
        self._handle: Any = None
        self._armed = self._calls = self._frozen = 0
        self._depth = 0  # nesting of no_grad that began between steps
        self._eval_mode = False
        self._written = 0  # values that this gap wrote in parts, since the last save of it
        self.busy = False
        """Whether a function runs that saves or loads."""
        self._asked: dict[
            int, bool | None
        ] = {}  # whether a module trains; None without parameters

    # Called at events of the script.

    def stepped(self) -> None:
        """A step has ended."""
        self._gaps += 1
        if self._gap or self._uncounted or not self._stepped or not self.cycle:
            self._end_gap()
        self.between, self._thread = True, threading.get_ident()
        self._most_asked, self._passes, self._written = 0.0, 0, 0
        self._armed, self._frozen, self.failed_in = 0, 0, ""
        if self.compiled and not self._sample:
            self._note()

    def _end_gap(self) -> None:
        """Count a gap that had phases, or may have been the first without them."""
        self._tally()
        for kind in self._gap - self._regular:
            numbers = self._last_in[kind]
            numbers.append(self._gaps)
        self.cycle = self.cycle or self._found_cycle()
        for kind in self._gap - self._regular:
            numbers = self._last_in[kind]
            if len(numbers) == REGULAR and numbers[-1] - numbers[0] <= 2 * (REGULAR - 1):
                self._regular.add(kind)
                self._join(kind)
        self._gap.clear()
        if not self._stepped:
            self._asked.clear()  # a teacher may have been frozen since
        self._stepped = True

    def backward(self) -> None:
        """A backward pass begins."""
        self.between = self._eval_mode = False
        self._depth = 0
        self.failed_in = ""
        if self.now:
            self._to("")
        if self._handle is not None:
            self._disarm()

    def without_gradients(self) -> None:
        """`no_grad` or the like begins."""
        if threading.get_ident() != self._thread:
            return
        if self._depth:
            self._depth += 1
        elif self._here():
            self._depth = 1
            if not self.compiled:
                self._arm()
            elif self._eval_mode:
                self._asks_compiled()

    def with_gradients(self, error: Any) -> None:
        """`no_grad` or the like ends."""
        if not self._depth or threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if error is not None:
            self.failed_in = self.failing
        if self._depth:
            return
        if not self.now:
            self._disarm()
        elif not self.compiled:
            self._arm()  # for the next forward pass of the training

    def eval(self, module: Any) -> None:
        """`module.eval()` was called, for its parts, too. Between micro-steps, too, it may begin
        an evaluation: epochs may end there."""
        if threading.get_ident() == self._thread and self._trains(module):
            self.between, self._eval_mode = self._stepped, True
            self._depth = self._depth or int(not self._torch.is_grad_enabled())
            if not self.compiled:
                self._arm()
            elif self._depth:
                self._asks_compiled()

    def train(self, module: Any) -> None:
        """`module.train()` was called, for its parts, too. It ends a compiled script's
        evaluation."""
        if self.compiled and self._eval_mode and self._trains(module):
            self._eval_mode = False
            if self.now in ASKED:
                self._to("")

    @contextmanager
    def saving(self, what: Any = None, *, sure: bool = True) -> Iterator[None]:
        """A context in which the script saves; if not `sure`, it may only gather parameters."""
        kind = (SAVE, sure)
        may = self._stepped and (self.between or sure) and threading.get_ident() == self._thread
        if not may or self.busy or kind in self._regular or not self._is_large(what):
            yield
            return
        self.busy = True
        self._gap.add(kind)
        try:
            if self.now == SAVE:
                self._sure = self._sure or sure
            elif sure or not self.now:
                self._to(SAVE, sure=sure)
            yield
        except BaseException:
            self.failed_in = self.now
            raise
        finally:
            self.busy = False
        if not self.compiled:
            self._arm()
        elif sure:
            self._to("")

    def sent(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of `run`, which pickles an object for other ranks, not for a file."""
        was, self.busy = self.busy, True
        try:
            return run(*args, **kwargs)
        finally:
            self.busy = was

    @contextmanager
    def generating(self) -> Iterator[None]:
        """A context in which an engine with a copy of the trained model generates: a rollout."""
        apart = not self._here() or self._eval_mode or self.busy or self.now
        if apart or threading.get_ident() != self._thread:
            yield
            return
        self._asks(in_eval=False)
        self.busy = True
        try:
            yield
        except BaseException:
            self.failed_in = self.failing
            raise
        finally:
            self.busy = False
        if self.now:
            self._to("")

    def written(self, what: Any) -> None:
        """`what` is a tensor that is pickled for whatever file, or a part of a checkpoint."""
        if self.between and not self.busy and threading.get_ident() == self._thread:
            self._written += _values(what, self._torch, [LEAVES])
            if self._written >= self._least_values():
                self._written = 0
                with self.saving():
                    pass

    @contextmanager
    def loading(self, what: list[Any], *, opens: bool, sure: bool) -> Iterator[None]:
        """A context in which the script loads; what it loads is among `what` in the end. If it is
        not `sure` to be a checkpoint, the numbers there decide. Unless it `opens` the phase, it
        only continues one."""
        here = self._here() and threading.get_ident() == self._thread
        regular = {(LOAD, True), (LOAD, False)} & self._regular
        if not here or self.busy or regular or not (opens or self.now == LOAD):
            yield
            return
        self.busy, self.failed_in = True, ""
        began = time.perf_counter()
        if self.now != LOAD:
            self._to(LOAD, sure=False)
        try:
            yield
        except Exception as error:
            if isinstance(error, MemoryError) or "memory" in str(error):  # others may be caught
                self.failed_in = LOAD
            raise
        finally:
            self.busy = False
        self._load_s += time.perf_counter() - began
        if opens:
            size = sys.maxsize if sure else _values(what, self._torch, [LEAVES])
            self._loaded = max(self._loaded, size)
        self._gap.add((LOAD, self._loaded_much()))
        if self.compiled:
            self._to("")
        else:
            self._arm()

    def end(self) -> None:
        """The process ends."""
        if self.now and not self.failed_in:
            self._sure = self._sure or self.now == EVALUATE  # no backward pass followed
            self._to("")
        self._tally()

    # Results.

    @property
    def failing(self) -> str:
        """The phase of an error that comes now. Loading itself ends with its function. Who asks
        the model in each gap so far, and calls no `eval()` for it, may be a teacher."""
        if self.failed_in or (self.now == LOAD and not self.busy):
            return self.failed_in
        each = all(len(self._last_in[kind]) == self._gaps - 1 for kind in self._gap)
        return "" if self.now == EVALUATE and each and not self._eval_mode else self.now

    @property
    def uncounted(self) -> str:
        """The open phase, or one that no step has followed; empty in training."""
        with self._lock:
            return self.now or max(self._uncounted, default="")

    def fold(self) -> dict[str, int]:
        """Take over the present counts; the lock is held."""
        counts = self._read()
        if counts.get("num_ooms", 0) > self.most.get("num_ooms", 0):
            self.oom_in = self.failing
        tied, size = _tied(counts, "peak")
        mine = counts
        if not self.now and tied == "reserved":  # at least what is active, or reserved anew
            least = max(counts["active_bytes.all.peak"], size - self._held)
            mine = counts | {"reserved_bytes.all.peak": least}
        elif not self.now and size <= self._held:
            mine = {n: size for n, size in counts.items() if n != tied}
        _raise(self._open if self.now else self._of[TRAIN], mine)
        _raise(self.most, counts)
        return counts

    def found(self) -> dict[str, tuple[int, float, dict[str, int]]]:
        """Number, seconds and largest counts, by phase; empty after mere training. The lock is
        held."""
        each_of = {name: dict(most) for name, most in self._of.items()}
        if self.now and self._sure:
            _raise(each_of.setdefault(self.now, {}), self._open)
        seen = {TRAIN, self.now, *self._count, *self._uncounted}
        for name in {*each_of} - seen:  # only before the first step
            _raise(each_of[TRAIN], each_of.pop(name))
        return {
            name: (self._count.get(name, 0), self._seconds.get(name, 0.0), most)
            for name, most in each_of.items()
            if most and len(each_of) > 1
        }

    # Internals.

    def _here(self) -> bool:
        """Whether a phase may begin: between steps, or before the first one."""
        return self.between or not self._stepped

    def _arm(self) -> None:
        """Look for the next forward pass."""
        if self._handle is None and self._armed < ARMED:
            self._armed += self._stepped and not self.now
            self._calls = 0
            module = self._torch.nn.modules.module
            self._handle = module.register_module_forward_pre_hook(self._called)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: Any, inputs: Any) -> None:
        """A module is called during a look."""
        if self.busy or threading.get_ident() != self._thread:  # an export asks the model, too
            return
        self._calls += 1
        named = sys._getframe(1).f_locals.get("kwargs", {})
        if not self._trains(module):  # a frozen model, or no part of a model
            if self._asked[id(module)] is False:
                self._disarm()
                if self._averages(module):
                    self._gap.add(OF_AVERAGE)
                    if self._gaps > REGULAR:  # else it may yet come in each step
                        self._to(EVALUATE)
                    self._most_asked = max(
                        self._most_asked, _of_input(inputs, named, self._torch)[0]
                    )
                self._skip(module)
            elif self._calls >= CALLS:
                self._disarm()
            return
        values, sample = _of_input(inputs, named, self._torch)
        with_gradients = self._torch.is_grad_enabled()
        if not with_gradients or module.training:
            self._disarm()
        if with_gradients and module.training:
            self._sure = self._sure or self.now in ASKED
            self._batch, self._sample = values, sample
            if self.now:
                self._to("")
            return
        may_roll = module.training and self.cycle != 1  # and rollouts begin with prompts
        self._most_asked = max(self._most_asked, math.inf if may_roll else values)
        self._passes += 1 + (not module.training)
        if self._passes == 1:
            self._skip(module)
        if self.now not in ASKED:
            self._asks(in_eval=not module.training, sure=not with_gradients)

    def _note(self) -> None:
        """In a script that compiles modules, note the inputs of the next one that is called. A
        compiler sees nothing of it: it is undone before that call."""
        kind = self._torch.nn.Module
        call = kind.__call__
        if self.hidden or call.__module__ == __name__:
            return

        def noting(module: Any, *inputs: Any, **named: Any) -> Any:
            if kind.__call__ is noting and threading.get_ident() == self._thread:
                kind.__call__ = call
                if self._trains(module):
                    values, sample = _of_input(inputs, named, self._torch)
                    if not module.training:
                        self._most_asked = max(self._most_asked, values)
                    elif self._torch.is_grad_enabled():
                        self._sample = sample
            return call(module, *inputs, **named)

        kind.__call__ = noting

    def _skip(self, module: Any) -> None:
        """Continue the look after this call of a model."""
        self._frozen += 1
        if self._frozen > FROZEN:
            return

        def called(*_: Any) -> None:
            handle.remove()
            if self._here() and (self._depth or self._eval_mode or self.now):
                self._arm()

        handle = module.register_forward_hook(called, always_call=True)

    def _asks(self, *, in_eval: bool, sure: bool = True) -> None:
        """A trained model runs without being trained."""
        if self.rolls and not in_eval:
            self._to(ROLLOUT)
        elif (EVALUATE, in_eval) not in self._regular:
            self._gap.add((EVALUATE, in_eval))
            self._to(EVALUATE, sure=sure)

    def _asks_compiled(self) -> None:
        """In a script that compiles, a trained model in eval mode will run without gradients."""
        self._note()
        if self.now not in ASKED:
            self._asks(in_eval=True)

    def _to(self, phase: str, *, sure: bool = True) -> None:
        """The border of two phases: `phase` begins."""
        with self._lock:
            counts = self.fold()
            now = time.perf_counter()
            if self.now:
                loads = self.now == LOAD
                self._sure = self._sure or (loads and self._loaded_much())
                name = self.now if self._sure else TRAIN
                _raise(self._of.setdefault(name, {}), self._open)
                if self._sure and (self._stepped or loads):
                    took_s = self._load_s if loads else now - self._began
                    self._uncounted[name] = self._uncounted.get(name, 0.0) + took_s
                tied, self._held = _tied(counts, "current")
                if loads and tied == "host":  # the training is in what loading left, too
                    self._held = 0
            self._restart()
            self._loaded, self._load_s = 0, 0.0
            self.now, self._sure, self._open, self._began = phase, sure, {}, now

    def _tally(self) -> None:
        """Count the phases of a gap after the next step: a launch for phases may end with them.
        That step's peak has what they left behind, such as a copy of the best weights."""
        if self._uncounted:
            with self._lock:
                for name, took_s in self._uncounted.items():
                    counts = name != EVALUATE or self._is_whole()
                    self._count[name] = self._count.get(name, 0) + counts
                    self._seconds[name] = self._seconds.get(name, 0.0) + counts * took_s
                self._uncounted.clear()

    def _is_whole(self) -> bool:
        """Whether this gap's evaluation was more than samples for a log, as far as it is known.
        One pass of a training batch in training mode, as a teacher's, is none."""
        once = self._passes == 1 and self._most_asked <= self._batch
        return not (once or 0 < SAMPLE * self._most_asked < self._sample)

    def _loaded_much(self) -> bool:
        return self._loaded >= max(1, self._least_values())

    def _found_cycle(self) -> int:
        """As `cycle`, after a step."""
        numbers = [*self._last_in[MAY_ROLL]]
        if numbers[:1] != [1]:
            return 1
        if len(numbers) < REGULAR:
            return int(self._gaps - numbers[-1] >= LONGEST_CYCLE)
        first, second, third = numbers
        if third - second != second - first:
            return 1
        self._regular.add(MAY_ROLL)
        long = self._seconds.get(EVALUATE, 0.0) >= (REGULAR - 1) * ROLLOUT_S
        self.rolls = long and second - first > 1  # else a teacher, too, is asked in each step
        self._join(MAY_ROLL)
        return second - first

    def _join(self, kind: tuple[str, bool | None]) -> None:
        """That is part of every step, and its memory is, too; or it is the rollouts' phase."""
        if kind in ((SAVE, False), (LOAD, False)):
            return
        with self._lock:
            name = ROLLOUT if self.rolls and kind == MAY_ROLL else TRAIN
            _raise(self._of.setdefault(name, {}), self._of.pop(kind[0], {}))
            for counted in (self._count, self._seconds):
                size = counted.pop(kind[0], 0)
                if name == ROLLOUT:
                    counted[name] = size  # type: ignore[assignment]

    def _trains(self, module: Any) -> bool:
        """Whether any of the module's parameters is trained."""
        if id(module) not in self._asked:
            trained = [each.requires_grad for each in module.parameters()]
            self._asked[id(module)] = any(trained) if trained else None
        return bool(self._asked[id(module)])

    def _averages(self, module: Any) -> bool:
        """Whether each step wrote to this frozen model, as to an average of the trained one. If
        each step calls it, too, it is a teacher."""
        first = next(module.parameters())
        often = not first.is_inference() and first._version >= self._gaps
        may_be = self.between and not module.training and OF_AVERAGE not in self._regular
        return bool(often and may_be)

    def _is_large(self, what: Any) -> bool:
        """Whether `what` has as many numbers as a checkpoint, or an unknown number."""
        return what is None or _values(what, self._torch, [LEAVES]) >= self._least_values()


def _tied(counts: dict[str, int], what: str) -> tuple[str, int]:
    """Prefix and kind of a count that stays after memory is freed, so that a phase's memory
    remains in training. The kind is its peak or its current size."""
    if "reserved_bytes.all.peak" in counts:
        return "reserved", counts[f"reserved_bytes.all.{what}"]
    return "host", counts["host" if what == "peak" else "resident"]


def _raise(most: dict[str, int], by: dict[str, int]) -> None:
    for name, size in by.items():
        most[name] = max(size, most.get(name, 0))


def _values(what: Any, torch: Any, left: list[int]) -> int:
    """Number of values in the tensors of `what`; at most `left` parts are looked at."""
    left[0] -= 1
    if left[0] < 0:
        return 0
    if isinstance(what, torch.Tensor):
        return int(what.numel())
    if isinstance(what, torch.nn.Module):
        return sum(_values(each, torch, left) for each in what.parameters())
    if isinstance(what, dict):
        return sum(_values(each, torch, left) for each in what.values())
    if isinstance(what, list | tuple):
        return sum(_values(each, torch, left) for each in what)
    return 0


def _of_input(inputs: tuple[Any, ...], named: Any, torch: Any) -> tuple[float, float]:
    """Values of the largest tensor in a module's inputs, which may be nested, and of one sample
    of it. None has an unknown size and no sample."""
    left = [*inputs, *named.values()]
    sizes = []
    for _ in range(PARTS):
        if not left:
            break
        each = left.pop()
        if isinstance(each, torch.Tensor):
            if each.dim() and (n := each.numel()):
                sizes.append((n, n / each.shape[0]))
        elif isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return max(sizes, default=(math.inf, 0.0))


def attach(torch: Any, phases: Phases) -> None:
    """Have the script's events told to `phases`."""
    _bordered(torch.no_grad, phases, lambda _: True)
    _bordered(torch.inference_mode, phases, lambda context: context.mode)
    _bordered(torch.set_grad_enabled, phases, lambda context: not context.mode)
    module = torch.nn.Module
    train, save, compiles = module.train, torch.save, torch.compile
    reduce = torch.Tensor.__reduce_ex__

    @functools.wraps(train)
    def training(self: Any, mode: bool = True) -> Any:
        (phases.train if mode else phases.eval)(self)  # `eval()` calls this, too
        return train(self, mode)

    @functools.wraps(save)
    def saving(obj: Any, *args: Any, **kwargs: Any) -> Any:
        with phases.saving(obj):
            return save(obj, *args, **kwargs)

    @functools.wraps(reduce)
    def reducing(self: Any, protocol: Any) -> Any:
        phases.written(self)
        return reduce(self, protocol)

    @functools.wraps(compiles)
    def compiling(model: Any = None, **kwargs: Any) -> Any:
        if not (model is None or _is_librarys(model)):
            phases.compiled = True
            owner = getattr(model, "__self__", None)  # of `model.compile()`
            phases.hidden |= not isinstance(model if owner is None else owner, module)
        return compiles(model, **kwargs)

    module.train = training
    torch.save = torch.serialization.save = saving
    torch.Tensor.__reduce_ex__ = reducing
    if torch.distributed.is_available():
        ours = torch.distributed.distributed_c10d
        pack = ours._object_to_tensor
        ours._object_to_tensor = functools.wraps(pack)(functools.partial(phases.sent, pack))
    torch.compile = compiling
    torch.load = torch.serialization.load = _loader(phases, torch.load, sure=False)
    _around(EXPORTERS, functools.partial(_saver, phases, sure=True), torch)
    _around(COPIERS, functools.partial(_gatherer, phases), torch)
    for kind in (module, torch.optim.Optimizer):
        kind.load_state_dict = _loader(phases, kind.load_state_dict, opens=False)


def attach_library(phases: Phases, module: Any) -> None:
    """Have calls of this one of `LIBRARIES` told to `phases`."""
    for told, table in (
        (functools.partial(_saver, phases, sure=True), SAVERS),
        (functools.partial(_saver, phases, sure=False), GATHERERS),
        (functools.partial(_loader, phases), LOADERS),
        (functools.partial(_generator, phases), GENERATORS),
    ):
        _around(table.get(module.__name__, ()), told, module)


def _is_librarys(model: Any) -> bool:
    """Whether that is a function of an installed library, as TRL's: no trained module is in it."""
    return isinstance(model, FunctionType) and "-packages" in model.__code__.co_filename


def _bordered(kind: Any, phases: Phases, stops: Callable[[Any], bool]) -> None:
    """Have `phases` told of begin and end of contexts of that kind that stop gradients."""
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def entering(self: Any) -> Any:
        if stops(self):
            phases.without_gradients()
        return enter(self)

    @functools.wraps(leave)
    def leaving(self: Any, error: Any, *args: Any) -> Any:
        if stops(self):
            phases.with_gradients(error)
        return leave(self, error, *args)

    kind.__enter__, kind.__exit__ = entering, leaving


def _around(functions: tuple[str, ...], told: Callable[..., Any], module: Any) -> None:
    """Have calls of these functions of `module` `told`."""
    for name in functions:
        *owners, last = name.split(".")
        owner = functools.reduce(getattr, owners, module)
        run = getattr(owner, last, None)
        if isinstance(run, FunctionType):  # not of a class, whose subclasses call it
            setattr(owner, last, told(run))


def _saver(phases: Phases, run: Any, *, sure: bool) -> Any:
    """`run`, with calls told to `phases` as saving. safetensors' functions first get
    the saved object."""
    known = run.__module__ == "safetensors.torch"

    @functools.wraps(run)
    def saving(*args: Any, **kwargs: Any) -> Any:
        what = args[0] if known and args else None
        with phases.saving(what, sure=sure):
            found = run(*args, **kwargs)
        phases.written(what)
        return found

    return saving


def _gatherer(phases: Phases, run: Any) -> Any:
    """`run`, which many call for parts, with calls told to `phases` as what may precede saving."""

    @functools.wraps(run)
    def gathering(*args: Any, **kwargs: Any) -> Any:
        if phases.busy or not phases.between:  # a part of a gathered one
            return run(*args, **kwargs)
        with phases.saving(sure=False):
            return run(*args, **kwargs)

    return gathering


def _loader(phases: Phases, run: Any, *, opens: bool = True, sure: bool | None = None) -> Any:
    """`run`, with calls told to `phases` as loading."""
    sure = run.__name__ not in SIZED if sure is None else sure

    @functools.wraps(run)
    def loading(*args: Any, **kwargs: Any) -> Any:
        what = list(args[:1])
        with phases.loading(what, opens=opens, sure=sure):
            what.append(run(*args, **kwargs))
        return what[-1]

    return loading


def _generator(phases: Phases, run: Any) -> Any:
    """`run`, with calls told to `phases` as generation."""

    @functools.wraps(run)
    def generating(*args: Any, **kwargs: Any) -> Any:
        with phases.generating():
            return run(*args, **kwargs)

    return generating
