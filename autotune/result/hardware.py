"""Compares the hardware of a result with this machine's."""

from __future__ import annotations

from autotune.device import open_device
from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.result.best import Best


def other_hardware(best: Best, on: Device | None = None) -> str:
    """How `on`, or this machine, differs from the hardware of `best`; empty if it does not."""
    kind, measured = best.device_kind, best.fingerprint.get("devices")
    if not isinstance(measured, dict):
        return "it does not say what it was measured on"
    try:
        here = (on or open_device(kind)).fingerprint()
    except UsageError as error:
        return f"it was measured on {kind}, and here {error}"
    if here["kind"] != kind:
        return f"it was measured on {kind}, and here is {here['kind']}"
    nodes, found_nodes = best.config.nodes, here.get("nodes", 1)
    if on is not None and found_nodes < nodes:
        return f"it was measured on {nodes} nodes, and here is {found_nodes}"
    if kind == "cpu":
        for name in ("name", "cores"):
            if measured.get(name) != here[name]:
                return f"it was measured on {measured.get(name)}, and here is {here[name]}"
        return ""
    ranks = best.config.ranks_on_a_node
    known = [(each["name"], each["capacity_bytes"]) for each in measured["devices"][:ranks]]
    found = [(each["name"], each["capacity_bytes"]) for each in here["devices"][:ranks]]
    if known != found:
        each = " a node" if nodes > 1 else ""
        return f"it was measured on {ranks} x {known[0][0]}{each}, and here is" + (
            f" {len(found)} x {found[0][0]}"
        )
    return ""
