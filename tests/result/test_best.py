"""best.json: who wins, what is pooled, and what the writer refuses."""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.result.best import Best, json_schema
from autotune.result.choice import Choice, pool, winner
from autotune.show.report.result import configuration
from autotune.space.axes import ASKED_AXES, AXES
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Record, Verdict
from autotune.space.workload import GlobalBatch
from autotune.wire.reports import InPhase
from tests.support import exported
from tests.support.exported import result
from tests.support.programs import ROOT
from tests.support.records import MIB, QUIET, WORKLOAD, record, space, workload

SAMPLES = ROOT / "results" / "samples"
A = Candidate(depth=4, seq_len=128, micro_batch=8)
B = Candidate(depth=4, seq_len=128, micro_batch=4)
C = Candidate(depth=2, seq_len=64, micro_batch=8)


def chosen(*known: Any) -> Choice:
    """What `winner` chooses, which is something."""
    choice = winner(*known)
    assert choice is not None
    return choice


def won(*records: Record) -> Candidate | None:
    choice = winner(records, WORKLOAD, "tokens_per_s")
    return None if choice is None else choice.record.candidate


def best(*records: Record, objective: Objective = "tokens_per_s") -> Best:
    return exported.best(records, objective=objective)


def document(*records: Record) -> dict[str, Any]:
    return best(*records).to_json()


def read(folder: Path, document: dict[str, Any]) -> Best:
    path = folder / "best.json"
    path.write_text(json.dumps(document), "utf-8")
    return Best.read(path)


def final(candidate: Candidate, verdict: Verdict = Verdict.OK, **details: Any) -> Record:
    return record(candidate, verdict, purpose="final", **details)


# Who wins.


@pytest.mark.parametrize(
    ("fastest", "other", "best"),
    [
        ((1100, 0.01), (1000, 0.01), A),
        ((1005, 0.01), (1000, 0.01), B),
        ((1000, 0.003), (996, 0.004), B),  # 0.3 % and 0.4 % make 0.5 %
        ((1000, 0.003), (994, 0.004), A),
        ((1000, 0.2), (991, 0.2), B),
        ((1000, 0.2), (989, 0.2), A),  # a tie costs at most 1 %, however wide the noise
    ],
)
def test_the_fastest_wins_and_within_the_noise_the_one_with_less_memory(
    fastest: tuple[int, float], other: tuple[int, float], best: Candidate
) -> None:
    large = record(A, tokens_per_s=fastest[0], noise=fastest[1], peak_mib=2000)
    assert won(large, record(B, tokens_per_s=other[0], noise=other[1])) == best


def test_ties_are_the_others_within_the_noise_fastest_first() -> None:
    fastest = record(A, tokens_per_s=1005, peak_mib=2000)
    second = record(C, tokens_per_s=1002, peak_mib=1500)
    slow = record(Candidate(depth=4, seq_len=128, micro_batch=1), tokens_per_s=500)
    choice = chosen([slow, second, record(B), fastest], WORKLOAD, "tokens_per_s")
    assert choice.record.candidate == B
    assert choice.ties == (fastest, second)


def test_the_objective_decides_what_is_fastest() -> None:
    shallow, deep = record(C, tokens_per_s=2000), record(A, tokens_per_s=1000)
    by_flops = chosen([shallow, deep], WORKLOAD, "flops")
    assert by_flops.record == deep
    assert won(shallow, deep) == C


@pytest.mark.parametrize(("tokens_per_s", "best"), [(1100, B), (1120, B), (1124, A), (10_000, A)])
def test_a_confirmed_candidate_wins_unless_an_unconfirmed_one_is_clearly_faster(
    tokens_per_s: float, best: Candidate
) -> None:
    # Intervals of 1 % to either side, and 10 % between them.
    records = [record(A, tokens_per_s=tokens_per_s), record(B), final(B)]
    choice = chosen(records, WORKLOAD, "tokens_per_s")
    assert (choice.record.candidate, choice.confirmed) == (best, best == B)


@pytest.mark.parametrize(("believed", "best"), [(900.0, B), (1090.0, B), (1110.0, A)])
def test_no_single_look_wins_against_what_is_believed(believed: float, best: Candidate) -> None:
    records = [record(A, tokens_per_s=10_000), record(B), final(B)]
    means = {A: believed, B: 1000.0}
    choice = chosen(records, WORKLOAD, "tokens_per_s", lambda c: means[c])
    assert choice.record.candidate == best


@pytest.mark.parametrize(
    ("searched", "finals", "confirmed"),
    [
        (6000, (5540, 2450), False),  # finals that differ
        (2300, (1680,), False),  # a final that differs from the search
        (1680, (2300,), False),
        (2000, (1200, 1210), False),  # finals agree, and not with the search
        (1000, (2300, 2310), True),  # only the search was disturbed
        (1000, (890,), True),  # finals come out slower
        (1000, (1000, 800, 1000, 800), True),  # as finals of this study do
        (1000, (1000, 500, 1000, 500), False),  # as they do, too, which is of no use
    ],
)
def test_what_is_confirmed_was_as_fast_each_time(
    searched: float, finals: tuple[float, ...], confirmed: bool
) -> None:
    records = [record(A, tokens_per_s=searched), *(final(A, tokens_per_s=each) for each in finals)]
    choice = chosen(records, WORKLOAD, "tokens_per_s")
    assert (choice.confirmed, [cell.purpose for cell in choice.cells]) == (confirmed, ["final"])
    assert choice.unconfirmed == (None if confirmed else "its measurements differ")


@pytest.mark.parametrize(("repeats", "best", "ties"), [((300, 240), A, []), ((600, 300), B, [A])])
def test_what_finals_found_slower_by_more_than_the_noise_does_not_win_by_belief(
    repeats: tuple[int, int], best: Candidate, ties: list[Candidate]
) -> None:
    records = [final(A, tokens_per_s=900, peak_mib=2000), final(B, tokens_per_s=420)]
    records += [final(C, tokens_per_s=rate) for rate in (repeats[0], repeats[1], repeats[1])]
    believed = {A: 600.0, B: 900.0, C: 100.0}
    choice = chosen(records, WORKLOAD, "tokens_per_s", lambda c: believed[c])
    assert (choice.record.candidate, [r.candidate for r in choice.ties]) == (best, ties)


def beside_noise(repeat: float, *records: Record) -> Candidate | None:
    """Who wins where finals of another candidate differ as much."""
    return won(*records, *(final(C, tokens_per_s=rate) for rate in (500, repeat, repeat)))


@pytest.mark.parametrize(("repeat", "best"), [(500, A), (485, A), (470, B)])
def test_with_much_noise_the_least_memory_wins_of_equals(repeat: float, best: Candidate) -> None:
    fast = final(A, tokens_per_s=1000, peak_mib=2000)
    assert beside_noise(repeat, fast, final(B, tokens_per_s=970)) == best


@pytest.mark.parametrize(("repeat", "best"), [(500, A), (300, B)])
def test_with_much_noise_an_unconfirmed_one_must_be_faster(repeat: float, best: Candidate) -> None:
    fast = record(A, tokens_per_s=1500)
    assert beside_noise(repeat, fast, final(B, tokens_per_s=1000)) == best


def test_a_final_whose_energy_was_not_read_does_not_win_by_energy() -> None:
    records = [final(A), final(B, joules_per_token=0.01)]
    choice = chosen(records, WORKLOAD, "tokens_per_joule", lambda c: {A: 99.0, B: 100.0}[c])
    assert choice.record.candidate == B


def test_repeats_are_pairs_of_finals_of_one_candidate() -> None:
    rates = {A: (1000, 800, 1000), B: (500, 500), C: (2000,)}
    records = [final(c, tokens_per_s=rate) for c, each in rates.items() for rate in each]
    records += [record(c, tokens_per_s=9000) for c in rates]
    choice = chosen(records, WORKLOAD, "tokens_per_s")
    assert choice.repeats is not None
    assert choice.repeats.pairs == 4
    assert choice.repeats.differ == pytest.approx(0.1)  # 0, 0, 20 and 20 %


def test_an_unconfirmed_winner_ties_with_what_is_clearly_faster_too_and_nothing_else() -> None:
    clear, less_memory = record(A, tokens_per_s=4010, peak_mib=2000), record(C, tokens_per_s=4000)
    choice = chosen([clear, less_memory, final(B)], WORKLOAD, "tokens_per_s")
    assert (choice.record, choice.ties) == (less_memory, (clear,))


@pytest.mark.parametrize(
    ("finals", "confirmed"),
    [
        ([], False),
        ([Verdict.OK], True),
        ([Verdict.OK, Verdict.CRASHED], False),
        ([Verdict.OK, Verdict.SKIPPED], True),  # says nothing of the other round
    ],
)
def test_a_candidate_is_confirmed_where_each_round_that_ran_is_ok(
    finals: list[Verdict], confirmed: bool
) -> None:
    records = [record(A), *(final(A, verdict) for verdict in finals)]
    choice = chosen(records, WORKLOAD, "flops")
    assert choice.confirmed == confirmed
    assert confirmed or choice.record == records[0]


@pytest.mark.parametrize("verdict", [v for v in Verdict if v.bounds_memory])
def test_a_candidate_that_once_did_not_fit_never_wins(verdict: Verdict) -> None:
    assert won(record(A, tokens_per_s=2000), final(A), final(A, verdict), record(B)) == B


@pytest.mark.parametrize("verdict", [v for v in Verdict if not v.fits])
def test_nothing_wins_that_does_not_fit(verdict: Verdict) -> None:
    assert won(record(A, verdict)) is None


def test_what_was_stopped_early_wins_only_where_nothing_else_fits() -> None:
    stopped = record(A, Verdict.PRUNED, tokens_per_s=900)
    assert won(stopped, record(B, tokens_per_s=100)) == B
    assert won(stopped, record(B, tokens_per_s=950), final(B, Verdict.OOM)) == A


# Cells.


def test_every_cell_in_which_something_fits_has_its_best_in_ascending_order() -> None:
    records = [
        record(A, tokens_per_s=2000),
        record(B, tokens_per_s=1000),
        record(C, tokens_per_s=500),
        record(Candidate(depth=4, seq_len=64, micro_batch=1), Verdict.OOM),
    ]
    choice = chosen(records, WORKLOAD, "flops")
    assert [r.candidate for r in choice.cells] == [C, A]


def test_a_pruned_measurement_may_stand_for_its_cell() -> None:
    stopped = record(C, Verdict.PRUNED)
    choice = chosen([record(A), stopped], WORKLOAD, "flops")
    assert stopped in choice.cells


def test_a_fuller_measurement_of_a_candidate_replaces_a_lesser_one() -> None:
    confirmed, measured = final(A, tokens_per_s=800), record(C, tokens_per_s=900)
    records = [
        confirmed, measured,
        record(A, tokens_per_s=2000), record(C, Verdict.PRUNED, tokens_per_s=2000),
    ]  # fmt: skip
    choice = chosen(records, WORKLOAD, "flops")
    assert choice.cells == (measured, confirmed)


def test_the_winner_stands_for_its_own_cell_even_where_a_tied_one_is_faster() -> None:
    records = [record(A, tokens_per_s=1005, peak_mib=2000), record(B, tokens_per_s=1000)]
    choice = chosen(records, WORKLOAD, "tokens_per_s")
    assert choice.cells == (choice.record,)


# Pooling.


def test_the_pooled_interval_spans_all_rounds_around_the_median_of_their_medians() -> None:
    rounds = [final(A, tokens_per_s=t, noise=0.01, steps=7) for t in (1000, 1024, 512)]
    step = pool(rounds, WORKLOAD).measured.step
    tokens = A.tokens
    assert step.median == pytest.approx(tokens / 1000)
    assert step.low == pytest.approx(tokens / 1024 * 0.99)
    assert step.high == pytest.approx(tokens / 512 * 1.01)
    assert step.steps == 21


def test_pooled_rates_are_those_of_the_pooled_step_time() -> None:
    rounds = [final(A, tokens_per_s=t) for t in (1000, 900, 500)]
    pooled = pool(rounds, WORKLOAD).measured
    assert pooled.tokens_per_s == pytest.approx(900)
    assert pooled.samples_per_s == pytest.approx(900 / 128)


def test_every_pooled_peak_is_the_largest_of_any_round() -> None:
    rounds = [final(A, peak_mib=mib) for mib in (900, 1000, 800)]
    measured = rounds[0].measured
    host_heavy = replace(measured, peaks=replace(measured.peaks, host_bytes=5000 * MIB))
    rounds[0] = replace(rounds[0], outcome=replace(rounds[0].outcome, measurement=host_heavy))
    pooled = pool(rounds, WORKLOAD).measured
    assert (pooled.peaks.device_bytes, pooled.peaks.host_bytes) == (1000 * MIB, 5000 * MIB)


def test_pooled_conditions_keep_the_worst_reading_of_any_round() -> None:
    cool = replace(QUIET, sm_clock_mhz=1980, power_w=600.0, temperature_c=50, throttle_reasons=1)
    hot = replace(
        QUIET, sm_clock_mhz=1200, power_w=700.0, temperature_c=88, throttle_reasons=4,
        thermally_throttled=True,
    )  # fmt: skip
    rounds = [final(A, conditions=cool), final(A, conditions=hot), final(A)]
    pooled = pool(rounds, WORKLOAD).measured
    assert pooled.conditions == replace(
        hot, throttle_reasons=5, interval_cpu_s=30.0, busy_cpu_s=27.0, own_cpu_s=27.0
    )


def test_the_pooled_disturbance_is_that_of_the_most_disturbed_round() -> None:
    pooled = pool([final(A, disturbed_share=s) for s in (0.1, 0.3, 0.0)], WORKLOAD)
    assert pooled.measured.disturbed_share == 0.3


def test_the_first_round_that_is_not_ok_stands_for_all() -> None:
    failed = final(A, Verdict.OOM, number=2)
    assert pool([final(A), failed, final(A, Verdict.HUNG)], WORKLOAD) == failed


# The document.


def test_trials_count_the_search_under_all_nine_verdicts_and_the_finals_beside_them() -> None:
    skipped = final(A, Verdict.SKIPPED)  # never ran
    found = document(record(A), record(B), record(C, Verdict.OOM), final(A), final(A), skipped)
    assert found["trials"] == {
        "ok": 2, "oom": 1, "over_ceiling": 0, "over_host_ceiling": 0, "unsupported": 0,
        "hung": 0, "crashed": 0, "pruned": 0, "skipped": 0, "finals": 2,
    }  # fmt: skip


def test_headroom_is_the_distance_from_the_peak_to_the_ceiling() -> None:
    measured = document(record(A, peak_mib=1024))["measured"]
    assert measured["share_of_capacity"] == 0.25
    assert measured["headroom_bytes"] == int(0.8 * 4096 * MIB) - 1024 * MIB


def test_the_config_says_what_one_optimizer_step_sees() -> None:
    config = document(record(A))["config"]
    assert (config["global_batch_samples"], config["global_batch_tokens"]) == (8, 8 * 128)


def test_cells_say_how_well_they_are_known() -> None:
    cells = document(final(A), record(A), record(C, Verdict.PRUNED))["cells"]
    assert [(c["verdict"], c["confirmed"]) for c in cells] == [("pruned", False), ("ok", True)]


# The writer.


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    found = best(record(A), record(B, tokens_per_s=999), record(C, Verdict.PRUNED), final(A))
    found.write(tmp_path / "best.json")
    assert Best.read(tmp_path / "best.json") == found
    assert json.loads((tmp_path / "best.json").read_text("utf-8")) == found.to_json()


@pytest.mark.parametrize(("bytes_left", "said"), [(0, "empty"), (500, "cut off or damaged in")])
def test_of_a_cut_file_it_is_said_how_to_have_it_again(
    tmp_path: Path, bytes_left: int, said: str
) -> None:
    path = tmp_path / "best.json"
    best(record(A)).write(path)
    os.truncate(path, bytes_left)
    with pytest.raises(UsageError, match=rf"best.json: {said}.*--resume"):
        Best.read(path)


def test_a_refused_document_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text("old", "utf-8")
    with pytest.raises(ValueError, match="schema_version"):
        replace(best(record(A)), schema_version=2).write(path)
    assert [(p.name, p.read_text("utf-8")) for p in tmp_path.iterdir()] == [("best.json", "old")]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.json"
    path.write_text("old", "utf-8")

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        best(record(A)).write(path)
    assert [(p.name, p.read_text("utf-8")) for p in tmp_path.iterdir()] == [("best.json", "old")]


WRONG: list[tuple[str, object]] = [
    ("$.confirmed", "yes"),
    ("$.config.micro_batch", 0),
    ("$.config.zero_stage", 4),
    ("$.config.checkpointing", "some"),
    ("$.config.dtype", "auto"),
    ("$.measured.tokens_per_s", 0.0),
    ("$.measured.step_s.median", -1.0),
    ("$.measured.step_s.middle", 1.0),
    ("$.measured.peak_bytes.device", 1.5),
    ("$.measured.peak_bytes.gpu", 1),
    ("$.measured.share_of_capacity", 1.5),
    ("$.measured.headroom_bytes", -1),
    ("$.limits.ceiling", 80),
    ("$.objective", "speed"),
    ("$.trials.timeout", 1),
    ("$.exports", {"deepspeed": "a string"}),
    ("$.exports.env", {"A": 1}),
]


@pytest.mark.parametrize(("where", "value"), WRONG)
def test_a_wrong_value_is_refused_by_its_path(tmp_path: Path, where: str, value: object) -> None:
    wrong = document(record(A))
    *parents, name = where.removeprefix("$.").split(".")
    inner = wrong
    for parent in parents:
        inner = inner[parent]
    added = name not in inner and parents != ["exports"]
    inner[name] = value
    named = where.rsplit(".", 1)[0] if added else where
    with pytest.raises(UsageError, match=named.replace("$", r"\$")):
        read(tmp_path, wrong)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["measured", "environment"])
def test_infinite_numbers_are_refused_anywhere(tmp_path: Path, part: str, value: float) -> None:
    wrong = document(record(A))
    wrong[part]["load"] = [{"one": value}]
    with pytest.raises(UsageError, match=rf"\$\.{part}\.load\[0\]\.one is not a finite number"):
        read(tmp_path, wrong)


def test_a_number_that_is_not_finite_is_never_written(tmp_path: Path) -> None:
    wrong = replace(best(record(A)), environment={"load": [{"one": math.nan}]})
    with pytest.raises(ValueError, match=r"\$\.environment\.load\[0\]\.one is not a finite"):
        wrong.write(tmp_path / "best.json")
    assert not list(tmp_path.iterdir())


def test_a_phase_that_was_not_counted_has_no_seconds() -> None:
    found = record(A)
    peaks = found.measured.peaks
    counts = {"train": (0.0, 0), "save": (2.0, 1)}
    phases = {name: InPhase(peaks=peaks, seconds=s, count=n) for name, (s, n) in counts.items()}
    outcome = replace(found.outcome, measurement=replace(found.measured, phases=phases))
    took = best(replace(found, outcome=outcome)).measured.phases
    assert took is not None
    assert {name: (each.seconds, each.count) for name, each in took.items()} == {
        "train": (None, None),
        "save": (2.0, 1),
    }


REQUIRED = ["", "config", "measured", "measured.step_s", "measured.peak_bytes", "limits", "trials"]
OPTIONAL = {"width", "vocab_size", "headroom_bytes", "disturbed_share", "host_capacity_bytes",
            "host_ceiling", "finals", "prediction", "sure", "dtypes", "real_share", "length_mix",
            "kernels", "compile_s", "verified", "joules_per_token", "pareto", "same_batch",
            "candidates", "update_share", "tokens", "waiting_share", "rows", "command", "nodes",
            "repeats", "unconfirmed", "device", "data_parallel", "degrees", "phases", "unseen",
            "compilations", "spread_s", "bucket_lengths", "routing",
            "rank_peak_bytes", "rank_capacities", "task", "token",
            *ASKED_AXES} - {"optimizer"}  # fmt: skip


@pytest.mark.parametrize("part", REQUIRED)
def test_every_name_of_the_contract_is_required(tmp_path: Path, part: str) -> None:
    whole = document(record(A))
    steps = part.split(".") if part else []
    for name in _inside(whole, steps).keys() - OPTIONAL:
        lacking = copy.deepcopy(whole)
        del _inside(lacking, steps)[name]
        with pytest.raises(UsageError, match=f"`{name}`|\\$.{part}: has to count"):
            read(tmp_path, lacking)


def _inside(found: dict[str, Any], steps: list[str]) -> dict[str, Any]:
    for step in steps:
        found = found[step]
    return found


def test_the_median_error_of_the_predicted_peaks_is_in_the_result() -> None:
    def predicted(number: int, share: float) -> Record:
        found = record(A, number=number)
        peak = int(share * found.measured.peaks.device_bytes)
        return replace(found, outcome=replace(found.outcome, predicted_peak_bytes=peak))

    records = [predicted(0, 0.9), predicted(1, 1.02), predicted(2, 1.5), record(B, number=3)]
    found = best(*records)
    assert found.prediction is not None
    assert found.prediction.trials == 3
    assert found.prediction.peak_median_error == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(("kind", "kept"), [("cuda", True), ("cpu", False)])
def test_what_the_user_said_to_the_allocator_is_exported(kind: str, *, kept: bool) -> None:
    said = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    seen = {"variables": said | {"OMP_NUM_THREADS": "1"}}
    found = exported.best([record(A)], fingerprint={"kind": kind}, environment=seen)
    assert found.exports.get("env") == (said if kept else None)


def test_more_fields_may_stand_beside_those_of_the_contract(tmp_path: Path) -> None:
    more = document(record(A)) | {"note": "by hand"}
    more["config"]["tied_head"] = False
    more["cells"][0]["rank"] = 1
    assert read(tmp_path, more) == best(record(A))


def test_a_name_that_is_none_of_a_variable_does_not_reach_a_script(tmp_path: Path) -> None:
    hostile = document(record(A))
    hostile["exports"]["env"] = {"A; touch /tmp/x; B": "1"}
    with pytest.raises(UsageError, match=r"exports\.env"):
        read(tmp_path, hostile)


def test_a_result_over_several_nodes_says_so(tmp_path: Path) -> None:
    body = result("ddp", 0, world_size=4, nodes=2).to_json()
    found = read(tmp_path, body).config
    assert (found.nodes, found.ranks_on_a_node, found.workload.nodes) == (2, 2, 2)
    assert configuration(found).endswith("4 ranks on 2 nodes)")


def test_samples_of_one_token_have_no_length() -> None:
    config = replace(result("ddp", 0).config, model="factory:a:b", seq_len=1)
    assert configuration(config).startswith("depth 2, micro_batch 2, checkpointing none")


@pytest.mark.parametrize(("nodes", "why"), [(0, r"\$\.config\.nodes"), (5, "5 of 4 ranks")])
def test_a_number_of_nodes_that_cannot_be_is_refused(tmp_path: Path, nodes: int, why: str) -> None:
    body = result("ddp", 0, world_size=4, nodes=2).to_json()
    body["config"]["nodes"] = nodes
    with pytest.raises(UsageError, match=why):
        read(tmp_path, body)


def test_what_the_contract_leaves_open_may_be_missing(tmp_path: Path) -> None:
    less = document(record(A))
    for part, names in {
        "config": ["width", "vocab_size"],
        "measured": ["headroom_bytes", "disturbed_share"],
        "limits": ["host_capacity_bytes", "host_ceiling"],
    }.items():
        for name in names:
            del less[part][name]  # fmt: skip
    del less["prediction"]
    found = read(tmp_path, less)
    assert (found.config.width, found.measured.headroom_bytes, found.prediction) == (None,) * 3


@pytest.mark.parametrize("name", ["cpu-2-cores"])
def test_the_samples_can_be_read(name: str) -> None:
    path = SAMPLES / name / "best.json"
    assert Best.read(path).to_json() == json.loads(path.read_text("utf-8"))


def test_the_schema_has_the_values_of_axes() -> None:
    config = json_schema()["$defs"]["Config"]
    for name, axis in AXES.items():
        values = config["properties"][name]
        if axis.pattern is not None:
            words, pattern = values["anyOf"]
            assert (tuple(words["enum"]), pattern["pattern"]) == (
                axis.words,
                f"^({axis.pattern})$",
            )
        elif axis.words and name != "optimizer":
            assert tuple(values["enum"]) == axis.words
    assert set(config["required"]) >= AXES.keys() - set(ASKED_AXES)


def test_the_schema_is_valid_and_takes_what_is_written() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json_schema())
    Draft202012Validator(json_schema()).validate(document(record(A)))


# Energy.


D = Candidate(depth=4, seq_len=128, micro_batch=2)


def test_the_pareto_front_is_what_nothing_else_beats_in_both(tmp_path: Path) -> None:
    records = [
        record(A, tokens_per_s=3000, joules_per_token=0.3),
        record(B, tokens_per_s=2000, joules_per_token=0.1),
        record(D, tokens_per_s=1000, joules_per_token=0.2),
    ]
    found = best(*records)
    front = [(t.config.candidate, t.measured.joules_per_token) for t in found.pareto]
    assert front == [(A, 0.3), (B, 0.1)]
    assert read(tmp_path, found.to_json()) == found


def test_the_front_counts_the_work_that_the_objective_does() -> None:
    # The shallow model has more tokens for everything, and does less for each.
    shallow = record(C, tokens_per_s=2000, joules_per_token=0.1)
    deep = record(A, tokens_per_s=1900, joules_per_token=0.11)
    assert [t.config.candidate for t in best(shallow, deep).pareto] == [C]
    by_flops = best(shallow, deep, objective="flops")
    assert [t.config.candidate for t in by_flops.pareto] == [A]


def test_rounds_take_the_median_of_their_power_for_the_median_of_their_steps() -> None:
    rates, powers_w = (1000, 900, 800, 850), (100, None, 400, 200)
    rounds = [
        record(A, purpose="final", tokens_per_s=rate, joules_per_token=power_w and power_w / rate)
        for rate, power_w in zip(rates, powers_w, strict=True)
    ]
    pooled = pool(rounds, WORKLOAD).measured
    assert pooled.mean_power_w == pytest.approx(200)
    assert pooled.joules_per_token == pytest.approx(200 / pooled.tokens_per_s)
    unknown = [record(A, purpose="final")] * 2
    assert pool(unknown, WORKLOAD).measured.joules_per_token is None


# The same batch by other means.


def of_one_batch(*found: tuple[Candidate, float], samples: int = 8) -> Best:
    """Of a study with that global batch, where candidates reached so many tokens/s."""
    among = workload(GlobalBatch(samples, "samples"))
    records = [record(c, tokens_per_s=rate, among=among) for c, rate in found]
    return exported.best(records, replace(space(), workload=among))


def test_the_micro_batches_of_one_global_batch_are_compared(tmp_path: Path) -> None:
    full = replace(B, checkpointing="full")
    found = of_one_batch((A, 1000), (B, 900), (full, 950), (D, 500), (C, 4000))
    rows = [(c.config.candidate, c.config.grad_accum) for c in found.same_batch]
    assert rows == [(D, 4), (full, 2), (A, 1)]
    assert read(tmp_path, found.to_json()) == found


def test_what_cannot_be_compared_is_left_out() -> None:
    assert of_one_batch((A, 1000), (C, 100)).same_batch == ()
    plain = best(record(A), record(B))  # without a global batch, and without energy
    assert (plain.same_batch, plain.pareto) == ((), ())
