"""How a study searches, and where it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.space import choices
from autotune.space.options.flag import as_it_is, as_path, option, word
from autotune.space.outcome import Objective
from autotune.units import parse_int


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    # fmt: off
    objective: Objective = word(
        "--objective", Objective,
        "What to maximise; flops is model FLOP/s, which unlike the others does not favour the"
        " shallowest model.", "flops")
    sampler: str = word(
        "--sampler", tuple(choices.SAMPLERS),
        "Who proposes candidates: frontier, by what it believes of all of them, or one of"
        " Optuna's samplers (gp needs scipy).", choices.SAMPLER)
    seed: int = option(
        "--seed", parse_int, "N",
        "Seed of the sampler, the weights and the data.", default="0")
    trials: int | None = option(
        "--trials", parse_int, "N",
        "End the search after this many trials (default: when the budget is spent).")
    finals: int = option(
        "--finals", parse_int, "N",
        "Best candidates that are measured again in fresh processes at the end.", default="3")
    learn_from: str | None = option(
        "--learn-from", as_it_is, "DIR",
        "Study, or folder of studies, whose measurements on the same devices and software sharpen"
        " what is expected (default: the study's neighbours in results, or in a folder that"
        " autotune made; none for none).")
    # fmt: on

    def __post_init__(self) -> None:
        if why := choices.SAMPLERS[self.sampler].missing:
            raise UsageError(
                f"--sampler {self.sampler}: {why}, or use --sampler {choices.SAMPLER}"
            )
        if self.finals < 1:
            raise UsageError(
                f"--finals {self.finals}: must be at least 1, since what is written is confirmed"
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
        "Folder for everything the study writes, new or empty (default: results/<UTC"
        " time>-<model>-<device>).")
    storage: str | None = option(
        "--storage", as_it_is, "URL",
        "Where the trials go: sqlite:///PATH or postgresql://HOST/NAME, a database that other"
        " programs can open, and processes share (default: optuna.log in the study's folder).")
    log: tuple[str, ...] | None = option(
        "--log", choices.parse_loggers, "NAMES",
        f"Trackers whose files are written at the end, as well: {', '.join(choices.LOGGERS)}.")
    # fmt: on
