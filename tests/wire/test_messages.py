"""Messages survive the wire unchanged, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.wire import messages as wire

PEAKS = wire.Peaks(5, 4, 3, 2, 6, 0)
CONDITIONS = wire.Conditions(2.0, 1.5, 0.25, 1.25, 1980, 650.5, 61, 4, False)
ON_CPU = wire.Conditions(2.0, 1.5, 0.25, 1.25, None, None, None, None, False)
RULE = wire.Rule(3, 0.02, 5.0, 5, 0.01, 15.0)
REPORT = wire.Report(7, [0.25, 0.5], [1.0], 1.5, 0.75, False, 4.5, PEAKS, 3, CONDITIONS)
PROBE = wire.Probe(7, 4, 128, 2, 1, RULE, None)
DESCRIBED = wire.Described(
    2**28, [10, -1], [40, -1], [50, -1], [[[60, 70, 80], [70, 80, 90]], [[-1] * 3] * 2]
)
MESSAGES: list[wire.Message] = [
    wire.Start(
        2, "cpu", "cpu", 2**30, "127.0.0.1", 40000,
        wire.ModelSpec("gpt", 4, 256, 4096, "full"), "deepspeed", 2, "none", "fp32",
        "adamw", {"zero_optimization": {"stage": 2}, "betas": [0.9, 0.95]}, 1,
    ),
    PROBE,
    replace(PROBE, needed_step_s=0.125),
    wire.Describe(
        [wire.ModelSpec("gpt", 1, 64, 256, "none"), wire.ModelSpec("gpt", 2, 64, 256, "none")],
        [64, 128], [1, 2, 4], "fp32", "adamw", False,
    ),
    DESCRIBED,
    wire.Stop(),
    wire.Hello(1, 4242, "localhost"),
    wire.Store("127.0.0.1", 40000),
    wire.Entered(wire.Phase.WARMUP),
    wire.Ready(3_000_000, {"torch": "2.13.0"}),
    wire.Progress(7, []),
    REPORT,
    replace(REPORT, conditions=ON_CPU, stopped_early=True),
    wire.Fault("oom", wire.Phase.TIMED, "OutOfMemoryError: ½ GiB", "line 1\nline 2", 2**29, PEAKS),
    wire.Fault("crashed", wire.Phase.BUILD, "", "", None, None),
]  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["v", "type", "body", "rank"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def outer(message: wire.Message) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(wire.encode(message))
    return decoded


def changed(message: wire.Message, **body: Any) -> bytes:
    whole = outer(message)
    return json.dumps(whole | {"body": whole["body"] | body}).encode()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_every_type_of_message_is_tested_here() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(wire.Message))


def test_a_dial_arrives_as_it_was_sent() -> None:
    dial = wire.Dial("127.0.0.1", 40000, "00ff", 3, True)
    assert wire.decode_dial(wire.encode(dial)) == dial


def test_a_dial_is_no_message_of_the_channel() -> None:
    with pytest.raises(wire.WireError, match="unknown message type 'Dial'"):
        wire.decode(wire.encode(wire.Dial("127.0.0.1", 40000, "00ff", 3, True)))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_a_loss_that_is_no_number_arrives(loss: float) -> None:
    arrived = wire.decode(wire.encode(replace(REPORT, loss=loss)))
    assert isinstance(arrived, wire.Report)
    assert str(arrived.loss) == str(loss)


def test_a_whole_number_stands_for_a_float() -> None:
    arrived = wire.decode(changed(REPORT, loss=4))
    assert isinstance(arrived, wire.Report)
    assert type(arrived.loss) is float


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, str(wire.VERSION), None, True])
def test_another_version_is_refused_with_both_versions_named(version: object) -> None:
    with pytest.raises(wire.WireError, match=f"version {version!r}, .* speaks {wire.VERSION}"):
        wire.decode(json.dumps(outer(wire.Stop()) | {"v": version}).encode())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_missing_field_is_refused_by_name(message: wire.Message) -> None:
    for field in fields(message):
        whole = outer(message)
        del whole["body"][field.name]
        with pytest.raises(wire.WireError, match=field.name):
            wire.decode(json.dumps(whole).encode())


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(wire.WireError, match="colour"):
        wire.decode(changed(wire.Stop(), colour="red"))


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (wire.Hello(1, 2, "h"), "rank", "1"),
        (wire.Hello(1, 2, "h"), "rank", 1.0),
        (wire.Hello(1, 2, "h"), "rank", True),
        (wire.Hello(1, 2, "h"), "rank", None),
        (wire.Hello(1, 2, "h"), "host", 3),
        (wire.Entered(wire.Phase.DONE), "phase", "lunch"),
        (REPORT, "stopped_early", 0),
        (REPORT, "loss", "nan"),
        (REPORT, "loss", False),
        (REPORT, "loss", 10**400),
        (REPORT, "step_s", 0.5),
        (REPORT, "step_s", [0.5, None]),
        (REPORT, "peaks", None),
        (REPORT, "peaks", []),
        (MESSAGES[0], "device", "tpu"),
        (wire.Ready(1, {}), "versions", {"torch": 2.13}),
        (PROBE, "needed_step_s", "soon"),
        (DESCRIBED, "peak_bytes", [[80]]),
        (DESCRIBED, "peak_bytes", [[[80, 0.5]]]),
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
     b'{"v": 1, "type": "Peaks", "body": {}}'],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_bytes_that_are_no_message_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@settings(max_examples=300)
@given(st.data())
def test_a_field_with_any_json_is_decoded_faithfully_or_refused(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([m for m in MESSAGES if fields(m)]))
    field = data.draw(st.sampled_from([field.name for field in fields(message)]))
    encoded = changed(message, **{field: data.draw(json_values)})
    try:
        arrived = wire.decode(encoded)
    except wire.WireError:
        return
    assert outer(arrived)["body"].keys() == json.loads(encoded)["body"].keys()
    assert type(arrived) is type(message)


@settings(max_examples=200)
@given(json_values)
def test_no_json_raises_anything_but_a_wire_error(value: object) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(json.dumps(value).encode())


def covered(n: int, low: int, high: int) -> float:
    """Chance that the median lies between the low-th and the high-th of n values, from 1."""
    cases = sum(math.comb(n, below) for below in range(low, high))
    return float(cases / 2**n)


def ranks(n: int) -> tuple[int, int]:
    """Which of n values, from 1, bound the interval."""
    found = wire.interval([float(value) for value in range(1, n + 1)])
    return int(found.low), int(found.high)


@pytest.mark.parametrize("n", range(6, 41))
def test_the_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    assert covered(n, *ranks(n)) >= 0.95


@pytest.mark.parametrize("n", range(6, 41))
def test_no_narrower_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    low, high = ranks(n)
    assert covered(n, low + 1, high - 1) < 0.95


@pytest.mark.parametrize("n", range(1, 6))
def test_below_six_values_the_interval_is_the_whole_range(n: int) -> None:
    assert ranks(n) == (1, n)


def test_thousands_of_values_have_an_interval_as_the_normal_law_has_it() -> None:
    n = 5000
    low, high = ranks(n)
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(n) / 2, rel=0.02)


@pytest.mark.parametrize(
    ("values", "median"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)]
)
def test_the_median_is_the_middle_or_the_mean_of_the_two(
    values: list[float], median: float
) -> None:
    assert wire.interval(values).median == median


def test_the_largest_of_peaks_is_that_of_each_field_alone() -> None:
    first, second = wire.Peaks(5, 4, 3, 2, 6, 0), wire.Peaks(1, 8, 3, 9, 2, 7)
    assert wire.Peaks.largest([first, second]) == wire.Peaks(5, 8, 3, 9, 6, 7)


def test_the_half_width_is_a_share_of_the_median() -> None:
    assert wire.Interval(2.0, 1.75, 2.25, 9).half_width == 0.125


def test_no_step_times_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no step times"):
        wire.interval([])
