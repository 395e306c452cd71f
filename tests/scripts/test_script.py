"""What scripts/bench/script.py makes of launches; nothing here is timed."""

from __future__ import annotations

from autotune.space.candidate import Candidate
from autotune.space.outcome import Record, Verdict
from tests.support.records import record
from tests.support.scripts import load

bench = load("script")


def probe(micro_batch: int, tokens_per_s: float, verdict: Verdict = Verdict.OK) -> Record:
    candidate = Candidate(depth=1, seq_len=128, micro_batch=micro_batch)
    return record(candidate, verdict, tokens_per_s=tokens_per_s)


PROBES = [probe(8, 1.0, Verdict.OOM), probe(1, 900.0), probe(4, 800.0), probe(2, 1000.0)]
ROWS = {
    each.candidate.key: bench.Row(each.candidate.key, speeds, ("ok", verdict), 2**20)
    for each, speeds, verdict in zip(
        PROBES,
        [(2000.0,), (800.0,), (990.0,), (1000.0, 1010.0, 990.0)],
        ["oom", "ok", "ok", "ok"],
        strict=True,
    )
}
BEST = bench.Row("best", (1000.0,), ("ok",), 2**20)


def test_an_incumbent_stands_where_all_its_launches_put_it() -> None:
    behind = bench.regrets(PROBES, ROWS, BEST)
    assert behind[0] is None
    assert [round(each, 2) for each in behind[1:]] == [0.2, 0.2, 0.0]
    assert bench.near(PROBES, ROWS, BEST) == 4
    assert bench.near(PROBES[:3], ROWS, BEST) is None


def test_what_did_not_always_fit_is_not_the_best() -> None:
    assert ROWS[PROBES[0].candidate.key].value == 0.0
    lines = bench.report([*ROWS.values()], [PROBES, PROBES[:3]], 800 * 2**20)
    assert "Launches of one candidate are 0% apart (median)." in lines
    assert "| ok, oom | 2000 | |" in "\n".join(lines)
    assert lines[-1].startswith("within 5% of the best after launches: 4, never")
    assert lines[-1].endswith("missed.")
