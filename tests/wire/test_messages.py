"""Messages survive the wire unchanged, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.wire import helpers, hook, ranks, reports
from autotune.wire import messages as wire
from autotune.wire.dial import Dial
from autotune.wire.stopping import Interval, Phase, interval
from tests.support import defaults
from tests.support.messages import TYPES, any_of
from tests.support.scripted import report

REPORT = report(0.25, 5)
DESCRIBED = helpers.Described(
    base_bytes=2**28,
    models=[
        helpers.Traced(
            parameters=10,
            held_bytes=40,
            update_bytes=50,
            early_bytes=[[60, 70, 80], [70, 80, 90]],
            late_bytes=[[60, 70, 80], [70, 80, 90]],
        )
    ],
)
every_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)


def outer(message: wire.Message) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(wire.encode(message))
    return decoded


def changed(message: wire.Message, **body: Any) -> bytes:
    whole = outer(message)
    return json.dumps(whole | {"body": whole["body"] | body}).encode()


@every_type
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(any_of(kind))
    assert wire.decode(wire.encode(message)) == message


def test_a_dial_arrives_as_it_was_sent() -> None:
    dial = Dial(host="127.0.0.1", port=40000, key="00ff", rank=3, child=True)
    assert wire.decode_dial(wire.encode(dial)) == dial


def test_a_dial_is_no_message_of_the_channel() -> None:
    with pytest.raises(wire.WireError, match="unknown message type 'Dial'"):
        wire.decode(
            wire.encode(Dial(host="127.0.0.1", port=40000, key="00ff", rank=3, child=True))
        )


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_a_loss_that_is_no_number_arrives(loss: float) -> None:
    arrived = wire.decode(wire.encode(replace(REPORT, loss=loss)))
    assert isinstance(arrived, reports.Report)
    assert str(arrived.loss) == str(loss)


def test_a_whole_number_stands_for_a_float() -> None:
    arrived = wire.decode(changed(REPORT, loss=4))
    assert isinstance(arrived, reports.Report)
    assert type(arrived.loss) is float


@pytest.mark.parametrize("version", [0, wire.VERSION + 1])
def test_another_version_is_refused_with_both_versions_named(version: object) -> None:
    with pytest.raises(wire.WireError, match=f"version {version!r}, .* speaks {wire.VERSION}"):
        wire.decode(json.dumps(outer(ranks.Stop()) | {"v": version}).encode())


@every_type
@settings(max_examples=1)
@given(data=st.data())
def test_a_missing_field_is_refused_by_name(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(any_of(kind))
    for field in fields(kind):
        whole = outer(message)
        del whole["body"][field.name]
        with pytest.raises(wire.WireError, match=field.name):
            wire.decode(json.dumps(whole).encode())


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(wire.WireError, match="colour"):
        wire.decode(changed(ranks.Stop(), colour="red"))


def test_an_unknown_or_missing_field_of_a_value_in_a_message_is_refused() -> None:
    peaks = outer(REPORT)["body"]["peaks"]
    conditions = outer(REPORT)["body"]["conditions"]
    del conditions["foreign_bytes"]
    for odd in ({"peaks": peaks | {"more": 1}}, {"conditions": conditions}):
        with pytest.raises(wire.WireError, match="missing or unknown"):
            wire.decode(changed(REPORT, **odd))


def test_a_refusal_is_one_line_of_ascii_whatever_the_names() -> None:
    with pytest.raises(wire.WireError) as refused:
        wire.decode(changed(ranks.Stop(), **{"a\nb\x1b[31m\u00fc": 1}))
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def test_text_that_is_no_utf_8_arrives() -> None:
    told = hook.Left(error="no file '\udcff'", kinds=[], traceback="")
    assert wire.decode(wire.encode(told)) == told


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (ranks.Hello(1, 2, "h"), "rank", "1"),
        (ranks.Hello(1, 2, "h"), "rank", 1.0),
        (ranks.Hello(1, 2, "h"), "rank", True),
        (ranks.Hello(1, 2, "h"), "rank", None),
        (ranks.Hello(1, 2, "h"), "host", 3),
        (ranks.Entered(Phase.DONE), "phase", "lunch"),
        (REPORT, "stopped_early", 0),
        (REPORT, "loss", "nan"),
        (REPORT, "loss", False),
        (REPORT, "loss", 10**400),
        (REPORT, "step_s", 0.5),
        (REPORT, "step_s", [0.5, None]),
        (REPORT, "peaks", None),
        (REPORT, "peaks", []),
        (defaults.start(), "device_kind", "tpu"),
        (ranks.Ready(1, {}), "versions", {"torch": 2.13}),
        (defaults.probe(), "needed_step_s", "soon"),
        (DESCRIBED, "models", [[80]]),
        (DESCRIBED, "models", [asdict(DESCRIBED.models[0]) | {"early_bytes": [[80, 0.5]]}]),
    ],
)
def test_a_field_of_another_type_is_refused(
    message: wire.Message, field: str, value: object
) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(changed(message, **{field: value}))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe\x00", b"{", b"null", b"[]", b'{"v": 1}', b"[" * 100_000, b"9" * 5000,
     b'{"v": 1, "type": ["Stop"], "body": {}}', b'{"v": 1, "type": "Stop", "body": []}',
     b'{"v": 1, "type": "Peaks", "body": {}}', b'{"v": "1", "type": "Stop", "body": {}}',
     b'{"v": true, "type": "Stop", "body": {}}', b'{"v": 1, "type": "Stop", "body": {}, "w": 1}',
     b'{"v": 1, "type": "Stop", "body": {"\\ud800": 1}}'],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_bytes_that_are_no_message_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


def covered(n: int, low: int, high: int) -> float:
    """Chance that the median lies between the low-th and the high-th of n values, from 1."""
    cases = sum(math.comb(n, below) for below in range(low, high))
    return float(cases / 2**n)


def bounds(n: int) -> tuple[int, int]:
    """Which of n values, from 1, bound the interval."""
    found = interval([float(value) for value in range(1, n + 1)])
    return int(found.low), int(found.high)


@pytest.mark.parametrize("n", range(6, 41))
def test_the_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    assert covered(n, *bounds(n)) >= 0.95


@pytest.mark.parametrize("n", range(6, 41))
def test_no_narrower_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    low, high = bounds(n)
    assert covered(n, low + 1, high - 1) < 0.95


@pytest.mark.parametrize("n", range(1, 6))
def test_below_six_values_the_interval_is_the_whole_range(n: int) -> None:
    assert bounds(n) == (1, n)


def test_thousands_of_values_have_an_interval_as_the_normal_law_has_it() -> None:
    n = 5000
    low, high = bounds(n)
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(n) / 2, rel=0.02)


@pytest.mark.parametrize(
    ("values", "median"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)]
)
def test_the_median_is_the_middle_or_a_mean_of_two(values: list[float], median: float) -> None:
    assert interval(values).median == median


def test_the_largest_of_peaks_is_that_of_each_field_alone() -> None:
    first = replace(reports.Peaks.same(5), reserved_bytes=1)
    second = replace(reports.Peaks.same(3), reserved_bytes=8, alloc_retries=7)
    largest = replace(reports.Peaks.same(5), reserved_bytes=8, alloc_retries=7)
    assert reports.Peaks.largest([first, second]) == largest


def test_the_half_width_is_a_share_of_the_median() -> None:
    assert Interval(2.0, 1.75, 2.25, 9).half_width == 0.125


def test_no_step_times_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no step times"):
        interval([])
