"""The page of a study that runs, over HTTP on loopback."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.result.files import hold
from autotune.show.view import serve
from autotune.show.view.page import page
from autotune.show.view.serve import HOST, server
from tests.support.shown import change_rows, failed, folder

Get = Callable[..., HTTPResponse]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return folder(tmp_path)


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def get(study: Path, lost: list[str]) -> Iterator[Get]:
    with server(study, 0, lost.append) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()

        def one(path: str = "/", method: str = "GET", *, hosts: str = "localhost:PORT",
                state: str = "") -> HTTPResponse:  # fmt: skip
            connection = HTTPConnection(HOST, serving.server_port, timeout=60)
            connection.putrequest(method, path, skip_host=True)
            for host in hosts.split("|") if hosts else ():
                connection.putheader("Host", host.replace("PORT", str(serving.server_port)))
            connection.putheader("If-None-Match", state)
            connection.endheaders()
            return connection.getresponse()

        yield one
        serving.shutdown()
        thread.join()


def test_it_is_the_live_page_on_loopback_alone(get: Get) -> None:
    answer = get()
    body = answer.read().decode()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src &#39;self&#39;" in body
    assert HOST == "127.0.0.1"


def test_what_did_not_change_is_not_sent_again(get: Get, study: Path) -> None:
    first = get()
    first.read()
    state = first.headers["ETag"]
    assert get(state=state).status == 304
    change_rows(study, lambda rows: [*rows, failed(rows[0], "oom", number="77")])
    again = get(state=state)
    assert again.status == 200
    assert again.headers["ETag"] != state


def test_a_page_is_made_once_however_many_look(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(*given: Any, **how: Any) -> str:
        made.append("page")
        return page(*given, **how)

    monkeypatch.setattr(serve, "page", counted)
    assert get().read() == get().read()
    assert made == ["page"]


def test_the_end_of_a_study_is_a_change(get: Get, study: Path) -> None:
    with hold(study):
        running = get()
        assert "<span>running</span>" in running.read().decode()
    ended = get(state=running.headers["ETag"])
    assert "<span>running</span>" not in ended.read().decode()
    assert ended.status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "127.0.0.1", "", "localhost:PORT|evil.example"]
)
def test_only_who_calls_it_by_its_own_name_is_answered(get: Get, host: str) -> None:
    assert get(hosts=host).status == 403
    assert get(hosts="127.0.0.1:PORT").status == 200


@pytest.mark.parametrize("path", ["/best.json", "/../manifest.json", "/?x", "/logs/"])
def test_there_is_one_address(get: Get, path: str) -> None:
    assert get(path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(get: Get, method: str) -> None:
    assert get(method=method).status == 501


def test_an_unreadable_study_is_said_twice(get: Get, study: Path, lost: list[str]) -> None:
    (study / "manifest.json").unlink()
    assert get().status == 503
    assert "not a study folder: it has no manifest.json" in lost[0]


def test_who_leaves_before_the_end_is_not_told_of(
    get: Get, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    class Gone(io.BytesIO):
        def write(self, body: object) -> int:
            raise BrokenPipeError

        def close(self) -> None:
            super().close()
            answered.set()

    setup = BaseHTTPRequestHandler.setup

    def leaving(self: BaseHTTPRequestHandler) -> None:
        setup(self)
        self.wfile = Gone()

    monkeypatch.setattr(BaseHTTPRequestHandler, "setup", leaving)
    with pytest.raises(HTTPException):
        get()
    assert answered.wait(60)
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(study: Path, lost: list[str]) -> None:
    with (
        server(study, 0, lost.append) as serving,
        pytest.raises(UsageError, match=r"--port \d+: .*leave it out"),
    ):
        server(study, serving.server_port, lost.append)
    with pytest.raises(UsageError, match="--port 99999: "):
        server(study, 99999, lost.append)
