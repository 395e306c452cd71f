"""Tables of runs that others recorded."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.app import main
from autotune.errors import UsageError
from autotune.measure.testbed.recording import Recording
from autotune.result.best import Best
from autotune.space.options import Options
from autotune.space.outcome import Verdict

DEVICES = 16


def written(path: Path, rows: list[dict[str, Any]], toml: str = "") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    if toml:
        path.with_suffix(".toml").write_text(toml)
    return path


def swept() -> list[dict[str, Any]]:
    """A sweep of tensor and pipeline parallelism, of which a half runs out of memory."""
    rows = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2):
            for mbs in (1, 2, 4, 8):
                for ac in ("no", "full"):
                    held = 400 / (tp * pp) + 20 * mbs / tp * (0.2 if ac == "full" else 1)
                    rate = 10_000 * (0.75 if ac == "full" else 1) * 0.85 ** (tp.bit_length() - 1)
                    rate *= 0.93 ** (pp - 1) * mbs**0.08
                    fits = held < 80
                    rows.append({
                        "tensor": tp, "pp": pp, "mbs": mbs, "ac": ac,
                        "speed": f"{rate:.1f}" if fits else "", "end": "ok" if fits else "OOM",
                    })  # fmt: skip
    return rows


TOML = f"""
[axes]
micro_batch = "mbs"
seq_len = 4096
tp = "tensor"
pp = "pp"
checkpointing = {{ column = "ac", values = {{ no = "none" }} }}
[results]
tokens_per_s = "speed"
status = "end"
[fixed]
devices = {DEVICES}
device = "NVIDIA H100"
"""


def test_a_search_of_a_table_finds_its_best_and_loses_few(tmp_path: Path) -> None:
    """Of 64 runs of which more than half ran out of memory, without a peak in any."""
    path, out = written(tmp_path / "runs.csv", swept(), TOML), tmp_path / "study"
    words = ["--device", f"replay:{path}", "--trials", "16", "--finals", "1", "--out", str(out)]
    assert main(words) == 0
    best = Best.read(out / "best.json")
    fastest = max(float(row["speed"] or 0) for row in swept())
    assert best.measured.tokens_per_s == pytest.approx(fastest, rel=0.01)
    assert best.config.own == "tp=4;pp=2"
    assert best.config.data_parallel == DEVICES // 8
    assert best.command is None
    with (out / "trials.csv").open() as file:
        ends = [row["verdict"] for row in csv.DictReader(file) if row["kind"] == "search"]
    assert ends.count("oom") <= 3


def test_rates_and_peaks_are_those_of_the_table(tmp_path: Path) -> None:
    rows = [
        {"bs": 2, "zero": 1, "tp": 2, "s": "0.5", "mem": "40.5", "gbs": 64, "state": "finished"},
        {"bs": 2, "zero": 1, "tp": 2, "s": "0.6", "mem": "41", "gbs": 64, "state": "finished"},
        {"bs": 4, "zero": 0, "tp": 1, "s": "", "mem": "", "gbs": 64, "state": "out of memory"},
        {"bs": 4, "zero": 0, "tp": 2, "s": "", "mem": "", "gbs": 64, "state": "failed"},
        {"bs": 8, "zero": 0, "tp": 2, "s": "", "mem": "", "gbs": 64, "state": "running"},
    ]  # fmt: skip
    toml = '[axes]\nmicro_batch="bs"\nzero_stage="zero"\ntp="tp"\nseq_len=100\n[results]\n'
    toml += 'step_s="s"\npeak_gib="mem"\nglobal_batch="gbs"\nstatus="state"\n[fixed]\ndevices=8\n'
    found = Recording(written(tmp_path / "t.csv", rows, toml)).grid
    assert [row.verdict for row in found.rows] == [
        Verdict.OK, Verdict.OK, Verdict.OOM, Verdict.CRASHED,
    ]  # fmt: skip
    assert [row.repeat for row in found.rows] == [0, 1, 0, 0]
    first = found.rows[0].report
    assert first is not None
    assert first.ran is not None
    assert first.ran.tokens / first.step_s[0] == pytest.approx(64 * 100 / 0.5)
    assert first.ran.data_parallel == 4
    assert first.ran.degrees == {"tp": 2}
    assert first.peaks.device_bytes == int(40.5 * 2**30)


@pytest.mark.parametrize(
    "row",
    [
        {"config.micro_batch_size": 4, "State": "finished", "summary.tokens_per_sec": 10.5},
        {"params.mbs": 4, "status": "FINISHED", "metrics.tokens_per_s": 10.5},
        {"per_device_train_batch_size": 4, "tok/s": "10.5"},
    ],
    ids=["wandb", "mlflow", "plain"],
)
def test_usual_names_of_columns_are_known(tmp_path: Path, row: dict[str, Any]) -> None:
    """As Weights & Biases, MLflow and people write them."""
    (found,) = Recording(written(tmp_path / "t.csv", [row])).grid.rows
    assert found.candidate.micro_batch == 4
    assert found.report is not None
    assert found.report.ran is not None
    assert found.report.ran.tokens / found.report.step_s[0] == pytest.approx(10.5)


def test_flags_name_columns_and_rows(tmp_path: Path) -> None:
    rows = [{"b": n, "nodes": nodes, "v": n, "fast": "true"}
            for n in (1, 2) for nodes in ("1.0", "2")]  # fmt: skip
    path = written(tmp_path / "t.csv", rows)
    columns = {"micro_batch": "b", "samples_per_s": "v"}
    assert len(Recording(path, columns, {"nodes": "1"}).grid.rows) == 2
    options = Options.of(device=f"replay:{path}")
    path.with_suffix(".toml").write_text("[rows]\nfast = true")
    space = Recording(path, columns, {"nodes": "2"}).space(options)
    assert not [fact for fact in space.fixed if fact.value == "None"]
    assert [c.micro_batch for c in space.candidates] == [1, 2]
    assert space.limits.ceiling == 1  # without peaks, what ran fits


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[axes]\nmicro_batch="speeed"\n[results]\ntokens_per_s="v"', "has no column speeed"),
        ('[axes]\nmicro_batch="mbs"\n[results]\ntokens_per_sec="v"', "did you mean tokens_per_s?"),
        ('[axes]\nmicro_batch="mbs"', "no column has a rate"),
        ('[axes]\nmicro_batch="v"\n[results]\ntokens_per_s="v"', "line 2"),
        ('[axes]\ncheckpointing="mbs"\n[results]\ntokens_per_s="v"', "axes.checkpointing.values"),
        ('[axis]\nmicro_batch="mbs"', "unknown field"),
        ("[axes", "t.toml"),
        (
            '[axes]\nmicro_batch="mbs"\n[results]\ntokens_per_s="v"\n[rows]\nmbs=9',
            "no run is left",
        ),
        (
            '[axes]\nmicro_batch="mbs"\ntp="mbs"\n[results]\ntokens_per_s="v"',
            "under [fixed] in t.toml",
        ),
        ("[fixed]\nrun_s=inf", "$.fixed.run_s"),
        ('[fixed]\ndtype="half"', "$.fixed.dtype"),
        ("[fixed]\ndevices=999999999", "$.fixed.devices"),
        ('[axes]\n"a b"="mbs"\n[results]\ntokens_per_s="v"', "axes.a b: a name has small letters"),
    ],
)
def test_a_wrong_description_is_one_line(tmp_path: Path, toml: str, said: str) -> None:
    path = written(tmp_path / "t.csv", [{"mbs": 4, "v": 1.5}], toml)
    with pytest.raises(UsageError) as error:
        Recording(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_without_an_axis_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column is an axis"):
        Recording(written(tmp_path / "t.csv", [{"size": 4, "tok/s": 1.5}]))


@pytest.mark.parametrize(
    ("text", "rates", "peaks"),
    [
        ("mbs;tok/s;peak_gb\n1;1.234,5;78.3 GB\n2;2345,6;0,5\n", [1234.5, 2345.6], [78.3, 0.5]),
        ("mbs\ttok/s\tpeak_gb\n1\t1,234.5\t512 MiB\n", [1234.5], [0.536870912]),
        ("mbs|tok/s|peak_gb\n1|1234567|N/A\n2|nan|-\n4|crashed|OOM\n", [1234567], [0]),
    ],
)
def test_numbers_are_read_as_people_write_them(
    tmp_path: Path, text: str, rates: list[float], peaks: list[float]
) -> None:
    (path := tmp_path / "t.csv").write_text(text)
    path.with_suffix(".toml").write_text('[fixed]\ncapacity="100GB"')
    reports = [row.report for row in Recording(path).grid.rows if row.report is not None]
    found = [each.ran.tokens / each.step_s[0] for each in reports if each.ran]
    assert found == pytest.approx(rates)
    assert [each.peaks.device_bytes / 1e9 for each in reports] == pytest.approx(peaks)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"mbs": 1, "tok/s": "100 tok/s"}, "line 2: 100 tok/s is no tokens_per_s"),
        ({"mbs": 1, "tok/s": 5, "peak_gb": "9 pages"}, "line 2: peak_gb 9 pages: not a size"),
        ({"mbs": "", "tok/s": 5}, "line 2: an empty cell is no micro_batch"),
        ({"mbs": 1, "tok/s": 5, "tp": 0}, "line 2: 0 is no tp"),
        ({"mbs": 1, "tok/s": "1e300"}, "line 2: 1e300 is no tokens_per_s"),
        ({"mbs": 1, "tok/s": 5, "peak_gb": "1e300"}, "line 2: peak_gb 1e300: not a size"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Recording(written(tmp_path / "t.csv", [row]))


def test_a_line_with_more_cells_than_the_first_is_refused(tmp_path: Path) -> None:
    """As a decimal comma without quotes makes."""
    (path := tmp_path / "t.csv").write_text("mbs,tok/s\n1,5,\n2,5,7\n")
    with pytest.raises(UsageError, match="line 3: has more cells"):
        Recording(path)


def test_peaks_have_a_ceiling_if_the_capacity_is_known(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", [{"mbs": 1, "tok/s": 5, "peak_gib": 70}])
    options = Options.of(device=f"replay:{path}")
    assert Recording(path).space(options).limits.ceiling == 1
    path.with_suffix(".toml").write_text('[fixed]\ncapacity="80GiB"')
    assert Recording(path).space(options).limits.ceiling == 0.8


def test_columns_are_of_a_table_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = Path(__file__).parents[3] / "results/grids/cpu-1-rank.csv"
    assert main(["--device", f"replay:{grid}", "--column", "tp=x"]) == 2
    assert "--column" in capsys.readouterr().err
    assert main(["--device", "cpu", "--row", "nodes=1"]) == 2
    assert "only with --device replay:" in capsys.readouterr().err


def test_a_manifest_keeps_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study of a table goes on with what named its columns; nothing verifies it."""
    path = written(tmp_path / "t.csv", [{"b": n, "v": n} for n in range(1, 9)])
    out = tmp_path / "study"
    words = ["--device", f"replay:{path}", "--column", "micro_batch=b"]
    words += ["--column", "tokens_per_s=v", "--finals", "1", "--out", str(out)]
    assert main(words) == 0
    assert json.loads((out / "manifest.json").read_text())["options"]["column"]
    assert main(["--resume", str(out)]) == 0
    assert Best.read(out / "best.json").config.micro_batch == 8
    capsys.readouterr()
    assert main(["verify", str(out), "--minutes", "0.1"]) == 2
    assert "comes from a recording" in capsys.readouterr().err
