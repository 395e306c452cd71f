"""The address at which other hosts reach this one."""

from __future__ import annotations

import socket

import pytest

from autotune.errors import UsageError
from autotune.measure.launch import address


def test_a_name_that_nobody_knows_is_no_matter_of_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", unknown)
    with pytest.raises(UsageError) as refused:
        address.address_towards(["nodeb"], "ssh:hosts")
    assert str(refused.value) == "--launch ssh:hosts: nodeb: Name or service not known"
