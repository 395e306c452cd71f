"""The command that starts a script: what it is told, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.measure.testbed.script_space import command_of
from autotune.space.candidate import Candidate
from autotune.space.command import Command, combined, parse_own, parse_set
from autotune.space.workload import Workload
from autotune.study.predict.predictor import Predictor
from tests.support.launches import space_of


def command(template: str, folder: Path = Path("/"), **own: tuple[str, ...]) -> Command:
    return Command(template=template, own=own, given={}, folder=folder)


def filled(template: str, place: int = 0, **more: str) -> tuple[dict[str, str], list[str]]:
    space = space_of(template, **{"seq_len": ""} | more)
    paths = {"out": "/scratch/out"}
    return command_of(space.workload).filled(space.candidates[place], space.workload, 7, paths)


def test_a_script_s_workload_is_read_back_from_a_manifest() -> None:
    space = space_of("true {micro_batch}", seq_len="")
    written = json.loads(json.dumps(space.manifest()["workload"]))
    assert Workload.from_json(written) == space.workload


def test_placeholders_are_filled_and_an_empty_one_of_a_whole_word_is_left_out() -> None:
    script = "true --b={micro_batch} {flag} --x '{flag}y' --seed {seed} --out {out} --lr {lr}"
    more = {"axis": "flag=", "given": "lr=1e-4"}
    _, words = filled(script, place=1, **more)
    assert " ".join(words[1:]) == "--b=4 --x y --seed 7 --out /scratch/out --lr 1e-4"


def test_braces_that_are_no_name_stay() -> None:
    _, words = filled(
        """true {micro_batch} '{"a": 1}' {} {0} $X 'a && b; c' ';' --x="y && \\" z" \\;"""
    )
    assert words[2:] == ['{"a": 1}', "{}", "{0}", "$X", "a && b; c", ";", '--x=y && " z', ";"]


def test_braces_that_are_doubled_or_a_shell_s_stay_as_they_are_written() -> None:
    _, words = filled("""true {micro_batch} 'awk {{print}}' '${name} {"a": {"b": 1}}' {{out}}""")
    assert words[2:] == ["awk {print}", '${name} {"a": {"b": 1}}', "{out}"]


def test_a_value_may_stand_at_the_end_of_an_object() -> None:
    _, words = filled("""true '{"train": {"batch": {micro_batch}}}'""")
    assert words[1] == '{"train": {"batch": 2}}'


def test_own_axes_and_set_values_may_be_read_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("os.environ['AUTOTUNE_ATTN'], os.environ['AUTOTUNE_LR']")
    more = {"axis": "attn=sdpa,eager", "given": "lr=1e-4"}
    variables, _ = filled(f"true {tmp_path}/train.py {{micro_batch}}", 1, **more)
    assert (variables["AUTOTUNE_ATTN"], variables["AUTOTUNE_LR"]) == ("sdpa", "1e-4")


def test_variables_in_front_are_set_and_are_no_program() -> None:
    variables, words = filled("A=1 B={micro_batch} true x=y")
    assert words == ["true", "x=y"]
    assert (variables["A"], variables["B"], variables["AUTOTUNE_MICRO_BATCH"]) == ("1", "2", "2")


def test_variables_of_all_candidates_are_known_before(tmp_path: Path) -> None:
    assert command("A=1 B={micro_batch} true C=2", tmp_path).assigned == {"A": "1"}


def test_what_is_accumulated_follows_from_the_batch() -> None:
    script = "true {micro_batch} {grad_accum} {global_batch} {global_tokens} {seq_len}"
    _, words = filled(script, global_batch="8", seq_len="32")
    assert words[1:] == ["2", "4", "8", "256", "32"]


@pytest.mark.parametrize("whole", ["global_batch", "global_tokens"])
def test_who_is_told_the_whole_batch_makes_its_micro_steps(tmp_path: Path, whole: str) -> None:
    assert command(f"true {{{whole}}}", tmp_path).says("grad_accum")
    assert not command("true {micro_batch}", tmp_path).says("grad_accum")


def test_tokens_of_a_batch_are_as_many_as_were_asked_for_at_every_length() -> None:
    script = "true {tokens_per_batch} {seq_len}"
    more = {"tokens_per_batch": "256", "seq_len": "32,64", "micro_batch": ""}
    got = [filled(script, place, **more)[1][1:] for place in (0, 1)]
    assert got == [["256", "32"], ["256", "64"]]


@pytest.mark.parametrize(
    "words", ["{here}/train.py", "-m train", "-m package", "-m package.train"]
)
def test_a_variable_that_the_script_or_module_reads_tells_it(tmp_path: Path, words: str) -> None:
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py", "package/__main__.py"):
        (tmp_path / name).write_text("os.environ['AUTOTUNE_ZERO_STAGE']")
    found = command("true " + words.replace("{here}", str(tmp_path)), tmp_path)
    assert found.says("zero_stage")
    assert not found.says("zero")
    assert not found.says("micro_batch")


@pytest.mark.parametrize(
    ("words", "told"),
    [("", False), ("{dtype}", True), ("{training_args}", True), ("{deepspeed_config}", True)],
)
def test_a_dtype_is_said_only_of_a_script_that_is_told_of_it(words: str, told: bool) -> None:
    space = space_of(f"true {{micro_batch}} {words}", seq_len="")
    assert any(each.name == "dtype" for each in space.fixed) is told


def test_what_is_shown_starts_it_with_variables_that_it_reads_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("os.environ['AUTOTUNE_MICRO_BATCH']")
    space = space_of(f"X=1 true {tmp_path}/train.py", seq_len="")
    shown = command_of(space.workload).shown(space.candidates[0], space.workload, 0, {})
    assert shown == ["env", "AUTOTUNE_MICRO_BATCH=2", "X=1", "true", f"{tmp_path}/train.py"]


@pytest.mark.parametrize(
    ("template", "ranks"),
    [
        ("torchrun --nproc-per-node 2 x.py", 2), ("torchrun --nproc_per_node=4 x.py", 4),
        ("accelerate launch --num_processes 3 x.py", 3), ("torchrun --nproc-per-node gpu x", None),
        ("torchrun --nproc-per-node {world_size} x", None), ("python x.py", None),
    ],
)  # fmt: skip
def test_ranks_are_what_the_launcher_is_told(template: str, ranks: int | None) -> None:
    assert command(f"env {template}").ranks == ranks


def test_every_combination_of_own_axes_is_one_value() -> None:
    own = parse_own("attn=sdpa,eager; fused=0,1,0", "--axis")
    assert own == {"attn": ("sdpa", "eager"), "fused": ("0", "1")}
    assert combined(own) == (
        "attn=sdpa;fused=0", "attn=sdpa;fused=1", "attn=eager;fused=0", "attn=eager;fused=1",
    )  # fmt: skip
    assert combined({}) == ()
    assert parse_set("lr=1e-4;url=a=b", "--set") == {"lr": "1e-4", "url": "a=b"}


@pytest.mark.parametrize(
    ("script", "more", "says"),
    [
        ("", {}, "the command is empty"),
        ("A=1", {}, "the command is empty"),
        ("cd /tmp; true {micro_batch}", {}, '/tmp; needs a shell; write "bash -c'),
        ("true {micro_batch} && true", {}, "&& needs a shell"),
        ("true {micro_batch} >log", {}, ">log needs a shell"),
        ("true {micro_batch} 2>&1 | tee log", {}, "2>&1 needs a shell"),
        ("true 'x", {}, "quote it"),
        ("no-such-program {micro_batch}", {}, "no-such-program: command not found"),
        ("true {lr}", {}, "{lr} is unknown; known: .*micro_batch.* needs --axis or --set"),
        ("true {batch}", {}, "{batch} is unknown; did you mean {micro_batch}.* needs --axis or"),
        ("true {seqlen}", {}, "did you mean {seq_len}"),
        ("true {ofload}", {}, "did you mean {offload}"),
        ("true {micro_batch", {"micro_batch": ""}, "the command has nothing to search"),
        ("true --out {out}", {"micro_batch": ""}, "the command has nothing to search"),
        ("true", {}, "--micro-batch: the script is not told of it"),
        ("true {seq_len}", {"micro_batch": ""}, "--seq-len: give values for"),
        ("true {a}", {"axis": "a"}, "--axis a: write a name once"),
        ("true {a}", {"axis": "a=1;a=2"}, "--axis a=2: write a name once"),
        ("true {a}", {"axis": "micro_batch=1"}, "the name is reserved"),
        ("true {a}", {"axis": "a=1,2", "given": "a=3"}, "--set a: --axis a sets it too"),
        ("true {micro_batch}", {"axis": "a=1,2"}, "--axis: the script is not told of it"),
        ("true {micro_batch}", {"dtype": "bf16"}, "--dtype: the script is not told of it"),
        ("true {micro_batch}", {"given": "lr"}, "--set lr: write lr=1e-4"),
        ("true {micro_batch}", {"given": "lr=1"}, "--set: the script is not told of it"),
        ("true {deepspeed_config}", {"given": "lr=fast"}, "--set lr=fast: .* takes a number"),
        ("true {micro_batch}", {"global_batch": "8"}, "write {grad_accum}"),
        ("true {grad_accum}", {"global_batch": "8", "micro_batch": ""}, "write {micro_batch}"),
        ("true {micro_batch}", {"model": "llama-3-8b"}, "--script has its own model"),
        ("torchrun --nproc-per-node 2 {micro_batch}", {"world_size": "4"}, "write {world_size}"),
    ],
)
def test_errors_are_said_before_any_start(script: str, more: dict[str, str], says: str) -> None:
    if script.startswith("torchrun"):
        script = f"env {script}"
    asked = {"seq_len": ""} | more
    with pytest.raises(UsageError, match=says):
        space_of(script, **asked)


def test_a_size_that_the_script_reads_is_searched_where_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("os.environ['AUTOTUNE_MICRO_BATCH']")
    space = space_of(f"true {tmp_path}/train.py", seq_len="", micro_batch="")
    assert len(space.axes["micro_batch"]) > 1
    assert space_of("true {zero}", seq_len="", micro_batch="").axes["zero_stage"] == (0, 1, 2, 3)


def test_the_candidate_of_what_ran_is_found_by_what_is_searched() -> None:
    space = space_of("true {a}", seq_len="", micro_batch="", axis="a=1,2")
    ran = Candidate(depth=1, seq_len=512, micro_batch=8, own="a=2")
    assert space.asked_for(ran) == space.candidates[1]


def test_a_script_s_memory_is_expected_without_its_model() -> None:
    space = space_of("true {micro_batch} {seq_len}")
    assert Predictor(space, "cpu").peak(space.candidates[0]).bytes > 0
