"""The phase of a probe, its duration so far, and its usual duration in earlier group starts."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from autotune.wire.stopping import Phase

_DOING = {
    Phase.IMPORT: "importing",
    Phase.BUILD: "starting the ranks",
    Phase.ENGINE: "building the engine",
    Phase.COMPILE: "compiling",
    Phase.WARMUP: "warming up",
    Phase.TIMED: "timing",
    Phase.HOT: "training with a hot expert",
    Phase.EVALUATE: "evaluating",
    Phase.SAVE: "saving",
    Phase.DONE: "done",
}
_DOING_OF_SCRIPT = {
    Phase.IMPORT: "starting the script",
    Phase.BUILD: "before its first step",
}
_STARTING = (Phase.IMPORT, Phase.BUILD, Phase.ENGINE, Phase.COMPILE, Phase.WARMUP)
_THEN = {phase: _STARTING[i:] for i, phase in enumerate(_STARTING[:-1], 1)}
"""Later phases of a start that does not fail. Others last as the candidate has it."""


class StudyProgress:
    """Phases of a study's probes. Another thread may ask for `text`: replace attributes whole."""

    def __init__(self, clock: Callable[[], float], *, of_script: bool = False) -> None:
        self._clock = clock
        self._doing = _DOING | (_DOING_OF_SCRIPT if of_script else {})
        self._engine = ""
        """The engine of the probe; empty before the first one."""
        self._now: tuple[Phase | None, int, float] = (None, 0, clock())
        """The phase, its steps, and when it began."""
        self._took_s: dict[tuple[str, Phase], list[float]] = {}
        """Seconds by engine and phase of a start, in the order of starts."""

    def begin(self, engine: str) -> None:
        self._engine = engine
        self._now = (None, 0, self._clock())

    @property
    def done(self) -> bool:
        """Whether the last probe ended."""
        return self._now[0] is Phase.DONE

    def phase(self, phase: Phase, steps: int) -> bool:
        """The probe made so many steps of that phase. True if it began now. Called often."""
        before, _, since_s = self._now
        if phase is not before:
            now_s = self._clock()
            if before in _THEN and phase in _THEN[before]:
                key = (self._engine, before)
                took_s = [*self._took_s.get(key, []), now_s - since_s]
                self._took_s = self._took_s | {key: took_s}
            since_s = now_s
        self._now = (phase, steps, since_s)
        return phase is not before

    @property
    def text(self) -> str:
        """The current phase, e.g. "building the engine, 3 s of about 6 s"."""
        phase, steps, since_s = self._now
        if phase is None:
            return "preparing"
        if phase is Phase.DONE:
            return self._doing[phase]
        doing = self._doing[phase] + (f", {steps} steps" if phase is Phase.TIMED else "")
        if phase is Phase.IMPORT and not self._engine:
            doing += ", then tracing the model"
        for_s, about_s = round(self._clock() - since_s), self._about_s(phase)
        if not about_s:
            return f"{doing}, {for_s} s"
        return f"{doing}, {for_s} s{' of about' if for_s <= about_s else ', usually'} {about_s} s"

    def _about_s(self, phase: Phase) -> int:
        """Seconds of `phase` in earlier starts; 0 if unknown. Only the first start imports."""
        took_s = self._took_s.get((self._engine, phase), [])
        return round(statistics.median(took_s[1:] or took_s or [0.0]))
