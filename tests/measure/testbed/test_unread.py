"""What a user's function does not read is not searched."""

from __future__ import annotations

import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options
from autotune.space.space import Space
from probes.count import count


def on(device: Device, function: str, **texts: str) -> Space:
    asked = {"model": f"factory:tests.support.own:{function}", "micro_batch": "1,2"} | texts
    return resolve(Options.from_texts(asked), device, 16 * 2**30, 2, count=count)


def test_a_batch_without_length_is_one_token_a_sample(cpu: Device) -> None:
    space, longer = on(cpu, "images"), on(cpu, "images", seq_len="64")
    assert space.axes["seq_len"] == (1,)
    assert space.workload.recipe["seq_len"] == 1
    (candidate, *_), (other, *_) = space.candidates, longer.candidates
    flops = 64 * longer.workload.flops_per_token(other)
    assert space.workload.flops_per_token(candidate) == flops
    (said,) = [each.why for each in space.fixed if each.name == "seq_len"]
    assert said.startswith("make_batch does not use it")


def test_sizes_that_only_we_speak_of_are_not_told(cpu: Device) -> None:
    assert not {each.name for each in on(cpu, "images").fixed} & {"width", "outputs"}


@pytest.mark.parametrize("function", ["unread", "reads_later", "known_flops"])
def test_lengths_that_may_matter_are_searched(cpu: Device, function: str) -> None:
    assert on(cpu, function).axes["seq_len"] == (64, 128)


@pytest.mark.parametrize(
    ("function", "candidates", "said"),
    [
        ("without_blocks", 2, "names no blocks: none and full are the same training"),
        ("unread", 4, "the factory never reads spec.checkpointing"),
    ],
)
def test_checkpointing_is_left_out_without_blocks_and_else_ours(
    cpu: Device, function: str, candidates: int, said: str
) -> None:
    found = on(cpu, function, seq_len="8")
    assert len(found.candidates) == candidates
    assert any(said in each.why for each in found.fixed)


REFUSED = [
    ("images", {"seq_len": "8,16"}, "--seq-len 8,16: make_batch makes the same batch for each"),
    ("unread", {"depth": "2,3"}, "--depth 2,3: the factory never reads spec.depth; leave --depth"),
    ("unread", {"attention": "eager"}, "--attention eager: the factory never reads"),
    ("without_blocks", {"checkpointing": "none,full"}, "same training; leave --checkpointing out"),
]


@pytest.mark.parametrize(("function", "texts", "message"), REFUSED)
def test_values_without_effect_are_refused(
    cpu: Device, function: str, texts: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        on(cpu, function, **texts)
