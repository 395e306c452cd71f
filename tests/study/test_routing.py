"""What a hot expert needs is held against the ceiling, in the search and in finals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.measure.runner import Job, Result
from autotune.measure.runner.requests import Requests
from autotune.result.best import Best
from autotune.result.making import tie_of
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.wire.ranks import BALANCED, HOT, ROUTINGS
from autotune.wire.reports import TRAIN, InPhase, Peaks
from tests.support.defaults import job
from tests.support.records import LIMITS, space
from tests.support.scripted import ok
from tests.support.studies import Run


def among() -> Space:
    plain = space(depth=(2,), micro_batch=(1, 2, 4))
    of = [c for c in plain.candidates if (c.seq_len, c.checkpointing) == (64, "none")]
    return replace(
        plain, axes=plain.axes | {"seq_len": (64,), "checkpointing": ("none",)},
        candidates=tuple(of), workload=replace(plain.workload, routing=list(ROUTINGS)),
    )  # fmt: skip


def hotter(job: Job) -> Result:
    """A model that is the faster the more samples it gets; a hot expert needs a third more."""
    samples = job.candidate.micro_batch
    bytes_ = samples * LIMITS.limit_bytes // 5
    found = ok((1 + samples) / 10, bytes_)
    peaks, hot = found.reported.peaks, Peaks.same(bytes_ * 4 // 3)
    phases = {
        TRAIN: InPhase(peaks=peaks, seconds=0.0, count=0),
        HOT: InPhase(peaks=hot, seconds=0.5, count=1),
    }
    return replace(found, report=replace(found.reported, peaks=hot, phases=phases))


def test_what_only_fits_with_balanced_experts_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, hotter, among(), sampler="grid")
    found = {c.micro_batch: verdict for c, verdict in run.verdicts().items()}
    assert found == {1: Verdict.OK, 2: Verdict.OK, 4: Verdict.OVER_CEILING}
    (over,) = [r for r in run.records if r.candidate.micro_batch == 4]
    assert over.outcome.reason.startswith("peak 3.41 GiB with a hot expert is over the ceiling")
    assert run.choice.record.candidate.micro_batch == 2


def test_a_final_that_does_not_fit_with_a_hot_expert_makes_room_for_the_next(
    tmp_path: Path,
) -> None:
    def answer(job: Job) -> Result:
        found = hotter(job)
        if job.candidate.micro_batch != 2 or not job.fresh or found.report is None:
            return found
        seen = found.report.phases
        over = replace(seen[HOT], peaks=Peaks.same(LIMITS.limit_bytes + 1))
        report = replace(found.report, peaks=over.peaks, phases=seen | {HOT: over})
        return replace(found, report=report)

    run = Run(tmp_path, answer, among(), sampler="grid", finals=2)
    assert run.choice.record.candidate.micro_batch == 1
    assert run.choice.confirmed


def test_the_result_has_both_peaks_and_both_rates(tmp_path: Path) -> None:
    run = Run(tmp_path, hotter, among(), sampler="grid")
    found = tie_of(run.choice.record, among().workload, LIMITS).measured
    assert found.phases is not None
    balanced, hot = found.phases["train"], found.phases["hot"]
    assert hot.peak_bytes.device == balanced.peak_bytes.device * 4 // 3
    assert found.peak_bytes == hot.peak_bytes
    assert (hot.seconds, hot.count, hot.tokens_per_s) == (0.5, 1, 2 * 64 / 0.5)
    assert found.tokens_per_s == 2 * 64 / 0.3
    assert balanced.tokens_per_s is None


@pytest.mark.slow
def test_ranks_of_an_engine_force_and_report_both(tmp_path: Path) -> None:
    code = main([
        "--model", "mixtral-tiny", "--device", "cpu", "--world-size", "2", "--engine", "fsdp",
        "--zero", "3", "--checkpointing", "full", "--seq-len", "32", "--micro-batch", "1",
        "--finals", "1", "--learn-from", "none", "--budget", "2m", "--out", str(tmp_path / "s"),
    ])  # fmt: skip
    assert code == ExitCode.FOUND
    found = Best.read(tmp_path / "s" / "best.json")
    assert found.routing == "balanced,hot"
    assert found.measured.phases is not None
    balanced, hot = found.measured.phases["train"], found.measured.phases["hot"]
    assert found.measured.peak_bytes.device >= hot.peak_bytes.device
    assert hot.peak_bytes.device >= balanced.peak_bytes.device > 0
    assert hot.tokens_per_s is not None
    assert hot.tokens_per_s > 0


def test_ranks_are_asked_for_what_they_can_force() -> None:
    def asked(*routing: str) -> list[str]:
        workload = replace(among().workload, routing=list(routing))
        requests = Requests(device_kind="cpu", workload=workload, limits=LIMITS)
        return requests.probe(1, job(Candidate(depth=2, seq_len=64, micro_batch=1))).routing

    assert asked(*ROUTINGS) == [BALANCED, HOT]
    assert asked("own") == asked() == []
