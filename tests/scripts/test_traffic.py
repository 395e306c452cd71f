"""What the benchmark of traffic counts."""

from __future__ import annotations

import socket

import pytest

from tests.support import scripts

traffic = scripts.load("traffic")


def test_messages_and_bytes_are_counted_both_ways() -> None:
    ours, theirs = socket.socketpair()
    before = traffic.TOTAL.copy()
    with ours, theirs:
        counted, other = traffic.CountedStream(ours), traffic.stream.Stream(theirs)
        counted.send(b"12345")
        assert other.receive(100) == b"12345"
        other.send(b"123")
        assert counted.receive(100) == b"123"
    found = traffic.TOTAL
    assert found.messages - before.messages == 2
    assert found.sent_bytes - before.sent_bytes == 4 + 5
    assert found.received_bytes - before.received_bytes == 4 + 3


@pytest.mark.slow
def test_it_measures_a_real_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.measure.runner import channel

    monkeypatch.setattr(channel, "Stream", traffic.stream.Stream)  # is put back
    traffic.main(seconds=1)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = [row.split(" | ")[0].strip("| ") for row in rows]
    assert names[-4:] == [
        "first group, with imports", "nothing but beats", "a probe's steps", "a fresh group",
    ]  # fmt: skip
    assert all(float(row.split(" | ")[2]) > 0 for row in rows[-5:])
