"""The command that starts a script: what it is told, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.measure.testbed.script_space import command_of
from autotune.space import degrees
from autotune.space.candidate import Candidate
from autotune.space.command import Command, combined, parse_own, parse_set
from autotune.space.space import LEFT_OUT
from autotune.space.workload import Workload
from autotune.study.predict.predictor import Predictor
from tests.support.launches import BIN, PYTHON, space_of


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
    ranges = parse_own("bs=2:6:2,7;at=12:30:00h", "--axis")
    assert ranges == {"bs": ("2", "4", "6", "7"), "at": ("12:30:00h",)}
    assert parse_set("lr=1e-4;url=a=b", "--set") == {"lr": "1e-4", "url": "a=b"}


@pytest.mark.parametrize(
    "words",
    [
        "{micro_batch}.py",
        "-m no.py {micro_batch}",
        "-c pass no.py {micro_batch}",
        "-V {micro_batch}",
    ],
)
def test_a_script_that_may_be_there_is_not_refused(words: str) -> None:
    assert space_of(f"{PYTHON} {words}", seq_len="").candidates


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
        ("train.py {micro_batch}", {}, 'train.py: command not found; write "python train.py'),
        (f"{PYTHON} -u trian.py {{micro_batch}}", {}, "--script: trian.py: no such file in "),
        (f"{BIN}/torchrun --standalone /no/x.py {{micro_batch}}", {}, "/no/x.py: no such file"),
        ("true {lr}", {}, "{lr} is unknown; known: .*micro_batch.* needs --axis or --set"),
        ("true {batch}", {}, "{batch} is unknown; did you mean {micro_batch}.* needs --axis or"),
        ("true {seqlen}", {}, "did you mean {seq_len}"),
        ("true {ckpt}", {}, '{ckpt} is unknown; known: .* --set, for example --axis "ckpt=1,2"'),
        (
            "true {bs} {lanes} {ckpt}",
            {},
            "{bs} is unknown; did you mean {micro_batch}. {lanes}, {ckpt} are unknown; known:",
        ),
        ("true {a}", {"axis": "a=8:2"}, "--axis a=8:2 8:2: the range is reversed; write 2:8"),
        ("true {ofload}", {}, "did you mean {offload}"),
        ("true {micro_batch", {"micro_batch": ""}, "the command has nothing to search"),
        ("true --out {out}", {"micro_batch": ""}, "the command has nothing to search"),
        ("true", {}, "--micro-batch: the script is not told of it"),
        ("true {seq_len}", {"micro_batch": ""}, "--seq-len: give values for"),
        ("true {a}", {"axis": "a"}, "--axis a: write a name once"),
        ("true {a}", {"axis": "a.Len=1,2"}, '"len=1,2", and a.Len={len} in --script'),
        ("true {a}", {"axis": "--lr=1"}, 'write --axis "lr=1", and --lr={lr} in --script'),
        ("true {a}", {"axis": "a=1;a=2"}, "--axis a=2: write a name once"),
        ("true {a}", {"axis": "micro_batch=1"}, "the name is reserved"),
        ("true {tp}", {"axis": "tp=1,2"}, "--axis or --set tp: write --tp 1,2 instead"),
        ("true {tp}", {"given": "tp=2"}, "--axis or --set tp: write --tp 2 instead"),
        ("true {dp_shard}", {"axis": "dp_shard=1,2"}, "dp_shard: write --dp-shard 1,2 instead"),
        ("true {micro_batch}", {"tp": "1,2"}, "--tp: the script is not told of it; write {tp}"),
        ("true {micro_batch}", {"dp_shard": "2"}, "--dp-shard: the script is not told of it"),
        ("true {micro_batch} {tp}", {"tp": "0,1"}, "--tp 0,1: values must be at least 1"),
        (
            "true {micro_batch} {tp}",
            {"tp": "4,8", "world_size": "2"},
            "--tp 4: tp x pp x cp must divide 2 ranks; no candidate is left, so try --tp 1,2",
        ),
        (
            "true {micro_batch} {tp} {cp}",
            {"tp": "2", "cp": "4", "world_size": "4"},
            "--tp 2 --cp 4: tp x pp x cp must divide 4 ranks; .* try --cp 1,2",
        ),
        (
            "true {micro_batch} {tp} {cp}",
            {"tp": "8", "cp": "8", "world_size": "4"},
            "--tp 8 --cp 8: tp x pp x cp must divide 4 ranks; .* try --tp 1 --cp 1",
        ),
        (
            "true {micro_batch} {dp_shard}",
            {"dp_shard": "3", "world_size": "2"},
            "--dp-shard 3: dp_shard must divide dp; .* try --dp-shard auto,1,2",
        ),
        (
            "true {micro_batch} {dp_shard}",
            {"dp_shard": "auto,0"},
            "--dp-shard 0: unknown; known: auto, 2; a number is at least 1, and divides dp: ranks",
        ),
        (
            "true {micro_batch} {tp}",
            {"tp": "1", "model_config": "/no/config.json"},
            "--model-config /no/config.json: No such file",
        ),
        ("true {a}", {"axis": "a=1,2", "given": "a=3"}, "--set a: --axis a sets it too"),
        ("true {micro_batch}", {"axis": "a=1,2"}, "--axis: the script is not told of it"),
        ("true {micro_batch}", {"dtype": "bf16"}, "--dtype: the script is not told of it"),
        ("true {micro_batch}", {"given": "lr"}, "--set lr: write lr=1e-4"),
        ("true {micro_batch}", {"given": "lr=1"}, "--set: the script is not told of it"),
        ("true {deepspeed_config}", {"given": "lr=fast"}, "--set lr=fast: .* takes a number"),
        ("true {micro_batch}", {"global_batch": "8"}, "write {grad_accum}"),
        (
            "true {micro_batch} {grad_accum}",
            {"global_batch": "64tok"},
            "--global-batch 64tok: the script is not told its length",
        ),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, r"\{file:.*own.yaml\}: No such file"),
        ("batch: 4\n", "has no placeholder; write {micro_batch} where"),
        ("batch: {batches}\n", r"\{batches\} is unknown"),
        (b"\xff\xfe{micro_batch}", "is no text"),
    ],
)
def test_a_file_that_cannot_be_filled_in_is_refused(
    text: str | bytes | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=says):
        space_of(f"true {{file:{path}}}", seq_len="")


def test_a_script_is_told_what_stands_in_its_file(tmp_path: Path) -> None:
    (path := tmp_path / "own.json").write_text('{"train": {"batch": {micro_batch}}}')
    space = space_of(f"true {{file:{path}}}", seq_len="", micro_batch="2,4")
    found = command_of(space.workload)
    assert found.says("micro_batch")
    assert not found.says("seq_len")
    name = f"file:{path}"
    variables, words = found.filled(
        space.candidates[1], space.workload, 0, {name: "/scratch/own.json"}
    )
    assert words == ["true", "/scratch/own.json"]
    assert name not in variables
    values = found.values(space.candidates[1], space.workload, 0) | {name: "/a"}
    texts = found.filled_files(values)
    assert texts == {"/a": '{"train": {"batch": 4}}'}


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


def test_dp_follows_from_the_degrees(tmp_path: Path) -> None:
    script = "true {micro_batch} {seq_len} {tp} {dp} {dp_shard} {dp_replicate} {grad_accum}"
    space = space_of(
        script, micro_batch="2", tp="1,2,3", dp_shard="auto,1", global_batch="16", world_size="4",
    )  # fmt: skip
    told = {c: command_of(space.workload).filled(c, space.workload, 0, {})[1][3:]
            for c in space.candidates}  # fmt: skip
    assert {(c.tp, c.dp_shard): words for c, words in told.items()} == {
        (1, "auto"): ["1", "4", "4", "1", "2"], (1, "1"): ["1", "4", "1", "4", "2"],
        (2, "auto"): ["2", "2", "2", "1", "4"], (2, "1"): ["2", "2", "1", "2", "4"],
    }  # fmt: skip
    [left] = [each for each in space.fixed if each.name == LEFT_OUT]
    assert (left.value, left.why) == ("--tp 3", "tp x pp x cp must divide 4 ranks")


def test_a_number_of_shards_that_auto_stands_for_is_searched_once() -> None:
    space = space_of(
        "true {micro_batch} {tp} {dp_shard}", micro_batch="2", seq_len="", tp="1,2",
        dp_shard="4,auto,2", world_size="4",
    )  # fmt: skip
    found = {(c.tp, c.dp_shard) for c in space.candidates}
    assert found == {(1, "auto"), (1, "2"), (2, "auto")}
    said = {each.why: each.value for each in space.fixed if each.name == LEFT_OUT}
    assert said["--dp-shard auto is the same"] == "--dp-shard 4, --tp 2 --dp-shard 2"


def test_what_a_global_batch_leaves_out_is_named_by_dp() -> None:
    told = "true {micro_batch} {tp} {grad_accum}"
    space = space_of(
        told, micro_batch="4,8", tp="1,2,4", seq_len="", global_batch="16", world_size="4"
    )
    assert {(c.micro_batch, c.tp) for c in space.candidates} == {
        (4, 1), (4, 2), (8, 2), (4, 4), (8, 4),
    }  # fmt: skip
    [left] = [each for each in space.fixed if each.name == LEFT_OUT]
    assert left.value == "micro_batch 8"
    assert left.why == "--global-batch 16 is no multiple of these x dp 4"
    with pytest.raises(UsageError, match=r"\(micro_batch x dp x grad_accum\).* --global-batch 8"):
        space_of(told, micro_batch="8", tp="2,4", seq_len="", global_batch="12", world_size="4")


def test_degrees_without_values_are_plain() -> None:
    space = space_of("true {micro_batch} {tp} {pp} {cp} {ep} {dp_replicate}", seq_len="")
    assert all(c.ranks_a_replica == c.ep == 1 for c in space.candidates)
    assert {c.dp_shard for c in space.candidates} == {"auto"}


def test_a_launcher_that_takes_the_ranks_has_one_on_each_device() -> None:
    script = "torchrun --nproc-per-node {world_size} {micro_batch}"
    assert space_of(script, seq_len="").workload.world_size == 1  # one machine's processors
    assert space_of(script, seq_len="", world_size="2").workload.world_size == 2


def test_a_config_tells_what_its_model_cannot_do_and_its_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }))  # fmt: skip
    space = space_of(
        "true {micro_batch} {seq_len} {tp} {pp}", tp="1,2,4", pp="1,4", world_size="4",
        model_config=str(tmp_path),
    )  # fmt: skip
    assert {(c.tp, c.pp) for c in space.candidates} == {(1, 1), (2, 1)}
    said = {each.why: each.value for each in space.fixed if each.name == LEFT_OUT}
    assert said["tp must divide the model's 2 KV heads"].startswith("--tp 4")
    assert said["pp must divide the model's 6 layers"].startswith("--pp 4")
    assert space.workload.shape(6).width == 64
    again = Workload.from_json(json.loads(json.dumps(space.manifest()))["workload"])
    assert degrees.description(again) == degrees.description(space.workload)
