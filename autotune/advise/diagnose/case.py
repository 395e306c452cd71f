"""A remedy, and the case for which it is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autotune.advise.diagnose.causes import COPYING, TRAINING
from autotune.advise.diagnose.context import JOBS, Context
from autotune.advise.diagnose.events import Event
from autotune.advise.diagnose.loads import Cause
from autotune.advise.diagnose.settings import MICRO, SERVING


@dataclass(frozen=True, kw_only=True)
class Advice:
    name: str
    what: str
    setting: str
    """A text to copy."""
    saving: str
    """Its expected saving; names rules of thumb as such."""
    costs: str


_TRAINS = re.compile(r"\b\w*(?:train(?!ed)|sft|finetun)\w*(?:\.py| )")


@dataclass(frozen=True)
class Case:
    """The facts by which remedies are chosen."""

    event: Event
    causes: tuple[Cause, ...]
    context: Context

    def has(self, *names: str) -> bool:
        return any(cause.name in names for cause in self.causes)

    @property
    def framework(self) -> str:
        name = self.event.wording.name
        inner = "".join(self.event.trace[-4:])
        if found := next((each for each in SERVING if name == each or f"/{each}/" in inner), None):
            return found
        if job := self._job:
            return job
        own = "jax" if name == "xla" and not self.context.torch else name
        return self.context.framework or (own if own in MICRO else "torch")

    @property
    def _job(self) -> str | None:
        """What fails and does not train, by the frames, or else by the command."""
        if self.context.preparing and not self.event.step:
            return "preprocessing"
        for text in ("\n".join(self.event.trace), self.context.text("launch") or ""):
            if TRAINING.search(text) or _TRAINS.search(text):
                return None
            found = next((name for name, marks in JOBS.items() if marks.search(text)), None)
            if found and (text is not self.context.text("launch") or found != "inference"):
                return found
        told = set() if self.event.trace else self.context.told - {"inference"}
        return next((job for job in JOBS if job in told), None)

    def on(self, *switches: str) -> bool:
        """Whether one of `switches` is on in the log."""
        return not self.context.switches.isdisjoint(switches)

    @property
    def training(self) -> bool:
        """Whether a smaller batch can help: not while loading, not in the optimizer."""
        return self.framework not in SERVING and not self.has(
            "loading the model", "before training started", "the first optimizer step", "saving",
            "evaluation", "generation", COPYING, "no room for the KV cache", "a corrupt size",
        )  # fmt: skip


Measure = Callable[[Case], Advice | None]
"""One row: advice if it applies to the case."""


def to(name: str, what: str, setting: str, saving: str, costs: str) -> Advice:
    """An `Advice` from positional arguments."""
    return Advice(name=name, what=what, setting=setting, saving=saving, costs=costs)


_ARGUMENT = re.compile(r"(?<![\w.(])([a-z_]+)=(?:\"([^\"]*)\"|(\w+)(?![\w.(]))")
"""An argument of TrainingArguments in Python."""


def of(table: dict[str, str], case: Case) -> str:
    """The entry of `table` for the framework of `case`."""
    return as_said(table.get(case.framework, table["torch"]), case)


def as_said(setting: str, case: Case) -> str:
    """`setting` with flags for TrainingArguments, if the log's command line has such flags."""
    batch = case.context.batch_flag
    if case.framework != "transformers" or batch is None or not batch.form.startswith("--"):
        return setting
    gap = "=" if "=" in batch.form else " "
    return _ARGUMENT.sub(lambda found: f"--{found[1]}{gap}{found[2] or found[3]}", setting)


def of_deepspeed(table: dict[str, str], case: Case) -> str:
    """`of`; in the words of DeepSpeed's file, or of accelerate's, if the log names one."""
    if case.framework not in ("transformers", "deepspeed", "accelerate", "torch"):
        return of(table, case)
    files = ["deepspeed"]
    if "zero_stage" in case.context.settings:  # else accelerate's file may be of FSDP
        files.append("accelerate")
    for name in files:
        if (file := case.context.text(f"{name}_file")) is not None:
            return f"in {file}, {table[name]}"
    return of(table, case)
