"""Lengths read from files, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed import lengths
from autotune.measure.testbed.lengths import at_longest, read_mix
from autotune.measure.testbed.resolve import resolve
from autotune.space.mix import LengthMix
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.space.workload import Workload
from probes.count import count


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(name: str, content: str | bytes | list[Any], **options: Any) -> LengthMix:
    if isinstance(content, list):
        np.save(name, np.array(content))
    else:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    mix = read_mix(Options.of(length_mix=name, **options))
    assert mix is not None
    return mix


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "length,count\n5,2\n9,1\n"),
        ("a.csv", "9,1\r\n5,1\r\n\r\n5,1\r\n7,0\r\n"),
        ("a.csv", "\ufefflength,count\n 5, 2\n9,1"),
        ("a.jsonl", "5\n9\n\n5.0\n"),
        ("a.jsonl", '{"length": 5}\n{"input_ids": [1, 1, 1, 1, 1], "x": 2}\n{"length": 9}\n'),
        ("a.npy", [5, 9, 5]),
        ("a.npy", [5.0, 9.0, 5.0]),
    ],
)
def test_a_file_of_any_form_says_the_same(name: str, content: Any) -> None:
    mix = read(name, content)
    assert (mix.lengths, mix.counts, mix.samples, mix.file) == ((5, 9), (2, 1), 3, name)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", "", "has no lengths"),
        ("a.csv", "length,count\n", "has no lengths"),
        ("a.csv", "7,0\n", "has no lengths"),
        ("a.csv", "some,text\n", "line 1: 'some,text'; write length,count as 512,31"),
        ("a.csv", "5\n", "line 1: '5'; write length,count"),
        ("a.csv", "5,1\n5.5,1\n", "line 2: '5.5,1'; write length,count"),
        ("a.csv", "5,-1\n", "line 1: a count of -1; counts are 0 or more"),
        ("a.csv", "0,1\n", "line 1: a length of 0; lengths are 1 to"),
        ("a.csv", b"\xff\xfe\x00", "is no text"),
        ("a.jsonl", "", "has no lengths"),
        ("a.jsonl", "5\n{broken\n", "line 2: '{broken' is no JSON"),
        ("a.jsonl", "5\n-3\n", "line 2: a length of -3"),
        ("a.jsonl", "5.5\n", "line 1: '5.5' is not a length; write a whole number"),
        ("a.jsonl", "NaN\n", "line 1: 'nan' is not a length"),
        ("a.jsonl", "true\n", "line 1: 'True' is not a length"),
        ("a.jsonl", '{"text": "x"}\n', "line 1: has neither length nor a list of input_ids"),
        ("a.jsonl", '{"input_ids": []}\n', "line 1: a length of 0"),
        ("a.npy", [], "has no lengths"),
        ("a.npy", [5.5], "'5.5' is not a length"),
        ("a.npy", [5, -1], "a length of -1"),
        ("a.npy", [[5], [6]], "holds int64 of 2 dimensions; save a 1-D array"),
        ("a.npy", ["five"], "holds <U4 of 1 dimensions"),
        ("a.npy", b"not numpy's", "magic string is not correct"),
        ("a.npy", b"\x93NUMPY\x01\x00\x10", "EOF: reading array header length"),
        ("a.txt", "5\n", "name a .csv, a .npy or a .jsonl"),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_refused(name: str, content: Any, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(name, content)
    assert str(refused.value).startswith(f"--length-mix {name}: ")
    assert why in str(refused.value)


def test_a_pickle_is_not_loaded() -> None:
    np.save("a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"a\.npy: holds pickled objects; save a 1-D array"):
        read_mix(Options.of(length_mix="a.npy"))


@pytest.mark.parametrize("bytes_less", [4, 8])
def test_a_cut_off_npy_is_refused(bytes_less: int) -> None:
    np.save("a.npy", np.arange(1, 100))
    os.truncate("a.npy", Path("a.npy").stat().st_size - bytes_less)
    with pytest.raises(UsageError, match=r"--length-mix a\.npy: is cut off: .* 99 entries"):
        read_mix(Options.of(length_mix="a.npy"))


def test_what_is_no_file_is_refused() -> None:
    Path("a.csv").mkdir()
    os.mkfifo("c.csv")
    for name, why in {
        "a.csv": "no such file",
        "b.csv": "No such",
        "c.csv": "no such file",
    }.items():
        with pytest.raises(UsageError, match=f"--length-mix {name}: {why}"):
            read_mix(Options.of(length_mix=name))


def test_a_file_of_gigabytes_is_refused_with_a_reason() -> None:
    Path("a.jsonl").touch()
    os.truncate("a.jsonl", 3 * lengths.MOST_BYTES)  # it is sparse
    with pytest.raises(UsageError, match=r"has 3\.0 GiB, more than the limit of 1 GiB"):
        read_mix(Options.of(length_mix="a.jsonl"))


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "MOST_LINE_BYTES", 2**20)
    with pytest.raises(UsageError, match="line 2: has over 1 MiB"):
        read("a.jsonl", "5\n" + '{"input_ids": [' + "1," * 2**20)


def test_a_large_array_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "AT_ONCE", 7)
    assert read("a.npy", [5, 9, 5] * 100).counts == (200, 100)


def on(device: Device, content: str = "100,3\n500,1\n", **options: Any) -> Space:
    Path("a.csv").write_text(content)
    asked = {"depth": (2,), "micro_batch": (1, 2), "checkpointing": ("none",)}
    return resolve(Options.of(length_mix="a.csv", **(asked | options)), device, 2**34, 2)


def test_the_longest_sample_is_searched_where_nothing_else_is_asked_for(cpu: Device) -> None:
    space = on(cpu)
    assert space.axes["seq_len"] == (500,)
    [said] = [fixed for fixed in space.fixed if fixed.name == "lengths"]
    assert (said.value, said.why) == (
        "4 samples of 100 to 500 tokens, 200 in the mean", "--length-mix a.csv",
    )  # fmt: skip


def test_several_lengths_cut_samples_each(cpu: Device) -> None:
    space = on(cpu, seq_len=(200, 400))
    tokens = {
        c.seq_len: space.workload.step_tokens(c) / space.workload.step_samples(c)
        for c in space.candidates
    }
    assert tokens == {200: 125.0, 400: 175.0}


def test_what_batches_are_padded_to_is_searched(cpu: Device) -> None:
    assert on(cpu, pad_to_multiple=(64,)).axes["seq_len"] == (512,)
    space = on(cpu, pad_to_multiple=(1, 8), buckets=(0, 4), pack=("off", "on"))
    assert space.axes["seq_len"] == (504,)
    ways = {(c.pad_to_multiple, c.buckets, c.pack) for c in space.candidates}
    padded = {(1, 0, "off"), (8, 0, "off"), (1, 4, "off"), (8, 4, "off")}
    assert ways == padded | {(1, 0, "on")}
    space = on(cpu, pad_to_multiple=(8,), pack=("off", "on"))
    assert {c.pack for c in space.candidates} == {"off", "on"}


def test_batches_of_so_many_tokens_hold_more_short_samples(cpu: Device) -> None:
    Path("a.csv").write_text("100,3\n500,1\n")
    options = Options.of(length_mix="a.csv", depth=(2,), tokens_per_batch=(1000,))
    workload = (space := resolve(options, cpu, 2**34, 2)).workload
    [candidate] = [c for c in space.candidates if c.checkpointing == "none"]
    assert candidate.micro_batch == 2
    # Of 5 samples, 10 of 100 tokens fit, or 2 of 500.
    assert workload.step_samples(candidate) == pytest.approx(5 / (3 / 10 + 1 / 10 + 1 / 2), rel=9)
    assert workload.step_tokens(candidate) > 900


def test_a_shape_is_one_of_many_unless_it_is_dynamic(cpu: Device) -> None:
    asked = {"micro_batch": (1,), "compile": ("on",), "run_steps": 1000}
    space = on(cpu, "100,3\n300,2\n500,1\n", dynamic=("off", "on"), **asked)
    shapes = {c.dynamic: space.workload.expected_shapes(c) for c in space.candidates}
    assert shapes == {"off": pytest.approx(3), "on": 1.0}
    [eager] = on(cpu, optimizer=("adamw8bit",), micro_batch=(1,)).candidates
    assert space.workload.expected_shapes(eager) == 1.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seq_len": (600,)}, "--seq-len 600: the longest sample of a.csv is padded to 500"),
        ({"seq_len": (100,), "pad_to_multiple": (64,)},
         "--seq-len 100: is not a multiple of --pad-to-multiple 64; use --seq-len 128"),
    ],
)  # fmt: skip
def test_contradictory_lengths_refused(cpu: Device, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        on(cpu, **options)
    assert str(refused.value).startswith(why)


def test_a_sample_beyond_the_model_s_positions_is_refused_with_a_cut(cpu: Device) -> None:
    config = {"model_type": "bert", "max_position_embeddings": 300, "num_hidden_layers": 2}
    Path("config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError) as refused:
        on(cpu, model="hf:config.json", task="masked", pad_to_multiple=(8,))
    assert str(refused.value) == (
        "--length-mix a.csv: its longest sample is padded to 504 tokens, and hf:config.json has"
        " positions for 300; truncate samples with --seq-len 296"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tokens_per_batch": "4096", "pack": "on"}, "--tokens-per-batch 4096: rows of --pack on"),
        ({"tokens_per_batch": "4096", "global_batch": "8"}, "--global-batch 8: .*leave one"),
        ({"pack": "off,on", "global_batch": "8"}, "--global-batch 8: .*--pack off,on.*leave one"),
        ({"global_batch": "4096tok"}, "--global-batch 4096tok: .*--global-batch 256"),
        ({"attention": "flex_attention"}, "--attention flex_attention: .*--attention sdpa"),
        (
            {"pack": "off,on", "attention": "flex_attention"},
            "--attention flex_attention: .*--pack",
        ),
        ({"pad_to_multiple": "0"}, "--pad-to-multiple 0: values must be at least 1"),
        ({"buckets": "-1"}, "--buckets -1"),
        ({"run_steps": "0"}, "--run-steps 0: must be at least 1"),
    ],
)
def test_what_needs_one_length_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Options.from_texts({"length_mix": "a.csv"} | options)


@pytest.mark.parametrize(
    "options", [{"pad_to_multiple": "8"}, {"buckets": "4"}, {"pack": "on"}, {"run_steps": "9"}]
)
def test_padding_without_lengths_is_refused(options: dict[str, str]) -> None:
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(UsageError, match=rf"{flag}: .*--length-mix FILE"):
        read_mix(Options.from_texts(options))


@pytest.mark.parametrize(
    ("sizes", "options", "why"),
    [
        ("56x56,84x56", {"buckets": "4"}, "--buckets: not with --image-size"),
        ("56x56", {"pad_to_multiple": "8"}, "--pad-to-multiple: not with --image-size"),
        ("56x56", {"run_steps": "9"}, "--run-steps: .*; name several sizes in --image-size"),
    ],
)
def test_images_are_not_told_to_name_a_file_of_lengths(
    sizes: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        read_mix(Options.from_texts({"image_size": sizes} | options))


def test_images_of_several_sizes_take_the_steps_of_the_run(cpu: Device) -> None:
    pytest.importorskip("transformers")
    asked = {"model": "qwen2.5-vl-3b-tiny", "image_size": "112x112,224x112", "run_steps": "9"}
    mix = resolve(Options.from_texts(asked), cpu, 2**34, 2, count=count).workload.length_mix
    assert mix is not None
    assert mix.run_steps == 9


def test_a_manifest_keeps_the_histogram_and_is_what_it_was_without_one(cpu: Device) -> None:
    space = on(cpu, pad_to_multiple=(4,))
    written = json.loads(json.dumps(space.manifest()["workload"]))
    Path("a.csv").unlink()
    known = Workload.from_json(written)
    assert known == space.workload
    again = resolve(Options.of(length_mix="a.csv", depth=(2,)), cpu, 2**34, 2, known=known)
    assert again.workload.length_mix == space.workload.length_mix
    assert again.axes["seq_len"] == (500,)
    plain = resolve(Options.of(depth=(2,)), cpu, 2**34, 2)
    assert "length_mix" not in plain.manifest()["workload"]


def test_a_plan_is_of_the_longest_sample() -> None:
    Path("a.csv").write_text("100,3\n500,1\n")
    found = at_longest(Options.of(length_mix="a.csv", pad_to_multiple=(8,), run_steps=9))
    assert found == Options.of(seq_len=(504,))
    assert at_longest(Options()) == Options()
