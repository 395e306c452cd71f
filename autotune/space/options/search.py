"""The search of a study, and its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.space import choices
from autotune.space.options.flag import as_it_is, as_path, option, switch, word
from autotune.space.outcome import Objective
from autotune.units import parse_int


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    # fmt: off
    objective: Objective = word(
        "--objective", Objective,
        "Quantity to maximise. flops is model FLOP/s: unlike the others, it does not favour the"
        " shallowest model. The FLOPs of a script are unknown: there, flops means tokens_per_s.",
        "flops")
    sampler: str = word(
        "--sampler", tuple(choices.SAMPLERS),
        "Algorithm that proposes candidates: frontier, autotune's own model-based sampler, or a"
        " sampler of Optuna (gp needs scipy).", choices.SAMPLER)
    seed: int = option(
        "--seed", parse_int, "N",
        "Seed of the sampler, weights and data.", default="0")
    trials: int | None = option(
        "--trials", parse_int, "N",
        "End the search after this many trials (default: when its time is spent).")
    finals: int = option(
        "--finals", parse_int, "N",
        "Number of best candidates to measure again in fresh processes at the end.", default="3")
    learn_from: str | None = option(
        "--learn-from", as_it_is, "DIR",
        "Earlier study, or folder of studies, that improves predictions. Only studies on the"
        " same devices and software count (default: the other studies in results; none: no"
        " study).")
    weigh: bool = switch(
        "--weigh",
        "On GPUs: first weigh candidates around the memory limit on emulated ones. It ends when"
        " it saves no more time, or after a tenth of the budget.")
    # fmt: on

    def __post_init__(self) -> None:
        if why := choices.SAMPLERS[self.sampler].missing:
            raise UsageError(
                f"--sampler {self.sampler}: {why}, or use --sampler {choices.SAMPLER}"
            )
        if self.finals < 1:
            raise UsageError(
                f"--finals {self.finals}: must be at least 1, as the winner is confirmed by finals"
            )
        if self.trials is not None and self.trials < 1:
            raise UsageError(f"--trials {self.trials}: must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed {self.seed}: must be 0 to {2**32 - 1}, e.g. 0")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    # fmt: off
    out: Path | None = option(
        "--out", as_path, "DIR",
        "New or empty folder for all files of the study (default: results/<UTC"
        " time>-<model>-<device>).")
    storage: str | None = option(
        "--storage", as_it_is, "URL",
        "Database for the trials: sqlite:///PATH or postgresql://HOST/NAME. Several processes"
        " can share it (default: optuna.log in the study's folder).")
    log: tuple[str, ...] | None = option(
        "--log", choices.parse_loggers, "NAMES",
        f"Trackers that get the trials as files at the end: {', '.join(choices.LOGGERS)}.")
    # fmt: on
