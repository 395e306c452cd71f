"""Which models have their experts forced, and what is refused or said of others."""

from __future__ import annotations

import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.recording import Recording
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.wire.ranks import BALANCED, ROUTINGS
from probes.count import count
from tests.support.launches import space_of
from tests.support.programs import ROOT

OWN = "factory:tests.support.own:routed"


def on(device: Device, model: str, **texts: str) -> Space:
    asked = Options.from_texts({"model": model} | texts)
    return resolve(asked, device, 16 * 2**30, 2, count=count)


def said(space: Space) -> list[str]:
    return [each.value for each in space.fixed if each.name == "routing"]


def test_a_mixture_of_experts_is_balanced_and_then_hot_or_as_it_was_asked(cpu: Device) -> None:
    space = on(cpu, "mixtral-tiny")
    assert (space.workload.routing, said(space)) == ([*ROUTINGS], ["balanced,hot"])
    alone = on(cpu, "mixtral-tiny", routing="balanced")
    assert (alone.workload.routing, said(alone)) == ([BALANCED], ["balanced"])


def test_a_resumed_study_has_its_own_routing(cpu: Device) -> None:
    known = on(cpu, "mixtral-tiny", routing="balanced").workload
    again = Options.from_texts({"model": "mixtral-tiny", "routing": "balanced"})
    assert resolve(again, cpu, 16 * 2**30, 2, known=known).workload.routing == [BALANCED]


@pytest.mark.parametrize("model", ["gpt", "llama-3-8b-tiny"])
def test_a_dense_model_has_no_routing(cpu: Device, model: str) -> None:
    assert on(cpu, model).workload.routing == []
    with pytest.raises(UsageError, match=f"--routing hot: {model}: has no experts; leave it out"):
        on(cpu, model, routing="hot")


def test_experts_that_cannot_be_forced_are_said_and_a_routing_of_them_is_refused(
    cpu: Device,
) -> None:
    assert said(on(cpu, OWN)) == ["as initialised"]
    with pytest.raises(UsageError, match="its own routers alone send tokens to its experts"):
        on(cpu, OWN, routing="hot")


def test_a_script_routes_itself() -> None:
    script = "true train.py --batch {micro_batch}"
    assert space_of(script, seq_len="").workload.routing == []
    space = space_of(f"{script} --ep {{ep}}", seq_len="")
    assert space.workload.routed == "the script's own"
    with pytest.raises(UsageError, match="--routing: the script has its own; leave it out"):
        space_of(script, seq_len="", routing="hot")


def test_a_recording_has_the_routing_that_it_has() -> None:
    path = ROOT / "results" / "grids" / "cpu-1-rank.csv"
    options = Options.from_texts({"device": f"replay:{path}", "routing": "hot"})
    with pytest.raises(UsageError, match="was recorded with the routing that it has"):
        Recording(path).space(options)
