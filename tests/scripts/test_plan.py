"""What the script makes of published rows, beside plans that a formula made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.advise.plan.expected import Helpers, PlanRequest, plan
from tests.support.scripts import load

bench: Any = load("plan")
rows: Any = load("published.rows")
configs: Any = load("published.configs")

ROW: dict[str, Any] = {
    "id": "a-01", "model": "some/Llama", "family": "llama", "layers": 4, "hidden": 256, "heads": 4,
    "kv_heads": 2, "intermediate": 512, "vocab": 1000, "tied": "no", "gpu": "A100-80GB",
    "gpus": 8, "engine": "fsdp2", "zero_stage": 3, "offload": "none", "tp": 1, "pp": 1,
    "micro_batch": 2, "seq_len": 128, "target_len": float("nan"), "checkpointing": "full",
    "dtype": "bf16-mixed", "optimizer": "adamw", "lora_rank": float("nan"), "attention": "flash",
    "loss": "whole", "compile": "yes", "peak_gib": 10.0, "peak_kind": "max_reserved",
    "outcome": "fit", "quote": "", "note": "",
}  # fmt: skip


def test_a_run_is_asked_for_as_it_was(tmp_path: Path) -> None:
    options, gpus, card = rows.asked_of(ROW, tmp_path)
    assert gpus == 8
    assert card.memory_bytes == 80 * 2**30
    assert (options.space.engine, options.space.axes.get("zero_stage"), options.space.dtype) == (
        "fsdp",
        (3,),
        "bf16",
    )
    assert (options.space.axes.get("micro_batch"), options.space.axes.get("seq_len")) == (
        (2,),
        (128,),
    )
    assert (
        options.space.axes.get("checkpointing"),
        options.space.axes.get("compile"),
        options.space.axes.get("loss"),
    ) == (
        ("full",),
        ("on",),
        ("whole",),
    )
    config = json.loads((tmp_path / "a-01.json").read_text())
    assert (config["num_key_value_heads"], config["tie_word_embeddings"]) == (2, False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"micro_batch": float("nan")}, "micro_batch unknown"),
        ({"optimizer": float("nan")}, "optimizer unknown"),
        ({"tp": 2}, "another kind of parallelism"),
        ({"engine": "megatron"}, "another kind of parallelism"),
        ({"dtype": "4-bit weights, bf16"}, "4-bit"),
        ({"checkpointing": "full + activation offload"}, "activation offload"),
        ({"layers": float("nan")}, "shape unknown"),
        ({"family": "falcon"}, "shape unknown"),
        ({"note": "LoRA of all"}, "LoRA of unknown rank"),
    ],
)
def test_incomplete_rows_are_left_out(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(configs.NotComparableError, match=why):
        rows.asked_of(ROW | changes, tmp_path)


def test_every_published_row_is_planned_or_left_out_for_a_reason(tmp_path: Path) -> None:
    table = pd.read_csv(bench.ROWS)
    planned, left_out = 0, Counter[str]()
    for row in table.to_dict("records"):
        try:
            rows.asked_of(row, tmp_path)
            planned += 1
        except configs.NotComparableError as error:
            left_out[str(error)] += 1
        except bench.UsageError:
            left_out["usage"] += 1
    assert planned >= 60
    assert planned + left_out.total() == len(table) >= 100
    assert table["source"].str.startswith("https://").all()
    assert table["id"].is_unique
    assert set(table["outcome"]) == {"fit", "oom"}


def scored(peak_gib: float | None, *, oom: bool = False, kind: str = "unknown") -> Any:
    given = {"depth": "12", "seq_len": "1024", "micro_batch": "4", "checkpointing": "full"}
    options = bench.asked_of.__globals__["Options"].from_texts(given)
    card = bench.asked_of.__globals__["Card"](name="x", memory_bytes=24 * 2**30)
    helpers = Helpers(lambda asked: pytest.fail("a gpt"), lambda asked: "none")
    (expected,) = plan(
        PlanRequest(options=options, card=card, host_bytes=None), 1, helpers
    ).expected
    return bench.Scored(
        id="a", family="gpt", engine="single", kind=kind,
        measured_gib=peak_gib, oom=oom, expected=expected,
    )  # fmt: skip


def test_an_error_is_of_the_figure_that_the_source_has() -> None:
    whole = scored(None).expected.peak.bytes / 2**30
    parts = scored(None).expected.parts
    outside, unused = parts.outside / 2**30, parts.unused / 2**30
    assert scored(whole / 2).error == pytest.approx(1.0)
    assert scored(whole - outside, kind="max_reserved").error == pytest.approx(0.0)
    used = whole - outside - unused
    assert scored(used, kind="max_allocated").error == pytest.approx(0.0)


def test_what_was_said_to_fit_and_ran_out_is_named() -> None:
    lines = bench.confusion([scored(5.0), scored(None, oom=True)])
    assert "| said to fit | 1 | 1 |" in lines
    assert "Said to fit, and ran out: a." in lines


def test_medians_are_of_sizes_and_of_signed_errors() -> None:
    whole = scored(None).expected.peak.bytes / 2**30
    found = [scored(whole / by) for by in (1.1, 0.9, 1.3)]
    [_, _, line] = bench.errors(found, "all", lambda each: "all").splitlines()
    assert line == "| all | 3 | 10.0% | 30.0% | +10.0% |"
