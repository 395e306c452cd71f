"""What a log says beside its errors: the framework, its settings, steps, and memory over steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autotune.diagnose.amounts import parse
from autotune.diagnose.prefixes import take_apart

FRAMEWORKS = {
    "axolotl": ("axolotl",),
    "llamafactory": ("llamafactory", "LLaMA-Factory", "LlamaFactory", "llmtuner"),
    "lightning": ("lightning/pytorch", "pytorch_lightning", "lightning.pytorch",
                  "LightningModule"),
    "transformers": ("transformers/trainer", "TrainingArguments", "per_device_train_batch_size",
                     "***** Running training *****", "Instantaneous batch size per device"),
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "accelerate": ("accelerate/", "accelerate launch", "accelerator.backward"),
    "vllm": ("vllm/", "vLLM", "vllm_ascend", "EngineCore"),
    "sglang": ("sglang/", "sglang.launch_server"),
}  # fmt: skip
"""What shows that one is in use; where several are, the first is whose settings are named."""

_ASSIGN = r"['\"]?[ \t]*(?:[=:,]|\.{3,}|[ \t])[ \t]*['\"]?"
_SETTINGS = {
    "micro_batch": ("per_device_train_batch_size", "train_micro_batch_size_per_gpu",
                    "micro_batch_size", "Instantaneous batch size per device",
                    "Batch size per device"),
    "grad_accum": ("gradient_accumulation_steps", "accumulate_grad_batches",
                   "Gradient Accumulation steps"),
    "global_batch": ("Total train batch size (w. parallel, distributed & accumulation)",
                     "global_batch_size", "total_batch_size"),
    "world_size": ("world_size", "WORLD_SIZE", "num_processes", "Num processes"),
    "ranks_per_node": ("nproc_per_node", "nproc-per-node", "NPROC_PER_NODE", "num_gpus"),
    "nodes": ("nnodes", "num_nodes", "num_node"),
    "seq_len": ("max_seq_length", "sequence_len", "seq_length", "max_seq_len", "seq_len",
                "cutoff_len", "block_size"),
    "vocab_size": ("vocab_size",),
    "zero_stage": ("zero_stage", "zero_optimization_stage", "ZeRO stage", "deepspeed_stage"),
    "workers": ("dataloader_num_workers", "num_workers"),
}  # fmt: skip
"""What each is called in logs."""
_MODEL = re.compile(
    r"\b(?:model_name_or_path|base_model|pretrained_model_name_or_path)" + _ASSIGN +
    r"([\w./][\w./-]{2,100})"
)  # fmt: skip
_STAGE = re.compile(
    r"zero_optimization['\"]?: *\{\s*['\"]stage['\"]: *([123])|\bdeepspeed_stage_([123])"
    r"|(?:\bds_z|zero)_?([123])(?:_\w{1,30})?\.json|--deepspeed[ =]zero([123])\b"
)
_SWITCHES = {
    "checkpointing": rf"\bgradient_checkpointing{_ASSIGN}[Tt]rue"
    r"|--gradient[_-]checkpointing[ \t]*(?:\\|--|$)"
    r"|[Gg]radient checkpointing enabled|incompatible with gradient checkpointing"
    r"|activation_checkpointing: *true|--recompute-granularity",
    "expandable": r"(?<!setting[ \n])PYTORCH_(?:CUDA_|HIP_|NPU_)?ALLOC_CONF['\"]?[=:] ?['\"]?"
    r"[\w:,.]{0,60}expandable_segments:True",
    "lora": rf"\b(?:finetuning_type|train_type|tuner_type|adapter){_ASSIGN}q?lora\b"
    rf"|\buse_(?:peft|lora){_ASSIGN}[Tt]rue|\|\| trainable%|LoraConfig\(|--lora_(?:r|rank)\b"
    r"|peft/tuners/lora|lora_finetune|LoRAFinetune",
    "offload": r"offload_optimizer['\"]?: *\{\s*['\"]device['\"]: *['\"](?:cpu|nvme)"
    r"|offload_optimizer_device: *(?:cpu|nvme)|cpuoffload|_offload_config\.json|DeepSpeedCPUAdam"
    r"|fsdp_offload_params: *true|_offload['\"]\)",
    "sharded": r"torch/distributed/fsdp/|full_shard|FULL_SHARD|--enable_fsdp"
    r"|fully_sharded_data_parallel|fsdp\w{0,30}\.ya?ml",
}
"""What a log shows to be on already."""
_SWITCH = {name: re.compile(pattern, re.MULTILINE) for name, pattern in _SWITCHES.items()}
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_STEP = re.compile(
    r"\b(?:global_?)?(?:step|iter|iteration)\b['\"]?(?:\s*[:=/]\s*|\s+)\[?(\d{1,9})\b"
    r"|\bepoch(?:\(train\))?:? *\[\d+\] ?\[ *(\d{1,9})/\d+\]",
    re.IGNORECASE,
)
_BAR = re.compile(r"\b(\d{1,9})/\d{1,9} \[\d*:?\d+:\d\d<")
_NO_TRAINING = re.compile(
    r"[Ll]oading|shards|Map\b|[Tt]okeniz|ownload|Filter|Generat|files|[Vv]alid|[Ee]val|slurm|srun"
    r"|CANCELLED|StepId"
)
_MEMORY = re.compile(
    r"(?P<key>[\w/]{0,24}(?:mem|alloc|reserved|\bMA|\bCA)[\w/]{0,24})"
    r"(?: ?\(?(?P<key_unit>[GM]i?B)\)?)?['\"]?\s*[:=]?\s*['\"]?"
    r"(?P<size>\d+(?:\.\d+)?) ?(?P<unit>[GM]i?B?\b)?",
    re.IGNORECASE,
)  # fmt: skip
_MOST_SAMPLES = 4000


@dataclass(kw_only=True)
class Context:
    """Grows as texts of one log, or of several, are looked at."""

    seen: set[str] = field(default_factory=set)
    """Frameworks."""
    settings: dict[str, int] = field(default_factory=dict)
    model: str | None = None
    switches: set[str] = field(default_factory=set)
    last_step: int | None = None
    ranks: set[int] = field(default_factory=set)
    memory: dict[tuple[str, int | None], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By what it is called and the rank that says it: steps, and bytes."""

    @property
    def framework(self) -> str | None:
        return next((name for name in FRAMEWORKS if name in self.seen), None)

    @property
    def ranks_said(self) -> int | None:
        """The number of ranks, where the log says it."""
        ranks = self.settings.get("ranks_per_node", 0) * self.settings.get("nodes", 1)
        return self.settings.get("world_size", ranks) or None

    @property
    def world_size(self) -> int | None:
        """As far as the log shows: at least the ranks that say something."""
        return max(self.ranks_said or 0, max(self.ranks, default=-1) + 1) or None

    def look(self, lines: Sequence[str]) -> None:
        """Take from `lines`, which follow one another, what they say."""
        text = _COMMENT.sub("", "\n".join(lines))
        self._frameworks(text)
        self._settings(text)
        for line in lines:
            step = step_of(line)
            if step is not None:
                self.last_step = step
            if self.last_step is not None and ("mem" in line or "lloc" in line or "MA " in line):
                self._memory(line, self.last_step)

    def _frameworks(self, text: str) -> None:
        for name, marks in FRAMEWORKS.items():
            if name not in self.seen and any(mark in text for mark in marks):
                self.seen.add(name)

    def _settings(self, text: str) -> None:
        for name, keys in _SETTINGS.items():
            for key in keys:
                # Looked for first, since that is fast.
                if name not in self.settings and key in text:
                    match = re.search(rf"\b{re.escape(key)}{_ASSIGN}(\d{{1,9}})\b(?! !=)", text)
                    if match:
                        self.settings[name] = int(match[1])
        if self.model is None and any(key in text for key in ("model_name", "base_model")):
            match = _MODEL.search(text)
            self.model = match[1] if match else None
        if "zero_stage" not in self.settings and (match := _STAGE.search(text)):
            self.settings["zero_stage"] = int(match[match.lastindex or 0])
        self.switches |= {
            name
            for name, pattern in _SWITCH.items()
            if name not in self.switches and pattern.search(text)
        }

    def _memory(self, line: str, step: int) -> None:
        if "ried to allocate" in line:
            return
        rank = take_apart(line).rank
        for match in _MEMORY.finditer(line):
            unit, key = match["unit"] or match["key_unit"], match["key"]
            if unit is None or "max" in key.lower() or "peak" in key.lower():
                continue
            size, series = parse(f"{match['size']} {unit}"), self.memory[key, rank]
            if size and (not series or series[-1][0] < step) and len(series) < _MOST_SAMPLES:
                series.append((step, size))

    def grown(self) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
        """What memory grew, from which step and size to which; None where none did.

        Growth is at least 10 % over at least five samples of which three quarters rise, with
        the second half of them rising too: caches fill at the beginning.
        """
        for (key, _), series in self.memory.items():
            sizes = [size for _, size in series]
            if (
                len(sizes) < 5
                or sizes[-1] < 1.1 * sizes[0]
                or sizes[-1] < 1.03 * sizes[len(sizes) // 2]
            ):
                continue
            rising = sum(b > a for a, b in pairwise(sizes))
            if rising >= 0.75 * (len(sizes) - 1):
                return key, series[0], series[-1]
        return None


def step_of(line: str) -> int | None:
    """The step that a line is of."""
    words = ("tep", "ter", "<", "poch")
    if not any(word in line for word in words) or _NO_TRAINING.search(line):
        return None
    match = _STEP.search(line) or _BAR.search(line)
    return int(match[match.lastindex or 0]) if match else None
