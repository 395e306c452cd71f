"""Settings of a loader, measured one after the other, each in fresh processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.advise.loader.asked import LoaderProbe, Setting
from autotune.advise.loader.measured import Round, SettingRow
from autotune.device.cpu import host_oom_kills
from autotune.errors import ModelError, UsageError
from autotune.measure.runner import StopRequestedError, local
from autotune.measure.runner.counting import failure
from autotune.measure.runner.helper import NO_GPU, Helper
from autotune.units import gib
from autotune.wire.budget import Clock
from autotune.wire.helpers import Begin, Load, Loaded
from autotune.wire.stopping import Phase

ROUNDS = 2
LEAST_S, MOST_S = 0.5, 5.0
"""The least and the most seconds of one timing."""
START_S = 4.0
"""Assumed seconds of a setting beside its timing, before the first measurement."""
BATCH_SHARE = 0.5
"""Share of the budget to wait for a first batch."""
GRACE_S = 15.0
"""A timing may take so many seconds longer, for last batches and workers that do not exit."""
POLL_S = 0.02
LOG_TAIL = 2000
"""Characters of a log to show."""
LONGEST_TMP = 36
"""The longest temporary folder in which workers can open sockets (unix(7)), else they hang."""


@dataclass(frozen=True)
class MeasuredSettings:
    """Measured settings in their order, and why others were left out."""

    rows: tuple[SettingRow, ...]
    left_out: dict[Setting, str]


class _Failed(Exception):  # noqa: N818 - it is an outcome of one setting
    """Why a setting gives no batches, though others may."""


class Measuring:
    """Measures all settings from the smallest up, then all once more."""

    def __init__(self, asked: LoaderProbe, clock: Clock, stop: Callable[[], bool]) -> None:
        self._asked = asked
        self._clock = clock
        self._stop = stop
        self._start_s = START_S
        self._rows: dict[Setting, SettingRow] = {}
        self._left_out: dict[Setting, str] = {}

    def run(self) -> MeasuredSettings:
        """All settings, or those that were measured before the user asked to stop.

        Raises:
            UsageError: there is no such loader, or the budget is too small.
            ModelError: the user's code failed.
            StopRequestedError: the user asked to stop before anything was measured.
        """
        try:
            self._first_round()
            self._again()
        except StopRequestedError:
            if not any(row.rounds for row in self._rows.values()):
                raise
        return MeasuredSettings(tuple(self._rows.values()), self._left_out)

    def _first_round(self) -> None:
        settings = self._asked.settings
        for place, setting in enumerate(settings):
            if why := self._why_not(setting, place):
                self._left_out[setting] = why
                continue
            self._rows[setting] = self._measured(
                SettingRow(setting, ()), len(settings) - place + (ROUNDS - 1) * len(settings)
            )
            self._check_unit(self._rows[setting])

    def _again(self) -> None:
        for _ in range(ROUNDS - 1):
            sound = [row for row in self._rows.values() if not row.failed]
            for place, row in enumerate(sound):
                if self._clock.remaining_s() < self._start_s + LEAST_S:
                    return
                self._rows[row.setting] = self._measured(row, len(sound) - place)

    def _why_not(self, setting: Setting, place: int) -> str:
        """Why `setting` is not tried; empty if it is."""
        asked = self._asked
        known = [row for row in self._rows.values() if row.rounds and row.setting.workers]
        if known and setting.workers > known[-1].setting.workers:
            need = asked.training_bytes + _expected_bytes(known[-1], setting.workers)
            if need > asked.limit_bytes:
                return (
                    f"{setting.workers} workers would hold about {gib(need)}, and"
                    f" {gib(asked.limit_bytes)} are under the host ceiling"
                )
        left = self._clock.remaining_s() / (self._start_s + LEAST_S)
        if place and left < 1 + (ROUNDS - 1) * (len(self._rows) + 1):
            return f"the budget is too short; --budget {10 + self._enough_s():.0f}s would do"
        return ""

    def _enough_s(self) -> float:
        """A budget for all settings."""
        return ROUNDS * len(self._asked.settings) * (self._start_s + 2 * LEAST_S)

    def _measured(self, row: SettingRow, left: int) -> SettingRow:
        """`row` with another round. The rest of the budget is for `left` rounds."""
        room_s = self._clock.remaining_s() / left - self._start_s
        timed_s = min(MOST_S, max(LEAST_S, room_s))
        began = self._clock.elapsed_s()
        kills = host_oom_kills()
        try:
            found = self._round(row.setting, timed_s)
        except _Failed as failed:
            why = str(failed)
            if "killed" in why and host_oom_kills() > kills:
                why += ", by the kernel for memory"
            return replace(row, rounds=(), failed=why)
        except ModelError:
            if host_oom_kills() == kills:
                raise
            why = "its process ended as the kernel killed one for memory"
            return replace(row, rounds=(), failed=why)
        took_s = self._clock.elapsed_s() - began - timed_s
        self._start_s = max(took_s, self._start_s if self._rows else 0.0)
        return replace(row, rounds=(*row.rounds, found))

    def _round(self, setting: Setting, timed_s: float) -> Round:
        """Measurements of all ranks' loaders, side by side."""
        asked = self._asked
        request = Load(
            folder=asked.folder,
            module=asked.module,
            function=asked.function,
            workers=setting.workers,
            prefetch=setting.prefetch,
            pin_memory=setting.pin_memory,
            micro_batch=asked.micro_batch,
            seq_len=asked.seq_len,
            timed_s=timed_s,
        )
        with ExitStack() as stack:
            own = tempfile.gettempdir()
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="autotune-loader-",
                    dir=own if len(own) <= LONGEST_TMP else "/tmp",
                    ignore_cleanup_errors=True,  # a killed worker may end a moment later
                )
            )
            ranks = []
            for number in range(asked.ranks):
                logs = Path(folder) / str(number)
                logs.mkdir()
                ranks.append(_Rank(request, logs, self._clock.budget_s + GRACE_S))
                stack.callback(ranks[-1].helper.close)
            self._wait(ranks, lambda rank: rank.helper.phase is Phase.WARMUP, None)
            for rank in ranks:
                rank.helper.send(Begin())
            self._wait(ranks, lambda rank: rank.found is not None, timed_s + GRACE_S)
            return tuple(rank.found for rank in ranks if rank.found is not None)

    def _wait(
        self, ranks: Sequence[_Rank], done: Callable[[_Rank], bool], limit_s: float | None
    ) -> None:
        """Wait until all are `done`: at most `limit_s`, or the limit of a first batch."""
        began = time.monotonic()
        while not all(rank.found is not None or done(rank) for rank in ranks):
            if self._stop():
                raise StopRequestedError
            for rank in ranks:
                self._look(rank)
                if limit_s is None:
                    self._check_first_batch(rank)
            if limit_s is not None and time.monotonic() - began > limit_s:
                raise _Failed(f"its batches ceased: no end of the timing in {limit_s:.0f} s")
            time.sleep(POLL_S)

    def _look(self, rank: _Rank) -> None:
        """Take a rank's answer."""
        name = f"loader {self._asked.name}"
        rank.helper.poll()
        if rank.found is not None and rank.found.failed:
            raise _Failed(rank.found.failed)
        if rank.found is None and not rank.helper.works:
            if rank.helper.fault is not None:
                raise failure(name, rank.helper.fault)
            raise ModelError(f"{name}: {rank.helper.why}", rank.log_tail())

    def _check_first_batch(self, rank: _Rank) -> None:
        limit_s = BATCH_SHARE * self._clock.budget_s
        if rank.helper.phase is not Phase.BUILD or time.monotonic() <= (
            rank.helper.entered + limit_s
        ):
            return
        why = f"no batch in {limit_s:.0f} s"
        if said := rank.log_tail().strip():
            why += f" (it printed last: {said.splitlines()[-1]:.200})"
        if any(row.rounds for row in self._rows.values()):
            raise _Failed(why)
        raise UsageError(
            f"loader {self._asked.name}: gave {why}; if it needs that long, write e.g. --budget"
            f" {4 * self._clock.budget_s:.0f}s"
        )

    def _check_unit(self, row: SettingRow) -> None:
        """Checks that the need can be compared. Raises UsageError if the need is in tokens, but
        batches have no tokens."""
        need = self._asked.need
        if need is not None and need.samples_per_s is None and row.rounds and not row.has_tokens:
            raise UsageError(
                f"--needs {need.tokens_per_s:g}: no tensor of a batch has integers in the shape"
                " (B, T), so tokens cannot be counted; use --best"
            )


class _Rank:
    """One loader's helper process."""

    def __init__(self, request: Load, logs: Path, limit_s: float) -> None:
        # Without pinned memory the helper needs no GPU, and must not open a context there.
        hidden = {} if request.pin_memory else NO_GPU
        self.helper = Helper(
            request, local.start_loader, logs=logs, limit_s=limit_s, environment=hidden
        )

    @property
    def found(self) -> Loaded | None:
        found = self.helper.found
        return found if isinstance(found, Loaded) else None

    def log_tail(self) -> str:
        """The end of its output."""
        return self.helper.log.read_text(errors="replace")[-LOG_TAIL:]


def _expected_bytes(known: SettingRow, workers: int) -> int:
    """Bytes of loaders with more workers than `known` has, if all workers are alike."""
    ranks = len(known.rounds[0])
    alone = ranks * known.loader_bytes
    return alone + (known.host_bytes - alone) * workers // known.setting.workers
