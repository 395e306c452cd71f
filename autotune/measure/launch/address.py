"""Addresses of this host."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import psutil

from autotune.errors import UsageError

_ANY_PORT = 9
"""Connecting a UDP socket only chooses a route, and sends nothing."""


def address_of(interface: str) -> str:
    """The IPv4 address of an interface of this host, named by its name or address. Raises
    UsageError if this host has no such interface."""
    known = {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }
    if interface in known:
        return known[interface]
    if interface in known.values():
        return interface
    have = ", ".join(f"{name} ({address})" for name, address in known.items())
    raise UsageError(f"--interface {interface}: no such interface here; use one of {have}")


def address_towards(hosts: Iterable[str], launch: str) -> str:
    """The address by which the first other one of `hosts` reaches this host.

    Raises:
        UsageError: there is no route to any. The message names the user's `launch`.
    """
    here, why = "", "names no host"
    for host in hosts:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                asked.connect((host, _ANY_PORT))
                here = str(asked.getsockname()[0])
        except socket.gaierror as error:
            raise UsageError(f"--launch {launch}: {host}: {error.strerror}") from error
        except OSError as error:
            why = f"{host}: {error.strerror or error}"
            continue
        if not ipaddress.ip_address(here).is_loopback:
            return here
    if here:
        return here
    raise UsageError(
        f"--launch {launch}: {why}; name the interface that nodes can reach, e.g. --interface eth0"
    )
