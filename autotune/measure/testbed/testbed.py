"""What a testbed is."""

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
    """What candidates are measured on."""

    device: Device
    spec: str
    """What `open_testbed` opens it by, from any folder."""
    learns: bool
    """Whether a study on it learns from earlier ones where nothing was said."""
    remark: str
    """What goes with a result from it; empty where that was measured now."""

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """The space that `options` mean here; of a study that goes on, with what is `known`.

        Raises:
            UsageError: they ask for what there is not.
            ModelError: the user's own model failed.
        """
        ...

    def fingerprint(self, space: Space) -> dict[str, Any]:
        """Devices and software: what must be equal for two measurements to compare."""
        ...

    def clock(self, budget_s: float, started: float) -> Clock:
        """The budget's clock; `started` is a reading of `time.monotonic`."""
        ...

    def slots(self, options: Options, space: Space) -> int:
        """Probes that `options` have run at once here."""
        ...

    def beside(self, space: Space, slots: int) -> int:
        """How many of `slots` are on one machine, where they may be in each other's way."""
        ...

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        """Of the environment, those that ranks of one of `slots` have beside the user's own, as
        far as they are alike on all nodes."""
        ...

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        """One for each slot, which has a wiring of its own."""
        ...
