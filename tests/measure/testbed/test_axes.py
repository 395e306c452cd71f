"""What may be searched beside the first six axes, and what a machine or a model lacks for it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed import lacking
from autotune.measure.testbed.resolve import resolve
from autotune.space.axes import ASKED_AXES, AXES, PADDING_AXES
from autotune.space.candidate import BUILD_AXES, Build, Candidate
from autotune.space.options import Options
from autotune.space.space import Space

BASE = {"depth": "2", "seq_len": "64", "micro_batch": "1,2", "checkpointing": "none"}


def on(device: Device, **texts: str) -> Space:
    asked = Options.from_texts(BASE | texts)
    return resolve(asked, device, 16 * 2**30, 2)


def test_what_nobody_asks_for_is_no_axis_of_the_space(cpu: Device) -> None:
    space = on(cpu)
    assert not set(space.axes) & set(ASKED_AXES)
    assert len(space.candidates) == 2
    assert all(getattr(c, name) == AXES[name].plain
               for c in space.candidates for name in ASKED_AXES)  # fmt: skip


def test_every_combination_of_what_is_asked_for_is_a_candidate(cpu: Device) -> None:
    space = on(cpu, attention="sdpa,eager", loss="whole,chunked", optimizer="adamw,muon")
    assert len(space.candidates) == 2 * 2 * 2 * 2
    assert {c.key for c in space.candidates} >= {
        "d2-s64-b1-z0-none-none-attention=sdpa",
        "d2-s64-b2-z0-none-none-attention=eager-loss=chunked-optimizer=muon",
    }
    assert len(space.builds) == 8
    assert len(space.opening) == 1 + 3  # the plainest, and one for each other value


def test_all_axes_but_those_of_a_batch_need_a_new_build() -> None:
    of_batches = {"seq_len", "micro_batch", "pad_to_multiple", "buckets", "pack"}
    of_batches |= {"micro_batch_per_rank"}
    assert set(AXES) - set(BUILD_AXES) == of_batches
    fields = [axis.name for axis in AXES.values()]
    assert fields == list(Candidate.__dataclass_fields__)


@pytest.mark.parametrize("name", [name for name in ASKED_AXES if name not in PADDING_AXES])
def test_another_value_of_any_axis_neither_covers_nor_shares_a_build(name: str) -> None:
    plain = Candidate(depth=2, seq_len=64, micro_batch=1)
    value = (*AXES[name].words[1:], AXES[name].example)[0]
    others: dict[str, Any] = {name: value}
    other = Candidate(depth=4, seq_len=64, micro_batch=4, **others)
    assert not other.covers(plain)
    build = replace(other, depth=2, micro_batch=1).build
    assert (build != plain.build) == (name in BUILD_AXES)
    assert f"-{name}={value}" in other.key


def test_tokens_per_batch_makes_as_many_samples_as_they_hold(cpu: Device) -> None:
    asked = {name: text for name, text in BASE.items() if name != "micro_batch"}
    options = Options.from_texts(asked | {"seq_len": "64,128", "tokens_per_batch": "256,512"})
    space = resolve(options, cpu, 16 * 2**30, 2)
    assert {(c.seq_len, c.micro_batch) for c in space.candidates} == {
        (64, 4), (64, 8), (128, 2), (128, 4),
    }  # fmt: skip


def test_what_an_engine_does_not_do_is_left_out_and_said(cpu: Device) -> None:
    texts = {"optimizer": "adamw,adamw8bit", "zero": "0,2", "world_size": "2"}
    space = on(cpu, **texts)
    assert {(c.optimizer, c.zero_stage) for c in space.candidates} == {
        ("adamw", 0), ("adamw", 2), ("adamw8bit", 0),
    }  # fmt: skip
    (left,) = [fixed for fixed in space.fixed if fixed.name == "left out"]
    assert left.value == "--optimizer adamw8bit on deepspeed"
    assert "8-bit" in left.why


REFUSED = [
    ({"allocator": "expandable"}, "--allocator expandable: .*CPU"),
    ({"allocator": "backend:cudaMallocAsync"}, "--allocator backend:.*before torch is imported"),
    ({"checkpointing": "none,host"}, "--checkpointing host: the CPU is the host; use full"),
    ({"attention": "flash_attention_2"}, "--attention flash_attention_2: a gpt has sdpa"),
    ({"attention": "flash_attention_2", "model": "gpt2-tiny"}, "flash_attention_2: needs a GPU"),
    ({"attention": "flex_attention", "model": "gpt2-tiny"}, "no backward pass on the CPU"),
    ({"param_dtype": "bf16"}, "--param-dtype bf16: .* fp32; use --dtype bf16"),
    ({"param_dtype": "bf16", "dtype": "bf16", "engine": "deepspeed", "zero": "0"},
     "--param-dtype bf16 --zero 0: deepspeed cannot do that: .*fp32 copy"),
    ({"optimizer": "adamw8bit", "engine": "deepspeed"}, "adamw8bit: deepspeed cannot do that"),
    ({"model": "factory:a.py:b"}, "--model factory:a.py:b: write factory:a:b, without .py"),
    ({"loss": "chunked", "model": "factory:a:b"}, "--loss chunked: a factory's loss is its own"),
    ({"loss": "chunked", "model": "bert-large-tiny", "task": "classification"},
     "--loss chunked: classification"),
    ({"base": "nf4"}, "--base nf4: only weights that --lora freezes .*; add --lora r=16"),
    ({"base": "auto,int8", "model": "gpt2-tiny"}, "--base int8: only weights that --lora freezes"),
    ({"base": "bf16", "model": "gpt2-tiny", "lora": "r=4"}, "--base bf16: .*use --dtype bf16"),
    ({"dtype": "fp8", "model": "gpt2-tiny", "lora": "r=4"}, "--float8 tensorwise: --lora freezes"),
    ({"float8": "rowwise"}, "--float8 rowwise: only beside products in bf16"),
    ({"dtype": "fp8", "engine": "deepspeed"}, "tensorwise: deepspeed cannot do that"),
    ({"dtype": "fp8", "seq_len": "24", "micro_batch": "1"},
     "--float8: .* is 24, and no multiple of 16"),
    ({"seq_len": "64,128", "tokens_per_batch": "64", "micro_batch": ""},
     "--tokens-per-batch 64: .*--tokens-per-batch 128"),
]  # fmt: skip


def test_tokens_that_fp8_cannot_multiply_are_left_out(cpu: Device) -> None:
    space = on(cpu, dtype="fp8", seq_len="24", float8="off,rowwise,rowwise_with_gw_hp")
    recipes = [(c.micro_batch, c.float8) for c in space.candidates if c.float8 != "off"]
    with_16 = [(2, "rowwise"), (2, "rowwise_with_gw_hp")]
    assert sorted(recipes) == [(1, "rowwise_with_gw_hp"), *with_16]
    [left] = [fixed for fixed in space.fixed if fixed.value == "--float8"]
    assert "is 24, and no multiple of 16" in left.why


@pytest.mark.parametrize(("texts", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_is_lacking_is_one_line(cpu: Device, texts: dict[str, str], message: str) -> None:
    asked = {name: text for name, text in (BASE | texts).items() if text}
    with pytest.raises(UsageError, match=message) as caught:
        resolve(Options.from_texts(asked), cpu, 16 * 2**30, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "texts"),
    [
        ("torchao", {"optimizer": "adamw8bit"}),
        ("torchao", {"float8": "rowwise"}),
        ("triton", {"compile": "on"}),
        ("flash_attn", {"attention": "flash_attention_2", "model": "gpt2-tiny"}),
    ],
)
def test_a_package_that_is_missing_is_named(
    package: str, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    (axis,) = [name for name in texts if name != "model"]
    assert lacking.lacks(axis, texts[axis], "cuda", "bf16").startswith(
        f"{package} is not installed; run "
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [("cuda", "needs a C compiler: install gcc"), ("cpu", "needs a C++ compiler: install g++")],
)
def test_compiling_has_needs(kind: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=name))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert lacking.lacks("compile", "on", kind, "bf16") == message


def test_an_allocator_is_what_its_variable_holds() -> None:
    assert Build(depth=2).alloc_conf == ""
    assert Build(depth=2, allocator="expandable").alloc_conf == "expandable_segments:True"
    several = "max_split_size_mb:128+garbage_collection_threshold:0.8"
    assert Build(depth=2, allocator=several).alloc_conf == several.replace("+", ",")
