"""Weighs one published run, by its own code, in the present interpreter.

`weighed.py` starts it with a task in JSON. The last printed line has the peaks in MiB, and the
error that ended the run. For some cases it has the time of a step. Only one of several
ranks runs, in torch's fake process group. It is the first one; for Megatron-LM's GPT the last,
which writes the log. Records of modded-nanogpt give lists to collectives, of which NCCL's group
makes one tensor: they run in that one. So do runs whose steps are timed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import runpy
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.device.emulated.emulation import Emulation
from autotune.wire.emulated import ALONE

_STEPS = {
    "ITERATIONS": "2", "WARMUP_STEPS": "1", "VAL_LOSS_EVERY": "0", "MAX_WALLCLOCK_SECONDS": "0",
}  # fmt: skip
_SPEEDRUN = {"num_iterations": 5, "warmup_steps": 2, "val_tokens": 8 * 4 * 65536}
_FILES = {
    f"--{name}" for name in (
        "data-path", "data-cache-path", "vocab-file", "merge-file", "tokenizer-type", "save",
        "load", "train-iters", "tensorboard-dir", "ckpt-format", "async-save",
        "use-persistent-ckpt-worker", "use-checkpoint-opt_param-scheduler",
    )
}  # fmt: skip
_TIMED = re.compile(r"a step took ([\d.]+) ms")
_TOLD = re.compile(r"peak memory allocated: (\d+) MiB reserved: (\d+) MiB")
_MIB = 1 << 20
_LLAMA_3_TOKENS = 128256
_ON_ONE_MACHINE = 8
_NCCL = ("speedrun", "fms")
_FLASH = {
    "flash_attn-2.7.0.dist-info/METADATA": "Name: flash_attn\nVersion: 2.7.0\n",
    "flash_attn/bert_padding.py": "index_first_axis = pad_input = unpad_input = None",
    "flash_attn/__init__.py": """
from torch.nn.functional import scaled_dot_product_attention
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **_):
    of_heads = (each.transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(*of_heads, dropout_p=dropout_p, scale=softmax_scale,
                                        is_causal=causal, enable_gqa=True).transpose(1, 2)
flash_attn_varlen_func = None
""",
}
"""A package of that name, around FlashAttention-2 of torch."""


def alone(rank: int, ranks: int, backend: str) -> None:
    """Make this process one of `ranks`, without the others."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    join, split = dist.init_process_group, dist.new_group
    # As `probes.world` does it; its imports are missing where old code runs.
    os.environ.update({ALONE: "1", "TORCH_NCCL_RANKS_PER_ROOT": str(ranks)})
    wrapper: Any = DistributedDataParallel
    wrap: Any = wrapper.__init__

    def joined(*_: object, **__: object) -> None:
        store: Any = FakeStore() if backend == "fake" else dist.HashStore()  # type: ignore[attr-defined]
        join(backend, rank=rank, world_size=ranks, store=store)

    def parted(*given: Any, **keywords: Any) -> Any:
        return split(*given, **keywords | {"backend": backend})

    def reduced(gradients: torch.Tensor) -> Any:
        """DDP's own reduction without the collective: the fake one returns no tensor."""
        done: Any = torch.futures.Future()
        done.set_result(gradients)
        return done

    def wrapped(self: Any, *args: object, **keywords: object) -> None:
        wrap(self, *args, **keywords)
        self.register_comm_hook(None, lambda _, bucket: reduced(bucket.buffer()))

    dist.init_process_group, dist.new_group = joined, parted
    distributed_c10d._set_pg_timeout = lambda *_: None
    if backend == "fake":
        wrapper.__init__ = wrapped


def golf(how: dict[str, Any], source: Path) -> None:
    """A record of openai/parameter-golf, for two steps on random tokens.

    At its end an evaluation divides by a sum that the card computed, which is 0 here.
    """
    os.environ.update(_STEPS | how["data"] | how.get("env", {}))
    with contextlib.suppress(ZeroDivisionError):
        runpy.run_path(str(source / how["script"]), run_name="__main__")


def speedrun(how: dict[str, Any], source: Path) -> None:
    """A record of KellerJordan/modded-nanogpt: the script at the beginning of its log.

    Inductor's search for the best tiles is left out: it compiles each kernel dozens of times.
    """
    tuner: Any = importlib.import_module("torch._inductor.runtime.coordinate_descent_tuner")
    tuner.CoordescTuner.autotune = lambda _, time, first, *__, **___: first
    script = (source / how["script"]).read_text().partition("=" * 100)[0]
    for name, value in _SPEEDRUN.items():
        script, found = re.subn(rf"^( *{name}\b.*?= *)\d+", rf"\g<1>{value}", script, flags=re.M)
        if not found:
            raise ValueError(f"no {name}")
    os.chdir(Path(how["data"]["DATA_PATH"]) / "run")
    os.environ["PATH"] = how["data"]["PATH"]
    Path("train_gpt.py").write_text(script)
    sys.argv = ["train_gpt.py"]
    runpy.run_path("train_gpt.py", run_name="__main__")


def titan(how: dict[str, Any], source: Path) -> None:
    """torchtitan before 2025-02, for three steps, with the smaller tokenizer of its tests."""
    os.chdir(source)
    sys.path.insert(0, str(source))
    sys.argv = [
        "train.py", "--job.config_file", "train_configs/llama3_8b.toml", "--training.dataset",
        "c4_test", "--model.tokenizer_path", "tests/assets/test_tiktoken.model",
        "--training.steps", "3", "--metrics.log_freq", "1", *how["args"],
    ]  # fmt: skip
    tokenizer = importlib.import_module("torchtitan.datasets.tokenizer.tokenizer")
    tokenizer.Tokenizer.n_words = property(lambda _: _LLAMA_3_TOKENS)
    runpy.run_path("train.py", run_name="__main__")


def liger(how: dict[str, Any], source: Path) -> float:
    """One point of a benchmark of Liger-Kernel; MiB, as in its table."""
    import torch

    sys.path[:0] = [str(source), str(source / "src"), str(source / "benchmark/scripts")]
    metadata: Any = importlib.metadata
    known = metadata.version
    metadata.version = lambda name: "0" if name.startswith("liger") else known(name)
    module = importlib.import_module(how["module"])
    inputs: Any = importlib.import_module("utils")
    weighs = [name for name in dir(module) if name.startswith("bench_memory")]
    named = [name for name in weighs if how["kernel"].removeprefix("tiled_") in name]
    if weighs:
        weigh = getattr(module, (named or weighs)[0])
    else:
        setup = next(name for name in dir(module) if name.lstrip("_").startswith("setup"))
        weigh = module.build_memory_bench_fn(getattr(module, setup))
    config = {
        name: getattr(torch, value[6:]) if str(value).startswith("torch.") else value
        for name, value in how["config"].items()
    }
    asked = inputs.SingleBenchmarkRunInput(
        x=how["x"], kernel_provider=how["provider"], kernel_operation_mode=how["mode"],
        extra_benchmark_config=config,
    )  # fmt: skip
    return float(weigh(asked).y_50)


def apex_softmax() -> None:
    """Stand-ins for Apex's kernels of a masked softmax, which PyPI does not have. They make the
    same allocations, a result like the input, and the gradient in the output's memory."""
    import torch

    def kernel(name: str) -> None:
        module: Any = ModuleType(name)
        module.forward = lambda inputs, *_: torch.empty_like(inputs)
        module.backward = lambda gradients, *_: gradients
        module.get_batch_per_block = lambda *_: 4  # from 128 keys on
        sys.modules[name] = module

    kernel("scaled_masked_softmax_cuda")
    kernel("scaled_upper_triang_masked_softmax_cuda")


class Tokens:
    """A data set of Megatron-LM, all ones, for its GPT or its T5."""

    def __init__(self, config: Any) -> None:
        self.decoder = getattr(config, "sequence_length_decoder", 0)
        self.length = config.sequence_length_encoder if self.decoder else config.sequence_length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> dict[str, Any]:
        import torch

        words = torch.ones(self.length, dtype=torch.int64)
        if self.decoder:
            target = torch.ones(self.decoder, dtype=torch.int64)
            return {
                "text_enc": words, "enc_mask": words, "text_dec": target, "labels": target,
                "loss_mask": target, "dec_mask": target,
            }  # fmt: skip
        return {
            "tokens": words, "labels": words, "position_ids": words,
            "loss_mask": words.float(),
            "attention_mask": torch.ones(1, self.length, self.length, dtype=torch.bool),
        }  # fmt: skip


def megatron(how: dict[str, Any], source: Path) -> None:
    """A functional test of NVIDIA/Megatron-LM, for three steps. Its last rank writes the log."""
    import yaml

    os.chdir(source)
    sys.path.insert(0, str(source))
    given = yaml.safe_load((source / how["test"] / "model_config.yaml").read_text())
    os.environ.update({name: str(value) for name, value in given["ENV_VARS"].items()})
    words = [how["script"]]
    for name, value in given["MODEL_ARGS"].items():
        if name not in _FILES and value is not False:
            words += [name] if value is True else [name, *str(value).split()]
    sys.argv = [
        *words, "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", how["vocab"],
        "--train-iters", "3", "--no-persist-layer-norm", "--rerun-mode", "disabled",
        "--no-check-for-nan-in-loss-and-grad", "--no-gradient-accumulation-fusion",
    ]  # fmt: skip
    apex_softmax()
    data: Any = importlib.import_module("megatron.core.datasets.utils")
    data.compile_helpers = lambda: None
    build: Any = importlib.import_module(
        "megatron.core.datasets.blended_megatron_dataset_builder"
    ).BlendedMegatronDatasetBuilder
    build.build = lambda self: [Tokens(self.config)] * 3
    runpy.run_path(how["script"], run_name="__main__")


class Full:
    """A data module of LitGPT, whose samples all have the greatest length."""

    def connect(self, tokenizer: object, batch_size: int, max_seq_length: int) -> None:
        self.size, self.length = batch_size, max_seq_length

    def prepare_data(self) -> None:
        pass

    def setup(self, *_: object) -> None:
        pass

    def train_dataloader(self) -> Any:
        import torch

        tokens = torch.ones(self.length, dtype=torch.int64)
        counts = {name: torch.ones(1) for name in ("raw", "raw_plus_prompt_template")}
        sample = {"input_ids": tokens, "labels": tokens, "token_counts": counts}
        return torch.utils.data.DataLoader([sample] * 2000, batch_size=self.size)  # type: ignore[arg-type]

    val_dataloader = train_dataloader


def litgpt(how: dict[str, Any], source: Path) -> None:
    """A file of LitGPT's config_hub, for two steps, with the weights of a new model. Torch's own
    convolutions stand for those of cuDNN, in LoRA."""
    import torch
    import yaml

    torch.backends.cudnn.enabled = False
    sys.path.insert(0, str(source))
    given = yaml.safe_load((source / how["config"]).read_text())
    module: Any = importlib.import_module(f"litgpt.finetune.{Path(how['config']).stem}")
    parts: Any = importlib.import_module("litgpt.args")
    config, fit, weights = module.Config, module.fit, Path(given["checkpoint_dir"])
    config.from_file = config.from_json = lambda _, **more: config.from_name(weights.name, **more)
    for unneeded in ("auto_download_checkpoint", "check_valid_checkpoint_dir", "load_checkpoint",
                     "Tokenizer", "validate"):  # fmt: skip
        setattr(module, unneeded, lambda *_, **__: weights)

    def only(*inputs: Any, **keywords: Any) -> None:
        fit(*inputs, **keywords)
        raise KeyboardInterrupt  # rather than validate, and save

    module.fit = only
    given |= {
        "checkpoint_dir": weights, "out_dir": Path("out"), "data": Full(),
        "train": parts.TrainArgs(**given["train"] | {"max_steps": 2}),
        "eval": parts.EvalArgs(**given["eval"]),
    }  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        module.setup(**given)


def lit_gpt(how: dict[str, Any], source: Path) -> None:
    """Lit-GPT's script for LoRA, for two steps of two micro-steps, with the weights of a new
    model. The first batch has the longest sample, as there; the others are short. It does not
    validate before."""
    import torch

    torch.backends.cudnn.enabled = False
    sys.path.insert(0, str(source))
    module: Any = importlib.import_module("finetune.lora")
    samples = [torch.ones(size, dtype=torch.int64) for size in (how["length"], 64)]
    long, short = ({"input_ids": each, "labels": each} for each in samples)
    for name in ("train", "test"):
        torch.save([long] + [short] * 50000, f"{name}.pt")
    for unneeded in ("check_valid_checkpoint_dir", "load_checkpoint", "Tokenizer", "validate",
                     "save_lora_checkpoint"):  # fmt: skip
        setattr(module, unneeded, lambda *_, **__: None)
    module.devices = int(os.environ.get("WORLD_SIZE", "1"))
    module.micro_batch_size, module.gradient_accumulation_iters = how["batch"], 2
    module.max_iters = 4
    module.setup(Path(), Path(how["model"]), Path("out"), "bf16-true", how["quantize"])


def fms(how: dict[str, Any], source: Path) -> None:
    """A run of fms-acceleration's benchmark: transformers' Trainer, for seven steps, with the
    weights of a new model. The time is the median of the last five."""
    import torch
    import yaml

    for name, text in _FLASH.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    sys.path.insert(0, str(Path.cwd()))
    library: Any = importlib.import_module("transformers")
    ends: list[Any] = []

    class Watch(library.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            ends[-1].record()

    defaults = yaml.safe_load((source / "scripts/benchmarks/defaults.yaml").read_text())
    for of_script in ("use_flash_attn", "response_template", "dataset_text_field"):
        del defaults[of_script]
    asked = library.TrainingArguments(
        **defaults | {"max_steps": 7, "adam_epsilon": float(defaults["adam_epsilon"])},
        skip_memory_metrics=False, per_device_train_batch_size=how["batch"], output_dir="out",
        report_to="none",
    )  # fmt: skip
    with torch.device("meta"):
        model = library.AutoModelForCausalLM.from_config(
            library.AutoConfig.for_model(**how["model"]), torch_dtype=torch.bfloat16,
            attn_implementation="flash_attention_2",
        )  # fmt: skip
    model = model.to_empty(device="cpu")
    model.tie_weights()
    if how["lora"]:
        lora: Any = importlib.import_module("peft")
        model.enable_input_require_grads()
        model = lora.get_peft_model(model, lora.LoraConfig(
            r=16, lora_alpha=16, lora_dropout=0.1, task_type="CAUSAL_LM",
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        ))  # fmt: skip
    tokens = torch.ones(how["length"], dtype=torch.int64)
    data = [{"input_ids": tokens, "labels": tokens}] * 1000
    library.Trainer(model=model, args=asked, train_dataset=data, callbacks=[Watch()]).train()
    later = (one.elapsed_time(next_one) for one, next_one in pairwise(ends[1:]))
    print(f"a step took {statistics.median(later):.2f} ms")


CASES = {
    "golf": golf, "titan": titan, "liger": liger, "megatron": megatron, "speedrun": speedrun,
    "litgpt": litgpt, "lit_gpt": lit_gpt, "fms": fms,
}  # fmt: skip


def main(task: dict[str, Any]) -> None:
    """Run it, and print the peaks."""
    rank = task["how"].get("rank", 0)
    os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", **task["environment"])
    if task["gpus"] > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % _ON_ONE_MACHINE),
                          WORLD_SIZE=str(task["gpus"]), MASTER_ADDR="localhost",
                          MASTER_PORT="29571")  # fmt: skip
    with Emulation(f"{min(task['gpus'], _ON_ONE_MACHINE)}x{task['card']}"):
        import torch

        torch.backends.cuda.enable_cudnn_sdp(False)
        if task["gpus"] > 1:
            alone(rank, task["gpus"], "nccl" if task["case"] in _NCCL else "fake")
        ended, told, printed = "", None, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                told = CASES[task["case"]](task["how"], Path(task["source"]))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported
            ended = f"{type(error).__name__}: {error}".partition("\n")[0][:150]
        peaks = [torch.cuda.max_memory_allocated() / _MIB, torch.cuda.max_memory_reserved() / _MIB]
        if found := _TOLD.search(printed.getvalue()):
            # Later errors of the script, such as in evaluation, do not count.
            ended, peaks = "", [float(text) for text in found.groups()]
        timed = _TIMED.search(printed.getvalue())
        print(json.dumps({"allocated": told or peaks[0], "reserved": peaks[1], "ended": ended,
                          "step_ms": timed and float(timed[1]),
                          "torch": torch.__version__}))  # fmt: skip


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
