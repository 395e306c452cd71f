"""`python -m autotune check`: what it finds, and what it leaves in peace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from autotune.advise.check import READERS, findings, of_command, read
from autotune.advise.check.deepspeed_names import NAMES, REMOVED
from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.export import write
from tests.support.exported import result

Save = Callable[..., Path]
Run = Callable[..., Any]
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "train_batch_size": 32,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1e6, "allgather_bucket_size": 1e6},
}  # fmt: skip
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": True,
    "learning_rate": 1e-4, "activation_checkpointing": True,
}  # fmt: skip
ACCELERATE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 2,
    "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 2},
}  # fmt: skip
AXOLOTL: dict[str, Any] = {
    "base_model": "x", "micro_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": True,
    "sequence_len": 64, "gradient_checkpointing": True,
}  # fmt: skip
FACTORY: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "cutoff_len": 64,
    "bf16": True, "finetuning_type": "lora",
}  # fmt: skip
SOUND = {
    "deepspeed": DEEPSPEED, "transformers": ARGUMENTS, "accelerate": ACCELERATE,
    "axolotl": AXOLOTL, "llama-factory": FACTORY,
}  # fmt: skip
ZERO = DEEPSPEED["zero_optimization"]
TINY = "llama-3-8b-tiny"


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    def save(body: dict[str, Any], name: str = "config", **changes: Any) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(body | changes))
        return path

    return save


def said(*paths: Path, world_size: int | None = None) -> list[str]:
    found = findings([*of_command(world_size), *(read(path) for path in paths)])
    return [f"{each.level} {each.where}: {each.what}" for each in found]


@pytest.mark.parametrize("tool", READERS)
def test_a_sound_file_is_recognised_and_has_no_findings(tool: str, saved: Save) -> None:
    path = saved(SOUND[tool])
    assert read(path).tool == tool
    assert said(path, world_size=2) == []


@pytest.mark.parametrize(("tool", "name", "wrong"), [
    ("deepspeed", "gradient_accumulation_steps", "gradient_accumulation_step"),
    ("deepspeed", "zero_optimization", "zero_optimisation"),
    ("transformers", "per_device_train_batch_size", "per_device_train_batchsize"),
    ("accelerate", "num_processes", "num_process"),
    ("axolotl", "micro_batch_size", "micro_batchsize"),
    ("llama-factory", "gradient_accumulation_steps", "gradient_acumulation_steps"),
])  # fmt: skip
def test_a_misspelled_name_is_found(tool: str, name: str, wrong: str, saved: Save) -> None:
    body = {k: v for k, v in SOUND[tool].items() if k not in (name, "train_batch_size")}
    (line,) = said(saved(body | {wrong: SOUND[tool][name]}))
    assert line == (f"error config.yaml: {wrong}: {tool} knows no such name; did you mean {name}?")


@pytest.mark.parametrize(("tool", "changes", "where", "meant"), [
    ("deepspeed", {"bf16": {"enable": True}, "fp16": {"enabled": False}},
     "bf16.enable", "enabled"),
    ("deepspeed", {"zero_optimization": {"stage": 3, "offload_params": {"device": "cpu"}}},
     "zero_optimization.offload_params", "offload_param"),
    ("deepspeed", {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
     "offload_optimizr": {"device": "cpu"}}},
     "zero_optimization.offload_optimizr", "offload_optimizer"),
    ("deepspeed", {"zero_optimization": {"stage": 3, "stage3_prefetch_buket_size": 1}},
     "zero_optimization.stage3_prefetch_buket_size", "stage3_prefetch_bucket_size"),
    ("deepspeed", {"zero_optimization": {"stage": 3, "offload_param": {"devise": "cpu"}}},
     "zero_optimization.offload_param.devise", "device"),
    ("deepspeed", {"flops_profiler": {"modul_depth": 1}}, "flops_profiler.modul_depth",
     "module_depth"),
    ("transformers", {"deepspeed": {"zero_optimization": {"stage": 2},
     "gradient_accumulation_step": 2}}, "gradient_accumulation_step",
     "gradient_accumulation_steps"),
])  # fmt: skip
def test_names_are_looked_at_section_by_section(
    tool: str, changes: dict[str, Any], where: str, meant: str, saved: Save
) -> None:
    (line,) = (each for each in said(saved(SOUND[tool], **changes)) if "did you mean" in each)
    assert f": {where}: " in line
    assert line.endswith(f"did you mean {meant}?")


def test_what_tools_themselves_know_is_no_misspelled_name() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers import TrainingArguments

    arguments = dict.fromkeys(TrainingArguments.__dataclass_fields__, 1)
    zero = dict.fromkeys(DeepSpeedZeroConfig.model_fields, 1)
    for names, tool in ((arguments, "transformers"), (zero, "deepspeed")):
        for left_out in names:
            rest: dict[str, Any] = {k: v for k, v in names.items() if k != left_out}
            rest = rest if tool == "transformers" else {"zero_optimization": rest}
            what = [each.what for each in READERS[tool].read("c", rest).findings]
            assert [each for each in what if "did you mean" in each] == []


def test_the_names_of_deepspeed_are_those_of_its_own_classes_and_constants() -> None:
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.inference.config import WeightQuantConfig
    from deepspeed.monitor.config import DeepSpeedMonitorConfig
    from deepspeed.runtime import config, precision_config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
    from pydantic import BaseModel

    seen: set[tuple[str, ...]] = {()}

    def look(path: tuple[str, ...], known: type[BaseModel]) -> None:
        seen.add(path)
        fields = known.model_fields
        names = {each for name, at in fields.items() for each in (name, at.alias) if each}
        assert NAMES[path] >= names if path == () else NAMES[path] == names
        for name, at in fields.items():
            for kind in (at.annotation, *get_args(at.annotation)):
                inner = (*path, name)
                if isinstance(kind, type) and issubclass(kind, BaseModel) and inner in NAMES:
                    look(inner, kind)

    look((), DeepSpeedMonitorConfig)
    look(("zero_optimization",), DeepSpeedZeroConfig)
    look(("fp16",), precision_config.DeepSpeedFP16Config)
    look(("bf16",), precision_config.DeepSpeedBF16Config)
    look(("hybrid_engine",), config.HybridEngineConfig)
    look(("tensor_parallel",), TPTrainingConfig)
    look(("compile",), CompileConfig)
    look(("comms_logger",), CommsLoggerConfig)
    look(("weight_quantization",), WeightQuantConfig)
    look(("timers", "throughput"), DeepSpeedThroughputTimerConfig)
    sources = Path(config.__file__).parents[1].rglob("*.py")
    words = set(re.findall(r"""["']([a-z0-9_]+)["']""", "".join(p.read_text() for p in sources)))
    assert {name for path in NAMES.keys() - (seen - {()}) for name in NAMES[path]} - {
        name for name, *_ in seen - {()}
    } <= words


def test_what_deepspeed_removed_is_what_it_says_itself() -> None:
    from deepspeed.runtime import config

    assert REMOVED[()].keys() == config._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys()
    assert REMOVED["zero_optimization",].keys() == config._REMOVED_ZERO_CONFIG_KEYS.keys()


def _offloaded(device: Any) -> dict[str, Any]:
    offload = {"device": device, "pin_memory": True}
    return {"zero_optimization": ZERO | {"offload_optimizer": offload}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({key: {}}, key) for key in REMOVED[()]),
    *(({"zero_optimization": ZERO | {key: 1}}, f"zero_optimization.{key}")
      for key in REMOVED["zero_optimization",]),
    *(({path[0]: 3}, path[0]) for path in NAMES if len(path) == 1),
    *(({"zero_optimization": ZERO | {"stage": stage}}, "zero_optimization.stage")
      for stage in (5, -1, "two")),
    *((_offloaded(device), "zero_optimization.offload_optimizer.device")
      for device in ("cuda", None)),
    ({"zero_optimization": ZERO | {"offload_optimizer": True}},
     "zero_optimization.offload_optimizer"),
    ({"optimizer": "adam"}, "optimizer"),
    *(({key: value}, key) for key in ("gradient_accumulation_steps", "train_batch_size")
      for value in (0, "two", [1])),
]  # fmt: skip
TAKEN: list[dict[str, Any]] = [
    {"zero_optimization": ZERO | {"stage": "2"}}, _offloaded("cpu"), _offloaded("none"),
    {"zero_optimization": ZERO | {"offload_optimizer": None}},
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key"), [*REFUSED, *((each, "") for each in TAKEN)], ids=str)
def test_errors_are_what_deepspeed_refuses(changes: dict[str, Any], key: str, saved: Save) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    body = DEEPSPEED | {"train_batch_size": 16} | changes
    errors = [line for line in said(saved(body)) if line.startswith(f"error config.yaml: {key}: ")]
    if key:
        assert len(errors) == 1
        with pytest.raises(Exception):  # noqa: B017, PT011 -- of many kinds
            DeepSpeedConfig(body)
    else:
        assert said(saved(body)) == []
        DeepSpeedConfig(body)


def test_a_part_of_deepspeeds_file_is_known_though_one_name_is_misspelled(saved: Save) -> None:
    path = saved({"fp16": {"enabled": True}, "gradient_accumulation_step": 2})
    assert read(path).tool == "deepspeed"
    assert "did you mean gradient_accumulation_steps?" in said(path)[0]
    with pytest.raises(UsageError, match="unknown kind of configuration"):
        read(saved({"optimizer": {"type": "Adam"}, "model": {"layers": 2}}))


@pytest.mark.parametrize(("tool", "changes", "key"), [
    ("deepspeed", {"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "fp16.enabled"),
    ("deepspeed", {"bf16": {"enabled": False}, "torch_autocast": {
        "enabled": True, "dtype": "torch.float16"}}, "torch_autocast.dtype"),
    ("deepspeed", {}, "bf16.enabled"),
    ("transformers", {"bf16": False, "fp16": True}, "fp16"),
    ("axolotl", {"bf16": False, "fp16": True}, "fp16"),
    ("llama-factory", {"bf16": False, "pure_bf16": True}, "pure_bf16"),
])  # fmt: skip
def test_a_dtype_has_its_key(tool: str, changes: dict[str, Any], key: str, saved: Save) -> None:
    assert read(saved(SOUND[tool], **changes)).called("dtype") == f"config.yaml: {key}"


@pytest.mark.parametrize(("tool", "changes", "key"), [
    ("deepspeed", {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
     "zero_optimization.offload_param"),
    ("accelerate", {"deepspeed_config": {"zero_stage": 3, "offload_param_device": "cpu"}},
     "deepspeed_config.offload_param_device"),
])  # fmt: skip
def test_parameters_moved_alone_are_not_the_optimizer_moved_as_well(
    tool: str, changes: dict[str, Any], key: str, saved: Save
) -> None:
    reading = read(saved(SOUND[tool], **changes))
    assert (reading.offload, reading.called("offload")) == ("param", f"config.yaml: {key}")


def test_files_that_agree_are_left_in_peace(saved: Save) -> None:
    paths = [saved(SOUND[name], name) for name in ("deepspeed", "transformers", "accelerate")]
    assert said(*paths) == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("deepspeed", {"train_batch_size": 48}, "48 is not 8 x 2 x 2 ranks, which is 32"),
    ("deepspeed", {"train_micro_batch_size_per_gpu": "auto"}, "nobody fills in auto"),
    ("deepspeed", {"zero_optimization": ZERO | {"offload_param": {"device": "cpu",
     "pin_memory": True}}}, "stage 2 does not offload that; it needs stage 3"),
    ("deepspeed", {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu",
     "pin_memory": True}}}, "stage 0 does not offload"),
    ("deepspeed", {"zero_optimization": ZERO | {"offload_optimizer": {"device": "cpu"}}},
     "not pinned"),
    ("deepspeed", {"zero_optimization": ZERO | {"cpu_offload": True}}, "old name"),
    ("deepspeed", {"zero_optimization": {"stage": 2}}, "(the default)"),
    ("deepspeed", {"zero_optimization": ZERO | {"contiguous_gradients": False}}, "fragments"),
    ("deepspeed", {"wall_clock_breakdown": True}, "waits for the device"),
    ("deepspeed", {"fp16": {"enabled": True}}, "fp16 is enabled as well"),
    ("transformers", {"fp16": True}, "fp16 is set as well"),
    ("transformers", {"auto_find_batch_size": True}, "silently"),
    ("transformers", {"evaluation_strategy": "no"}, "old name; write eval_strategy"),
    ("transformers", {"gradient_checkpointing": True}, "two names for one thing"),
    ("transformers", {"activation_checkpointing_kwargs": {"use_reentrant": True}}, "reentrant"),
    ("accelerate", {"deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}},
     "needs stage 3"),
    ("accelerate", {"deepspeed_config": {"zero_stage": 2, "deepspeed_config_file": "x.json"}},
     "refuses it beside deepspeed_config_file"),
    ("accelerate", {"distributed_type": "FSDP", "deepspeed_config": {},
     "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}}, "old name"),
    ("deepspeed", {"activation_checkpointing": {"partition_activations": True}},
     "does nothing for models of transformers"),
    ("transformers", {"dataloader_prefetch_factor": 4}, "refuse it with 0 workers"),
    ("transformers", {"num_workers": 0, "prefetch_factor": 4}, "refuse it with 0 workers"),
    ("llama-factory", {"dataloader_pin_memory": False}, "false, with 0 workers"),
    ("axolotl", {"dataloader_num_workers": 0, "dataloader_pin_memory": False},
     "false, with 0 workers"),
    ("axolotl", {"fp16": True}, "fp16 is set as well"),
    ("transformers", {"per_device_train_batch_size": 0}, "is 0; write a whole number, 1 or more"),
    ("axolotl", {"micro_batch_size": 1.5}, "is 1.5; write a whole number, 1 or more"),
    ("llama-factory", {"gradient_accumulation_steps": "two"}, "is 'two'; write a whole number"),
    ("transformers", {"dataloader_num_workers": -1}, "is -1; write a whole number, 0 or more"),
    ("transformers", {"dataloader_persistent_workers": True}, "torch refuses it with 0 workers"),
    ("accelerate", {"num_processes": 0}, "is 0; write a whole number, 1 or more"),
    ("accelerate", {"deepspeed_config": {"zero_stage": 5}}, "is 5; DeepSpeed takes one of 0, 1"),
    ("accelerate", {"deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cuda"}},
     "is 'cuda'; DeepSpeed takes one of none, cpu, nvme"),
    ("llama-factory", {"auto_find_batch_size": True}, "silently"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "changes", "what"), WRONG, ids=[w[2] for w in WRONG])
def test_only_errors_are_found(tool: str, changes: dict[str, Any], what: str, saved: Save) -> None:
    found = said(saved(SOUND[tool], **changes), world_size=2)
    assert len({line.partition(": ")[0] for line in found}) == 1
    assert any(what in line for line in found), found


def test_two_places_that_disagree_are_named(saved: Save) -> None:
    first = saved(DEEPSPEED, "ds")
    second = saved(ARGUMENTS, "args", per_device_train_batch_size=6)
    [line] = said(first, second)
    assert "args.yaml: per_device_train_batch_size: is 6, and ds.yaml: train_micro" in line


def test_auto_is_filled_beside_those_who_fill_it(saved: Save) -> None:
    auto = saved(DEEPSPEED, "ds", train_micro_batch_size_per_gpu="auto", train_batch_size="auto")
    assert len(said(auto)) == 1
    args = saved(ARGUMENTS, "args")
    assert said(auto, args) == []
    assert len(said(auto)) == 1  # nobody says that they are used together
    saved(ARGUMENTS, "args", deepspeed=str(auto))
    assert said(auto) == []


@pytest.mark.parametrize("tool", ["transformers", "accelerate", "axolotl"])
def test_a_named_file_is_looked_for_beside_the_first(tool: str, saved: Save) -> None:
    body = {key: value for key, value in DEEPSPEED.items() if key != "train_batch_size"}
    named = saved(body, "ds", gradient_accumulation_steps=4)
    if tool == "accelerate":
        path = saved(ACCELERATE, deepspeed_config={"deepspeed_config_file": "ds.yaml"})
        other = saved(ARGUMENTS, "args")
    else:
        path, other = saved(SOUND[tool], deepspeed="ds.yaml"), named
    found = said(path, other)
    assert len(found) == 1
    assert "ds.yaml: gradient_accumulation_steps: is 4" in found[0] or "and ds.yaml" in found[0]


def test_a_named_file_that_is_not_there_is_an_error(saved: Save) -> None:
    [line] = said(saved(ARGUMENTS, deepspeed="gone.json"))
    assert line == "error config.yaml: deepspeed: gone.json: no such file, here or beside it"


@pytest.mark.parametrize("body", [
    {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 2, "dataloader_pin_memory": False},
    {"num_workers": 2, "prefetch_factor": 2},
])  # fmt: skip
def test_a_loader_with_workers_may_load_ahead(body: dict[str, Any], saved: Save) -> None:
    assert said(saved(ARGUMENTS, **body)) == []


@pytest.mark.parametrize("section", sorted({path[0] for path in NAMES if path}))
def test_a_section_of_deepspeeds_alone_is_known(section: str, saved: Save) -> None:
    body = {section: dict.fromkeys(NAMES[(section,)], 1)}
    assert read(saved(body)).tool == "deepspeed"


# Against a result.


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    result("deepspeed", 2, dtype="bf16").write(folder / "best.json")
    (folder / "trials.csv").write_text(
        "depth,seq_len,micro_batch,zero_stage,offload,checkpointing,verdict,tokens_per_s,"
        "peak_device_bytes,reason\n"
        "2,64,4,2,none,none,over_ceiling,,,peak 9 GiB is over the ceiling\n"
        "2,64,1,2,none,none,ok,500,1073741824,\n"
    )
    return folder


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"train_micro_batch_size_per_gpu": 4},
         "is 4, the result has 2: measured over ceiling (peak 9 GiB is over the ceiling)"),
        ({"train_micro_batch_size_per_gpu": 1}, "is 1, the result has 2: measured at"),
        ({"train_micro_batch_size_per_gpu": 3}, "; the study did not try that"),
        ({"gradient_accumulation_steps": 8}, "the batch of an optimizer step differs"),
        ({"zero_optimization": {"stage": 3}}, "is 3, the result has 2; the study did not"),
    ],
)  # fmt: skip
def test_a_difference_to_a_result_has_its_consequence(
    changes: dict[str, Any], what: str, study: Path, saved: Save, run: Run
) -> None:
    same = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    config = saved({name: value for name, value in DEEPSPEED.items()
                    if name != "train_batch_size"} | same, **changes)  # fmt: skip
    assert what in " ".join(run("check", config, "--against", study, code=7).out.split())


def test_of_what_no_file_says_only_values_that_are_not_plain_are_named(
    study: Path, saved: Save, run: Run
) -> None:
    said = run("check", saved(DEEPSPEED), "--against", study, code=7).out
    (line,) = (each for each in said.splitlines() if each.startswith("not compared"))
    assert "seq_len" in line
    assert not any(word in line for word in ("compile off", "pack off", "buckets", "auto"))


def test_ranks_are_compared(study: Path, saved: Save, run: Run) -> None:
    asked = ["check", saved(ARGUMENTS), "--against", study, "--world-size"]
    assert "line: --world-size: is 6, the result has 2" in run(*asked, 6, code=7).out
    assert "world" not in run(*asked, 2, code=7).out.replace("not compared", "")


FULL = result("deepspeed", 2, dtype="bf16", checkpointing="full")
ON_HOST = result("ddp", 0, dtype="bf16", kind="cuda", checkpointing="host", model=TINY)


@pytest.mark.parametrize(("best", "name"), [
    *((FULL, name) for name in ("deepspeed", "accelerate", "hf", "axolotl", "llama-factory")),
    (ON_HOST, "axolotl"),
])  # fmt: skip
def test_what_is_exported_passes_the_check_against_its_own_result(
    best: Best, name: str, tmp_path: Path, run: Run
) -> None:
    best.write(tmp_path / "best.json")
    made = write(best, tmp_path, [name])[name]
    files = [tmp_path / file for file in made.files
             if file.endswith((".json", ".yaml")) and file != "hf-4.json"]  # fmt: skip
    run("check", *files, "--against", tmp_path, "--world-size", 2)


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("hf.json", {"use_liger_kernel": False}, "is whole, the result has chunked"),
        (
            "hf.json",
            {"liger_kernel_config": {"fused_linear_cross_entropy": False}},
            "use_liger_kernel: is whole, the result has chunked",
        ),
        ("hf.json", {"activation_checkpointing_kwargs": {}}, "is full, the result has 1/2"),
        ("llama-factory.yaml", {"enable_liger_kernel": False}, "is whole, the result has chunked"),
        (
            "axolotl.yaml",
            {"liger_fused_linear_cross_entropy": None},
            "is whole, the result has chunked",
        ),
        ("axolotl.yaml", {}, "is full, the result has 1/2"),
        ("axolotl.yaml", {"torch_compile": True}, "is on, the result has off"),
        ("axolotl.yaml", {"optimizer": "adafactor"}, "is adafactor, the result has adamw"),
        ("hf.json", {"optim": "adamw_bnb_8bit"}, "is adamw8bit, the result has adamw"),
    ],
)
def test_a_loss_or_checkpointing_that_needs_other_memory_is_found(
    *, name: str, changes: dict[str, Any], what: str, saved: Save, tmp_path: Path, run: Run
) -> None:
    best = result("ddp", 0, dtype="bf16", model=TINY, kind="cuda", loss="chunked",
                  checkpointing="1/2")  # fmt: skip
    best.write(tmp_path / "best.json")
    write(best, tmp_path, [name.partition(".")[0]])
    file = saved(yaml.safe_load((tmp_path / name).read_text()) | changes)
    found = run("check", file, "--against", tmp_path, "--world-size", 2, code=7).out
    assert what in " ".join(found.split())
    if name == "hf.json":
        whole = tmp_path / name
        assert "0 findings" in run("check", whole, "--against", tmp_path).out


def test_of_a_script_only_what_it_was_told_is_compared(
    saved: Save, tmp_path: Path, run: Run
) -> None:
    best = result("ddp", 0, model="script:train.py", own="gc=True")
    options = best.provenance["options"] | {"script": "python train.py -b {micro_batch}"}
    told = replace(best, command=["python"], provenance={"options": options})
    told.write(tmp_path / "best.json")
    same = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    file = saved(same, gradient_checkpointing=True, torch_compile=True)
    said = " ".join(run("check", file, "--against", tmp_path).out.split())
    assert "what the script says itself, gc True" in said
    assert "checkpointing" not in said


def test_the_number_of_machines_is_held_against_a_result_of_several(
    saved: Save, tmp_path: Path, run: Run
) -> None:
    best = result("deepspeed", 2, world_size=4, nodes=2)
    best.write(tmp_path / "best.json")
    write(best, tmp_path, ["accelerate"])
    own = tmp_path / "accelerate.yaml"
    run("check", own, "--against", tmp_path)
    one = saved(yaml.safe_load(own.read_text()), num_machines=1)
    run("check", one, "--against", tmp_path, code=7)
    assert "nodes 2" in run("check", saved(ARGUMENTS), "--against", tmp_path, code=7).out


def against_a_change(
    best: Best, name: str, changes: dict[str, Any], folder: Path, run: Run
) -> str:
    """What is found in the export `name` of `best`, which `changes` were made to since."""
    best.write(folder / "best.json")
    write(best, folder, [name])
    file = folder / f"{name}.yaml"
    asked = ["check", file, "--against", folder, "--world-size", 2]
    run(*asked)
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
    return " ".join(run(*asked, code=7).out.split())


@pytest.mark.parametrize(
    ("name", "key", "changes", "base"),
    [
        ("llama-factory", "finetuning_type", {"lora_rank": 64}, "auto"),
        ("llama-factory", "finetuning_type", {"finetuning_type": "full"}, "auto"),
        ("axolotl", "adapter", {"lora_r": 64}, "auto"),
        ("axolotl", "adapter", {"adapter": None}, "auto"),
        ("axolotl", "adapter", {"adapter": "qlora"}, "auto"),
        ("llama-factory", "quantization_bit", {"quantization_bit": 8}, "nf4"),
        ("axolotl", "load_in_4bit", {"load_in_4bit": False, "adapter": "lora"}, "nf4"),
    ],
)
def test_adapters_or_a_base_that_were_not_measured_are_found(
    *, name: str, key: str, changes: dict[str, Any], base: str, tmp_path: Path, run: Run
) -> None:
    best = result("ddp", 0, dtype="bf16", model=TINY, kind="cuda", lora="r=8", base=base)
    found = against_a_change(best, name, changes, tmp_path, run)
    assert f"{name}.yaml: {key}" in found
    assert f"the result has {'r=8' if base == 'auto' else base}" in found


def test_adapters_that_a_file_has_no_word_for_are_said(
    saved: Save, tmp_path: Path, run: Run
) -> None:
    result("ddp", 0, model=TINY, lora="r=8").write(tmp_path / "best.json")
    said = run("check", saved(ARGUMENTS), "--against", tmp_path, code=7).out
    assert "lora r=8" in " ".join(said.split())


def test_findings_can_be_json(saved: Save, run: Run) -> None:
    path = saved(DEEPSPEED, train_batch_size=48)
    [found] = json.loads(run("check", path, "--world-size", "2", "--json", code=7).out)
    assert found["level"] == "error"
    assert found["where"] == "config.yaml: train_batch_size"


# What is no configuration.


@pytest.mark.parametrize(
    "made",
    [
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"\x89PNG\r\n\x00\xff" * 100),
        lambda path: path.write_text("just words"),
        lambda path: path.write_text("{"),
        lambda path: path.write_text("a: 1"),
        lambda path: path.write_bytes(b" " * (100 * 2**20)),
        lambda path: None,
    ],
    ids=["folder", "binary", "words", "torn", "other", "large", "missing"],
)
def test_what_is_no_configuration_is_one_line(
    tmp_path: Path, made: Callable[[Path], Any], run: Run
) -> None:
    path = tmp_path / "config.yaml"
    made(path)
    [line] = run("check", path, code=2).err.splitlines()
    assert str(path) in line


def llama() -> dict[str, Any]:
    from transformers import LlamaConfig  # seconds, which each worker would take at collection

    return LlamaConfig().to_dict()


def trainer_state() -> dict[str, Any]:
    from transformers.trainer_callback import TrainerState

    return asdict(TrainerState())


@pytest.mark.parametrize(("made", "what"), [
    (llama, "a model's configuration"),
    (lambda: {"do_sample": True, "transformers_version": "5"}, "a configuration of generation"),
    (lambda: {"tokenizer_class": "LlamaTokenizer", "model_max_length": 64}, "a tokenizer's"),
    (trainer_state, "the state of transformers' Trainer"),
    (lambda: asdict(result("ddp", 0)), "write check CONFIG... --against"),
])  # fmt: skip
def test_mistakes_are_named(made: Callable[[], dict[str, Any]], what: str, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(made(), default=str))
    with pytest.raises(UsageError, match=re.escape(what)):
        read(path)


def test_a_folder_is_refused_with_what_to_name_instead(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; name the \.json or \.yaml files in it"):
        read(tmp_path)


def test_a_reader_refuses_with_what_it_expected(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="known: deepspeed, accelerate, axolotl"):
        read(tmp_path / "x.json")
