"""A training script as a user would write it: nothing in it knows of autotune.

`own_script.py HOW --batch N --len N --accum N`: trains a tiny model until it is ended, or for
`--steps`, with what HOW names. Every 20 steps it prints its own figure, "tokens/s 123.4".
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
if (
    sys.argv[1] in ("plain", "positions", "checkpointed", "scaled", "capped", "odd")
    and not sys.flags.isolated
):
    import light  # type: ignore[import-not-found]  # noqa: F401
elif sys.argv[1] in ("hf", "t5", "dpo", "grpo", "vlm"):
    import alone  # type: ignore[import-not-found]  # noqa: F401

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 256


class Tokens(Dataset[dict[str, Tensor]]):
    def __init__(self, length: int, sample_s: float) -> None:
        self.length, self.sample_s = length, sample_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        time.sleep(self.sample_s)
        ids = torch.randint(VOCAB, (self.length,))
        return {"input_ids": ids, "labels": ids}


class Speed:
    """The script's own figure, of every 20 steps."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.made, self.began = tokens, 0, time.perf_counter()

    def step(self) -> None:
        self.made += 1
        if self.made % 20 == 0:
            now = time.perf_counter()
            print(f"tokens/s {20 * self.tokens / (now - self.began):.1f}", flush=True)
            self.began = now


def net(width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCAB, width), nn.Linear(width, 4 * width), nn.ReLU(),
        nn.Linear(4 * width, VOCAB),
    )  # fmt: skip


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def plain(asked: argparse.Namespace) -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("nccl" if asked.cuda else "gloo")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if asked.cuda else "cpu")
    model: nn.Module = net(asked.width).to(device)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    halves = list(model.parameters())
    optimizers = [torch.optim.AdamW(halves[:2]), torch.optim.SGD(halves[2:], lr=1e-3)]
    speed = Speed(asked.batch * asked.len * asked.accum * world)
    loader = DataLoader(Tokens(asked.len, asked.sample_s), batch_size=asked.batch,
                        num_workers=asked.workers)  # fmt: skip
    for number, batch in enumerate(loader, 1):
        ids = batch["input_ids"].to(device).repeat(asked.rows, 1)
        (loss_of(model, ids) / asked.accum).backward()
        if number % asked.accum == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            speed.step()
        if number == asked.steps * asked.accum:
            return


def hf(asked: argparse.Namespace, *, seq2seq: bool = False) -> None:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
        Trainer,
        TrainingArguments,
    )

    if seq2seq:
        config: Any = T5Config(
            d_model=64, d_ff=128, num_layers=2, num_heads=2, d_kv=32, vocab_size=VOCAB
        )
        config.decoder_start_token_id = 0
        model: Any = T5ForConditionalGeneration(config)
    else:
        model = LlamaForCausalLM(LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, vocab_size=VOCAB,
        ))  # fmt: skip
    arguments = TrainingArguments(
        asked.out, per_device_train_batch_size=asked.batch, max_steps=asked.steps, use_cpu=True,
        gradient_accumulation_steps=asked.accum, report_to=[], save_strategy="no",
        disable_tqdm=True, auto_find_batch_size=asked.find,
        deepspeed=asked.ds or None,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Tokens(asked.len, asked.sample_s)).train()


def t5(asked: argparse.Namespace) -> None:
    hf(asked, seq2seq=True)


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in torch.randint(VOCAB - 8, (count,)).tolist())


def trl(
    asked: argparse.Namespace, kind: str, rows: list[dict[str, Any]], model: Any = None,
    processor: Any = lambda tokenizer: tokenizer, **more: Any,
) -> None:  # fmt: skip
    """With the trainer of that kind, which prints the samples of a second as its own figure."""
    import trl
    from datasets import Dataset as Rows  # type: ignore[import-untyped]
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        TrainerCallback,
    )

    class Told(TrainerCallback):
        speed = Speed(asked.batch)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.speed.step()

    names = {"<pad>": 0, "<eos>": 1} | {f"w{n}": n + 2 for n in range(VOCAB - 8)}
    made = Tokenizer(models.WordLevel(names, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>"
    )
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=VOCAB, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    settings = more.pop("settings", {}) | {"max_steps": asked.steps, "disable_tqdm": True}
    arguments = getattr(trl, f"{kind}Config")(
        asked.out, per_device_train_batch_size=asked.batch, use_cpu=True, report_to=[],
        save_strategy="no", gradient_checkpointing=False, **settings,
    )  # fmt: skip
    getattr(trl, f"{kind}Trainer")(
        model=model or LlamaForCausalLM(config), args=arguments,
        train_dataset=Rows.from_list(rows), processing_class=processor(tokenizer),
        callbacks=[Told()],
        **{name: make(config) for name, make in more.items()},
    ).train()  # fmt: skip


def dpo(asked: argparse.Namespace) -> None:
    from transformers import LlamaForCausalLM

    rows = [{"prompt": words(9), "chosen": words(9), "rejected": words(9)} for _ in range(999)]
    trl(asked, "DPO", rows, ref_model=LlamaForCausalLM)


def grpo(asked: argparse.Namespace) -> None:
    """With four steps for each rollout."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(each.split()))) for each in completions]

    settings = {"num_generations": 4, "max_completion_length": 8, "num_iterations": 4}
    trl(asked, "GRPO", [{"prompt": words(9)} for _ in range(999)], settings=settings,
        reward_funcs=lambda _: reward)  # fmt: skip


def vlm(asked: argparse.Namespace) -> None:
    """Images of 56x56 in a model that makes 4 tokens of each, and a few words."""
    from PIL import Image
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
    )

    marks: Any = {"vision_start_token_id": 250, "vision_end_token_id": 251, "image_token_id": 252,
             "video_token_id": 253}  # fmt: skip
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
              "out_hidden_size": 64, "fullatt_block_indexes": [0]}  # fmt: skip
    config = Qwen2_5_VLConfig(
        vision_config=vision, **marks, text_config={
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **marks,
            "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCAB,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
        },
    )  # fmt: skip

    class Processor(Qwen2_5_VLProcessor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
            return type(argument)  # that of videos is missing without torchvision

    def processor(tokenizer: Any) -> Any:
        names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        made: Any = Processor
        return made(
            Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=56 * 56),
            tokenizer,
            chat_template="{% for m in messages %}{% for c in m.content %}"
            "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
            "{% else %}{{ c.text }}{% endif %}{% endfor %} {% endfor %}",
        )

    rows = [
        {"images": [Image.new("RGB", (56, 56))],
         "prompt": [{"role": "user", "content": words(5)}],
         "completion": [{"role": "assistant", "content": words(7)}]}
        for _ in range(200)
    ]  # fmt: skip
    trl(asked, "SFT", rows, model=Qwen2_5_VLForConditionalGeneration(config), processor=processor,
        settings={"max_length": None})  # fmt: skip


def accelerate(asked: argparse.Namespace) -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=asked.accum)
    model = net()
    loader: Any = DataLoader(Tokens(asked.len, 0.0), batch_size=asked.batch)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), loader
    )
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch["input_ids"]))
            optimizer.step()
            optimizer.zero_grad()


def lightning(asked: argparse.Namespace) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            return loss_of(self.net, batch["input_ids"])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    loader = DataLoader(Tokens(asked.len, 0.0), batch_size=asked.batch)
    lightning.Trainer(
        accelerator="cpu", devices=asked.devices, max_epochs=-1, logger=False,
        strategy="ddp" if asked.devices > 1 else "auto", enable_checkpointing=False,
        accumulate_grad_batches=asked.accum, default_root_dir=asked.out,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), loader)  # fmt: skip


def deepspeed(asked: argparse.Namespace) -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes a minute to compile
    deepspeed.init_distributed("gloo")
    model = net()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=asked.ds
    )
    while True:
        ids = torch.randint(VOCAB, (engine.train_micro_batch_size_per_gpu(), asked.len))
        engine.backward(loss_of(engine, ids))
        engine.step()


def positions(asked: argparse.Namespace) -> None:
    """A vocabulary that is smaller than the table of positions."""
    tokens, places, head = nn.Embedding(65, 8), nn.Embedding(256, 8), nn.Linear(8, 65)
    optimizer = torch.optim.SGD(nn.ModuleList([tokens, places, head]).parameters())
    while True:
        ids = torch.randint(65, (asked.batch, asked.len))
        logits = head(tokens(ids) + places(torch.arange(asked.len)))
        loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def checkpointed(asked: argparse.Namespace) -> None:
    """By the kind of checkpoint that autograd's graph does not see into."""
    from torch.utils.checkpoint import checkpoint

    tokens, block = nn.Embedding(VOCAB, 8), nn.Linear(8, 8, bias=False)
    head = nn.Linear(8, VOCAB, bias=False)
    optimizer = torch.optim.SGD(nn.ModuleList([tokens, block, head]).parameters())
    while True:
        ids = torch.randint(VOCAB, (asked.batch, asked.len))
        logits = head(checkpoint(block, tokens(ids), use_reentrant=True))
        loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def scaled(asked: argparse.Namespace) -> None:
    """With a scale of the loss that is too large at first, and now and then: no step then."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=7)
    while True:
        for _ in range(asked.accum):
            loss = loss_of(model, torch.randint(VOCAB, (asked.batch, asked.len)))
            scaler.scale(loss / asked.accum).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def too_large(rank: int) -> None:
    torch.empty(2**50)


def killed(asked: argparse.Namespace) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def capped(asked: argparse.Namespace) -> None:
    """With no more samples than a small dataset has."""
    asked.batch = min(asked.batch, 3)
    plain(asked)


def sleeps(asked: argparse.Namespace) -> None:
    time.sleep(600)


def odd(asked: argparse.Namespace) -> None:
    """Oddities that must not disturb a study."""
    if asked.odd == "forward":
        net()(torch.zeros(1, 8, dtype=torch.long))
    elif asked.odd == "raises":
        raise ZeroDivisionError("of the script's own")
    elif asked.odd == "terminal":
        input("go on? ")
    elif asked.odd == "no-optimizer":
        model = net()
        while True:
            loss_of(model, torch.zeros(2, 8, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    elif asked.odd == "writes":
        (Path(asked.out) / "checkpoint").write_bytes(bytes(8 << 20))
        plain(asked)
    elif asked.odd == "daemon":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        plain(asked)
    elif asked.odd == "session":
        os.setpgid(0, 0)
        plain(asked)
    elif asked.odd == "spawned":
        processes: Any = torch.multiprocessing
        processes.spawn(too_large, nprocs=1)
    elif asked.odd == "heedless":
        asked.batch = 3
        plain(asked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--batch", "--device-batch-size", type=int, default=2)
    parser.add_argument("--len", type=int, default=32)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--sample-s", type=float, default=0.0)
    parser.add_argument("--out", default="out")
    parser.add_argument("--ds", default="")
    parser.add_argument("--odd", default="")
    parser.add_argument("--find", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--note", default="", help="which nothing reads")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1, help="of each sample, in a batch")
    parser.add_argument("--local_rank", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # others would wait for each other on a busy machine
    getattr(sys.modules[__name__], asked.how)(asked)
    if torch.distributed.is_initialized():
        # Threads of gloo may want the interpreter when it has begun to end, and abort it then.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
