"""GPUs that are not here, by name or size."""

from __future__ import annotations

import pytest

from autotune.device.cards import CARDS, MOST_GPUS, parse_gpus
from autotune.device.imagined import ImaginedDevice
from autotune.errors import UsageError

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "counts", "name", "memory"),
    [
        ("4x80GiB", (4,), "80GiB", 80 * GIB),
        ("80GiB", (1,), "80GiB", 80 * GIB),
        ("3 x 20 GiB", (3,), "20 GiB", 20 * GIB),
        ("1,2,4,6,8x32GiB", (1, 2, 4, 6, 8), "32GiB", 32 * GIB),
        ("8,2,2x24GB", (2, 8), "24GB", 24 * 10**9),
        ("8xH100", (8,), "H100", 81559 * 2**20),
        ("8xNVIDIA H100 80GB HBM3", (8,), "H100", 81559 * 2**20),
        ("h100-sxm5", (1,), "H100", 81559 * 2**20),
        ("4xRTX4090", (4,), "RTX4090", 24564 * 2**20),
        ("4xRTX 4090", (4,), "RTX4090", 24564 * 2**20),
        ("GeForce RTX 4090", (1,), "RTX4090", 24564 * 2**20),
        ("2x4090", (2,), "RTX4090", 24564 * 2**20),
        ("A6000", (1,), "RTXA6000", 49140 * 2**20),
        ("DGX Spark", (1,), "GB10", 122570 * 2**20),
        ("2xA100-80GB", (2,), "A100-80GB", 81920 * 2**20),
        ("2xA100-SXM4-40GB", (2,), "A100-40GB", 40960 * 2**20),
        ("A10", (1,), "A10", 23028 * 2**20),
        ("Tesla T4", (1,), "T4", 15360 * 2**20),
    ],
)
def test_gpus_are_named_as_people_name_them(
    text: str, counts: tuple[int, ...], name: str, memory: int
) -> None:
    found = parse_gpus(text)
    assert (found.counts, found.card.name, found.card.memory_bytes) == (counts, name, memory)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write 4x80GiB"),
        ("four", "unknown card"),
        ("0x80GiB", "from 1 to"),
        ("1 2x80GiB", "no numbers of GPUs"),
        ("2x8x80GiB", "write 16x80GiB; eight of more GPUs share a machine"),
        ("9" * 5000 + "x80GiB", "no numbers of GPUs"),
        ("-1x80GiB", "write 4x80GiB"),
        (f"{MOST_GPUS + 1}x80GiB", "from 1 to"),
        ("4x80", "not a size|unknown card"),
        ("4x80parsec", "not a size"),
        ("4x1MiB", "at least 64MiB"),
        ("4x99999999GiB", "no GPU has"),
        ("4xA100", "which one: A100-40GB or A100-80GB"),
        ("8xH9000", "unknown card; write its memory, e.g. 80GiB"),
        ("8xA100-41GB", "unknown card; did you mean A100-40GB\\? write its memory"),
        ("4x" + "9" * 400 + "GiB", ".*"),
        ("4x80GiB; rm -rf", "write 4x80GiB"),
        (
            "RTX4090-48GB",
            ("RTX4090 has 24 GiB; for a card with other memory write only that, 48GiB"),
        ),
    ],
)
def test_impossible_gpus_are_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        parse_gpus(text)
    assert str(error.value).startswith("--gpus")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_is_found_by_its_own_name(card: object) -> None:
    assert parse_gpus(card.name).card is card  # type: ignore[attr-defined]


def test_what_is_imagined_is_a_device_that_nobody_uses() -> None:
    device = ImaginedDevice(parse_gpus("V100-32GB").card, 3)
    assert [info.index for info in device.infos] == [0, 1, 2]
    assert len({info.uuid for info in device.infos}) == 3
    assert not device.infos[0].bf16
    assert device.in_use_bytes() == (0, 0, 0)
