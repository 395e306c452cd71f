"""Another tool's own code on files that exports wrote: `parsers.py TOOL FOLDER...`.

Prints a JSON list of what the tool read in each folder, or of the error with which it refused.
Runs in a process of its own, with the tool on its path: see ensure_parsers in scripts/_venv.sh.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import typing_extensions

Parser = Callable[[Path], dict[str, Any]]


def main(tool: str, folders: list[str]) -> None:
    """A process for each folder, since some tools keep what they read."""
    with contextlib.redirect_stdout(sys.stderr):
        parser_of(tool)  # it is imported once
        fork = multiprocessing.get_context("fork")
        with fork.Pool(1, maxtasksperchild=1) as pool:
            found = [pool.apply(_read, (tool, Path(folder))) for folder in folders]
    print(json.dumps(found))


@cache
def parser_of(tool: str) -> Parser:
    return TOOLS[tool]()


def _read(tool: str, folder: Path) -> dict[str, Any]:
    with contextlib.redirect_stdout(sys.stderr):
        parser = parser_of(tool)
        os.chdir(folder)  # where files that name others are used
        try:
            return parser(folder)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the test shows it
            return {"refused": f"{type(error).__name__}: {error}"}


def axolotl() -> Parser:
    """Its models ignore unknown names, and map old names with a warning: both are reported."""
    config = importlib.import_module("axolotl.utils.schemas.config")
    machine = {
        "capabilities": {"bf16": True, "fp8": True, "n_gpu": 2, "compute_capability": "sm_90"},
        "env_capabilities": {"torch_version": "2.13.0"},
    }
    liger = importlib.import_module("axolotl.integrations.liger.args")
    # As its utils/config.py adds a plugin's arguments.
    model: Any = type("Config", (liger.LigerArgs, config.AxolotlConfigWCapabilities), {})
    inner = importlib.import_module("axolotl.utils.schemas.fsdp").FSDPConfig.model_fields
    told = _Told(logging.WARNING)
    logging.getLogger("axolotl").addHandler(told)

    def read(folder: Path) -> dict[str, Any]:
        body = _yaml(folder / "axolotl.yaml")
        own = {
            "base_model": "a/model", "learning_rate": 1e-4,
            "datasets": [{"path": "some/data", "type": "alpaca"}],
        }  # fmt: skip
        fields = model.model_fields
        odd = [name for name in body if name not in fields or fields[name].deprecated]
        odd += [name for name in body.get("fsdp_config", ()) if name not in inner]
        found = model(**body, **own, **machine)
        odd += told.texts
        return {
            "odd": odd,
            "micro_batch": found.micro_batch_size,
            "grad_accum": found.gradient_accumulation_steps,
            "seq_len": found.sequence_len,
            "dtype": "bf16" if found.bf16 else "fp16" if found.fp16 else "fp32",
            "checkpointing": bool(found.gradient_checkpointing),
            "offloaded": found.activation_offloading or False,
            "compile": found.torch_compile,
            "attention": found.attn_implementation or "auto",
            "optimizer": str(getattr(found.optimizer, "value", found.optimizer)),
            "deepspeed": found.deepspeed,
            "reshard": found.fsdp_config.reshard_after_forward if found.fsdp_config else None,
            "lora": found.adapter
            and {
                "r": found.lora_r,
                "alpha": found.lora_alpha,
                "dropout": found.lora_dropout,
                "targets": "all" if found.lora_target_linear else found.lora_target_modules,
            },
            "base": [bits for bits in (4, 8) if getattr(found, f"load_in_{bits}bit")],
            "chunked": found.liger_fused_linear_cross_entropy,
            "packs": bool(found.sample_packing),
        }

    return read


def llama_factory() -> Parser:
    os.environ |= {
        "DISABLE_VERSION_CHECK": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",  # the kernel chooses it, as it is alone
    }  # fmt: skip
    hparams = importlib.import_module("llamafactory.hparams")
    parser = importlib.import_module("llamafactory.hparams.parser")

    def read(folder: Path) -> dict[str, Any]:
        own = {
            "model_name_or_path": "a/model", "stage": "sft", "do_train": True, "dataset": "alpaca",
            "template": "default", "output_dir": str(folder / "out"),
            "use_cpu": True, "report_to": "none",
        }  # fmt: skip
        with patch.object(parser, "is_torch_bf16_gpu_available", return_value=True):
            body = _yaml(folder / "llama-factory.yaml")
            model, data, training, tuning, _ = hparams.get_train_args(body | own)
        held = getattr(training, "hf_deepspeed_config", None)
        return {
            "odd": held.mismatches if held else [],
            "micro_batch": training.per_device_train_batch_size,
            "grad_accum": training.gradient_accumulation_steps,
            "seq_len": data.cutoff_len + data.packing,  # rows have one token more
            "dtype": "bf16" if training.bf16 else "fp16" if training.fp16 else "fp32",
            "pure": tuning.pure_bf16,
            "checkpointing": not model.disable_gradient_checkpointing,
            "compile": training.torch_compile,
            "attention": str(model.flash_attn),
            "optimizer": "muon" if tuning.use_muon else str(training.optim.value),
            "deepspeed": training.deepspeed,
            "base": model.quantization_bit
            and [
                model.quantization_bit,
                str(model.quantization_method),
                model.quantization_type,
                model.double_quantization,
            ],
            "lora": None
            if tuning.finetuning_type == "full"
            else {
                "r": tuning.lora_rank,
                "alpha": tuning.lora_alpha,
                "dropout": tuning.lora_dropout,
                "targets": "all" if tuning.lora_target == ["all"] else tuning.lora_target,
            },
            "packs": data.packing and model.block_diag_attn,
        }

    return read


def ms_swift() -> Parser:
    """As `swift sft` does: its YAML becomes words, which transformers' parser reads. It takes the
    beginning of a name for the name: names have to be whole here."""
    command = importlib.import_module("swift.cli.main")
    arguments = importlib.import_module("swift.arguments").SftArguments
    parse = importlib.import_module("swift.utils").parse_args
    known = {"ENV", *(field.name for field in fields(arguments))}

    def read(folder: Path) -> dict[str, Any]:
        model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(model))
        words = [
            str(folder / "ms-swift.yaml"), "--model", str(folder), "--model_type", "llama",
            "--template", "llama3", "--dataset", "alpaca", "--output_dir", str(folder / "out"),
            "--use_cpu", "true", "--report_to", "none",
        ]  # fmt: skip
        before = dict(os.environ)
        command.parse_yaml_args(words)
        variables = {name: os.environ[name] for name in os.environ.keys() - before.keys()}
        variables.pop("SWIFT_CONFIG_FILE")
        found, odd = parse(arguments, words)
        training, sharded = found.training_args, found.fsdp_config or {}
        targets = found.target_modules
        held = getattr(training, "hf_deepspeed_config", None)
        return {
            "odd": [*odd, *(held.mismatches if held else ())]
            + [name for name in _yaml(folder / "ms-swift.yaml") if name not in known],
            "environment": variables,
            "micro_batch": training.per_device_train_batch_size,
            "grad_accum": training.gradient_accumulation_steps,
            "seq_len": found.max_length,
            "dtype": "bf16" if training.bf16 else "fp16" if training.fp16 else "fp32",
            "weights": str(found.torch_dtype),
            "checkpointing": training.gradient_checkpointing
            or sharded.get("activation_checkpointing", False),
            "compile": training.torch_compile,
            "attention": found.attn_impl or "auto",
            "optimizer": found.optimizer or str(training.optim.value),
            "base": found.quant_bits
            and [
                found.quant_bits,
                found.quant_method,
                found.bnb_4bit_quant_type,
                found.bnb_4bit_use_double_quant,
                str(found.bnb_4bit_compute_dtype),
            ],
            "stage": training.deepspeed["zero_optimization"]["stage"] if held else None,
            "reshard": sharded.get("reshard_after_forward"),
            "lora": None
            if found.tuner_type == "full"
            else {
                "r": found.lora_rank,
                "alpha": found.lora_alpha,
                "dropout": found.lora_dropout,
                "targets": "all" if targets == ["all-linear"] else targets,
                "dtype": found.lora_dtype,
            },
            "packs": found.packing_length,
        }

    return read


def torchtitan() -> Parser:
    """Through its ConfigManager, which wants a function that returns a config."""
    _without("triton", "triton.language", "torch.utils.tensorboard")
    manager = importlib.import_module("torchtitan.config").ConfigManager
    trainer = importlib.import_module("torchtitan.trainer").Trainer

    def read(folder: Path) -> dict[str, Any]:
        sys.path.insert(0, str(folder))
        apply = importlib.import_module("torchtitan_config").apply
        mine: Any = SimpleNamespace(tuned=lambda: apply(trainer.Config()))
        sys.modules["mine"] = mine
        words = _words(folder) or ["--module", "mine", "--config", "tuned"]
        found = manager().parse_args(words)
        found.__post_init__()
        training, parallelism = found.training, found.parallelism
        kept = found.activation_checkpoint
        return {
            "micro_batch": training.local_batch_size,
            "global_batch": training.global_batch_size,
            "seq_len": training.seq_len,
            "dtype": training.mixed_precision_param,
            "ranks": [
                parallelism.data_parallel_replicate_degree,
                parallelism.data_parallel_shard_degree,
            ],
            "split": [
                parallelism.tensor_parallel_degree,
                parallelism.pipeline_parallel_degree,
                parallelism.context_parallel_degree,
                parallelism.expert_parallel_degree,
            ],
            "reshard": parallelism.fsdp_reshard_after_forward,
            "checkpointing": type(kept).__qualname__.partition(".")[0] if kept else "none",
            "compile": found.compile.components if found.compile.enable else [],
            "graphs": not training.disable_cuda_graphs,
        }

    return read


def megatron() -> Parser:
    """Its checks read the world's size in the environment, and ask no GPU."""
    _without("triton", "triton.language")
    if not hasattr(typing, "override"):  # it is made for Python 3.12
        vars(typing)["override"] = typing_extensions.override
    arguments = importlib.import_module("megatron.training.arguments")
    own = [
        "--num-attention-heads", "2", "--max-position-embeddings", "4096", "--train-iters", "1",
        "--lr", "1e-4", "--tokenizer-type", "NullTokenizer", "--vocab-size", "4096",
    ]  # fmt: skip

    def read(folder: Path) -> dict[str, Any]:
        best = json.loads((folder / "best.json").read_text())
        os.environ |= {"WORLD_SIZE": str(best["config"]["world_size"]), "RANK": "0"}
        given = subprocess.run(
            ["bash", "-c", 'source "$0"; printf "%s\\n" "${AUTOTUNE_ARGS[@]}"',
             str(folder / "megatron.sh")],
            check=True, capture_output=True, text=True,
        ).stdout.split()  # fmt: skip
        sys.argv = ["pretrain_gpt.py", *(_words(folder) or given), *own]
        found = arguments.parse_args()
        arguments.validate_args(found)
        each = found.micro_batch_size * found.data_parallel_size
        return {
            "micro_batch": found.micro_batch_size,
            "grad_accum": found.global_batch_size / each,
            "seq_len": found.seq_length,
            "shape": [found.num_layers, found.hidden_size],
            "dtype": str(found.params_dtype),
            "optimizer": found.optimizer,
            "shared": found.use_distributed_optimizer,
            "split": [
                found.tensor_model_parallel_size,
                found.pipeline_model_parallel_size,
                found.context_parallel_size,
                found.expert_model_parallel_size,
            ],
            "clip": found.clip_grad,
            "recompute": [
                found.recompute_granularity, found.recompute_method, found.recompute_num_layers,
            ],
        }  # fmt: skip

    return read


class _Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


TOOLS: dict[str, Callable[[], Parser]] = {
    "axolotl": axolotl,
    "llama-factory": llama_factory,
    "ms-swift": ms_swift,
    "torchtitan": torchtitan,
    "megatron": megatron,
}


def _words(folder: Path) -> list[str]:
    """Words of a command in `folder`, which are read in the place of the export."""
    file = folder / "words.json"
    return list(json.loads(file.read_text())) if file.exists() else []


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def _without(*names: str) -> None:
    """Replace missing modules that draw, or compute on a GPU: readers of configurations only
    import them."""
    # torch looks for some of them, too, and must have found nothing by then.
    for name in (
        "torch._dynamo",
        "torch._inductor.utils",
        "torch._inductor.runtime.triton_compat",
    ):
        importlib.import_module(name)
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = MagicMock(__spec__=None, __path__=[], __version__="0")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
