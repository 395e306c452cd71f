"""`python -m autotune plan` as people type it."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.app import main
from autotune.measure.runner import counting
from autotune.wire.helpers import Count, Counted, Parameters
from autotune.wire.reports import Peaks
from tests.support import recorded, records
from tests.support.choice import campaign
from tests.support.programs import ROOT, python

Run = Callable[..., Any]
GIB = 2**30
GPT = ["plan", "--depth", "24", "--seq-len", "1024,2048", "--micro-batch", "1:8"]


@pytest.fixture(autouse=True)
def _no_helper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(counting, "describe", lambda asked, limit_s, start: "not here")


def test_a_table_with_what_peaks_are_made_of(run: Run) -> None:
    out = run(*GPT, "--gpus", "2xH100").out
    assert "model gpt, dtype bf16; 2 x H100" in out.splitlines()[0]
    for word in ("params", "grads", "optim", "activ", "logits", "buffer", "outside", "ceiling"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 140


def test_on_a_terminal_it_says_what_takes_so_long(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, told in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm-256color")
        run(*GPT, "--gpus", "H100")
        assert ("tracing gpt at seq_len 1024, 2048" in stream.getvalue()) is told


def test_for_programs_it_is_json_or_csv(run: Run) -> None:
    body = json.loads(run(*GPT, "--gpus", "4x80GiB", "--json").out)
    assert body["limit_bytes"] == int(0.8 * 80 * 2**30)
    assert {row["candidate"]["seq_len"] for row in body["rows"]} == {1024, 2048}
    rows = list(csv.DictReader(io.StringIO(run(*GPT, "--gpus", "4x80GiB", "--csv").out)))
    assert len(rows) == len(body["rows"])
    first, same = rows[0], body["rows"][0]
    assert int(first["peak_bytes"]) == same["peak"]["bytes"]
    assert int(first["parts_optimizer"]) == same["parts"]["optimizer"]
    assert int(first["micro_batch"]) == same["candidate"]["micro_batch"]


def test_numbers_of_gpus_are_a_table_of_what_to_set(run: Run) -> None:
    asked = [*GPT, "--gpus", "1,2,4,6,8x32GiB", "--global-batch", "384"]
    out = run(*asked).out
    assert all(f"x {count}" in out for count in (1, 2, 4, 6, 8))
    for row in json.loads(run(*asked, "--json").out)["rows"]:
        product = row["candidate"]["micro_batch"] * row["grad_accum"] * row["gpus"]
        assert product == row["global_batch"] == 384


def test_json_says_why_a_number_of_gpus_is_left_out(run: Run) -> None:
    asked = [*GPT, "--gpus", "1,2,3x32GiB", "--global-batch", "64"]
    captured = run(*asked, "--json")
    body = json.loads(captured.out)
    assert body["gpus"] == [1, 2, 3]
    assert [row["gpus"] for row in body["rows"]] == [1, 2]
    assert "divides it" in body["why_not"]["3"]
    assert "the model was not traced" in captured.err


@pytest.mark.parametrize(
    ("batch", "in_a_table", "by_count"),
    [
        ("96", "global batch: 96 samples a step (98304 to 196608 tokens)",
         "96 = 4 x 12 x 2 (196608tok)"),
        ("196608tok", "global batch: 196608 tokens a step (96 to 192 samples)",
         "196608tok (96 = 4 x 12 x 2)"),
    ],
)  # fmt: skip
def test_the_global_batch_is_shown_as_it_was_asked_for_and_in_the_other_unit(
    batch: str, in_a_table: str, by_count: str, run: Run
) -> None:
    asked = ["plan", "--depth", "24", "--micro-batch", "4,5", "--global-batch", batch]
    out = run(*asked, "--gpus", "2x80GiB", "--seq-len", "1024,2048").out
    assert in_a_table in out
    assert "accum" in out.splitlines()[1]
    assert f"without micro_batch 5: --global-batch {batch} is no multiple of these" in out
    out = run(*asked, "--gpus", "1,2x80GiB", "--seq-len", "2048").out
    assert by_count in out
    assert out.count("without micro_batch 5:") == 1
    out = run(*asked, "--gpus", "80GiB", "--seq-len", "2048", "--solve", "gpus").out
    assert f"grad_accum 24: global batch {by_count[:4]}" in out
    assert "without micro_batch 5:" in out


@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
@pytest.mark.parametrize("gpus", ["8xH100", "1,2,3xH100"])
def test_no_column_is_cut(
    columns: str, gpus: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    asked = [*GPT, "--zero", "2,3", "--offload", "none,optimizer", "--global-batch", "64"]
    out = run(*asked, "--gpus", gpus).out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert "offload" in out.splitlines()[1]
    assert len(out.splitlines()[2].split()) > 8


def test_a_reader_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    for form in ("--json", "--csv"):
        run(*GPT, "--gpus", "80GiB", form)


@pytest.mark.parametrize("quantity", ["micro_batch", "seq_len", "gpus"])
def test_the_edge_is_said(quantity: str, run: Run) -> None:
    shape = ["plan", "--depth", "24", "--checkpointing", "full", "--micro-batch", "1"]
    shape = shape[:5] if quantity == "micro_batch" else shape
    out = run(*shape, "--gpus", "24GiB", "--solve", quantity).out
    assert f"{quantity}: " in out
    assert "fits with a chance of " in out


def test_it_is_said_where_the_host_was_not_looked_at(run: Run) -> None:
    shape = ["plan", "--depth", "24", "--micro-batch", "1", "--zero", "2", "--offload",
             "optimizer", "--gpus"]  # fmt: skip
    for how in (["80GiB"], ["1,2x80GiB"], ["80GiB", "--solve", "seq_len"]):
        found = run(*shape, *how)
        assert "host memory was not checked: d24-s" in found.err
        assert "host" in found.out
        found = run(*shape, *how, "--host-ram", "1TiB")
        assert "not checked" not in found.err
        assert ("921.60 GiB of 1024.00 GiB of host allowed" in found.out) != ("--solve" in how)


def test_nothing_fits_is_code_3_with_the_least_need(run: Run) -> None:
    captured = run(*GPT, "--gpus", "1GiB", code=3)
    assert "nothing fits: the least, d24-s1024-b1-" in captured.err
    run(*GPT, "--gpus", "1,2x1GiB", code=3)


def test_a_higher_ceiling_is_named_where_that_is_all_that_lacks(run: Run) -> None:
    near, far = (
        run("plan", "--depth", "24", "--gpus", size, "--seq-len", "2048", "--micro-batch", "10",
            "--checkpointing", "full", "--formulas", code=3).out
        for size in ("28GiB", "16GiB")
    )  # fmt: skip
    assert (
        "1 of the rows marked - fits the card, but not the ceiling of 80%: --ceiling 90%" in near
    )
    assert "--ceiling" not in far


def test_studies_on_a_cpu_say_nothing_of_gpus(run: Run) -> None:
    sample = ROOT / "results" / "samples" / "cpu-2-cores"
    assert "ran on a CPU" in run(*GPT, "--gpus", "80GiB", "--learn-from", sample, code=2).err


def test_studies_narrow_expectations(tmp_path: Path, run: Run) -> None:
    devices = {"kind": "cuda", "devices": [{"name": "NVIDIA H100 80GB HBM3"}]}
    fingerprint = {"kind": "cuda", "devices": devices, "software": {"torch": "2.9.0"}}
    rows = []
    for each in map(recorded.row, records.space().candidates):
        assert each.report is not None
        size = GIB + each.candidate.depth * each.candidate.tokens * 40_000
        rows.append(replace(each, report=replace(each.report, peaks=Peaks.same(size))))
    grid = recorded.write(tmp_path / "grid.csv", rows, kind="cuda", fingerprint=fingerprint)
    study = tmp_path / "studies" / "one"
    assert main(["--device", f"replay:{grid}", "--budget", "10m", "--out", str(study)]) == 0
    asked = ["plan", "--depth", "2", "--seq-len", "64", "--micro-batch", "1:8",
             "--gpt", "vocab_size=4096", "--dtype", "fp32", "--json", "--gpus"]  # fmt: skip

    def wide(*more: str) -> float:
        peaks = [row["peak"] for row in json.loads(run(*asked, *more).out)["rows"]]
        return float(sum(peak["high_bytes"] - peak["low_bytes"] for peak in peaks))

    before = wide("H100")
    assert wide("H100", "--learn-from", str(study.parent)) < before
    assert (
        "other hardware: NVIDIA H100 80GB HBM3"
        in run(*asked, "A10", "--learn-from", study.parent).err
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("t5-small-tiny", ""),
        *campaign(("mamba2-tiny", "assumes torch's own kernels: mamba-ssm is not installed here")),
    ],
)
def test_a_model_is_counted_and_traced_without_torch_here(
    model: str, said: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from autotune.commands.app import main\n"
        f"code = main(['plan', '--model', {model!r}, '--gpus', '2x20GiB', '--seq-len', '128',"
        " '--micro-batch', '1,2', '--zero', '0', '--checkpointing', 'none', '--json',"
        " '--formulas', '--kernels', 'installed'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)"
    )
    ran = python("-c", code, cwd=tmp_path, timeout=200)
    assert ran.stderr == (f"autotune: {said}\n" if said else "")
    assert json.loads(ran.stdout)["untraced"] == ""


@pytest.mark.parametrize(("kind", "said"), [("jamba", True), ("llama", False)])
def test_a_model_with_optional_kernels_says_that_a_plan_is_made_without_them(
    kind: str, said: bool, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    one = Parameters(
        width=64, vocab_size=256, parameters=10**6, trainable=10**6, block_matrices=10**5,
        largest_block=10**5,
    )  # fmt: skip

    def count(asked: Count, *_: object) -> Counted:
        flops = [[1e9] * len(asked.seq_lens) for _ in asked.models]
        counts = [one] * len(asked.models)
        return Counted(parameters=counts, flops_per_sample=flops, uncounted="ValueError: of ids")

    monkeypatch.setattr(counting, "count", count)
    config = {"model_type": kind, "num_hidden_layers": 2, "hidden_size": 64,
              "architectures": [f"{kind.title()}ForCausalLM"]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    err = run("plan", "--model", f"hf:{tmp_path}", "--gpus", "80GiB").err
    line = "the kernels of causal_conv1d and mamba_ssm may need less memory"
    assert (line in err) is said
    assert "FLOPs are 6 a parameter and token, not counted: ValueError: of ids\n" in err
