"""How much memory models need, traced by a helper process."""

from __future__ import annotations

import time

from autotune.measure.runner import StopRequestedError
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.helper import Helper, Start
from autotune.measure.runner.wiring import Wiring
from autotune.space.space import Space
from autotune.space.trace import Trace, request, why_untraced
from autotune.wire.helpers import Described

UNTRACED = "memory is predicted by formulas alone, since the models were not traced"
POLL_S = 0.01


def trace(
    space: Space,
    device_kind: str,
    start: Start,
    *,
    channel: Channel,
    wiring: Wiring,
    limit_s: float,
) -> Trace | None:
    """The answer of the helper that `start` starts, which dials `channel`; None where there is
    none within `limit_s`.

    Raises:
        StopRequestedError: the user asked to stop.
    """
    asked = request(space, device_kind)
    if not asked.models:
        wiring.note(f"{UNTRACED}: {why_untraced(space, device_kind)}")
        return None
    helper = Helper(asked, start, logs=wiring.logs, limit_s=limit_s, channel=channel)
    try:
        while helper.works:
            if wiring.stop():
                raise StopRequestedError
            time.sleep(POLL_S)
            helper.poll()
    finally:
        helper.close()
    if isinstance(helper.found, Described):
        return Trace(asked, helper.found)
    wiring.note(f"{UNTRACED}: {helper.why}; see {helper.log.name}")
    return None
