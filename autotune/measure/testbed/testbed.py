"""The interface of a testbed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from autotune.device.device import Device
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.budget import Clock


class Testbed(Protocol):
    """The place where candidates are measured."""

    device: Device
    spec: str
    """Its name for `open_testbed`, valid in any folder."""
    learns: bool
    """Whether a study on it learns from earlier ones by default."""
    remark: str
    """A remark on its results; empty if they are measured now."""

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """The space that `options` mean here; `known` is the workload of a study that goes on.

        Raises:
            UsageError: the options ask for something that is not there.
            ModelError: the user's own model failed.
        """

    def fingerprint(self, space: Space) -> dict[str, Any]:
        """Devices and software, which must be equal to compare two measurements."""

    def clock(self, budget_s: float, started: float) -> Clock:
        """The budget's clock; `started` is a reading of `time.monotonic`."""

    def slots(self, options: Options, space: Space) -> int:
        """Number of probes that run at once here."""

    def beside(self, space: Space, slots: int) -> int:
        """How many of `slots` share a machine, and may disturb each other."""

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        """Variables of a slot's ranks, beside the user's own, that are alike on all nodes."""

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]: ...
