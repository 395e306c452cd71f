"""Which part of a machine is the bottleneck, by how full and how busy its parts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARGINAL = 0.90
"""Of a device's memory: above it is danger."""
FULL = 0.9
"""Of host memory, swap or /dev/shm."""
ROOMY = 0.6
"""A device with less in use has room for more."""
IDLE_PERCENT = 30
"""Under this a device that holds a job waits for something else (a rule of thumb)."""


@dataclass(frozen=True)
class DeviceLoad:
    """A device now: the share of its memory in use, and how much of the time it computes."""

    index: int
    share: float
    percent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scarce:
    """The bottleneck: a name to choose advice by, and a sentence."""

    name: str
    sentence: str


def scarce(
    devices: Sequence[DeviceLoad], *, host: float | None, swap: float | None, shm: float | None
) -> Scarce | None:
    """What is scarce where these shares are in use (None: not known); None if nothing is."""
    full = [each for each in devices if each.share >= MARGINAL]
    swapping = swap is not None and swap > 0.1
    if host is not None and host > FULL and (swapping or not full):
        roomy = [each for each in devices if each.share < ROOMY]
        said = f"{host:.0%} in use" + (f" and {swap:.0%} of swap" if swapping else "")
        if roomy:
            said += f"; device {roomy[0].index} is only {roomy[0].share:.0%} full"
        return Scarce(name="host memory", sentence=f"{said}. Offload less, or load fewer copies")
    if full:
        named = ", ".join(str(each.index) for each in full)
        most = max(each.share for each in full)
        return Scarce(name="device memory", sentence=f"device {named} at {most:.0%}")
    if shm is not None and shm > FULL:
        return Scarce(name="/dev/shm", sentence=f"{shm:.0%} in use")
    idle = [
        each for each in devices
        if each.share > 0.1 and each.percent is not None and each.percent < IDLE_PERCENT
    ]  # fmt: skip
    if idle:
        return Scarce(
            name="not memory",
            sentence=f"device {idle[0].index} is {idle[0].share:.0%} full and computes"
            f" {idle[0].percent} % of the time; data loading or communication, or nobody is"
            " training (a rule of thumb)",
        )
    return None
