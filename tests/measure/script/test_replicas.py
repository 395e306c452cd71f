"""Ranks of a script that train on the same data, and what they count for."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from autotune.measure.script.launches import COUNTS, HOOK
from autotune.measure.script.replicas import Sharing, as_asked, sharing
from autotune.space.outcome import Verdict
from autotune.wire.hook import Place
from tests.support.choice import campaign
from tests.support.launches import PYTHON, Lab, seen
from tests.support.programs import TESTS

SCRIPT = TESTS / "support" / "parallel_script.py"
PARAMETERS = {"tp": 24_960, "raw": 24_576, "pipeline": 24_992}
"""Of whole models of the script."""


def place(
    *batches: int, averages: list[list[int]] | None = None, shares: list[list[int]] | None = None,
    swaps: list[list[int]] | None = None, fed: bool = False,
    degrees: dict[str, list[int]] | None = None, parts: list[list[int]] | None = None,
    features: list[list[int]] | None = None,
) -> Place:  # fmt: skip
    return Place(
        batches=list(batches), fed=fed, averages=averages or [], shares=shares or [],
        swaps=swaps or [], degrees=degrees or {}, parts=parts or [], features=features or [],
    )  # fmt: skip


def of(*places: Place, parts: int = 1) -> Sharing:
    return sharing(dict(enumerate(places)), parts)


def test_ranks_that_average_gradients_have_data_of_their_own_even_if_it_is_alike() -> None:
    found = of(*[place(1, 1, averages=[[0, 1]])] * 2)
    assert found.degrees == {"dp": 2}
    assert list(found.replicas) == [[0], [1]]


def test_groups_that_overlap_average_over_all_of_their_ranks() -> None:
    """As in hybrid sharding."""
    groups = [[[0, 1], [0, 2]], [[0, 1], [1, 3]], [[2, 3], [0, 2]], [[2, 3], [1, 3]]]
    assert of(*[place(1, 2, averages=each) for each in groups]).degrees == {"dp": 4}


def test_ranks_with_experts_of_their_own_cut_no_sequences() -> None:
    """Though they add up gradients of the same batch."""
    for held, degrees in ((1, {"cp": 2}), (2, {"tp": 2})):
        both = [place(1, 2, averages=[[0, 1]], shares=[[0, 1]], parts=[[64, n]])
                for n in (1, held)]  # fmt: skip
        assert of(*both).degrees == degrees


def test_ranks_that_exchange_activations_have_the_same_data_even_if_it_differs() -> None:
    """As a script for trying out has that draws it anew in each rank."""
    found = of(place(1, 2, shares=[[0, 1]]), place(3, 4, shares=[[0, 1]]))
    assert found.degrees == {"tp": 2}


@pytest.mark.parametrize("shares", [True, False])
def test_who_is_in_no_group_that_averages_shares_the_model(shares: bool) -> None:
    """Whether its activations are seen, or are exchanged in compiled code."""
    near = [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]] if shares else [[]] * 4
    far = [[[0, 2]], [[1, 3]]] * 2
    found = of(*[place(5, 6, averages=a, shares=s) for a, s in zip(far, near, strict=True)])
    assert list(found.replicas) == [[0, 1], [2, 3]]
    assert found.degrees == {"dp": 2, "tp": 2}


def test_stages_that_get_activations_alone_belong_to_who_feeds_them() -> None:
    found = of(place(1, 2), place(fed=True), place(fed=True))
    assert found.degrees == {"pp": 3}
    tied = of(place(1, 2, averages=[[0, 1]]), place(fed=True, averages=[[0, 1]]))
    assert tied.degrees == {"pp": 2}


def test_what_nothing_else_shows_the_data_shows() -> None:
    assert of(place(1, 2), place(1, 2)).degrees == {"tp": 2}
    assert of(place(1, 2), place(3, 4)).degrees == {"dp": 2}
    assert not of(place(1, 1), place(1, 1)).known  # it may have nothing better to hand
    assert not of(place(), place()).known


def test_ranks_with_the_same_data_and_the_same_whole_model_share_neither() -> None:
    """They may average it every hundred steps; what one drops out makes it differ before."""
    assert of(*[place(1, 2, parts=[[9, 3], [4, 5]])] * 2).degrees == {"dp": 2}
    split = [place(1, 2, parts=[[9, n], [4, 5]]) for n in range(2)]
    assert of(*split).degrees == {"tp": 2}
    assert not of(*[place(1, 2, parts=[[9, n], [4, n]]) for n in range(2)]).known


def test_features_of_samples_that_ranks_gather_cut_no_data() -> None:
    """As for a contrastive loss. Ranks that average no gradients exchange parts of a layer."""
    every = [[0, 1]]
    assert of(*[place(1, 2, averages=every, features=every)] * 2).degrees == {"dp": 2}
    assert of(*[place(1, 2, features=every)] * 2).degrees == {"tp": 2}


def test_named_dimensions_go_first_unless_gradients_are_averaged_over_more() -> None:
    names = [{"dp": [2, n // 2], "tp": [2, n % 2]} for n in range(4)]
    assert of(*[place(degrees=each) for each in names]).degrees == {"dp": 2, "tp": 2}
    unused = [place(averages=[[0, 1, 2, 3]], degrees=each) for each in names]
    assert of(*unused).degrees == {"dp": 4}


def test_parts_of_sequences_are_those_of_ranks_that_exchange_and_differ() -> None:
    every, near = [[0, 1, 2, 3]], [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]]
    cut = [place(n, averages=every, shares=each) for n, each in enumerate(near)]
    assert of(*cut, parts=2).degrees == {"dp": 2, "cp": 2}
    assert of(*cut, parts=3).degrees == {"dp": 4}
    same = [place(7, averages=every, shares=each) for each in near]
    assert of(*same, parts=2).degrees == {"dp": 4}


@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_that_average_gradients_of_the_same_data_cut_it_in_the_model(parts: int) -> None:
    """Before the embedding, or after it."""
    every, near = [[0, 1, 2, 3]], [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]]
    data = [(1, 2), (1, 2), (3, 4), (3, 4)]
    pairs = list(zip(data, near, strict=True))
    shares = [place(*d, averages=every, shares=n) for d, n in pairs]
    swaps = [place(*d, averages=every, swaps=n) for d, n in pairs]
    for cut in (shares, swaps):
        assert of(*cut, parts=parts).degrees == {"dp": 2, "cp": 2}


@pytest.mark.parametrize("averages", [[[]] * 4, [[[0, 2]], [[1, 3]]] * 2])
def test_ranks_that_share_experts_have_data_of_their_own(averages: list[list[list[int]]]) -> None:
    """Though most of their gradients, those of experts, are averaged with none or few of them."""
    every = [[0, 1, 2, 3]] if averages[0] == [] else None
    near = [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]]
    of_experts = [
        place(n, n + 9, averages=a, swaps=every or s)
        for n, (a, s) in enumerate(zip(averages, near, strict=True))
    ]
    assert of(*of_experts).degrees == {"dp": 4}


def test_experts_that_no_rank_averages_are_no_stages_of_a_pipeline() -> None:
    near = [[[0, 1]], [], [[2, 3]], []]
    held = [[[9, n % 2]] for n in range(4)]
    each = zip(near, held, strict=True)
    found = of(
        *[place(n, n + 9, swaps=swaps, parts=parts) for n, (swaps, parts) in enumerate(each)]
    )
    assert found.degrees == {"dp": 4}


@pytest.mark.parametrize("kind", ["shares", "swaps"])
def test_exchanges_of_whole_models_with_other_data_are_not_settled(kind: str) -> None:
    """They may be parts of sequences whose length was not told."""
    every: Any = [[0, 1]]
    found = of(*[place(n, averages=every, parts=[[9, 1]], **{kind: every}) for n in range(2)])
    assert not found.known


def test_ranks_whose_experts_differ_have_data_of_their_own_even_if_it_is_alike() -> None:
    """As by a seed that all ranks have by mistake."""
    every = [[0, 1]]
    both = [place(1, 2, averages=every, swaps=every, parts=[[9, n]]) for n in range(2)]
    assert of(*both).degrees == {"dp": 2}
    tensors = [place(1, 2, swaps=every, parts=[[9, n]]) for n in range(2)]
    assert of(*tensors).degrees == {"tp": 2}


def test_ranks_of_some_same_data_share_it_though_their_experts_differ() -> None:
    every, near = [[0, 1, 2, 3]], [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]]
    found = of(*[
        place(n // 2, n // 2 + 9, averages=every, swaps=s, parts=[[9, n % 2]])
        for n, s in enumerate(near)
    ])  # fmt: skip
    assert list(found.replicas) == [[0, 1], [2, 3]]


def test_where_nothing_shows_who_shares_data_it_is_as_was_asked_for() -> None:
    found = as_asked(range(8), tp=2, pp=1, cp=2)
    assert found.replicas == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found.degrees == {"dp": 2, "tp": 2, "cp": 2}
    assert not found.known
    assert as_asked(range(3), tp=2).degrees == as_asked(range(3), tp=1).degrees == {"dp": 3}


def lab(
    folder: Path, how: str, ranks: int, words: str = "", launcher: str = "", **more: str
) -> Lab:
    """A script whose ranks it forks, or the launcher starts."""
    by_launcher = f"{PYTHON} -m {launcher} --nproc_per_node {ranks} {SCRIPT} {how}"
    command = by_launcher if launcher else f"{PYTHON} {SCRIPT} {how} --ranks {ranks}"
    words = f"{command} --batch {{micro_batch}} --len {{seq_len}} {words}"
    return Lab(folder, words, **{"micro_batch": "8", "world_size": str(ranks)} | more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "ranks", "words", "degrees"),
    [
        ("ddp", 2, "--data constant", {"dp": 2}),
        ("by_hand", 2, "--via stack", {"dp": 2}),
        ("by_hand", 2, "--data alike --via ring", {"dp": 2}),
        ("by_hand", 2, "--statistics", {"dp": 2}),
        ("contrast", 2, "--data alike", {"dp": 2}),
        ("tp", 4, "--accum 2", {"dp": 2, "tp": 2}),
        ("raw", 2, "", {"tp": 2}),
        ("unnamed", 2, "--data constant", {"tp": 2}),
        ("pipeline", 4, "", {"dp": 2, "pp": 2}),
        ("tp", 2, "--say", {}),
        ("tp", 2, "--whole --flat", {"tp": 2}),
        ("cp", 2, "--inside", {"cp": 2}),
        ("cp", 2, "--functional", {"cp": 2}),
        ("experts", 2, "", {"dp": 2}),
        *campaign(
            ("by_hand", 2, "--data alike", {"dp": 2}),
            ("by_hand", 2, "--data alike --via gather", {"dp": 2}),
            ("fsdp", 2, "", {"dp": 2}),
            ("hsdp", 4, "", {"dp": 4}),
            ("tp", 2, "", {"tp": 2}),
            ("dtensor", 4, "", {"dp": 2, "tp": 2}),
            ("pipeline", 2, "", {"pp": 2}),
            ("pipeline", 2, "--schedule Interleaved1F1B", {"pp": 2}),
            ("pipeline", 2, "--schedule InterleavedZeroBubble", {"pp": 2}),
            ("pipeline", 2, "--schedule ZBVZeroBubble", {"pp": 2}),
            ("stages", 2, "--accum 2", {"pp": 2}),
            ("cp", 2, "", {"cp": 2}),
            ("cp", 4, "", {"dp": 2, "cp": 2}),
        ),
    ],
)
def test_samples_and_tokens_are_those_that_the_script_counts(
    how: str, ranks: int, words: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    launcher = "torch.distributed.run" if how == "ddp" else ""
    one = lab(tmp_path, how, ranks, words, launcher)
    result = one.probe()
    assert result.verdict is Verdict.OK, result.reason
    assert ["same batches" in each for each in one.notes] == [True] * ("alike" in words)
    ran = seen(result)
    (log,) = tmp_path.glob("launch*.log")
    said = re.search(r"samples (\d+) tokens (\d+)", log.read_text())
    assert said is not None
    assert (ran.samples, ran.tokens) == (int(said[1]), int(said[2]))
    assert ran.degrees == degrees
    assert ran.samples == 8 * ran.micro_steps * (ran.data_parallel or 0)
    assert ran.seen
    assert ran.trainable == PARAMETERS.get(how, ran.trainable)


@pytest.mark.slow
def test_a_step_of_a_pipeline_may_make_many_backward_passes(tmp_path: Path) -> None:
    result = lab(tmp_path, "pipeline", 2, "--parts 128", micro_batch="128").probe()
    assert result.verdict is Verdict.OK, result.reason
    assert seen(result).samples == 128


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["--accum {grad_accum}", "--config {deepspeed_config}", "--config {training_args}"]
)
def test_a_global_batch_is_reached_with_the_replicas_that_there_are(
    words: str, tmp_path: Path
) -> None:
    zero = {"zero": "1"} if "accum" not in words else {}
    one = lab(tmp_path, "tp", 2, words, global_batch="16", **zero)
    # The first of all learns how many replicas there are, however it is told to accumulate.
    for launches in (2,) if zero else (2, 3):
        ran = seen(one.probe())
        assert (ran.samples, ran.micro_steps, ran.data_parallel) == (16.0, 2, 1)
        assert len(list(tmp_path.glob("launch*.log"))) == launches


def test_a_grid_of_deepspeed_names_degrees() -> None:
    """Of two stages with two replicas each."""
    places = {"data": (2, 1), "tensor_model": (1, 0), "pipeline_model": (2, 1)}
    grid = SimpleNamespace()
    for name, (size, rank) in places.items():
        setattr(grid, f"get_{name}_parallel_world_size", lambda size=size: size)
        setattr(grid, f"get_{name}_parallel_rank", lambda rank=rank: rank)
    pipeline = type("PipelineModule", (), {"__module__": "deepspeed.runtime.pipe.module"})()
    pipeline._grid = grid
    path = HOOK / "_autotune_ranks.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {path.stem: module}):
        spec.loader.exec_module(module)
        found = module._of_megatron([pipeline])
    assert found == {"dp": [2, 1], "tp": [1, 0], "pp": [2, 1]}


@pytest.mark.slow
def test_a_length_that_a_script_ignores_is_no_part_of_a_sequence(tmp_path: Path) -> None:
    result = lab(tmp_path, "tp", 2, "--len 16").probe()
    assert result.reason == f"asked for seq_len 32, the model got 8 x 16{COUNTS}"
    assert "autotune.step(tokens=..., samples=...)" in COUNTS


@pytest.mark.slow
def test_degrees_are_told_and_others_that_were_seen_count(tmp_path: Path) -> None:
    asked = {"tp": "2", "global_batch": "32"}
    for how, degrees, micro_steps in (("tp", {"dp": 2, "tp": 2}, 2), ("ddp", {"dp": 4}, 1)):
        (folder := tmp_path / how).mkdir()
        one = lab(folder, how, 4, "--accum {grad_accum} --degree {tp}", **asked)
        ran = seen(one.probe())
        assert (ran.samples, ran.micro_steps, ran.degrees) == (32.0, micro_steps, degrees)
        ignores = how == "ddp"
        said = ["tp 2 was requested, but the ranks have tp 1"]
        assert [each for each in one.notes if "requested" in each] == said * ignores
        assert len(list(folder.glob("launch*.log"))) == 1 + ignores
