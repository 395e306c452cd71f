"""Micro-batches by rank: which vectors a study has, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.resolve import resolve
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.space import LEFT_OUT, Space

GIB = 2**30
HOST_BYTES = 16 * GIB


def on(device: Device, vectors: str, **flags: str) -> Space:
    texts = {"world_size": "2", "micro_batch_per_rank": vectors, "depth": "2", "seq_len": "64"}
    options = Options.from_texts(texts | {"checkpointing": "none"} | flags)
    return resolve(options, device, HOST_BYTES, 2)


def vectors(space: Space) -> dict[str, int]:
    return {c.micro_batch_per_rank: c.micro_batch for c in space.candidates}


@pytest.fixture
def unlike(gpus: Device) -> Device:
    """Cards of 24 and 48 GiB."""
    sizes = (24 * GIB, 48 * GIB)
    gpus.infos = tuple(
        replace(i, capacity_bytes=s) for i, s in zip(gpus.infos, sizes, strict=True)
    )
    return gpus


def test_each_vector_is_a_candidate_of_ddp(cpu: Device) -> None:
    space = on(cpu, "2+4,3+3", capacity_bytes="1GiB,2GiB")
    assert space.limits.rank_capacities == (GIB, 2 * GIB)
    assert vectors(space) == {"2+4": 2, "3+3": 3}
    assert space.workload.engine == "ddp"
    assert {space.workload.global_batch_samples(c) for c in space.candidates} == {6}


def test_unlike_cards_have_limits_of_their_own(unlike: Device) -> None:
    space = on(unlike, "2+4")
    assert space.limits.rank_capacities == (24 * GIB, 48 * GIB)
    assert space.limits.capacity_bytes == 24 * GIB
    (capacity,) = [fixed.value for fixed in space.fixed if fixed.name == "capacity"]
    assert capacity == "24.00 GiB + 48.00 GiB by rank"


def test_auto_has_vectors_by_memory_between_and_alike(unlike: Device) -> None:
    found = vectors(on(unlike, "auto"))
    assert {"8+8", "8+16", "8+11"} <= found.keys()
    assert found["8+16"] == found["8+8"] == 8


def test_auto_has_vectors_by_the_speed_of_known_cards(gpus: Device) -> None:
    names = ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090")
    gpus.infos = tuple(
        replace(i, name=name, capacity_bytes=24 * GIB)
        for i, name in zip(gpus.infos, names, strict=True)
    )
    found = vectors(on(gpus, "auto"))
    assert "8+18" in found  # 71 and 165 TFLOP/s
    each = [tuple(map(int, vector.split("+"))) for vector in found]
    for faster in (1 + step / 50 for step in range(75)):  # whatever the speeds really are
        best = max((a + b) / max(a, b / faster) for a, b in each)
        assert best > 0.95 * (1 + faster)


def test_a_global_batch_is_exact(cpu: Device) -> None:
    space = on(cpu, "2+4,3+5,1+2", global_batch="12")
    assert {c.vector: space.workload.grad_accum(c) for c in space.candidates} == {
        (2, 4): 2, (1, 2): 4,
    }  # fmt: skip
    left_out = [fixed.value for fixed in space.fixed if fixed.name == LEFT_OUT]
    assert left_out == ["micro_batch_per_rank 3+5"]


@pytest.mark.parametrize(
    ("asked", "flags", "why"),
    [
        ("2+4+2", {}, "3 micro-batches for 2 ranks; write one for each"),
        ("0+4", {}, "unknown; .* at least 1 sample for each rank"),
        ("2+4", {"world_size": "1"}, "there is one rank; use --micro-batch"),
        ("2+4", {"micro_batch": "2"}, "does not go with --micro-batch;"),
        ("2+4", {"tokens_per_batch": "64"}, "does not go with --tokens-per-batch;"),
        ("2+4", {"engine": "deepspeed"}, "use --engine ddp or fsdp"),
        ("2+4", {"zero": "2"}, "--zero needs an engine; add --engine fsdp"),
        ("2+4", {"parallel": "2"}, "only for one group"),
        ("2+4", {"global_batch": "8"}, r"\(the sum of micro_batch_per_rank x grad_accum\).* 6$"),
        ("2+4", {"capacity_bytes": "1GiB,2GiB,3GiB"}, "3 sizes for 2 ranks"),
        ("2+4", {"capacity_bytes": "1GiB,30GiB"}, "all ranks together have 16.00 GiB"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    cpu: Device, asked: str, flags: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        on(cpu, asked, **flags)
    assert "\n" not in str(refused.value)


def test_a_rank_s_capacity_is_at_most_its_device_s(unlike: Device) -> None:
    with pytest.raises(UsageError, match=r"the device of rank 1 has 48.00 GiB"):
        on(unlike, "2+4", capacity_bytes="20GiB,60GiB")


def test_several_capacities_need_vectors() -> None:
    with pytest.raises(UsageError, match="several sizes only with --micro-batch-per-rank"):
        Options.from_texts({"capacity_bytes": "1GiB,2GiB"})


def test_options_with_vectors_come_back_from_a_manifest() -> None:
    asked = Options.from_texts({"micro_batch_per_rank": "2+4,auto", "capacity_bytes": "1GiB,2GiB"})
    assert Options.from_json(asked.to_json()) == asked


def test_a_vector_covers_those_that_are_smaller_on_each_rank() -> None:
    def of(vector: str) -> Candidate:
        return Candidate(depth=1, seq_len=8, micro_batch=2, micro_batch_per_rank=vector)

    assert of("3+5").covers(of("2+5"))
    assert not of("3+5").covers(of("2+6"))
    assert not of("3+5").covers(of("same"))
