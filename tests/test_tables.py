"""What every member of a kind has to do: each test runs over all rows of a table."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

import probes.engines
import probes.models
from autotune.commands import COMMANDS, CommandRow
from autotune.commands.app import _make_app, main
from autotune.device.device import Device
from autotune.measure.testbed.resolve import resolve
from autotune.result.best import json_schema
from autotune.result.folder.ask import Ask
from autotune.result.folder.sampler import Adapter
from autotune.space import engines
from autotune.space.candidate import Build, Candidate
from autotune.space.choices import LAUNCHERS, SAMPLERS
from autotune.space.engines import ENGINES
from autotune.space.models import FAMILIES
from autotune.space.options import FLAGS, Options
from autotune.space.workload import Workload
from autotune.study import samplers
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.open_candidates import OpenCandidates
from autotune.wire.ranks import ModelSpec
from probes.models import chunked
from tests.support.models import counted
from tests.support.records import WORKLOAD, space

# Model families.


MODELS = {"gpt": "gpt", "hf": "llama-3-8b-tiny", "factory": "factory:tests.support.own:small"}
"""One of each family."""


@cache
def of_family(name: str, depth: int = 2) -> Workload:
    if FAMILIES[name].counted:
        return counted(MODELS[name], (depth, 2 * depth))
    return replace(WORKLOAD, model=MODELS[name], vocab_size=97)


def spec(name: str, depth: int = 2) -> ModelSpec:
    return of_family(name, depth).spec(depth)


def test_study_and_probes_know_the_same_families() -> None:
    assert FAMILIES.keys() == probes.models.FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_counts_are_those_of_the_module(name: str) -> None:
    shape = of_family(name).shape(2)
    module = probes.models.family(name).make(spec(name))
    assert sum(p.numel() for p in module.parameters()) == shape.parameters
    blocks = [p for n, p in module.named_parameters()
              if p.dim() == 2 and probes.models.family(name).is_block_weight(n)]  # fmt: skip
    assert sum(p.numel() for p in blocks) == shape.block_matrices


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_learns_its_own_batch(name: str) -> None:
    torch.manual_seed(0)
    found = probes.models.family(name)
    module = found.make(spec(name))
    batch = found.batch(spec(name), 4, 16, torch.Generator().manual_seed(1))
    assert {len(part) for part in batch.values()} == {4}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = found.loss(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] < 1.2 * math.log(max(97, of_family(name).vocab_size))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_learns_nothing_of_what_is_padding(name: str) -> None:
    torch.manual_seed(0)
    found = probes.models.family(name)
    found.make(spec(name))
    batch = found.batch(spec(name), 2, 8, torch.Generator().manual_seed(1))
    masked = found.masked(spec(name), batch, [8, 3])
    assert masked.keys() >= batch.keys()
    for part, before in batch.items():
        assert masked[part].shape == before.shape
        assert torch.equal(masked[part][0], before[0])  # the longest has none
        assert torch.equal(masked[part][1].flatten()[:3], before[1].flatten()[:3])
    ignored = [int((part == chunked.IGNORED).sum()) for part in masked.values()]
    assert max(ignored) == (0 if name == "factory" else 5)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_units_of_a_family_hold_each_parameter_once(name: str) -> None:
    module = probes.models.family(name).make(spec(name))
    held = [p for unit in probes.models.family(name).units(module) for p in unit.parameters()]
    assert {id(p) for p in held} <= {id(p) for p in module.parameters()}
    assert len(held) == len({id(p) for p in held})
    assert sum(p.numel() for p in held) > 0.5 * sum(
        p.numel() for n, p in module.named_parameters()
        if probes.models.family(name).is_block_weight(n)
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
def test_a_family_has_a_space_of_its_own(name: str, device_kind: str) -> None:
    workload = of_family(name)
    found = FAMILIES[name].defaults(workload.recipe, device_kind)
    assert all(values == tuple(sorted(values)) for values in (found.depth, found.seq_len))
    shallow, deep = (workload.shape(depth) for depth in (2, 4))
    assert shallow.parameters < deep.parameters
    assert shallow.flops_per_token(64) < deep.flops_per_token(64)
    assert 64 * shallow.flops_per_token(64) < 128 * shallow.flops_per_token(128)
    assert shallow.block_bytes("full", "fp32") < shallow.block_bytes("none", "fp32")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_workload_is_the_same_after_a_manifest(name: str) -> None:
    workload = of_family(name)
    written = replace(space(), workload=workload).manifest()["workload"]
    assert Workload.from_json(json.loads(json.dumps(written))) == workload


# Engines.


def builds(engine: engines.EngineFacts) -> list[Build]:
    offloads = ("none", "optimizer", "all") if engine.offloads else ("none",)
    every = [
        Candidate(depth=2, seq_len=64, micro_batch=1, zero_stage=stage, offload=offload)
        for stage in engine.stages
        for offload in offloads
    ]
    return [candidate.build for candidate in every if candidate.exists]


def workload(engine: str, **changes: Any) -> Workload:
    return replace(WORKLOAD, engine=engine, world_size=2, **changes)


def test_study_and_probes_know_the_same_engines() -> None:
    assert ENGINES.keys() == probes.engines.ENGINES.keys()
    packages = {name: row.package for name, row in probes.engines.ENGINES.items()}
    assert packages == {name: engine.package for name, engine in ENGINES.items()}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_called_what_its_row_is_and_can_be_loaded(name: str) -> None:
    assert ENGINES[name].name == name
    assert callable(probes.engines.load(name))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_engine_keeps_what_goes_somewhere(name: str, dtype: str, optimizer: str) -> None:
    asked = workload(name, dtype=dtype)
    for plain in builds(ENGINES[name]):
        build = replace(plain, optimizer=optimizer)
        kept = engines.state_bytes(asked, build)
        assert (kept.device > 0) == (build.offload != "all")
        assert min(kept.weights, kept.gradients, kept.optimizer, kept.host, kept.passing) >= 0
        assert (kept.host > 0) == (build.offload != "none")


@pytest.mark.parametrize("name", ENGINES)
def test_a_higher_stage_keeps_no_more_on_the_device(name: str) -> None:
    kept = [engines.state_bytes(workload(name), b).device for b in builds(ENGINES[name])
            if b.offload == "none"]  # fmt: skip
    shared = (
        kept[1:] if ENGINES[name].steps_copies_in("fp32", Build(depth=1, zero_stage=1)) else kept
    )
    assert shared == sorted(shared, reverse=True)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
def test_an_engines_config_is_plain_json(name: str, device_kind: str) -> None:
    for build in builds(ENGINES[name]):
        candidate = Candidate(
            depth=2, seq_len=64, micro_batch=1, zero_stage=build.zero_stage, offload=build.offload
        )
        config = ENGINES[name].config(candidate, workload(name), device_kind)
        assert json.loads(json.dumps(config)) == config
        assert all(op.isidentifier() for op in ENGINES[name].ops(candidate, workload(name), "cpu"))


@pytest.mark.parametrize("name", engines.NAMES)
def test_an_engine_may_be_asked_for_with_each_of_its_stages(name: str) -> None:
    for stage in engines.stages_of(name):
        assert Options.of(engine=name, zero=(stage,)).space.axes["zero_stage"] == (stage,)
        assert engines.engine_for(name, stage).name in ENGINES


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", engines.NAMES)
def test_the_default_search_is_what_engines_have(name: str, ranks: int, cpu: Device) -> None:
    among = resolve(Options.of(engine=name, world_size=ranks), cpu, 2**34, 2)
    assert {c.zero_stage for c in among.candidates} <= set(engines.stages_of(name))
    assert {engines.engine_of(among.workload, c).name for c in among.candidates} <= ENGINES.keys()


def test_best_json_may_name_every_engine() -> None:
    assert json_schema()["$defs"]["Config"]["properties"]["engine"]["enum"] == list(ENGINES)


# Samplers.


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_proposes_each_open_candidate_once(name: str) -> None:
    if why := SAMPLERS[name].missing:
        pytest.skip(f"needs {why}")
    among = space(micro_batch=(1, 8))
    sampler = samplers.make(name, among, Predictor(among, "cpu"), "flops", seed=3)
    adapter, opened = Adapter(among, sampler), OpenCandidates(among)
    optuna_study = optuna.create_study(sampler=adapter, direction="maximize")
    asked = []
    while opened.has():
        one = adapter.ask(optuna_study, Ask(allowed=opened.places()))
        opened.close(one.candidate)
        optuna_study.tell(one.trial, float(one.candidate.tokens))
        asked.append(one.candidate)
    assert sorted(asked) == sorted(among.candidates)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_proposes_what_it_is_told_to(name: str) -> None:
    if why := SAMPLERS[name].missing:
        pytest.skip(f"needs {why}")
    among = space(micro_batch=(1, 8))
    sampler = samplers.make(name, among, Predictor(among, "cpu"), "flops", seed=3)
    adapter, opened = Adapter(among, sampler), OpenCandidates(among)
    optuna_study = optuna.create_study(sampler=adapter, direction="maximize")
    for candidate in among.candidates[::3]:
        ask = Ask(allowed=opened.places(), exactly=candidate)
        assert adapter.ask(optuna_study, ask).candidate == candidate


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_can_be_asked_for_by_its_name(name: str) -> None:
    assert Options.from_texts({"sampler": name}).search.sampler == name


# Launchers.


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_can_be_asked_for_by_its_name(name: str) -> None:
    argument = LAUNCHERS[name].argument
    text = name if argument is None else f"{name}:a file"
    assert Options.from_texts({"launch": text}).cluster.launch == text
    assert inspect.signature(
        importlib.import_module(LAUNCHERS[name].module).make
    ).parameters.keys() == {"asked"}


# Commands.


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_where_its_row_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, function = COMMANDS[name].path.partition(":")
    found = getattr(importlib.import_module(module), function)
    assert inspect.getdoc(found) == COMMANDS[name].help
    assert main([name, "--help"]) == 0
    assert name in capsys.readouterr().out


def test_commands_have_few_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(*, what: str) -> Callable[[list[str], float], int]:
        return lambda argv, started: 7 + len(what)

    monkeypatch.setitem(vars(sys.modules[__name__]), "show", show)
    monkeypatch.setitem(COMMANDS, "show", CommandRow(f"{__name__}:show", "Show something."))
    monkeypatch.setattr("autotune.commands.app.app", _make_app())
    (tmp_path / "pyproject.toml").write_text("[tool.autotune]\ndepth = 2\n")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "--what", "ab"]) == 9


# Options.


@pytest.mark.parametrize("name", FLAGS)
def test_an_options_default_is_what_its_flag_makes_of_the_text_that_help_shows(name: str) -> None:
    flag = FLAGS[name]
    if flag.default is not None:
        assert flag.read(flag.default, flag.name) == Options().flat()[name]
