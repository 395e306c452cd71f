"""How ranks reach each other.

Between hosts the study's own messages are in TLS. TCP stores and gloo have no such thing. They are
bound to the interface that reaches the study, so that network has to be a trusted one.
"""

from __future__ import annotations

import os
import socket
import sys

import psutil

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def environment(address: str) -> dict[str, str]:
    """Has gloo and NCCL meet on the interface of this host that has `address`.

    With another one rank 0 waits for a minute, and looking the host's name up can fail in a
    container. What the user has set for NCCL stays, and for gloo too where ranks are on several
    hosts.
    """
    if sys.platform != "linux":
        return {}
    loopback = address.startswith("127.")
    name = "lo" if loopback else interface_of(address)
    # NCCL takes all whose names begin so, unless it is told that this is the whole of it.
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
