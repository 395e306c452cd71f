"""What a study with a global batch says of the micro-batches that make it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.result.best import Best
from autotune.space.workload import GlobalBatch
from tests.support import recorded
from tests.support.records import space, workload

UPDATE_S = 0.5


def record(folder: Path, batch: GlobalBatch | None) -> Path:
    """A grid in which a step is its micro-steps and the update."""
    folder.mkdir()
    among = workload(batch)
    rows = []
    for candidate in space().candidates:
        step_s = among.micro_steps(candidate) * recorded.step_s(candidate) + UPDATE_S
        rows.append(recorded.row(candidate, ([step_s] * 3, [step_s] * 6)))
    return recorded.write(folder / "grid.csv", rows, workload=among)


def test_another_accumulation_of_an_earlier_study_tells_what_a_larger_batch_would_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--depth", "2", "--seq-len", "64", "--budget", "1h", "--sampler", "grid"]
    plain = record(tmp_path / "a", None)
    of_16 = record(tmp_path / "b", GlobalBatch(16, "samples"))
    first, then = tmp_path / "first", tmp_path / "then"
    asked = ["--out", str(first), "--device", f"replay:{plain}", *small]
    assert main(asked) == ExitCode.FOUND
    assert "same batch" not in capsys.readouterr().out
    asked = ["--out", str(then), "--device", f"replay:{of_16}", "--learn-from", str(first), *small]
    assert main(asked) == ExitCode.FOUND
    best, out = Best.read(then / "best.json"), capsys.readouterr().out
    assert best.update_share is not None
    assert best.update_share == pytest.approx(UPDATE_S / best.measured.step_s.median)
    assert [cell.config.micro_batch for cell in best.same_batch] == [1, 2, 4, 8]
    assert "The same batch of 16 samples, 1024 tokens" in out
    gain = 1 / (1 - best.update_share / 2) - 1
    assert f"would train {gain:.1%} more tokens/s" in " ".join(out.split())
