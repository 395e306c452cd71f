"""The processes that work on one study in a database, and which of them live.

Each beats: it changes an attribute of the study every few seconds. Clocks are not compared. A
process counts as dead after so many of our beats without one of its own. While the database does
not answer, nobody beats, and nobody is given up.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

import optuna

BEAT_S = 10.0
MISSED = 6
ENDS_S = 10.0
"""Seconds to wait for the end of the last beat."""
_ENTERED, _BEAT, _IDLE = "process-", "beat-", "idle-"
"""Prefixes of attributes: the process's identity; its last beat, None after it left; and whether
it is idle. A thread of its own writes the beat."""

Attributes = Mapping[str, Any]


class Processes:
    def __init__(self, look: Callable[[], optuna.Study], part: str) -> None:
        """`look` opens a view of the study."""
        self.own = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self._look = look
        self._part = part
        self._elapsed_s: Callable[[], float] = lambda: 0.0
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = 0
        self._last: dict[str, Any] = {}
        self._missed: dict[str, int] = {}
        """Number of our beats in a row without a beat of another process."""

    def enter(self, optuna_study: optuna.Study) -> None:
        """Replace the folder's earlier process: it is dead, since this one holds the folder."""
        for name, who in optuna_study.user_attrs.items():
            if name.startswith(_ENTERED) and who["part"] == self._part:
                optuna_study.set_user_attr(_BEAT + name.removeprefix(_ENTERED), None)
        self.beat(optuna_study)
        optuna_study.set_user_attr(_ENTERED + self.own, {"part": self._part})

    def start(self, elapsed_s: Callable[[], float]) -> None:
        """Beat from now on, and tell `elapsed_s` of the budget with each beat."""
        self._elapsed_s = elapsed_s
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._left.set()
        if self._thread is not None:
            self._thread.join(ENDS_S)

    def leave(self, optuna_study: optuna.Study) -> None:
        """Free the candidates of this process at once."""
        optuna_study.set_user_attr(_BEAT + self.own, None)

    def rest(self, optuna_study: optuna.Study, idle: bool) -> None:
        """Tell others whether this process is idle."""
        if optuna_study.user_attrs.get(_IDLE + self.own, False) != idle:
            optuna_study.set_user_attr(_IDLE + self.own, idle)

    def lives(self, seen: Attributes, who: str) -> bool:
        return seen.get(_BEAT + who) is not None and self._missed.get(who, 0) < MISSED

    def at_work(self, seen: Attributes) -> bool:
        """Whether another living process may still tell a result."""
        others = _processes(seen) - {self.own}
        return any(self.lives(seen, who) and not seen.get(_IDLE + who) for who in others)

    def _run(self) -> None:
        optuna_study: optuna.Study | None = None
        while not self._left.wait(BEAT_S):
            with suppress(Exception):  # the database does not answer; the next beat tries again
                optuna_study = optuna_study or self._look()
                self.beat(optuna_study)

    def beat(self, optuna_study: optuna.Study) -> None:
        """Show that this process lives, and look at the others' beats."""
        self._beats += 1
        mine = {"beats": self._beats, "elapsed_s": self._elapsed_s()}
        optuna_study.set_user_attr(_BEAT + self.own, mine)
        seen = optuna_study.user_attrs
        for who in _processes(seen) - {self.own}:
            beat = seen.get(_BEAT + who)
            self._missed[who] = self._missed.get(who, 0) + 1 if self._last.get(who) == beat else 0
            self._last[who] = beat


def elapsed_s(seen: Attributes) -> float:
    """The elapsed budget by the latest beats."""
    beats = (seen.get(_BEAT + who) for who in _processes(seen))
    return max((float(beat["elapsed_s"]) for beat in beats if beat), default=0.0)


def part_of(seen: Attributes, who: str) -> str:
    """The part of the folder of process `who`; that of the first folder if none is noted."""
    entered = seen.get(_ENTERED + who)
    return str(entered["part"]) if entered else ""


def _processes(seen: Attributes) -> set[str]:
    return {name.removeprefix(_ENTERED) for name in seen if name.startswith(_ENTERED)}
