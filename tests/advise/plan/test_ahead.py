"""`--weigh`: what is weighed before a search, and when that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.advise.plan import ahead
from autotune.advise.plan.expected import KIND
from autotune.device.cards import CARDS
from autotune.device.imagined import ImaginedDevice
from autotune.measure.testbed.resolve import resolve
from autotune.result.earlier import Earlier, EarlierProbe
from autotune.space.options import Options
from autotune.space.space import NO_LIMIT, Space
from autotune.study.predict.predictor import Predictor
from autotune.wire.stopping import interval

NAME = "NVIDIA A100-SXM4-40GB"
GIB = 2**30


def asked(**texts: str) -> tuple[Options, Space]:
    given = {
        "depth": "12", "seq_len": "2048", "micro_batch": "1:64", "dtype": "bf16", "budget_s": "1h",
    } | texts  # fmt: skip
    options = Options.from_texts(given)
    [card] = [each for each in CARDS if each.nvml_name == NAME]
    device = ImaginedDevice(card, 1)
    return options, resolve(options, device, NO_LIMIT, cores=1, here=False)


class Machine:
    """Every sample of a micro_batch takes `each_gib`, over 2 GiB. Time passes here alone."""

    def __init__(self, each_gib: float, start_s: float = 5.0, steps_s: float = 1.0) -> None:
        self.each_gib, self.start_s, self.steps_s = each_gib, start_s, steps_s
        self.now = 0.0
        self.broken = ""
        self.asked: list[str] = []
        self.live: object = None

    def peak(self, micro_batch: int) -> int:
        return int((2 + self.each_gib * micro_batch) * GIB)

    @contextmanager
    def process(self, card: object, space: Space, until: float) -> Iterator[Callable[..., Any]]:
        def weigh(of: ahead._Asked) -> ahead._Told:
            candidate = of.candidate
            start_s = 0.0 if candidate.build == self.live else self.start_s
            self.live = candidate.build
            self.now += start_s + self.steps_s
            assert candidate.key not in self.asked
            self.asked.append(candidate.key)
            if self.broken == candidate.checkpointing:
                return ahead._Told(reason="no such kernel; see rank0.log")
            step = interval([1e-3 * (20 + candidate.micro_batch)] * 3)
            seen = EarlierProbe(
                candidate=candidate, step=step, disturbed_share=0.0, host_bytes=0,
                device_bytes=self.peak(candidate.micro_batch),
            )  # fmt: skip
            return ahead._Told(seen=seen, start_s=start_s)

        yield weigh


def weighed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, **texts: str
) -> tuple[Earlier | None, Space, str]:
    monkeypatch.setattr(ahead, "_process", machine.process)
    monkeypatch.setattr(ahead, "_traced", lambda *_: None)
    monkeypatch.setattr(ahead, "time", SimpleNamespace(monotonic=lambda: machine.now))
    options, space = asked(**texts)
    said: list[str] = []
    found = ahead.weighed_ahead(space, NAME, options, (), said.append)
    [line] = said
    return found, space, line


@pytest.mark.parametrize("each_gib", [0.6, 1.3, 4.0])
def test_the_border_is_known_afterwards(each_gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 GiB are allowed. No candidate that the search would try is lost."""
    machine = Machine(each_gib)
    found, space, line = weighed(machine, monkeypatch, checkpointing="none")
    assert found is not None
    assert not found.timed
    assert line.startswith(f"--weigh: {len(found.seen)} candidates weighed in")
    assert line.endswith("an emulated A100-40GB: one more would take longer than it saves")
    assert len(found.seen) <= 6
    chance = Predictor(space, KIND, [found]).chance()
    for each, fits in zip(space.candidates, chance, strict=True):
        peak = machine.peak(each.micro_batch)
        if abs(peak / space.limits.limit_bytes - 1) > 0.05:
            assert (fits > 0.5) == (peak <= space.limits.limit_bytes), each.key


def test_what_takes_longer_than_it_saves_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Machine(1.3), Machine(1.3, steps_s=40.0)
    weighed(quick, monkeypatch)
    weighed(slow, monkeypatch)
    assert len(slow.asked) == 1 < len(quick.asked)


def test_it_ends_with_its_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1.3, start_s=70.0)
    line = weighed(machine, monkeypatch, budget_s="10m")[2]
    assert line.endswith("10% of the budget is spent")
    assert len(machine.asked) == 1


def test_a_build_that_cannot_be_weighed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1.3)
    machine.broken = "none"
    line = weighed(machine, monkeypatch, checkpointing="none,full")[2]
    assert sum(key.endswith("none-none") for key in machine.asked) == 1
    assert line.endswith("was not weighed: no such kernel")


def test_cards_that_nobody_knows_are_not_weighed() -> None:
    options, space = asked()
    said: list[str] = []
    assert ahead.weighed_ahead(space, "Quadro 9", options, (), said.append) is None
    assert said == ["--weigh: nothing was weighed: no card is known as Quadro 9"]


def test_a_budget_that_is_too_short_for_a_start_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(1.3)
    found, _, line = weighed(machine, monkeypatch, budget_s="2m")
    assert line.endswith("a start takes about 20 s, and 10% of the budget is 12 s")
    assert (found, machine.asked) == (None, [])


def test_a_process_that_is_never_ready_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(ahead, "GRACE_S", 0.2)
    monkeypatch.setattr(ahead, "START_S", 0.0)
    monkeypatch.setattr(ahead, "SHARE", 1e-9)
    options, space = asked()
    said: list[str] = []
    assert ahead.weighed_ahead(space, NAME, options, (), said.append) is None
    assert said == ["--weigh: nothing was weighed: the process that weighs took too long"]


def test_without_a_cuda_build_or_a_compiler_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options, space = asked()
    said: list[str] = []
    assert ahead.weighed_ahead(space, NAME, options, (), said.append) is None
    [line] = said
    assert line.startswith("--weigh: nothing was weighed: emulated GPUs need a")
