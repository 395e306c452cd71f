"""The bottleneck of a machine, by the load of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARGINAL = 0.90
"""A larger used share of a device's memory is dangerous."""
FULL = 0.9
"""With this share, host memory, swap or /dev/shm is full."""
ROOMY = 0.6
"""A device with a smaller used share has room for more."""
IDLE_PERCENT = 30
"""If it computes less, a device with a job waits for something else (a rule of thumb)."""


@dataclass(frozen=True)
class DeviceLoad:
    """The used share of a device's memory, and the share of time in which it computes."""

    index: int
    share: float
    percent: int | None = None


@dataclass(frozen=True)
class Cause:
    """A bottleneck, or why something failed: a name for its remedies, and a sentence."""

    name: str
    sentence: str
    arithmetic: tuple[str, ...] = ()


def scarce(
    devices: Sequence[DeviceLoad], *, host: float | None, swap: float | None, shm: float | None
) -> Cause | None:
    """The bottleneck by these used shares, None if unknown. Returns None without a bottleneck."""
    full = [each for each in devices if each.share >= MARGINAL]
    swapping = swap is not None and swap > 0.1
    if host is not None and host > FULL and (swapping or not full):
        roomy = [each for each in devices if each.share < ROOMY]
        said = f"{host:.0%} in use" + (f" and {swap:.0%} of swap" if swapping else "")
        if roomy:
            said += f"; device {roomy[0].index} is only {roomy[0].share:.0%} full"
        return Cause("host memory", f"{said}. Offload less, or load fewer copies")
    if full:
        named = ", ".join(str(each.index) for each in full)
        most = max(each.share for each in full)
        return Cause("device memory", f"device {named} at {most:.0%}")
    if shm is not None and shm > FULL:
        return Cause("/dev/shm", f"{shm:.0%} in use")
    idle = [
        each for each in devices
        if each.share > 0.1 and each.percent is not None and each.percent < IDLE_PERCENT
    ]  # fmt: skip
    if idle:
        return Cause(
            "not memory",
            f"device {idle[0].index} is {idle[0].share:.0%} full and computes"
            f" {idle[0].percent} % of the time; data loading or communication, or nobody is"
            " training (a rule of thumb)",
        )
    return None
