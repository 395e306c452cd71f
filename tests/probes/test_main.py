"""The end of a rank that failed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

import probes.__main__ as main
from autotune.wire.dial import Dial
from autotune.wire.messages import Message
from autotune.wire.ranks import Fault
from probes.__main__ import Rank


def test_the_log_has_the_traceback_before_the_study_can_end_the_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs: list[str] = []

    class Study:
        def __init__(self, dial: Dial) -> None: ...

        def send(self, message: Message) -> None:
            if isinstance(message, Fault):
                logs.append(capsys.readouterr().err)

    def fail(rank: Rank) -> NoReturn:
        raise RuntimeError("my own mistake")

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(main, "Link", Study)
    monkeypatch.setattr(main, "keep_to_cores", lambda: None)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        main.run(Dial(host="127.0.0.1", port=1, key="", rank=0, token="", child=False), fail)
    [log] = logs
    assert log.endswith("RuntimeError: my own mistake\n")
