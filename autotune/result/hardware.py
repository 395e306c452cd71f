"""Whether a result was measured on what is here."""

from __future__ import annotations

from autotune.device import open_device
from autotune.errors import UsageError
from autotune.result.best import Best


def other_hardware(best: Best) -> str:
    """How the devices here differ from those that `best` was measured on; empty where they do
    not."""
    kind, measured = best.device_kind, best.fingerprint.get("devices")
    if not isinstance(measured, dict):
        return "it does not say what it was measured on"
    try:
        here = open_device(kind).fingerprint()
    except UsageError as error:
        return f"it was measured on {kind}, and here {error}"
    if kind == "cpu":
        for name in ("name", "cores"):
            if measured.get(name) != here[name]:
                return f"it was measured on {measured.get(name)}, and here is {here[name]}"
        return ""
    ranks = best.config.world_size
    known = [(each["name"], each["capacity_bytes"]) for each in measured["devices"][:ranks]]
    found = [(each["name"], each["capacity_bytes"]) for each in here["devices"][:ranks]]
    if known != found:
        return f"it was measured on {ranks} x {known[0][0]}, and here is" + (
            f" {len(found)} x {found[0][0]}"
        )
    return ""
