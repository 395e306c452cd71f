"""Studies of samples of different lengths: who wins, and what ran."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.commands.app import main
from autotune.errors import UsageError
from autotune.measure.runner import Job, Result
from autotune.result.best import Best
from autotune.result.making import best_of
from autotune.show.report.result import _speed
from autotune.space.candidate import Candidate
from autotune.space.mix import LengthMix
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.study import verify
from autotune.study.judging import Judge
from autotune.study.ledger import Ledger
from autotune.study.predict.predictor import Predictor
from autotune.study.prober import rule_for
from autotune.wire.ranks import padded_to
from tests.support import defaults
from tests.support.choice import campaign
from tests.support.programs import ROOT
from tests.support.records import QUIET, record, space
from tests.support.scripted import ok, report
from tests.support.studies import Run

_rng = random.Random(0)
MIX = LengthMix.of("mix.csv", Counter(
    max(4, min(128, int(_rng.lognormvariate(3.2, 0.7)))) for _ in range(5000)
))  # fmt: skip
PLAIN = replace(
    space(depth=(2,), micro_batch=(1, 2, 4, 8, 16, 32)),
    candidates=tuple(c for c in space(depth=(2,), micro_batch=(1, 2, 4, 8, 16, 32)).candidates
                     if c.checkpointing == "none" and c.seq_len == 128),
)  # fmt: skip
MIXED = replace(PLAIN, workload=replace(PLAIN.workload, length_mix=MIX))


FIXED = 60.0


def machine(among: Space, fixed_tokens: float = FIXED) -> Any:
    """Answers as a machine would of which each micro-step costs as much as some more tokens."""

    def answer(job: Job) -> Result:
        c, mix = job.candidate, among.workload.length_mix
        padded = float(c.seq_len)
        if job.mixed and mix is not None:
            batches = mix.batches(c, 1)
            drawn = batches.draw(1, seed=0)
            padded = sum(
                padded_to(max(map(sum, rows)), c.pad_to_multiple, batches.ends) for [rows] in drawn
            ) / len(drawn)
        return ok(1e-3 * (c.micro_batch * padded + fixed_tokens), 2**20 * c.tokens // 4)

    return answer


def best(done: Run, among: Space) -> Best:
    return best_of(
        done.choice, done.records, among, "flops", fingerprint={"kind": "cpu"}, environment={},
        provenance={"options": Options.of(device="cpu").to_json()},
    )  # fmt: skip


def _padded(size: int) -> float:
    """The expected length of so many samples."""
    return 128 * MIX.batches(Candidate(depth=2, seq_len=128, micro_batch=size), 1).padded_share


@pytest.mark.parametrize("sampler", ["frontier", "grid"])
def test_padding_decides_which_micro_batch_wins(tmp_path: Path, sampler: str) -> None:
    plain = best(Run(tmp_path / "a", machine(PLAIN), PLAIN, sampler=sampler), PLAIN)
    mixed = best(Run(tmp_path / "b", machine(MIXED), MIXED, sampler=sampler, finals=3), MIXED)
    assert plain.config.micro_batch == 32
    rates = {size: size / (size * _padded(size) + FIXED) for size in (1, 2, 4, 8)}
    assert mixed.config.micro_batch == max(rates, key=lambda size: rates[size]) == 4
    assert mixed.confirmed


def test_the_result_says_what_ran(tmp_path: Path) -> None:
    found = best(Run(tmp_path / "a", machine(MIXED), MIXED, sampler="grid"), MIXED)
    size, step = found.config.micro_batch, found.measured.step_s
    padded = _padded(size)
    assert step.median == pytest.approx(1e-3 * (size * padded + FIXED), rel=0.01)
    assert found.measured.tokens_per_s == pytest.approx(size * MIX.mean(128) / step.median)
    assert found.measured.samples_per_s == pytest.approx(size / step.median)
    assert found.measured.real_share == pytest.approx(MIX.mean(128) / padded)
    assert step.steps % found.cycle_steps == 0
    assert found.length_mix == MIX
    path = tmp_path / "best.json"
    found.write(path)
    assert Best.read(path) == found


def test_the_search_runs_the_longest_samples_and_expects_the_mix_of_them(tmp_path: Path) -> None:
    done = Run(tmp_path / "a", machine(MIXED, fixed_tokens=0.0), MIXED, sampler="grid")
    assert {job.mixed for job in done.runner.jobs} == {False, True}
    assert all(job.mixed == job.fresh for job in done.runner.jobs)
    for told in done.told:  # without fixed costs, what is expected is what comes
        size = told.candidate.micro_batch
        expected = 1e-3 * size * MIXED.workload.padded_share(told.candidate) * 128
        assert told.measured.step.median == pytest.approx(expected, rel=0.01)


def test_a_probe_is_stopped_for_its_time_on_the_longest_samples() -> None:
    candidate = Candidate(depth=2, seq_len=128, micro_batch=4)
    ledger, found = Ledger(MIXED, "samples_per_s", Predictor(MIXED, "cpu")), record(candidate)
    ledger.add(found)
    needed_s = ledger.needed_step_s(candidate)
    assert needed_s is not None
    assert needed_s > found.measured.step.median / MIXED.workload.padded_share(candidate)


def test_finals_tell_how_far_off_the_longest_samples_are_for_all_others() -> None:
    """The fixed costs of one are those of the others, too."""
    predictor = Predictor(MIXED, "cpu")
    steps = {}
    for c in MIXED.candidates:
        share = MIXED.workload.padded_share(c)
        guess = 1e-3 * c.micro_batch * 128 * share
        steps[c] = guess
        predictor.observe(c, record(c, tokens_per_s=c.tokens / guess).outcome)
    small, *_, large = MIXED.candidates
    before = predictor.log_step_s()
    slower = record(small, tokens_per_s=small.tokens / (2 * steps[small]))
    predictor.observe(small, slower.outcome, final=True)
    after = predictor.log_step_s()
    assert after.mean[0] - before.mean[0] > 0.4
    moved = after.mean - before.mean
    assert 0 < moved[-1] < moved[1] < moved[0]  # the less padding, the less is off
    assert after.deviation[1] < before.deviation[1]
    assert large.micro_batch == 32


def test_rates_include_the_time_to_compile_all_shapes_of_the_run() -> None:
    """What the cache shortened later counts as it was at first."""
    mix = replace(MIX, run_steps=100)
    of = replace(MIXED, workload=replace(MIXED.workload, length_mix=mix))
    candidate = replace(of.candidates[0], compile="on", buckets=2)
    judge, job = Judge(of, "tokens_per_s"), defaults.job(candidate, mixed=True)
    first, later, plain = (
        replace(report(1.0, 2**20, QUIET), shape_compile_s=shape_s, compilations=2)
        for shape_s in (7.0, 0.5, 0.0)
    )
    found = [judge.outcome(job, Result(verdict=Verdict.OK, report=each)).measurement
             for each in (first, later)]  # fmt: skip
    for each in found:
        assert each is not None
        assert each.spread_s == pytest.approx(2 * 7.0 / 100)
        assert each.cost_s.median == pytest.approx(1.14)
        assert each.tokens_per_s == pytest.approx(of.workload.step_tokens(candidate) / 1.14)
    free = Judge(of, "tokens_per_s").outcome(job, Result(verdict=Verdict.OK, report=plain))
    assert free.measurement is not None
    assert free.measurement.spread_s == 0


def test_a_result_has_the_time_to_compile_and_the_lengths_of_buckets(tmp_path: Path) -> None:
    mix = replace(MIX, run_steps=100)
    candidates = tuple(replace(c, compile="on", buckets=2) for c in MIXED.candidates)
    axes = MIXED.axes | {"compile": ("on",), "buckets": (2,)}
    of = replace(MIXED, workload=replace(MIXED.workload, length_mix=mix))
    of = replace(of, axes=axes, candidates=candidates)

    def compiling(job: Job) -> Result:
        found: Result = machine(of)(job)
        took = replace(found.reported, shape_compile_s=7.0, compilations=2)
        return replace(found, report=took)

    found = best(Run(tmp_path / "a", compiling, of, sampler="grid"), of)
    measured = found.measured
    assert (len(measured.bucket_lengths or ()), measured.compilations) == (2, 2)
    spread_s = 2 * 7.0 / 100
    assert measured.spread_s == pytest.approx(spread_s)
    step_s = measured.step_s.median + spread_s
    assert measured.tokens_per_s == pytest.approx(found.tokens_per_step / step_s)


@pytest.mark.parametrize(("pack", "by_tokens"), [("on", False), ("off", True)])
def test_a_step_is_shown_with_the_samples_that_it_has(
    pack: str, by_tokens: bool, tmp_path: Path
) -> None:
    """They are not micro_batch, where rows hold several, or batches are filled."""
    of = replace(
        MIXED, workload=replace(MIXED.workload, length_mix=replace(MIX, by_tokens=by_tokens))
    )
    candidates = tuple(replace(c, pack=pack) for c in of.candidates)
    of = replace(of, candidates=candidates, axes=of.axes | {"pack": (pack,)})
    found = best(Run(tmp_path / "a", lambda job: ok(0.1, 2**20), of, sampler="grid"), of)
    samples = of.workload.step_samples(found.config.candidate)
    assert samples > found.config.global_batch_samples
    assert f" of {samples:.0f} samples in the mean, " in _speed(found)


def test_a_step_of_a_final_is_a_cycle_so_fewer_do() -> None:
    mixed = rule_for("cpu", Options.of(length_mix="mix.csv"), final=True)
    plain = rule_for("cpu", Options(), final=True)
    assert (mixed.warmup_steps, mixed.timed_steps) == (2, 3)
    assert (plain.warmup_steps, plain.timed_steps) == (3, 5)
    assert rule_for("cpu", Options.of(length_mix="mix.csv")) == rule_for("cpu", Options())


def test_a_longer_run_compares_like_with_like(tmp_path: Path) -> None:
    found = best(Run(tmp_path / "a", machine(MIXED), MIXED, sampler="grid"), MIXED)
    assert verify._options(found).space.length_mix is None  # the file may be gone
    cycle, step_s = found.cycle_steps, found.measured.step_s.median
    assert cycle == MIX.batches(found.config.candidate, 1).cycle_steps(1) > 1
    assert verify._steps(found, 200).timed_steps == -(-200 // cycle)
    assert verify._least_steps(found) >= 4 * cycle
    made = replace(report(step_s, 2**20, QUIET), step_s=[step_s] * 13)
    seen = verify._verified(found, made, made)
    assert seen.share_of_measured == pytest.approx(1.0)
    assert seen.tokens_per_s == pytest.approx(found.measured.tokens_per_s)
    assert seen.steps == 13 * cycle


def test_a_result_whose_histogram_was_changed_is_refused(tmp_path: Path) -> None:
    found = best(Run(tmp_path / "a", machine(MIXED), MIXED, sampler="grid"), MIXED)
    path = tmp_path / "best.json"
    replace(found, length_mix=replace(MIX, samples=7)).write(path)
    with pytest.raises(UsageError, match=r"length_mix\.samples is 7: it was changed by hand"):
        Best.read(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("gpt", ["--depth", "1", "--gpt", "vocab_size=256", "--global-batch", "8"]),
        *campaign(("t5-small-tiny", ["--world-size", "2"])),
    ],
    ids=["gpt", "t5"],
)
def test_a_study_of_a_mix_runs_for_real(
    tmp_path: Path, model: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    mix, out = tmp_path / "mix.csv", tmp_path / "study"
    mix.write_text("length,count\n8,50\n20,30\n40,15\n64,5\n")
    asked = ["--device", "cpu", "--model", model, "--length-mix", str(mix), "--micro-batch", "2,4"]
    more = [
        "--checkpointing",
        "none",
        "--pad-to-multiple",
        "1,8",
        "--finals",
        "1",
        "--trials",
        "2",
    ]
    end = ["--budget", "120s", "--learn-from", "none", "--out", str(out)]
    assert main([*asked, *flags, *more, *end]) == 0
    printed = capsys.readouterr().out
    found = Best.read(out / "best.json")
    of = found.length_mix
    assert of is not None
    assert (of.lengths, of.counts) == ((8, 20, 40, 64), (50, 30, 15, 5))
    assert found.config.pad_to_multiple in (1, 8)
    assert found.config.seq_len == 64
    finals = pd.read_csv(out / "trials.csv").query("kind == 'final'")
    assert "ok" in set(finals.verdict)  # of the winner, where nothing else disturbs the steps
    mean = 0.5 * 8 + 0.3 * 20 + 0.15 * 40 + 0.05 * 64
    tokens = found.measured.tokens_per_s * found.measured.step_s.median
    assert tokens == pytest.approx(found.config.global_batch_samples * mean)
    real = of.batches(found.config.candidate, found.config.replicas).real_share
    assert found.measured.real_share == pytest.approx(real)
    assert f"{real:.0%} of the computed tokens" in " ".join(printed.split())
    mix.unlink()
    assert main(["--resume", str(out), "--budget", "30s"]) == 0
    rows = pd.read_csv(out / "trials.csv")
    assert set(rows.verdict) <= {Verdict.OK, Verdict.PRUNED, Verdict.SKIPPED}
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["space"]["workload"]["length_mix"]["lengths"] == [8, 20, 40, 64]


NOTING = """
from dataclasses import replace
from pathlib import Path
import own

def made(spec):
    plain = own.small(spec)
    def batch(micro_batch, seq_len, generator):
        with (Path(__file__).parent / "shapes").open("a") as file:
            file.write(f"{micro_batch} {seq_len}\\n" * (generator is not None))
        return plain.make_batch(micro_batch, seq_len, generator)
    return replace(plain, make_batch=batch)
"""


@pytest.mark.slow
def test_the_longest_batch_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_bytes((ROOT / "tests" / "support" / "own.py").read_bytes())
    (tmp_path / "noting.py").write_text(NOTING)
    (tmp_path / "mix.csv").write_text("2,3\n4,2\n8,1\n")
    monkeypatch.chdir(tmp_path)
    asked = ["--device", "cpu", "--model", "factory:noting:made", "--length-mix", "mix.csv"]
    shape = ["--micro-batch", "3", "--checkpointing", "none", "--seed", "5", "--budget", "60s"]
    assert main([*asked, *shape, "--learn-from", "none", "--out", "study"]) == 0
    found = Best.read(tmp_path / "study" / "best.json")
    mix = found.length_mix
    assert mix is not None
    drawn = mix.batches(found.config.candidate, 1).draw(1, seed=5)
    final = "".join(f"3 {max(map(sum, rows))}\n" for [rows] in drawn)
    search, *rounds = (tmp_path / "shapes").read_text().split(final)
    assert len(rounds) >= found.trials["finals"]  # one that is disturbed is made again
    assert set(search.splitlines()) | set(rounds) == {"3 8", "3 8\n"}
    (tmp_path / "mix.csv").unlink()
    assert main(["verify", "study", "--minutes", "1"]) in (0, 5, 6)  # noise may well be 5 %
    verified = Best.read(tmp_path / "study" / "best.json").verified
    assert verified is not None
    assert verified.steps % found.cycle_steps == 0
    assert (tmp_path / "shapes").read_text().count(final) == len(rounds) + 2
