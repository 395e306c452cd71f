"""A training script as a user would write it, started by an export's launch.sh.

`launched.py HOW FOLDER`: trains a tiny Llama for 3 optimizer steps in the way HOW, with the files
in FOLDER. It writes its observations from inside to FOLDER/seen-HOW.json.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import alone  # type: ignore[import-not-found]  # noqa: F401
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEPS, SEQ_LEN, VOCAB = 3, 32, 128


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        ids = torch.randint(VOCAB, (SEQ_LEN,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=VOCAB, use_cache=False,
    ))  # fmt: skip


class Watch:
    """Samples of each forward pass, and how many passes each optimizer step had."""

    def __init__(self) -> None:
        self.samples: Counter[int] = Counter()
        self.passes = 0

    def on(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(self._saw, with_kwargs=True)

    def _saw(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            self.samples[len(ids)] += 1
            self.passes += 1

    def seen(self, **more: Any) -> dict[str, Any]:
        [(micro_batch, _)] = self.samples.most_common(1)
        return {
            "micro_batch": micro_batch, "grad_accum": self.passes / STEPS,
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF", ""),
            **more,
        }  # fmt: skip


def with_deepspeed(folder: Path) -> dict[str, Any]:
    import deepspeed

    config = json.loads((folder / "deepspeed.json").read_text())
    model, watch = llama(), Watch()
    watch.on(model)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    loader = iter(DataLoader(Tokens(), batch_size=engine.train_micro_batch_size_per_gpu()))
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        engine.backward(engine(**next(loader)).loss)
        engine.step()
    return watch.seen(
        zero_stage=engine.zero_optimization_stage(),
        offload="optimizer" if engine.zero_offload_optimizer() else "none",
        steps=engine.global_steps,
    )


def with_accelerate(folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator()
    model, watch = llama(), Watch()
    watch.on(model)
    plugin = accelerator.state.deepspeed_plugin
    size, accum = 2, 1
    if plugin is not None:
        size = plugin.deepspeed_config["train_micro_batch_size_per_gpu"]
        accum = plugin.deepspeed_config["gradient_accumulation_steps"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Tokens(), batch_size=size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, batch in enumerate(loader):
        if number == STEPS * accum:
            break
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    stage = model.zero_optimization_stage() if plugin is not None else 0
    if getattr(accelerator.state, "fsdp_plugin", None) is not None:
        stage = 3 if accelerator.state.fsdp_plugin.reshard_after_forward else 2
    return watch.seen(
        zero_stage=stage, dtype=accelerator.mixed_precision, num=accelerator.num_processes
    )


def with_hf(folder: Path) -> dict[str, Any]:
    from transformers import Trainer

    sys.path.insert(0, str(folder))
    args = importlib.import_module("hf").training_arguments(
        str(folder / "out"), max_steps=STEPS, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    return _trained(Trainer, args)


def with_trl(folder: Path) -> dict[str, Any]:
    from trl import SFTTrainer  # type: ignore[attr-defined]

    sys.path.insert(0, str(folder))
    args = importlib.import_module("trl_config").sft_config(
        str(folder / "out"), max_steps=STEPS, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    from datasets import Dataset as Rows  # type: ignore[import-untyped]

    whole = Tokens()
    return _trained(SFTTrainer, args, Rows.from_dict({
        "input_ids": [whole[i]["input_ids"].tolist() for i in range(256)],
    }), processing_class=tokenizer())  # fmt: skip


def tokenizer() -> Any:
    """One that TRL can ask for its special tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"<{i}>": i for i in range(VOCAB)}
    made = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, eos_token="<1>", pad_token="<2>"
    )


def _trained(made: Any, args: Any, data: Any = None, **more: Any) -> dict[str, Any]:
    model, watch = llama(), Watch()
    watch.on(model)
    trainer = made(model=model, args=args, train_dataset=data or Tokens(), **more)
    trainer.train()
    wrapped = trainer.model_wrapped
    stage = wrapped.zero_optimization_stage() if hasattr(wrapped, "zero_optimization_stage") else 0
    if trainer.is_fsdp_enabled:
        stage = 3 if trainer.accelerator.state.fsdp_plugin.reshard_after_forward else 2
    return watch.seen(
        zero_stage=stage, dtype=trainer.accelerator.mixed_precision,
        checkpointing=bool(model.is_gradient_checkpointing)
        or bool(trainer.is_fsdp_enabled and args.fsdp_config.get("activation_checkpointing")),
        steps=trainer.state.global_step, optim=str(args.optim),
    )  # fmt: skip


def with_lightning(folder: Path) -> dict[str, Any]:
    from lightning import LightningModule

    sys.path.insert(0, str(folder))
    made = importlib.import_module("lightning_trainer")
    watch = Watch()

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()
            watch.on(self.model)

        def training_step(self, batch: Any, number: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = made.trainer(
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=str(folder),
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Tokens(), batch_size=made.MICRO_BATCH))
    return watch.seen(
        dtype=str(trainer.precision), strategy=type(trainer.strategy).__name__,
        steps=trainer.global_step, num=trainer.world_size,
    )  # fmt: skip


def main() -> None:
    # DeepSpeed's launcher has its own argument first.
    how, name = [each for each in sys.argv[1:] if not each.startswith("--local_rank")]
    folder = Path(name)
    if how in ("deepspeed", "accelerate", "hf"):
        import deepspeed

        # On a CPU it would first compile communication that is for inference, for a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    found = globals()[f"with_{how}"](folder)
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        (folder / f"seen-{how}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    # Threads of gloo that DeepSpeed's last messages left abort a process that ends, now and then.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
