"""What exports say of a result, and what they admit not to say."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import UsageError
from autotune.result.best import Best, Config
from autotune.result.export import EXPORTS, left_out, write
from autotune.result.export.format import FACTS, remark, unexpressed
from autotune.space.engines import ENGINES
from autotune.space.workload import GlobalBatch
from tests.support.exported import result
from tests.support.models import counted
from tests.support.programs import python

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
    "packed": result("ddp", 0, pack="on"),
}  # fmt: skip
WITH_CHUNKS = ("trl",)
"""Formats with a word for a loss that is chunked as here."""


@pytest.fixture(params=RESULTS)
def best(request: pytest.FixtureRequest) -> Best:
    return RESULTS[str(request.param)]


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_packing_is_told_and_how_its_rows_differ(attention: str) -> None:
    best = result("ddp", 0, pack="on", attention=attention)
    names = ("trl", "axolotl", "llama-factory", "ms-swift")
    trl, axolotl, factory, swift = (EXPORTS[name].make(best) for name in names)
    assert trl is not None
    assert axolotl is not None
    assert factory is not None
    assert swift is not None
    in_rows = attention == "sdpa"
    assert json.loads(trl.files["trl.json"])["packing"] is True
    assert any("packed micro-batch is one row" in line for line in trl.warnings) is in_rows
    found = yaml.safe_load(axolotl.files["axolotl.yaml"])
    assert (found["sample_packing"], found["multipack_real_batches"]) == (True, in_rows)
    assert yaml.safe_load(factory.files["llama-factory.yaml"])["neat_packing"] is True
    assert yaml.safe_load(swift.files["ms-swift.yaml"])["packing"] is not in_rows
    assert ("pack on" in swift.unexpressed) is in_rows
    assert "pack on" not in (*trl.unexpressed, *axolotl.unexpressed, *factory.unexpressed)


@pytest.mark.parametrize("name", EXPORTS)
def test_a_format_is_a_function_of_the_result(name: str, best: Best) -> None:
    first, second = (EXPORTS[name].make(best) for _ in range(2))
    assert first == second
    if first is None:
        return
    assert set(first.needed) | set(first.others) == set(first.unexpressed)
    heads = [text for file, text in first.files.items() if text.startswith("#")]
    if heads and first.others:
        assert any(f"# This file does not set: {', '.join(first.others)}." in t for t in heads)
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
    made = EXPORTS[name].make(best)
    if made is None:
        return
    assert name in WITH_CHUNKS or "loss chunked" in str((made.unexpressed, made.instead))
    texts = [text for file, text in made.files.items() if not file.endswith(".json")]
    if texts and name not in ("env", *WITH_CHUNKS):
        assert any("loss chunked" in text for text in texts)


@pytest.mark.parametrize("name", EXPORTS)
def test_the_first_line_says_what_has_to_be_set_to_fit(name: str) -> None:
    best = result("ddp", 0, loss="chunked", checkpointing="host", param_dtype="bf16")
    made = EXPORTS[name].make(best)
    if made is None or not made.needed:
        assert name in ("deepspeed", "env", *WITH_CHUNKS)
        return
    assert not {"model gpt", "depth 2", "grad_accum 4"} & set(made.needed)
    [text, *_] = [text for file, text in made.files.items() if not file.endswith(".json")]
    first = next(
        line for line in text.splitlines() if line.startswith("# ") and "bash" not in line
    )
    assert first == f"# Fits only with settings that are missing here: {', '.join(made.needed)}."


ON_GPUS: dict[str, Any] = {"kind": "cuda", "dtype": "bf16", "model": "llama-3-8b-tiny"}


@pytest.mark.parametrize(("name", "key"), [
    ("hf", "use_liger_kernel"), ("axolotl", "liger_fused_linear_cross_entropy"),
    ("llama-factory", "enable_liger_kernel"), ("ms-swift", "use_liger_kernel"),
    ("trl", "loss_type"),
])  # fmt: skip
def test_a_chunked_loss_is_set_where_the_tool_has_one(name: str, key: str) -> None:
    made = EXPORTS[name].make(result("ddp", 0, loss="chunked", **ON_GPUS))
    whole = EXPORTS[name].make(result("ddp", 0, **ON_GPUS))
    assert made is not None
    assert whole is not None
    file = next(file for file in made.files if file.startswith(name))
    body = yaml.safe_load(made.files[file])
    assert body[key] in (True, "chunked_nll")
    assert key not in yaml.safe_load(whole.files[file])
    if name == "hf":  # no other kernels, none of which was measured
        assert [kernel for kernel, on in body["liger_kernel_config"].items() if on] == [
            "fused_linear_cross_entropy"
        ]
    if name != "trl":
        assert "Not as measured: loss chunked by liger-kernel" in str(made.warnings)


def test_no_kernel_that_needs_a_gpu_is_set_on_a_cpu() -> None:
    best = result("ddp", 0, loss="chunked", model="llama-3-8b-tiny")
    for name in ("hf", "axolotl", "llama-factory", "ms-swift"):
        made = EXPORTS[name].make(best)
        assert made is not None
        assert "liger" not in str(made.files)
        assert "loss chunked" in made.needed


@pytest.mark.parametrize("kind", ["selective", "1/3"])
@pytest.mark.parametrize("name", ["hf", "axolotl", "llama-factory", "megatron", "ms-swift"])
def test_what_stands_for_a_kind_of_checkpointing_needs_no_more_memory_and_is_told(
    name: str, kind: str
) -> None:
    made = EXPORTS[name].make(result("ddp", 0, checkpointing=kind, **ON_GPUS))
    assert made is not None
    [said] = [line for line in made.warnings if "checkpointing full, not" in line]
    assert said.endswith(f"full, not {kind}: slower, with another peak.")
    assert ("Before transformers 5.23" in said) is (name == "hf" and kind == "1/3")
    text = "".join(made.files.values())
    assert said in text
    assert (
        '"activation_checkpointing": true' in text
        or "gradient_checkpointing" in text
        or ("--recompute-granularity full" in text)
    )


@pytest.mark.parametrize(("world_size", "said"), [(1, ", 1 rank, "), (2, ", 2 ranks, ")])
def test_a_file_says_how_many_ranks_were_measured(world_size: int, said: str) -> None:
    assert said in remark(result("ddp", 0, world_size=world_size))


def test_what_is_plain_needs_no_word() -> None:
    left = {each.split()[0] for each in unexpressed(RESULTS["ddp"], ())}
    assert left == {
        "model", "depth", "width", "vocab_size", "seq_len", "micro_batch", "grad_accum",
        "world_size", "dtype", "optimizer", "weights",
    }  # fmt: skip
    assert set(FACTS) <= {each.name for each in fields(Config)}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_unconfirmed_result_says_so_in_its_files(name: str) -> None:
    made = EXPORTS[name].make(replace(RESULTS["all"], confirmed=False))
    if made is None:
        return
    texts = [text for file, text in made.files.items() if not file.endswith(".json")]
    assert not texts or any("WARNING: not confirmed" in text for text in texts)


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    scripts: list[Path] = []
    for (of, best), (name, row) in itertools.product(RESULTS.items(), EXPORTS.items()):
        made = row.make(best)
        for file, text in made.files.items() if made else ():
            if file.endswith(".sh"):
                scripts.append(tmp_path / f"{of}-{name}-{file}")
                scripts[-1].write_text(text)
    assert len(scripts) > len(RESULTS)
    checker = Path(sys.executable).with_name("shellcheck")
    ran = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_batches_are_the_results_in_every_words(best: Best) -> None:
    config = best.config

    def said(name: str, file: str) -> dict[str, Any]:
        made = EXPORTS[name].make(best)
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
    swift = said("ms-swift", "ms-swift.yaml")
    assert (swift["per_device_train_batch_size"], swift["max_length"]) == (pair[0], config.seq_len)
    if config.engine == "deepspeed":
        found = said("deepspeed", "deepspeed.json")
        assert found == best.deepspeed()
        assert found["train_batch_size"] == pair[0] * pair[1] * config.world_size


def test_deepspeeds_config_is_the_one_that_was_probed_also_of_a_counted_model() -> None:
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
    made = EXPORTS["hf"].make(best)
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
        assert not Path(at).is_absolute()  # the files may be moved
        assert json.loads((tmp_path / at).read_text())["zero_optimization"]["stage"] in (2, 3)
    if best.config.nodes > 1 and best.config.engine == "deepspeed":
        assert found.same_network
        assert found.deepspeed_config["deepspeed_multinode_launcher"] == "standard"


def test_what_a_result_has_no_use_for_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--format deepspeed: ddp was the engine"):
        write(RESULTS["ddp"], tmp_path, ["deepspeed"])


def test_a_study_writes_what_fits_its_model(tmp_path: Path) -> None:
    made = write(RESULTS["ddp"], tmp_path)
    fit = {name for name, row in EXPORTS.items() if row.models in ("all", "gpt")}
    assert set(made) == fit - {"deepspeed", "env"} >= {"nanochat", "launch"}
    files = {file for each in made.values() for file in each.files}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert (tmp_path / "launch.sh").stat().st_mode & 0o111
    of_hf = result("deepspeed", 2, model="llama-3-8b-tiny")
    assert {"deepspeed", "hf", "trl", "axolotl", "llama-factory", "ms-swift"} <= set(
        write(of_hf, tmp_path)
    )


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


def of_script(script: str, **asked: Any) -> Best:
    best = result("ddp", 0, model="script:train.py", own="gc=True", data_workers="4")
    options = best.provenance["options"] | {"script": script} | asked
    return replace(best, command=["python", "train.py"], provenance={"options": options})


def test_of_a_script_only_what_it_was_told_or_seen_to_do_is_exported(tmp_path: Path) -> None:
    told = "python train.py --max_grad_norm 0.5 -b {micro_batch} -g {gc} -w {data_workers}"
    best = of_script(told)
    made = write(best, tmp_path, ["hf"])["hf"]
    assert json.loads(made.files["hf.json"]) == {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": False,
        "fp16": False,
    }  # fmt: skip
    assert {"gc True", "data_workers 4"} <= set(made.needed)
    assert made.warnings[0] in made.files["hf.py"]
    [launch] = write(best, tmp_path, ["launch"])["launch"].files.values()
    assert "not said here" not in launch  # its command says all
    more = write(of_script(told + " -c {checkpointing}", compile=["off", "on"]), tmp_path, ["hf"])
    says = json.loads(more["hf"].files["hf.json"])
    assert says["activation_checkpointing"] is says["torch_compile"] is False


def test_torchtitan_and_megatron_are_told_the_degrees_that_a_script_was_seen_to_have(
    tmp_path: Path,
) -> None:
    best = of_script("torchrun train.py -b {micro_batch}", compile=["off", "on"])
    config = replace(
        best.config, world_size=4, data_parallel=2, degrees={"dp": 2, "tp": 2},
        global_batch_samples=16, global_batch_tokens=16 * 64,
    )  # fmt: skip
    made = write(replace(best, config=config), tmp_path, ["torchtitan", "megatron"])
    titan, megatron = (next(iter(each.files.values())) for each in made.values())
    assert {line.strip() for line in titan.splitlines() if line.startswith("    config.")} == {
        "config.training.mixed_precision_param = 'float32'",
        "config.parallelism.tensor_parallel_degree = 2",
        "config.parallelism.pipeline_parallel_degree = 1",
        "config.parallelism.context_parallel_degree = 1",
        'config.compile = CompileConfig() if hasattr(CompileConfig, "enable") else None',
    }
    assert "config.training.global_batch_size = 16" in titan
    flags = megatron.partition("(\n")[2].partition(")")[0].split("\n")
    assert [flag.strip() for flag in flags if flag] == [
        "--seq-length 64", "--micro-batch-size 2", "--global-batch-size 16",
        "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 1",
        "--context-parallel-size 1",
    ]  # fmt: skip
    nobody_saw = replace(config, degrees=None)
    made = write(replace(best, config=nobody_saw), tmp_path, ["torchtitan", "megatron"])
    assert all("world_size 4" in each.unexpressed for each in made.values())
    assert all("_degree" not in str(each.files) for each in made.values())
    assert all("-parallel-size" not in str(each.files) for each in made.values())


def test_degrees_that_a_script_was_told_are_exported_and_those_that_were_seen_count(
    tmp_path: Path,
) -> None:
    best = of_script("t.py {micro_batch} {tp} {pp} {cp} {ep} {dp_shard}")
    told = replace(
        best.config, world_size=8, data_parallel=4, tp=2, ep=2, dp_shard="2", degrees=None,
        global_batch_samples=32, global_batch_tokens=32 * 64,
    )  # fmt: skip
    best = replace(best, config=told)
    made = write(best, tmp_path, ["torchtitan", "megatron", "hf"])
    titan, megatron, _ = (next(iter(each.files.values())) for each in made.values())
    for name, size in (
        ("tensor_parallel", 2), ("pipeline_parallel", 1), ("expert_parallel", 2),
        ("data_parallel_replicate", 2), ("data_parallel_shard", 2),
    ):  # fmt: skip
        assert f"config.parallelism.{name}_degree = {size}" in titan
    assert "--tensor-model-parallel-size 2\n" in megatron
    assert "--expert-model-parallel-size 2\n" in megatron
    assert "which counts" not in titan + megatron
    assert {"tp 2", "ep 2", "dp_shard 2"} <= set(made["hf"].needed)
    assert not {"tp 2", "ep 2"} & set(made["megatron"].unexpressed)
    seen = replace(told, tp=1, pp=2, degrees={"dp": 4, "tp": 2})
    titan = write(replace(best, config=seen), tmp_path, ["torchtitan"])[
        "torchtitan"
    ].files.popitem()[1]
    assert (
        "told tp 1 pp 2 cp 1; its ranks were seen to have tp 2 pp 1 cp 1, which counts." in titan
    )
    assert "config.parallelism.tensor_parallel_degree = 2" in titan


def test_what_a_script_says_itself_is_refused_and_told_to_be_left_out(tmp_path: Path) -> None:
    best = of_script("python train.py -b {micro_batch}")
    for name in ("accelerate", "lightning", "trl"):
        with pytest.raises(UsageError, match=rf"--format {name}: a script's settings are its own"):
            write(best, tmp_path, [name])
    made = write(best, tmp_path)
    assert set(made) == {"launch"}
    why = "a script's settings are its own, and launch.sh starts it with the result"
    also = (
        "; autotune export --format writes what the script was told, for hf, torchtitan, megatron"
    )
    assert left_out(best, made) == f"no other tools' files: {why}{also}"
    of_gpt = RESULTS["ddp"]
    said = left_out(of_gpt, write(of_gpt, tmp_path))
    assert "not deepspeed: ddp was the engine, and not DeepSpeed" in said
    theirs = [name for name, row in EXPORTS.items() if row.models in ("transformers", "text")]
    assert f"not {', '.join(theirs)}: they are for transformers models; --format" in said


def test_launching_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    write(RESULTS["ddp"], tmp_path, ["launch"])
    ran = subprocess.run([tmp_path / "launch.sh"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == f"name your script: {tmp_path / 'launch.sh'} train.py\n"


def test_a_script_without_tokens_has_no_length_to_set() -> None:
    best = of_script("python train.py -b {micro_batch}")
    made = EXPORTS["hf"].make(replace(best, config=replace(best.config, seq_len=1)))
    assert made is not None
    assert "seq_len" not in str(made.unexpressed)


def test_the_threads_are_those_of_the_measurement(tmp_path: Path) -> None:
    variables = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "PASSIVE", "NCCL_DEBUG": "WARN"}
    best = replace(
        RESULTS["ddp"], environment={"variables": variables},
        command=["bash", "-c", 'echo "$OMP_NUM_THREADS $OMP_WAIT_POLICY ${NCCL_DEBUG:-none}"'],
    )  # fmt: skip
    write(best, tmp_path, ["launch"])
    for own, seen in (({}, "7 PASSIVE none\n"), ({"OMP_NUM_THREADS": "2"}, "2 PASSIVE none\n")):
        ran = subprocess.run(
            [tmp_path / "launch.sh"], capture_output=True, text=True, check=True,
            env={"PATH": os.environ["PATH"]} | own,
        )  # fmt: skip
        assert ran.stdout == seen


def test_threads_are_as_they_were_measured_after_env_sh(tmp_path: Path) -> None:
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "NCCL_DEBUG": "WARN"}
    best = replace(RESULTS["ddp"], environment={"variables": variables})
    made = write(best, tmp_path)
    assert "not env" not in left_out(best, made)
    said = '. ./env.sh; echo "$OMP_WAIT_POLICY ${NCCL_DEBUG:-none}"'
    ran = subprocess.run(["sh", "-c", said], cwd=tmp_path, env={}, capture_output=True, check=True)
    assert ran.stdout == b"PASSIVE none\n"


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
    made = EXPORTS["nanochat"].make(best)
    assert made is not None
    _, _, given = made.files["nanochat.sh"].partition(" -- ")
    assert {word.partition("=")[0] for word in given.split() if word.startswith("--")} == known


def test_torchtitans_names_after_its_release_are_its_own(best: Best) -> None:
    """torchtitan/config/configs.py at its commit b5bcd76 of August 2026; `compile` is replaced
    whole, since `enable` is gone from later ones. The release itself is in test_parsed.py."""
    known = {
        "max_context_length", "num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step",
        "max_norm", "mixed_precision_param", "mixed_precision_reduce", "disable_cuda_graphs",
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
        "pipeline_parallel_degree", "context_parallel_degree",
        "fsdp_reshard_after_forward",
    }  # fmt: skip
    made = EXPORTS["torchtitan"].make(best)
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


def test_ms_swift_is_told_ranks_nodes_and_variables_where_nodes_are_alike() -> None:
    def told(name: str) -> tuple[dict[str, str], str]:
        made = EXPORTS["ms-swift"].make(RESULTS[name])
        assert made is not None
        text = made.files["ms-swift.yaml"]
        return yaml.safe_load(text)["ENV"], text

    allocator = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    nodes, text = told("nodes")
    assert nodes == allocator | {"NPROC_PER_NODE": "2", "NNODES": "2"}
    assert "on 2 nodes, with NODE_RANK" in text
    uneven, text = told("uneven")
    assert uneven == {}
    assert "world_size 3, nodes 2" in text


def test_best_of_writes_what_ranks_had_in_their_environment() -> None:
    assert RESULTS["all"].exports == {
        "env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    }
    assert RESULTS["ddp"].exports == {}


ADAPTERS = {"r=8": "all-linear", "r=8,dropout=0.05,targets=q_proj+v_proj": ["q_proj", "v_proj"]}


@pytest.mark.parametrize("lora", ADAPTERS)
def test_adapters_are_exported_or_said_to_be_missing(lora: str, tmp_path: Path) -> None:
    made = write(result("ddp", 0, model="llama-3-8b-tiny", lora=lora), tmp_path)
    silent = {name for name, found in made.items() if "lora" not in str(found.unexpressed)}
    assert silent >= {"axolotl", "llama-factory", "ms-swift", "trl"}
    for name in ("accelerate", "hf", "lightning", "torchtitan"):
        assert f"lora {lora}, of alpha 16" in made[name].unexpressed
    peft = json.loads((tmp_path / "trl-lora.json").read_text())
    dropout = 0.05 if "dropout" in lora else 0
    assert peft == {
        "r": 8, "lora_alpha": 16, "lora_dropout": dropout, "target_modules": ADAPTERS[lora]
    }  # fmt: skip
    whole = write(result("ddp", 0, model="llama-3-8b-tiny"), tmp_path / "whole")
    assert "trl-lora.json" not in whole["trl"].files
    assert "lora" not in str([found.unexpressed for found in whole.values()])


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_a_quantized_base_is_exported_or_said_to_be_missing(base: str, tmp_path: Path) -> None:
    best = result("ddp", 0, model="llama-3-8b-tiny", dtype="bf16", lora="r=8", base=base)
    made = write(best, tmp_path)
    silent = {name for name, found in made.items() if f"base {base}" not in found.needed}
    assert silent == {"axolotl", "llama-factory", "ms-swift", "trl", "hf"} & made.keys()
    asked = json.loads((tmp_path / "hf-quantization.json").read_text())
    trl = json.loads((tmp_path / "trl.json").read_text())["model_init_kwargs"]
    assert trl == {"dtype": "bfloat16", "quantization_config": asked}
    assert asked["load_in_4bit" if base == "nf4" else "load_in_8bit"]


@pytest.mark.parametrize(
    ("recipe", "silent"),
    [("tensorwise", {"accelerate", "axolotl"}), ("rowwise", {"axolotl"})],
)
def test_fp8_is_exported_or_said_to_be_missing(
    recipe: str, silent: set[str], tmp_path: Path
) -> None:
    best = result("fsdp", 3, model="llama-3-8b-tiny", dtype="bf16", float8=recipe)
    made = write(best, tmp_path)
    assert silent == {
        name for name, found in made.items() if f"float8 {recipe}" not in found.needed
    }
    axolotl = yaml.safe_load((tmp_path / "axolotl.yaml").read_text())
    assert (axolotl["fp8"], axolotl["fp8_config"]) == (True, {"recipe": recipe})
    precision = yaml.safe_load((tmp_path / "accelerate.yaml").read_text())["mixed_precision"]
    assert precision == ("fp8" if recipe == "tensorwise" else "bf16")


@pytest.mark.slow
def test_hf_has_a_config_of_bitsandbytes(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    best = result("ddp", 0, model="llama-3-8b-tiny", dtype="bf16", lora="r=8", base="nf4")
    write(best, tmp_path, ["hf"])
    program = "import hf; q = hf.quantization_config(); print(q.quantization_method())"
    assert python("-c", program, cwd=tmp_path).stdout.split() == ["nf4"]


@pytest.mark.slow
def test_trl_gets_a_config_of_peft(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    write(result("ddp", 0, model="llama-3-8b-tiny", lora="r=8,targets=q_proj"), tmp_path, ["trl"])
    program = "import trl_config; p = trl_config.peft_config(); print(p.r, *p.target_modules)"
    assert python("-c", program, cwd=tmp_path).stdout.split() == ["8", "q_proj"]


@pytest.mark.parametrize("rank", [0, "8", None])
def test_adapters_that_were_changed_by_hand_are_refused(rank: object, tmp_path: Path) -> None:
    result("ddp", 0, lora="r=8").write(tmp_path / "best.json")
    document = json.loads((tmp_path / "best.json").read_text())
    document["provenance"]["options"]["lora"]["rank"] = rank
    (tmp_path / "best.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"not a best\.json"):
        Best.read(tmp_path / "best.json")
