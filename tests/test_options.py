"""The parsers of flag values, and what `Options` refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.space.options import FLAGS, Options
from autotune.space.options.search import SearchOptions
from autotune.space.workload import GlobalBatch, parse_global_batch
from autotune.units import gib, parse_bytes, parse_duration_s, parse_ints, parse_share


def checkpointing(text: str, flag: str) -> tuple[str, ...]:
    found: tuple[str, ...] = FLAGS["checkpointing"].read(text, flag)
    return found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("45s", 45), (" 2 M ", 120), (".5s", 0.5)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text, "--budget") == seconds


@pytest.mark.parametrize(
    ("text", "share"), [("80%", 0.8), ("0.8", 0.8), ("100%", 1), ("1", 1), ("12.5 %", 0.125)]
)
def test_a_share_is_read_as_a_fraction(text: str, share: float) -> None:
    assert parse_share(text, "--ceiling") == share


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("80GB", 80 * 10**9),
        ("512mib", 2**29),
        ("67108864", 2**26),
        ("1TiB", 2**40),
        ("2 TB", 2 * 10**12),
        ("1.5T", 3 * 2**39),
        ("24g", 24 * 2**30),
        ("512Mi", 2**29),
        ("524288KiB", 2**29),
        ("524288K", 2**29),
        ("80000000kB", 80 * 10**9),
    ],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, "--capacity") == size


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", (4,)),
        ("1:4", (1, 2, 3, 4)),
        ("8:32:8", (8, 16, 24, 32)),
        ("4,2,2", (2, 4)),
        ("1, 8:9 ", (1, 8, 9)),
        ("1:6:4", (1, 5)),
    ],
)
def test_integers_come_out_ascending_and_once(text: str, values: tuple[int, ...]) -> None:
    assert parse_ints(text, "--depth") == values


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("65536tok", GlobalBatch(65536, "tokens")),
        ("65536 tokens", GlobalBatch(65536, "tokens")),
        ("256", GlobalBatch(256, "samples")),
        ("256samples", GlobalBatch(256, "samples")),
    ],
)
def test_a_global_batch_is_in_tokens_or_samples(text: str, batch: GlobalBatch) -> None:
    assert parse_global_batch(text, "--global-batch") == batch


@pytest.mark.parametrize("batch", [GlobalBatch(512, "tokens"), GlobalBatch(7, "samples")], ids=str)
def test_a_global_batch_is_written_as_it_is_read(batch: GlobalBatch) -> None:
    assert parse_global_batch(str(batch), "--global-batch") == batch


@pytest.mark.parametrize(
    ("size", "text"),
    [(5 * 2**28, "1.25 GiB"), (310 * 2**20, "310 MiB"), (12 * 2**10, "12 KiB"), (40, "40 bytes")],
)
def test_a_size_is_shown_in_the_unit_that_suits_it(size: int, text: str) -> None:
    assert gib(size) == text


def test_names_keep_their_order_and_come_out_once() -> None:
    assert checkpointing("full, none,full", "--checkpointing") == ("full", "none")


WRONG = [
    (parse_duration_s, "2", "2m"),
    (parse_duration_s, "30x", "30m"),
    (parse_duration_s, "", "30m"),
    (parse_duration_s, "-5m", "30m"),
    (parse_duration_s, "0", "30m"),
    (parse_duration_s, "nan", "30m"),
    (parse_duration_s, "9" * 400, "30m"),
    (parse_duration_s, "99999h", "30m"),
    (parse_share, "80GiB", "80%"),
    (parse_share, "85", "85%"),
    (parse_share, "0%", "80%"),
    (parse_share, "101%", "80%"),
    (parse_bytes, "24 apples", "24GiB"),
    (parse_bytes, "1MiB", "64MiB"),
    (parse_bytes, "512", "512GiB"),
    (parse_bytes, "1PiB", "1TiB"),
    (parse_bytes, "-24GiB", "64MiB"),
    (parse_bytes, "9" * 308 + "GiB", "64MiB"),
    (parse_ints, "two", "1,2,4"),
    (parse_ints, "2,", "1,2,4"),
    (parse_ints, "2.5", "1,2,4"),
    (parse_ints, "0", "1"),
    (parse_ints, "-4:4", "1"),
    (parse_ints, "8:4", "4:8"),
    (parse_ints, "4:8:0", "4:8:1"),
    (parse_ints, "1:999999", "1:4096:64"),
    (parse_ints, "9" * 5000, "1,2,4"),
    (parse_global_batch, "512 bytes", "65536tok"),
    (parse_global_batch, "0", "65536tok"),
    (parse_global_batch, "9" * 5000, "65536tok"),
    (checkpointing, "some", "full"),
    (checkpointing, "", "full"),
]


@pytest.mark.parametrize(
    ("parse", "text", "valid"), WRONG, ids=[f"{p.__name__}-{text[:12]}" for p, text, _ in WRONG]
)
def test_a_wrong_value_is_answered_with_the_flag_and_a_valid_one(
    parse: Callable[[str, str], Any], text: str, valid: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "--flag")
    assert str(caught.value).startswith("--flag ")
    assert valid in str(caught.value)
    parse(valid, "--flag")


@pytest.mark.parametrize(
    ("field", "value", "flag", "valid"),
    [
        ("model", "bert", "--model bert", "gpt"),
        ("zero", (0, 5), "--zero 5", "0, 1, 2, 3"),
        ("gpt", "width=100", "--gpt width=100", "width=128"),
        ("gpt", "vocab_size=0", "--gpt vocab_size=0", "at least 1"),
        ("world_size", -1, "--world-size -1", "at least 1"),
        ("nodes", 0, "--nodes 0", "at least 1"),
        ("finals", 0, "--finals 0", "at least 1"),
        ("trials", 0, "--trials 0", "at least 1"),
        ("seed", -1, "--seed -1", "0 to"),
        ("seed", 2**32, "--seed 4294967296", "0 to 4294967295"),
    ],
)
def test_options_refuse_what_cannot_be_done(field: str, value: Any, flag: str, valid: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options.of(**{field: value})
    message = str(caught.value)
    assert message.startswith(flag)
    assert valid in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "--parallel 0: must be at least 1, or auto"),
        ("many", "--parallel many: not a whole number; write it as 2, or auto"),
    ],
)
def test_parallel_is_a_number_or_auto(text: str, why: str) -> None:
    assert Options.from_texts({"parallel": "auto"}).devices.parallel == "auto"
    assert Options.from_texts({"parallel": "4"}).devices.parallel == 4
    with pytest.raises(UsageError) as refused:
        Options.from_texts({"parallel": text})
    assert str(refused.value) == why


@pytest.mark.parametrize("asked", [{"launch": "wait"}, {"nodes": 2}, {"interface": "lo"}])
def test_a_script_is_launched_on_one_machine(asked: dict[str, Any]) -> None:
    [(name, value)] = asked.items()
    with pytest.raises(UsageError, match=f"--{name} {value}: scripts run on this machine"):
        Options.of(script="true {micro_batch}", **asked)


def test_a_script_is_launched_once_at_a_time() -> None:
    with pytest.raises(UsageError, match="--parallel 2: scripts are launched one at a time"):
        Options.of(script="true {micro_batch}", parallel=2)


def test_a_script_is_judged_by_its_tokens_as_nobody_knows_its_flops() -> None:
    asked = Options.of(script="true {micro_batch}", objective="flops", seed=3)
    assert asked.search == SearchOptions(objective="tokens_per_s", seed=3)
    assert asked.but(seed=4).search == SearchOptions(objective="tokens_per_s", seed=4)


def test_options_are_the_same_by_their_keys() -> None:
    asked = Options.of(depth=(2, 4), zero=(0,), budget_s=60.0, model="gpt2", nodes=2)
    assert asked.space.axes == {"depth": (2, 4), "zero_stage": (0,)}
    assert Options.of(**asked.flat()) == asked
    with pytest.raises(KeyError):
        Options.of(dept=(2,))
