"""What exports say of a result, and what they admit not to say."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import UsageError
from autotune.result.best import Best, Config
from autotune.result.export import EXPORTS, write
from autotune.result.export.format import FACTS, remark, unexpressed
from autotune.space.engines import ENGINES
from autotune.space.workload import GlobalBatch
from tests.support.exported import result
from tests.support.programs import ROOT

FOLDER = Path("/somewhere/exports")
RESULTS = {
    "ddp": result("ddp", 0),
    "deepspeed": result("deepspeed", 2),
    "deepspeed-3": result("deepspeed", 3, offload="all", kind="cuda", dtype="bf16"),
    "fsdp": result("fsdp", 3, dtype="bf16", checkpointing="full"),
    "all": result("ddp", 0, kind="cuda", dtype="bf16", checkpointing="selective",
                  attention="eager", compile="on", loss="chunked", optimizer="adamw8bit",
                  param_dtype="bf16", allocator="expandable"),
    "nodes": result("deepspeed", 3, kind="cuda", dtype="bf16", allocator="expandable",
                    world_size=4, nodes=2),
    "uneven": result("ddp", 0, world_size=3, nodes=2),
}  # fmt: skip


@pytest.fixture(params=RESULTS)
def best(request: pytest.FixtureRequest) -> Best:
    return RESULTS[str(request.param)]


@pytest.mark.parametrize("name", EXPORTS)
def test_a_format_is_a_function_of_the_result(name: str, best: Best) -> None:
    first, second = (EXPORTS[name].make(best, FOLDER) for _ in range(2))
    assert first == second
    if first is None:
        return
    known = {f"{fact} {getattr(best.config, fact)}" for fact in FACTS}
    assert best.dtypes is not None
    known |= {f"weights in {best.dtypes['weights']}", "gradients reduced in fp32"}
    assert set(first.unexpressed) <= known
    for file, text in first.files.items():
        assert text.endswith("\n")
        if file.endswith(".json"):
            json.loads(text)
        elif file.endswith(".yaml"):
            assert isinstance(yaml.safe_load(text), dict)
        elif file.endswith(".py"):
            ast.parse(text)


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_not_said_is_said_to_be_missing(name: str) -> None:
    """In the file itself where that may hold a comment."""
    best = RESULTS["all"]
    made = EXPORTS[name].make(best, FOLDER)
    if made is None:
        return
    assert "loss chunked" in made.unexpressed
    texts = [text for file, text in made.files.items() if not file.endswith(".json")]
    if texts and name != "env":
        assert any("loss chunked" in text for text in texts)


@pytest.mark.parametrize(("world_size", "said"), [(1, ", 1 rank, "), (2, ", 2 ranks, ")])
def test_a_file_says_how_many_ranks_were_measured(world_size: int, said: str) -> None:
    assert said in remark(result("ddp", 0, world_size=world_size), ())


def test_what_is_plain_needs_no_word() -> None:
    left = {each.split()[0] for each in unexpressed(RESULTS["ddp"], ())}
    assert left == {
        "model", "depth", "width", "vocab_size", "seq_len", "micro_batch", "grad_accum",
        "world_size", "dtype", "optimizer", "weights",
    }  # fmt: skip
    assert set(FACTS) <= {each.name for each in fields(Config)}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_unconfirmed_result_says_so_in_its_files(name: str) -> None:
    made = EXPORTS[name].make(replace(RESULTS["all"], confirmed=False), FOLDER)
    if made is None:
        return
    texts = [text for file, text in made.files.items() if not file.endswith(".json")]
    assert not texts or any("WARNING: not confirmed" in text for text in texts)


@pytest.mark.parametrize("name", EXPORTS)
def test_scripts_pass_shellcheck(name: str, best: Best, tmp_path: Path) -> None:
    made = EXPORTS[name].make(best, FOLDER)
    for file, text in made.files.items() if made else ():
        if not file.endswith(".sh"):
            continue
        (tmp_path / file).write_text(text)
        checker = Path(sys.executable).with_name("shellcheck")
        ran = subprocess.run(
            [str(checker), str(tmp_path / file)], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout


def test_batches_are_the_results_in_every_words(best: Best) -> None:
    config = best.config

    def said(name: str, file: str) -> dict[str, Any]:
        made = EXPORTS[name].make(best, FOLDER)
        assert made is not None
        text = made.files[file]
        found: dict[str, Any] = (json.loads if file.endswith(".json") else yaml.safe_load)(text)
        return found

    pair = (config.micro_batch, config.grad_accum)
    hf = said("hf", "hf.json")
    assert (hf["per_device_train_batch_size"], hf["gradient_accumulation_steps"]) == pair
    trl = said("trl", "trl.json")
    assert (trl["per_device_train_batch_size"], trl["max_length"]) == (pair[0], config.seq_len)
    axolotl = said("axolotl", "axolotl.yaml")
    assert (axolotl["micro_batch_size"], axolotl["gradient_accumulation_steps"]) == pair
    factory = said("llama-factory", "llama-factory.yaml")
    assert (factory["per_device_train_batch_size"], factory["cutoff_len"]) == (
        pair[0], config.seq_len,
    )  # fmt: skip
    if config.engine == "deepspeed":
        found = said("deepspeed", "deepspeed.json")
        assert found == best.deepspeed()
        assert found["train_batch_size"] == pair[0] * pair[1] * config.world_size


def test_deepspeeds_config_is_the_one_that_was_probed_also_of_a_counted_model() -> None:
    from tests.support.models import counted

    workload = replace(
        counted("llama-3-8b-tiny", (2,), (64,)), engine="deepspeed", world_size=2,
        global_batch=GlobalBatch(16, "samples"),
    )  # fmt: skip
    found = result("deepspeed", 3, workload=workload)
    candidate = found.config.candidate
    probed = ENGINES["deepspeed"].config(candidate, workload, "cpu")
    assert found.deepspeed() == probed
    block = workload.shape(2).largest_block
    assert probed["zero_optimization"]["reduce_bucket_size"] == block


@pytest.mark.parametrize("name", ["hf", "hf-4"])
def test_transformers_takes_the_arguments(
    name: str, best: Best, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    if best.device_kind == "cuda" or best.config.engine == "deepspeed":
        pytest.skip("needs its devices, or a process group")
    made = EXPORTS["hf"].make(best, tmp_path)
    assert made is not None
    found = json.loads(made.files[f"{name}.json"])
    found.pop("fsdp", None)  # wants a launcher
    config = found.pop("fsdp_config", {})
    args = transformers.TrainingArguments(str(tmp_path), **found)
    assert args.per_device_train_batch_size == best.config.micro_batch
    assert args.bf16 is (best.config.dtype == "bf16")
    kept = bool(args.activation_checkpointing) or config.get("activation_checkpointing", False)
    assert kept is (best.config.checkpointing != "none")


def test_accelerate_reads_its_file(best: Best, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
        load_config_from_file,
    )

    write(best, tmp_path, ["accelerate"])
    found = load_config_from_file(str(tmp_path / "accelerate.yaml"))
    assert found.num_processes == best.config.world_size
    assert found.num_machines == best.config.nodes
    if best.config.engine == "deepspeed":
        at = found.deepspeed_config["deepspeed_config_file"]
        assert json.loads(Path(at).read_text())["zero_optimization"]["stage"] in (2, 3)
    if best.config.nodes > 1 and best.config.engine == "deepspeed":
        assert found.same_network
        assert found.deepspeed_config["deepspeed_multinode_launcher"] == "standard"


def test_what_a_result_has_no_use_for_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--format deepspeed: ddp was the engine"):
        write(RESULTS["ddp"], tmp_path, ["deepspeed"])


def test_a_study_writes_what_fits_its_model(tmp_path: Path) -> None:
    made = write(RESULTS["ddp"], tmp_path)
    assert set(made) == {"accelerate", "lightning", "nanochat", "megatron", "launch"}
    files = {file for each in made.values() for file in each.files}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert (tmp_path / "launch.sh").stat().st_mode & 0o111
    of_hf = result("deepspeed", 2, model="llama-3-8b-tiny")
    assert {"deepspeed", "hf", "trl", "axolotl", "llama-factory"} <= set(write(of_hf, tmp_path))


def test_a_users_own_script_is_started_where_it_was_found(tmp_path: Path) -> None:
    mine = tmp_path / "my project"
    mine.mkdir()
    (mine / "train.sh").write_text('echo "$PWD" "$@"\n')
    best = replace(
        RESULTS["ddp"], command=["bash", "train.sh"], provenance={"started_in": str(mine)}
    )
    write(best, tmp_path, ["launch"])
    ran = subprocess.run(
        [tmp_path / "launch.sh", "--steps", "20"], capture_output=True, text=True, cwd="/",
        check=True,
    )  # fmt: skip
    assert ran.stdout == f"{mine} --steps 20\n"


def test_a_result_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    document = RESULTS["deepspeed"].to_json()
    document["config"]["micro_batch"] += 1
    path = tmp_path / "best.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"changed by hand"):
        Best.read(path)


def test_nanochats_flags_are_its_own(best: Best) -> None:
    """It is no package. scripts/base_train.py at its commit 92d63d4 of July 2026."""
    known = {"--depth", "--max-seq-len", "--device-batch-size", "--total-batch-size"}
    made = EXPORTS["nanochat"].make(best, FOLDER)
    assert made is not None
    _, _, given = made.files["nanochat.sh"].partition(" -- ")
    assert {word.partition("=")[0] for word in given.split() if word.startswith("--")} == known


def test_torchtitans_names_after_its_release_are_its_own(best: Best) -> None:
    """torchtitan/config/configs.py at its commit b5bcd76 of August 2026; `compile` is replaced
    whole, since `enable` is gone from later ones. The release itself is in test_parsed.py."""
    known = {
        "max_context_length", "num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step",
        "max_norm", "mixed_precision_param", "mixed_precision_reduce", "disable_cuda_graphs",
        "data_parallel_replicate_degree", "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
    }  # fmt: skip
    made = EXPORTS["torchtitan"].make(best, FOLDER)
    assert made is not None
    whole = ast.parse(made.files["torchtitan_config.py"])
    [apply] = (each for each in whole.body if isinstance(each, ast.FunctionDef))
    older = apply.body[1]
    assert isinstance(older, ast.If)
    later = [*older.orelse, *apply.body[2:]]
    names = {
        each.targets[0].attr
        for part in later for each in ast.walk(part)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Attribute)
    }  # fmt: skip
    assert names - {"compile", "enable", "activation_checkpoint"} <= known


def test_best_of_writes_what_ranks_had_in_their_environment() -> None:
    assert RESULTS["all"].exports == {
        "env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    }
    assert RESULTS["ddp"].exports == {}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_pages_say_how_a_format_is_tested(name: str) -> None:
    [line] = [
        line for line in (ROOT / "docs/pages/how-to/train.md").read_text().splitlines()
        if line.startswith("| `") and f"`{name}`" in line.split("|")[1]
    ]  # fmt: skip
    assert EXPORTS[name].checked in line


ADAPTERS = {"r=8": "all-linear", "r=8,targets=q_proj+v_proj": ["q_proj", "v_proj"]}


@pytest.mark.parametrize("lora", ADAPTERS)
def test_adapters_are_exported_or_said_to_be_missing(lora: str, tmp_path: Path) -> None:
    made = write(result("ddp", 0, model="llama-3-8b-tiny", lora=lora), tmp_path)
    silent = {name for name, found in made.items() if "lora" not in str(found.unexpressed)}
    assert silent >= {"axolotl", "llama-factory", "trl"}
    for name in ("accelerate", "hf", "lightning", "torchtitan"):
        assert f"lora {lora}, of alpha 16" in made[name].unexpressed
    peft = json.loads((tmp_path / "trl-lora.json").read_text())
    assert peft == {"r": 8, "lora_alpha": 16, "target_modules": ADAPTERS[lora]}
    whole = write(result("ddp", 0, model="llama-3-8b-tiny"), tmp_path / "whole")
    assert "trl-lora.json" not in whole["trl"].files
    assert "lora" not in str([found.unexpressed for found in whole.values()])


@pytest.mark.slow
def test_trl_gets_a_config_of_peft(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    write(result("ddp", 0, model="llama-3-8b-tiny", lora="r=8,targets=q_proj"), tmp_path, ["trl"])
    program = "import trl_config; p = trl_config.peft_config(); print(p.r, *p.target_modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["8", "q_proj"]


@pytest.mark.parametrize("rank", [0, "8", None])
def test_adapters_that_were_changed_by_hand_are_refused(rank: object, tmp_path: Path) -> None:
    result("ddp", 0, lora="r=8").write(tmp_path / "best.json")
    document = json.loads((tmp_path / "best.json").read_text())
    document["provenance"]["options"]["lora"]["rank"] = rank
    (tmp_path / "best.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"not a best\.json"):
        Best.read(tmp_path / "best.json")
