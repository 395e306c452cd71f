"""The command line: flags, the TOML file, messages and exit codes."""

from __future__ import annotations

import gc
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import installed
from autotune.commands.app import entry, main
from autotune.commands.dry_run import print_plan
from autotune.commands.exits import ExitCode
from autotune.commands.tune import Tune
from autotune.errors import ModelError, UsageError
from autotune.result.folder.past import Ending, StudyEnd
from autotune.space.axes import AXES, DEGREES, SCRIPT_AXES
from autotune.space.candidate import Candidate
from autotune.space.models.defaults import Lora
from autotune.space.options import Options
from autotune.space.workload import GlobalBatch
from autotune.study import search, session
from autotune.study.predict.predictor import Predictor
from tests.support.programs import python
from tests.support.records import space, with_offload

Run = tuple[int, str, str]
Runs = Callable[..., Run]
Refused = Callable[..., str]
Parsed = Callable[..., Options]
Ends = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where each test runs: no pyproject.toml of ours, and nothing else either."""
    (tmp_path / "pyproject.toml").touch()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return here


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runs:
    """Runs a command line in this process: exit code, stdout, stderr."""

    def run(*argv: str) -> Run:
        code = main(list(argv))
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(run: Runs, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a command line that is wrong by itself; its message, once the rules on it hold."""

    def untouched(spec: str) -> None:
        raise AssertionError(f"opened {spec}")

    monkeypatch.setattr("autotune.device.open_device", untouched)

    def refused(*argv: str) -> str:
        code, out, err = run(*argv)
        assert (code, out) == (ExitCode.USAGE, "")
        assert re.fullmatch(r"autotune: .+\n", err), err
        return err.removeprefix("autotune: ").removesuffix("\n")

    return refused


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    """The options of a command line that goes as far as running a study."""

    def parsed(*argv: str) -> Options:
        requests: list[Tune] = []

        def call(self: Tune, argv: list[str], started: float) -> int:
            requests.append(self)
            return 0

        monkeypatch.setattr(Tune, "__call__", call)
        assert main(list(argv)) == 0
        return requests[0].options

    return parsed


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Makes the study end at once as it is told; the arguments it was run with by name."""

    def ends(code: Ending, message: str = "") -> dict[str, Any]:
        arguments: dict[str, Any] = {}

        def run(setup: session.Setup, **given: Any) -> StudyEnd:
            arguments.update(vars(setup) | given)
            return StudyEnd(code, message)

        monkeypatch.setattr(session, "run", run)
        return arguments

    return ends


# Flags.

GPT = "width=128,vocab_size=512,head_dim=32,mlp=swiglu,qk_norm=true,tied=true,softcap=30"
ALLOCATORS = ("expandable", "max_split_size_mb:128+garbage_collection_threshold:0.8")
FLAGS = {
    "--budget": ("90s", "budget_s", 90.0),
    "--ceiling": ("70%", "ceiling", 0.7),
    "--host-ceiling": ("0.5", "host_ceiling", 0.5),
    "--capacity": ("24GiB", "capacity_bytes", 24 * 2**30),
    "--device": ("cuda:0,2", "device", "cuda:0,2"),
    "--allow-busy": (None, "allow_busy", True),
    "--column": ("micro_batch=mbs", "column", "micro_batch=mbs"),
    "--row": ("nodes=4", "row", "nodes=4"),
    "--world-size": ("2", "world_size", 2),
    "--launch": ("slurm", "launch", "slurm"),
    "--nodes": ("2", "nodes", 2),
    "--interface": ("eth0", "interface", "eth0"),
    "--parallel": ("auto", "parallel", "auto"),
    "--allow-mixed": (None, "allow_mixed", True),
    "--model": ("gpt2", "model", "gpt2"),
    "--task": ("masked", "task", "masked"),
    "--lora": (
        "r=8,dropout=0.1,targets=q_proj+v_proj",
        "lora",
        Lora(8, ("q_proj", "v_proj"), 0.1),
    ),
    "--routing": ("hot", "routing", "hot"),
    "--image-size": ("448x448,1344x896", "image_size", ((448, 448), (1344, 896))),
    "--eval-batch": ("8", "eval_batch", 8),
    "--save": ("sharded", "save", "sharded"),
    "--preset": ("nanochat", "preset", "nanochat"),
    "--gpt": (GPT, "gpt", GPT),
    "--target-len": ("9", "target_len", 9),
    "--trust-remote-code": (None, "trust_remote_code", True),
    "--weigh": (None, "weigh", True),
    **{
        axis.flag: (axis.words[-1], axis.option, axis.words[-1:])
        for axis in AXES.values()
        if axis.words
    },
    "--allocator": (",".join(ALLOCATORS), "allocator", ALLOCATORS),
    "--depth": ("2,4,6", "depth", (2, 4, 6)),
    "--seq-len": ("128,256", "seq_len", (128, 256)),
    "--micro-batch": ("1:4", "micro_batch", (1, 2, 3, 4)),
    "--engine": ("deepspeed", "engine", "deepspeed"),
    "--zero": ("0,3", "zero", (0, 3)),
    "--dtype": ("bf16", "dtype", "bf16"),
    "--tokens-per-batch": ("4096", "tokens_per_batch", (4096,)),
    "--script": ("true", "script", "true"),
    "--axis": ("attn=sdpa,eager", "axis", "attn=sdpa,eager"),
    "--set": ("lr=1e-4", "given", "lr=1e-4"),
    "--phase-args": ("--eval_steps 5", "phase_args", "--eval_steps 5"),
    "--model-config": ("config.json", "model_config", Path("config.json")),
    **{f"--{name}": ("1,4", name, (1, 4)) for name in DEGREES},
    "--data-workers": ("0,4", "data_workers", ("0", "4")),
    "--pin-memory": ("true", "pin_memory", ("true",)),
    "--prefetch": ("2,4", "prefetch", ("2", "4")),
    "--length-mix": ("lengths.csv", "length_mix", "lengths.csv"),
    "--pad-to-multiple": ("1,8", "pad_to_multiple", (1, 8)),
    "--buckets": ("0,4", "buckets", (0, 4)),
    "--pack": ("off,on", "pack", ("off", "on")),
    "--run-steps": ("5000", "run_steps", 5000),
    "--global-batch": ("65536tok", "global_batch", GlobalBatch(65536, "tokens")),
    "--objective": ("tokens_per_s", "objective", "tokens_per_s"),
    "--sampler": ("random", "sampler", "random"),
    "--seed": ("3", "seed", 3),
    "--trials": ("5", "trials", 5),
    "--finals": ("1", "finals", 1),
    "--learn-from": ("before", "learn_from", "before"),
    "--out": ("there", "out", Path("there")),
    "--storage": ("sqlite:///a.db", "storage", "sqlite:///a.db"),
    "--log": ("wandb-offline,tensorboard", "log", ("wandb-offline", "tensorboard")),
}


def test_the_flags_are_these_and_no_others(run: Runs) -> None:
    _, help_text, _ = run("--help")
    listed = re.findall(r"^│ (--[a-z0-9-]+)", help_text, re.MULTILINE)
    others = ["--dry-run", "--verify", "--config", "--resume", "--accept-changed", "--help"]
    others += ["--version", "--join"]
    assert sorted(listed) == sorted([*FLAGS, *others])


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_sets_its_option_also_after_a_manifest(flag: str, parsed: Parsed) -> None:
    text, field, value = FLAGS[flag]
    scripts = (
        "--axis",
        "--set",
        "--phase-args",
        "--model-config",
        *(AXES[name].flag for name in SCRIPT_AXES),
    )
    of_script = flag in scripts
    more = ["--script", "true"] if of_script else []
    if flag in ("--pad-to-multiple", "--buckets", "--pack", "--run-steps"):
        more = ["--length-mix", "lengths.csv"]
    if flag in ("--column", "--row"):
        more = ["--device", "replay:runs.csv"]
    options = parsed(flag, *more) if text is None else parsed(flag, text, *more)
    assert options.flat()[field] == value
    again = Options.from_json(json.loads(json.dumps(options.to_json())))
    assert again.but(out=options.output.out) == options


def test_tune_is_the_command_that_needs_no_name(parsed: Parsed) -> None:
    assert parsed("tune", "--budget", "5m") == parsed("--budget", "5m")


def test_help_keeps_within_80_columns(run: Runs) -> None:
    code, help_text, _ = run("--help")
    assert code == 0
    assert max(map(len, help_text.splitlines())) <= 80


def test_version_is_printed(run: Runs) -> None:
    assert run("--version") == (0, "autotune 0.1.0\n", "")


# The TOML file.

MINE = ["--config", "mine.toml"]


@pytest.mark.parametrize(("files", "argv", "asked"), [
    ({}, [], {}),
    ({"pyproject.toml": '[tool.autotune]\nbudget = "5m"\ndepth = [2, 4]\nceiling = 0.5\n'
      'checkpointing = ["full"]\nallow-busy = true\n'}, [],
     {"budget_s": 300.0, "depth": (2, 4), "ceiling": 0.5, "checkpointing": ("full",),
      "allow_busy": True}),
    ({"../pyproject.toml": "[tool.autotune]\nseed = 3\n"}, [], {"seed": 3}),
    ({"../pyproject.toml": "[tool.autotune]\nseed = 3\n",
      "pyproject.toml": "[project]\nname = 'x'\n"}, [], {}),
    ({"mine.toml": "seed = 3\ndry-run = true\nmicro_batch = '1:2'\n",
      "pyproject.toml": "[tool.autotune]\nfinals = 1\n"}, MINE,
     {"seed": 3, "micro_batch": (1, 2)}),
    ({"mine.toml": "seed = 3\nfinals = 2\n"}, [*MINE, "--seed", "4"], {"seed": 4, "finals": 2}),
], ids=["none", "here", "above", "the nearest", "named", "the command line wins"])  # fmt: skip
def test_options_come_from_the_nearest_file_or_the_named_one(
    files: dict[str, str], argv: list[str], asked: dict[str, Any], parsed: Parsed
) -> None:
    for name, text in files.items():
        Path(name).write_text(text)
    assert parsed(*argv) == Options.of(**asked)


def test_an_unknown_key_is_answered_with_the_closest(refused: Refused, empty_folder: Path) -> None:
    Path("pyproject.toml").write_text("[tool.autotune]\nbugdet = '5m'\n")
    expected = f"{empty_folder / 'pyproject.toml'}: unknown key bugdet; did you mean budget?"
    assert refused() == expected


@pytest.mark.parametrize("key", ["config", "tune", "help", "version", "resume"])
def test_what_is_no_option_of_a_study_is_an_unknown_key(key: str, refused: Refused) -> None:
    Path("mine.toml").write_text(f"{key} = 'x'\n")
    assert refused("--config", "mine.toml").startswith(f"mine.toml: unknown key {key};")


@pytest.mark.parametrize("value", ["{a = 1}", "2026-01-01", "[]", "[[1], {a = 1}]"])
def test_a_value_that_no_flag_takes_is_refused_by_its_key(value: str, refused: Refused) -> None:
    Path("mine.toml").write_text(f"depth = {value}\n")
    assert refused("--config", "mine.toml").startswith("mine.toml: depth must be text, a number")


@pytest.mark.parametrize(("name", "text", "argv", "why"), [
    *(("mine.toml", text, MINE, "mine.toml: not TOML: ")
      for text in ("seed =", "\x00", "a = 1\na = 2")),
    ("pyproject.toml", "[tool]\nautotune = 3\n", [], "autotune must be a table, written [tool."),
    ("other.toml", "", MINE, "mine.toml: No such file or directory"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(
    name: str, text: str, argv: list[str], why: str, refused: Refused
) -> None:
    Path(name).write_text(text)
    assert why in refused(*argv)


# Wrong input.


@pytest.mark.parametrize(
    ("argv", "start", "valid"),
    [
        (["--budget", "-5m"], "--budget -5m", "30m"),
        (["--budget", "3\n0"], "--budget 3 0", "30m"),
        (["--ceiling", "-80%"], "--ceiling -80%", "80%"),
        (["--capacity", "-1GiB"], "--capacity -1GiB", "64MiB"),
        (["--depth", ""], "--depth ", "1,2,4"),
        (["--engine", "ddp", "--zero", "2"], "--zero 2", "--zero 0"),
        (["--engine", "fsdp", "--zero", "1"], "--zero 1", "--zero 2,3"),
        (["--engine", "fsdp", "--offload", "all"], "--offload all", "--engine deepspeed"),
        (["--offload", "disk"], "--offload disk", "none, optimizer, all"),
        (["--zero", "0", "--offload", "optimizer"], "--offload optimizer", "--zero 2"),
        (["--zero", "2", "--offload", "all"], "--offload all", "--zero 3"),
        (["--checkpointing", "some"], "--checkpointing some", "full"),
        (["--dtype", "int8"], 'Invalid value "int8" for --dtype', "bf16"),
        (["--optimizer", "sgd"], "--optimizer sgd", "adamw, muon, adamw8bit"),
        (["--checkpointing", "1/0"], "--checkpointing 1/0", "selective, host, 1/2"),
        (["--allocator", "large"], "--allocator large", "max_split_size_mb:128"),
        (
            ["--tokens-per-batch", "64", "--micro-batch", "2"],
            "--tokens-per-batch 64",
            "leave one of them out",
        ),
        (["--length-mix", "no.csv"], "--length-mix no.csv: No such file", "directory"),
        (["--objective", "speed"], 'Invalid value "speed" for --objective', "tokens_per_s"),
        (["--sampler", "magic"], 'Invalid value "magic" for --sampler', "tpe"),
        (["--seed", "x"], "--seed x: not a whole number", "write it as 2"),
        (["--bugdet", "30m"], "Unknown option: --bugdet", "--budget"),
        (["--bs", "4"], "Unknown option: --bs.", "Did you mean --micro-batch?"),
        (["--ckpt", "4"], "Unknown option: --ckpt.", "See --help."),
        (
            ["--script", "python {ckpt}", "--ckpt", "yes,no"],
            "Unknown option: --ckpt. See --help.",
            'A flag of the script needs --axis "ckpt=1,2", and {ckpt} in --script.',
        ),
        (["--xyz", "4"], "Unknown option: --xyz.", "See --help."),
        (["export", "--bs", "4"], "Unknown option: --bs.", "See --help."),
        (["--no-dry-run"], "Unknown option: --no-dry-run", "--dry-run"),
        (["--no-allow-busy"], "Unknown option: --no-allow-busy", "--allow-busy"),
        (["--budget"], "Parameter --budget", "requires an argument"),
        (["--depth", "2", "4"], "unexpected 4", "--depth 2,4"),
        (["tnue"], "unexpected tnue", "--help"),
        (
            ["--phase-args", "--a", "5"],
            "unexpected 5",
            'quote the arguments: --phase-args "--a 5"',
        ),
        (["--script", "true", "--phase-args", " "], "--phase-args: is empty", "--eval_steps 5"),
        (
            ["--phase-args", "--a", "--b"],
            "Unknown option: --b",
            'arguments: --phase-args "--a ..."',
        ),
        (["--checkpointing", "True"], "--checkpointing True: unknown", '--axis "ch=True,False"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_that_says_what_would_be_right(
    argv: list[str], start: str, valid: str, refused: Refused
) -> None:
    message = refused(*argv)
    assert message.startswith(start.strip())
    assert valid in message.removeprefix(start)


@pytest.mark.parametrize(
    ("package", "argv"),
    [
        ("scipy", ["--sampler", "gp"]),
        ("tensorboardX", ["--log", "tensorboard"]),
        ("wandb", ["--log", "wandb-offline"]),
        ("torchao", ["--optimizer", "adamw8bit", "--device", "cpu"]),
        ("peft", ["--model", "gpt2-tiny", "--lora", "r=16", "--device", "cpu"]),
        ("peft", ["plan", "--model", "gpt2-tiny", "--lora", "r=16", "--gpus", "H100"]),
        ("transformers", ["--model", "gpt2-tiny", "--device", "cpu"]),
        ("psycopg", ["--storage", "postgresql://host/name", "--device", "cpu"]),
        ("ray", ["--launch", "ray"]),
        ("cryptography", ["--launch", "wait", "--nodes", "2"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_flag_needs_and_is_not_installed_is_one_line_with_the_command_that_installs_it(
    package: str, argv: list[str], run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    code, _, err = run(*argv, *([] if argv[0] == "plan" else ["--dry-run"]))
    assert code == ExitCode.USAGE
    last = err.splitlines()[-1]  # a launcher may say first where it is
    assert last.startswith("autotune: --")
    assert installed.missing(package) in last


# The output folder.


def test_a_folder_in_use_is_refused_with_a_free_name(refused: Refused) -> None:
    for used in ("mine", "mine-2"):
        Path(used).mkdir()
        (Path(used) / "best.json").touch()
    message = refused("--out", "mine")
    assert message.startswith("--out mine: has a study")
    assert "--resume" in message
    assert message.endswith("--out mine-3")


def test_a_file_is_refused_as_a_folder(refused: Refused) -> None:
    Path("mine").touch()
    assert refused("--out", "mine").startswith("--out mine: is a file")


def test_an_empty_folder_is_used(run: Runs, ends: Ends) -> None:
    Path("mine").mkdir()
    arguments = ends(Ending.FOUND)
    assert run("--device", "cpu", "--out", "mine")[0] == ExitCode.FOUND
    assert arguments["manifest"].folder == "mine"


def test_a_folder_that_cannot_be_written_is_refused_with_a_reason(run: Runs, ends: Ends) -> None:
    Path("file").touch()
    arguments = ends(Ending.FOUND)
    code, out, err = run("--device", "cpu", "--out", "file/mine")
    assert (code, out, arguments) == (ExitCode.USAGE, "", {})
    assert re.fullmatch(r"autotune: --out file/mine: Not a directory; use e\.g\. --out .+\n", err)


def test_without_out_the_folder_is_new_and_named_after_the_study(run: Runs, ends: Ends) -> None:
    ends(Ending.FOUND)
    run("--device", "cpu")
    run("--device", "cpu")
    names = [path.name for path in Path("results").iterdir()]
    assert len(names) == 2
    assert all(re.match(r"\d{8}T\d{6}Z-gpt-cpu", name) for name in names)


def test_no_folder_is_left_by_input_that_the_device_makes_wrong(run: Runs) -> None:
    code, _, _ = run("--device", "cpu", "--world-size", "100000", "--out", "mine")
    assert code == ExitCode.USAGE
    assert not Path("mine").exists()


def test_a_busy_device_leaves_no_folder(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(device: object, allow_busy: bool) -> None:
        raise UsageError("busy")

    monkeypatch.setattr("autotune.device.idle.check_idle", busy)
    assert run("--device", "cpu", "--out", "mine")[0] == ExitCode.USAGE
    assert not Path("mine").exists()


# Exit codes.


@pytest.mark.parametrize(
    ("ending", "code"),
    [("FOUND", 0), ("NOTHING_FITS", 3), ("STOPPED", 4), ("NO_MEASUREMENT", 5)],
)
def test_the_ending_is_the_exit_code(ending: str, code: int, run: Runs, ends: Ends) -> None:
    ends(Ending[ending], "what came of it")
    assert run("--device", "cpu") == (code, "", "autotune: what came of it\n")


def test_every_ending_of_a_study_has_an_exit_code() -> None:
    assert {ending.name for ending in Ending} <= set(ExitCode.__members__)


def test_the_budget_counts_from_before_the_imports() -> None:
    code = """
import sys, time
from autotune.study import session
from autotune.result.folder.past import Ending, StudyEnd
from autotune.__main__ import main

def run(setup, *, clock, **rest):
    print("cli" if clock.at(0.0) else "before")
    return StudyEnd(Ending.FOUND)

session.run = run
time.monotonic = lambda: float("autotune.commands.app" in sys.modules)
main()
"""
    assert python("-c", code, "--device", "cpu").stdout == "before\n"


def test_an_early_interrupt_measures_nothing(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(spec: str, **_: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.device.open_device", interrupted)
    code, _, err = run()
    assert (code, err) == (5, "autotune: stopped before anything was measured\n")


@pytest.mark.parametrize("trace", ["", "Traceback:"])
def test_the_error_of_a_model_comes_after_its_traceback_if_it_has_one(
    trace: str, run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **more: object) -> None:
        raise ModelError("its loss is None", trace)

    monkeypatch.setattr(session, "run", broken)
    code, _, err = run("--device", "cpu")
    assert (code, err.splitlines()) == (5, [*trace.splitlines(), "autotune: its loss is None"])


def test_an_internal_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **more: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(session, "run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["--device", "cpu"])


# The dry run.


def test_a_dry_run_starts_and_writes_nothing(run: Runs, ends: Ends, empty_folder: Path) -> None:
    arguments = ends(Ending.FOUND)
    assert run("--device", "cpu", "--dry-run", "--out", "mine")[0] == 0
    assert (arguments, list(empty_folder.iterdir())) == ({}, [])


@pytest.mark.parametrize(
    ("named", "said"),
    [([], True), (["--model", "gpt"], False), (["--script", "true {micro_batch}"], False)],
)
def test_where_nothing_was_named_to_be_tuned_that_is_known(
    run: Runs, ends: Ends, named: list[str], said: bool
) -> None:
    given = ends(Ending.FOUND)
    run("--device", "cpu", "--out", "mine", *named)
    assert given["built_in"] == said


def test_a_dry_run_tells_space_and_probe(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Candidate(depth=4, seq_len=64, micro_batch=6, checkpointing="full")
    monkeypatch.setattr(search, "first_candidate", lambda *known: first)
    _, out, _ = run(
        "--device", "cpu", "--dry-run", "--depth", "2,4", "--micro-batch", "1:16",
        "--global-batch", "12", "--gpt", "vocab_size=777",
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "depth 2, 4" in lines
    assert "micro_batch 1 to 16 (16 values)" in lines
    assert "48 of 128 candidates are valid, in 4 builds of model and engine" in lines
    assert "vocab_size 777 --gpt" in lines
    assert "depth 4, seq_len 64, micro_batch 6, checkpointing full" in lines


def test_a_dry_run_tells_the_budget_and_what_is_expected_to_fit(run: Runs) -> None:
    small = ["--device", "cpu", "--dry-run", "--depth", "1", "--budget", "90s"]
    _, out, _ = run(*small, "--capacity", "4GiB")
    assert "Budget: 1:30 (minutes:seconds)" in out
    assert re.search(r"its peak is expected at about \d+ MiB of 3.20 GiB allowed", out)
    _, out, _ = run(*small, "--capacity", "128MiB")
    said = " ".join(out.split())
    assert "Nothing is expected to fit: the smallest candidate, " in said
    assert said.count("; the limit is 102 MiB.") == 1


def test_a_dry_run_tells_where_the_host_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    among = with_offload(space())
    limits = replace(among.limits, host_capacity_bytes=2**20, capacity_bytes=2**36)
    moved = tuple(c for c in among.candidates if c.offload != "none")
    host = replace(among, limits=limits, candidates=moved)
    print_plan(host, moved[0], 60.0, Predictor(host, "cuda"))
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing is expected to fit in the host's memory; the limit is" in said


def test_why_offload_is_not_searched_is_said_of_offload(run: Runs) -> None:
    _, out, _ = run("--device", "cpu", "--dry-run", "--world-size", "2")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "offload none on the CPU it moves nothing" in lines


def test_the_plan_keeps_within_80_columns(run: Runs) -> None:
    _, out, _ = run("--device", "cpu", "--dry-run", "--depth", "1:99", "--seq-len", "64")
    assert max(map(len, out.splitlines())) <= 80


def test_a_message_is_one_line_that_steers_no_terminal(refused: Refused) -> None:
    assert refused("--budget", "so\non\x1b[2J\r") == (
        r"--budget so on\x1b[2J : not a duration; write it as 90s, 30m or 1.5h"
    )


def test_a_process_ends_without_a_collection_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["autotune", "--version"])
    with pytest.raises(SystemExit):
        entry(0.0)
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
