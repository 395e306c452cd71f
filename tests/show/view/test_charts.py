"""The charts: what they draw of which trials."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.show.view.charts import CHARTS, drawn
from autotune.show.view.charts.peak import parts
from autotune.show.view.charts.phases import phases, seconds
from autotune.show.view.charts.vega import VERDICTS, trials
from autotune.show.view.study import Shown, read
from tests.support.shown import change_rows, failed, folder

vl_convert = pytest.importorskip("vl_convert", reason="what draws pictures is not installed")


@pytest.fixture
def study(tmp_path: Path) -> Shown:
    return read(folder(tmp_path))


def svg_of(study: Shown, name: str) -> str:
    """The chart as it is drawn."""
    spec = CHARTS[name].draw(study)
    assert spec is not None
    svg: str = vl_convert.vegalite_to_svg({**spec, "datasets": {"trials": trials(study)}})
    return svg


def empty(tmp_path: Path) -> Shown:
    path = folder(tmp_path)
    change_rows(path, lambda rows: [failed(row, "crashed") for row in rows[:1]])
    (path / "best.json").unlink()
    return read(path)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_compiles_and_draws_something_of_a_study(study: Shown, name: str) -> None:
    assert svg_of(study, name).count("<path") > 5


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_without_a_measurement_is_left_out_or_drawn(tmp_path: Path, name: str) -> None:
    study = empty(tmp_path)
    if name in ("time", "phases"):
        svg_of(study, name)
    else:
        assert CHARTS[name].draw(study) is None


def test_charts_are_json(study: Shown) -> None:
    json.dumps({"charts": drawn(study), "trials": trials(study)}, allow_nan=False)


def test_the_frontier_is_the_largest_micro_batch_of_each_build_that_fitted(path: Path) -> None:
    change_rows(path, lambda rows: [*rows, failed(rows[0], "oom", micro_batch="64", number="99")])
    drawn_ = trials(read(path))
    edges = {(row["cell"], row["micro_batch"]) for row in drawn_ if row["edge"]}
    largest: dict[str, int] = {}
    for row in drawn_:
        if row["kind"] == "search" and row["verdict"] in ("ok", "pruned"):
            largest[row["cell"]] = max(largest.get(row["cell"], 0), row["micro_batch"])
    assert edges == set(largest.items())


def test_the_best_so_far_never_falls(study: Shown) -> None:
    found = [row["so_far"] for row in trials(study) if row["so_far"] is not None]
    assert found == sorted(found)
    assert found


@pytest.mark.parametrize("name", ["memory", "predicted"])
def test_what_was_predicted_to_need_nothing_spoils_no_scale(path: Path, name: str) -> None:
    nothing = {"predicted_peak_bytes": "0", "predicted_low_bytes": "0",
               "predicted_high_bytes": "9"}  # fmt: skip
    change_rows(path, lambda rows: [rows[0] | nothing, *rows[1:]])
    svg = svg_of(read(path), name)
    assert "NaN" not in svg
    assert svg.count("<path") > 5


def test_skipped_candidates_are_not_drawn(path: Path) -> None:
    before = len(trials(read(path)))
    change_rows(path, lambda rows: [*rows, failed(rows[0], "skipped")])
    assert len(trials(read(path))) == before


def test_every_verdict_has_a_colour_and_a_shape_of_its_own() -> None:
    assert len({colour for colour, _ in VERDICTS.values()}) == len(VERDICTS)
    assert len(set(VERDICTS.values())) == len(VERDICTS)


def test_builds_that_are_many_have_a_colour_each(path: Path) -> None:
    sizes = [f"max_split_size_mb:{64 + n}" for n in range(12)]
    change_rows(path, lambda rows: [rows[0] | {"allocator": size} for size in sizes])
    svg = svg_of(read(path), "throughput")
    legend = svg[svg.index("role-legend-symbol") :]
    assert len(set(re.findall(r'stroke="(#[0-9a-f]{6})"', legend))) == 12


def test_a_cell_says_how_it_was_measured_and_which_one_is_the_best(study: Shown) -> None:
    spec = CHARTS["cells"].draw(study)
    assert spec is not None
    words = [row["words"].split(", ") for row in spec["data"]["values"]]
    assert sum("the best" in each for each in words) == 1
    assert all({"confirmed", "unconfirmed", "stopped early"} & set(each) for each in words)


def test_the_parts_of_a_peak_add_up_to_it(study: Shown) -> None:
    assert study.best is not None
    for cell in study.best.cells:
        found = parts(study, cell)
        assert sum(found.values()) == pytest.approx(cell.measured.peak_bytes.device)
        assert min(found.values()) >= 0


def test_the_phases_add_up_to_the_time_that_passed(study: Shown) -> None:
    spent = [s for each in seconds(study).values() for s in each.values()]
    assert sum(spent) == pytest.approx(study.elapsed_s, rel=1e-6)


def test_time_in_which_several_groups_probed_counts_once_between_probes(path: Path) -> None:
    alone = read(path)
    change_rows(path, lambda rows: [row for row in rows for _ in range(2)])
    twice = read(path)
    between = "between probes"
    assert seconds(twice)["neither"][between] == pytest.approx(seconds(alone)["neither"][between])
    assert "of all groups together" in json.dumps(phases(twice))
    assert "of all groups together" not in json.dumps(phases(alone))
