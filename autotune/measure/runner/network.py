"""How ranks reach each other.

Between hosts TLS protects the study's messages. TCP stores and gloo have no TLS. They listen on
the interface that reaches the study, so its network has to be trusted.
"""

from __future__ import annotations

import os
import socket
import sys

import psutil

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def environment(address: str) -> dict[str, str]:
    """Has gloo and NCCL meet on the interface of this host that has `address`.

    With another interface rank 0 waits for a minute, and a container may not resolve the host's
    name. The user's variables for NCCL stay; those for gloo too, if ranks are on several hosts.
    """
    if sys.platform != "linux":
        return {}
    loopback = address.startswith("127.")
    name = "lo" if loopback else interface_of(address)
    # NCCL takes all interfaces with that prefix; "=" asks for this one alone.
    found = dict(zip(INTERFACES, (name, f"={name}"), strict=True)) if name else {}
    kept = INTERFACES[1:] if loopback else INTERFACES
    return found | {each: os.environ[each] for each in kept if each in os.environ}


def interface_of(address: str) -> str:
    """The name of the interface of this host that has `address`; empty where none has."""
    for name, has in psutil.net_if_addrs().items():
        families = (socket.AF_INET, socket.AF_INET6)
        if any(each.family in families and each.address == address for each in has):
            return name
    return ""
