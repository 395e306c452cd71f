"""What the update takes, from two accumulations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.result.earlier import Earlier, seen_in
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from autotune.space.workload import GlobalBatch, Workload
from autotune.study.predict.update import update_share
from tests.support.records import record, workload

MICRO_S, UPDATE_S = 0.1, 0.2
CANDIDATE = Candidate(depth=2, seq_len=64, micro_batch=2)
NOW = workload(GlobalBatch(16, "samples"))


def measured(among: Workload, micro_s: float = MICRO_S) -> Record:
    step_s = among.micro_steps(CANDIDATE) * micro_s + UPDATE_S
    tokens = among.global_batch_samples(CANDIDATE) * CANDIDATE.seq_len
    return record(CANDIDATE, tokens_per_s=tokens / step_s, among=among)


def before(among: Workload, micro_s: float = MICRO_S) -> Earlier:
    return Earlier(folder="a", workload=among, seen=seen_in([measured(among, micro_s)]))


@pytest.mark.parametrize("batch", [None, GlobalBatch(4, "samples"), GlobalBatch(32, "samples")])
def test_another_accumulation_tells_the_share_of_the_update(batch: GlobalBatch | None) -> None:
    found = update_share(measured(NOW), NOW, [before(workload(batch))])
    assert found == pytest.approx(UPDATE_S / (8 * MICRO_S + UPDATE_S))


def test_one_accumulation_alone_tells_nothing() -> None:
    assert update_share(measured(NOW), NOW, []) is None
    assert update_share(measured(NOW), NOW, [before(NOW)]) is None
    as_tokens = workload(GlobalBatch(16 * 64, "tokens"))
    assert update_share(measured(NOW), NOW, [before(as_tokens)]) is None


def test_another_model_tells_nothing() -> None:
    other = replace(workload(None), vocab_size=8192)
    assert update_share(measured(NOW), NOW, [before(other)]) is None


def test_times_that_make_no_sense_together_tell_nothing() -> None:
    assert update_share(measured(NOW), NOW, [before(workload(None), micro_s=-0.15)]) is None
