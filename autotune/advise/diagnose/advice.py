"""Remedies: one row each, in the order of their cost in training speed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from autotune.advise.diagnose.advice_host import HOST, LISTED, leak, smaller, tensor
from autotune.advise.diagnose.case import Advice, Case, Measure, as_said, of, of_deepspeed, to
from autotune.advise.diagnose.causes import (
    BY_NOW,
    COPYING,
    GATHERING,
    IDLE_SHARE,
    LEFT,
    NOT_SAID,
    lister,
)
from autotune.advise.diagnose.context import JOBS
from autotune.advise.diagnose.flags import OPTIMIZERS, FlagSetting
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.settings import (
    CHECKPOINTING,
    FUSED_LOSS,
    LENGTH,
    LOADING,
    MICRO,
    OFFLOAD,
    SERVING,
    STAGE,
    VARIABLE,
)
from autotune.units import gib


def advice(case: Case) -> list[Advice]:
    """Remedies for `case`, the cheapest first. Of rows with one name, the first counts."""
    rows = _ROWS[case.event.kind]
    if case.event.kind is Kind.LISTING:
        rows = _LISTED.get(case.causes[0].name, ()) if case.causes else ()
    found: dict[str, Advice] = {}
    for row in rows:
        if (each := row(case)) is not None:
            found.setdefault(each.name, each)
    return list(found.values())


def command(case: Case) -> str | None:
    """The command line that measures which remedy is best."""
    if case.event.kind not in (Kind.DEVICE, Kind.BATCH, Kind.HOST, Kind.KILLED):
        return None
    if case.event.kind in (Kind.HOST, Kind.KILLED) and not case.on("offload"):
        return None  # a search only changes memory of the device
    if case.framework in (*SERVING, "jax", "tensorflow", "paddle"):
        return None
    if case.event.backend in _ELSEWHERE or case.event.wording.name in ("ascend", "metal"):
        return None
    context, parts = case.context, ["python -m autotune --budget 30m"]
    settings = context.settings
    micro, accum = settings.get("micro_batch"), settings.get("grad_accum")
    ranks, script = context.ranks_said, _script(case)
    if script:
        parts.append(f"--script {shlex.quote(script)}{_phase_args(case)}")
    else:
        parts.append(f"--model hf:{context.text('model')}")
    parts.append(f"--micro-batch 1:{max(2, micro or 16)}")
    if "seq_len" in settings and (not script or "{seq_len}" in script):
        parts.append(f"--seq-len {settings['seq_len']}")
    batch = settings.get("global_batch") or (
        micro * accum * ranks if micro and accum and ranks else 0
    )
    if batch and (not script or "{grad_accum}" in script):
        parts.append(f"--global-batch {batch}")
    if not script:
        parts.append("--checkpointing none,full")
    if (context.world_size or 1) > 1 and not script:
        parts.append("--zero 0,1,2,3")
        if case.event.kind is Kind.DEVICE:
            parts.append("--offload none,optimizer")
    if case.event.amounts.total and case.event.kind is Kind.DEVICE:
        parts.append(f"--capacity {case.event.amounts.total / 2**30:.2f}GiB")
    return " ".join(parts)


@dataclass(frozen=True)
class Again:
    """The user's own command line, launcher included, with applicable remedies."""

    command: str
    numbers: tuple[int, ...]
    """Numbers of the remedies in it, from 1."""


def again(case: Case, found: Sequence[Advice]) -> Again | None:
    """The command line with those of `found` that are variables, or flags of it."""
    command, numbers = case.context.text("launch"), []
    if command is None:
        return None
    for number, each in enumerate(found, 1):
        before = command
        if each.name == "smaller micro-batch" and (
            micro := case.context.settings.get("micro_batch")
        ):
            half = max(1, micro // 2)
            accum = case.context.settings.get("grad_accum", 1) * micro // half
            command = _filled(case, command, {"micro": str(half), "accum": str(accum)})
        if each.name == "allocator":
            kept = re.sub(r"\bPYTORCH_\w*ALLOC_CONF=\S+ +", "", command)
            command = f"{each.setting.removeprefix('export ')} {kept}"
        if command != before:
            numbers.append(number)
    return Again(command, tuple(numbers)) if numbers else None


def _phase_args(case: Case) -> str:
    """--phase-args for the phase in which memory ran out, if it is not training."""
    if not case.has("evaluation", "saving"):
        return ""
    soon = "<flags with which it does so soon>"
    if case.framework == "transformers":
        soon = "--eval_steps 5 --save_steps 5"
    return f" --phase-args {shlex.quote(soon)}"


def _script(case: Case) -> str | None:
    """The user's own command line with placeholders for searched values. If it names no batch:
    None for a known model, else the line with a flag for the batch."""
    command, batch = case.context.text("launch"), case.context.batch_flag
    if command is not None and "{" not in command:
        command = _OUT.sub(r"\1{out}", command)
        names = {"micro": "{micro_batch}", "accum": "{grad_accum}", "length": "{seq_len}"}
        command = _filled(case, command, names)
        if "{micro_batch}" in command:
            return command
    if case.context.text("model") is not None:
        return None
    flag = "<flag of its batch size> {}"
    if batch is not None and batch.form.startswith("-"):
        flag = batch.form
    elif case.framework == "transformers":
        flag = "--per_device_train_batch_size {}"
    whole = command if "{" not in (case.context.text("launch") or "{") else "<your command>"
    return f"{whole} {flag.format('{micro_batch}')}"


_OUT = re.compile(
    r"(?<!\S)(--(?:out(?:put)?|save|log(?:ging)?|default[-_]root)[-_]dir(?:=| +))"
    r"(?:'[^']*'|\"[^\"]*\"|\S+)"
)
"""A flag of a folder to which a script writes."""


def _filled(case: Case, command: str, values: dict[str, str]) -> str:
    """`command` with its values replaced by `values`."""
    flags = {
        "micro": case.context.batch_flag,
        "accum": case.context.last("grad_accum", written=True),
        "length": case.context.last("seq_len", written=True),
    }
    for name, value in values.items():
        now = flags[name]
        if now is not None:
            said = re.escape(now.form).replace(r"\{\}", r"\d+").replace(r"\ ", " +")
            said = rf"(?<!\S){said}(?!\S)"
            command = now.form.format(value).join(re.split(said, command))
    return command


_FRAME = re.compile(r"(?P<file>\S+\.py):(?P<line>\d+) in ")
_LIBRARIES = re.compile(r"(?:site|dist)-packages/|/lib/python3|^(?:torch|transformers)/")
_TRAINER_STEP = re.compile(r"in (?:training_step|train_step|_inner_training_loop)\b")
"""A frame of a library that trains."""
_ELSEWHERE = ("MPS", "XPU", "NPU", "MUSA", "MLU", "TPU", "VULKAN")
"""Backends that autotune cannot measure."""
_BEFORE_2_1 = re.compile(r"\(GPU \d+; [^)]*total capacity")
"""The message of torch before it had expandable segments."""


def _stop_others(case: Case) -> Advice | None:
    a = case.event.amounts
    if case.causes[0].name in (NOT_SAID, BY_NOW):
        return to(
            "look who holds it", "see who else is on this device",
            f"{lister(case.event)}; python -m autotune diagnose", "what others hold", "nothing",
        )  # fmt: skip
    if not case.has("another process"):
        return None
    if a.others:
        pids = [pid for pid, _ in a.others]
        what = f"stop process {', '.join(map(str, pids))}, if it is not needed"
        setting = "; ".join(f"ps -o pid,user,etime,args -p {p} && kill {p}" for p in pids[:3])
    else:
        what, setting = (
            "stop what else runs on this device",
            f"{lister(case.event)}; python -m autotune diagnose",
        )
    held = a.others_bytes
    return to("stop others", what, setting, f"{gib(held)}" if held else "all it holds", "nothing")


def _own_device(case: Case) -> Advice | None:
    if not case.has("contexts of other ranks"):
        return None
    return to(
        "own device", "let each rank open its own device only",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before all else on CUDA',
        "what the other ranks hold there", "nothing",
    )  # fmt: skip


def _allocator(case: Case) -> Advice | None:
    event, a = case.event, case.event.amounts
    if case.on("expandable"):
        return None
    if event.wording.name != "torch" or event.backend not in (None, "CUDA", *VARIABLE):
        return None
    least = a.asked if case.has(BY_NOW) else a.short
    if a.unallocated is not None and a.unallocated < max(least or 1, IDLE_SHARE * (a.total or 0)):
        return None
    if a.unallocated is None and not case.has(NOT_SAID):
        return None
    if case.has("a corrupt size") or (a.total and max(a.asked or 0, a.allocated or 0) > a.total):
        return None
    saving = "not known: the message does not say what is reserved and unused"
    if a.unallocated:
        saving = f"up to {gib(a.unallocated)}, which is reserved and unused"
    usual = VARIABLE.get(event.backend or "", "PYTORCH_CUDA_ALLOC_CONF")
    variable, now = case.context.allocator
    variable = variable or usual
    if _BEFORE_2_1.search(event.text):
        if "max_split_size_mb" not in event.text:  # older versions have no setting
            if not case.has("fragmentation"):
                return None
            return to(
                "newer torch", "let the allocator join its pieces, which torch can do since 2.1",
                f"pip install 'torch>=2.1'; export {variable}=expandable_segments:True", saving,
                "next to nothing, but an upgrade",
            )  # fmt: skip
        return to(
            "allocator", "keep the allocator from splitting large pieces; torch 2.1 and later can"
            " join them: expandable_segments:True", f"export {variable}=max_split_size_mb:128",
            saving, "a little",
        )  # fmt: skip
    return to(
        "allocator", "let the allocator join its pieces",
        f"export {variable}={','.join([*_kept(now), 'expandable_segments:True'])}",
        saving, "next to nothing",
    )  # fmt: skip


def _kept(options: str) -> list[str]:
    """Present options of the allocator that are possible with expandable segments."""
    return [
        each for each in re.split(r",(?![^\[]*\])", options)
        if each and not each.startswith(("expandable_segments", "max_split_size_mb", "backend"))
    ]  # fmt: skip


def _limit(case: Case) -> Advice | None:
    if case.event.backend == "MPS" and not case.on("watermark"):
        return to("limit", "raise the limit", "export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
                   "what main memory has above it", "swapping, if there is no more")  # fmt: skip
    if not case.has("a limit of the program"):
        return None
    setting = "torch.cuda.set_per_process_memory_fraction(1.0)"
    if case.event.wording.name != "torch":
        setting = "a memory fraction of 0.9"
    return to("limit", "raise the limit", setting,
                  "the memory between limit and capacity", "nothing")  # fmt: skip


def _share(case: Case) -> Advice | None:
    a = case.event.amounts
    if not case.has("a share that is not free"):
        return None
    setting = "allow_growth = True, or a smaller memory_fraction"
    if a.total and a.free is not None:
        setting = f"--gpu-memory-utilization {max(0.05, int(20 * a.free / a.total) / 20):.2f}"
    return to("smaller share", "ask for a free share, or end the processes that hold the rest",
              setting, "nothing: less is asked for", "a smaller cache")  # fmt: skip


def _corrupt(case: Case) -> Advice | None:
    if not case.has("a corrupt size"):
        return None
    return to("corrupt size", "find where the size comes from: lengths and indices in the data, or"
              " a damaged checkpoint", "CUDA_LAUNCH_BLOCKING=1 <your command>", "all of it",
              "speed, until it is found")  # fmt: skip


def _loading(case: Case) -> Advice | None:
    if case.has("no room for the KV cache"):
        return to("cache", "leave more for the KV cache",
                   "--gpu-memory-utilization higher; --max-model-len lower; --enforce-eager",
                   "nothing: memory is used otherwise", "little")  # fmt: skip
    alone = (case.context.world_size or 1) < 2 and case.has("loading the model")
    if case.framework in JOBS or (alone and case.framework not in set(LOADING) - {"torch"}):
        return smaller(case)
    if not case.has("loading the model"):
        return None
    return to("load sharded", "do not make the whole model in every rank", of(LOADING, case),
                  "weights / ranks instead of all weights", "nothing")  # fmt: skip


def _apart(case: Case) -> Advice | None:
    """A remedy outside training steps."""
    if case.has("resuming"):
        return to("load to the host", "load the checkpoint into host memory first",
                  'torch.load(path, map_location="cpu")', "a copy of the weights and of the"
                  " optimizer's state", "nothing, once it is loaded")  # fmt: skip
    if case.has(LEFT):
        return to("free after evaluation", "give back what it left before training goes on",
                  "evaluate in torch.no_grad(); then del outputs; gc.collect();"
                  " torch.cuda.empty_cache()", "what it left", "little")  # fmt: skip
    if case.has(COPYING):
        return to(
            "copy to the host",
            "keep the copy in host memory",
            'kept = {n: each.to("cpu", copy=True) for n, each in model.state_dict().items()}',
            "the weights once",
            "a transfer for each copy",
        )
    if case.has("generation"):
        setting = "model.generate(prompts[:<half of now>], max_new_tokens=<half of now>)"
        if any("trl/" in each for each in case.event.trace):
            setting = "generation_batch_size=<half of now>; max_completion_length=<half of now>"
        return to("generate less at a time", "generate for fewer prompts, or fewer tokens",
                  setting, "half of the keys and values by either (a rule of thumb)",
                  "slower generation; shorter answers change the training")  # fmt: skip
    if not case.has("evaluation"):
        return None
    what, saving = (
        "take predictions off the device as they come",
        "all predictions but one batch's",
    )
    setting = "torch.no_grad(); predictions.append(output.argmax(-1).cpu())"
    if not GATHERING.search("\n".join(case.event.trace)):
        what, saving = "evaluate in smaller batches", "half at half the batch (a rule of thumb)"
        setting = "DataLoader(batch_size=<half of now>) for evaluation, in torch.no_grad()"
    if case.framework == "transformers":
        setting = as_said(
            "prediction_loss_only=True; eval_accumulation_steps=1; per_device_eval_batch_size=1",
            case,
        )
    elif case.framework == "llamafactory":
        setting = "eval_accumulation_steps: 1; per_device_eval_batch_size: 1"
    return to("evaluate less at a time", what, setting, saving, "no training speed")


def _inline(case: Case) -> Advice | None:
    """A remedy if the user's own code evaluates; a traceback may not show it."""
    own = [found for each in case.event.trace
           if (found := _FRAME.match(each)) and not _LIBRARIES.search(found["file"])]  # fmt: skip
    if not case.has("logits") or not case.training or (case.event.step or 0) < 2 or not own:
        return None
    if _TRAINER_STEP.search("\n".join(case.event.trace)):
        return None
    line = f"line {own[-1]['line']} of {own[-1]['file'].rpartition('/')[2]}"
    return to(
        "evaluate less at a time", f"if {line} is evaluation: lower its batch",
        "with torch.no_grad(): output = model(batch[:<half of now>])",
        "half at half the batch (a rule of thumb); the rest is about training",
        "no training speed",
    )  # fmt: skip


def _saving(case: Case) -> Advice | None:
    if not case.has("saving"):
        return None
    setting = "torch.distributed.checkpoint with sharded state dicts, or cpu_offload=True"
    if "deepspeed" in case.context.seen:
        setting = '"stage3_gather_16bit_weights_on_model_save": false'
    return to("save shards", "let each rank save what it holds", setting,
              "the whole model in one place", "nothing; put shards together later")  # fmt: skip


def _loss(case: Case) -> Advice | None:
    if not case.has("logits") or not case.training:
        return None
    asked = case.event.amounts.asked
    return to(
        "fused loss", "never hold all logits: fused or chunked loss", of(FUSED_LOSS, case),
        f"several tensors of about {gib(asked)} each (a rule of thumb)"
        if asked
        else "the logits",
        "nothing, or a little",
    )  # fmt: skip


def _micro_batch(case: Case) -> Advice | None:
    settings, asked = case.context.settings, case.event.amounts.asked
    micro, accum = settings.get("micro_batch"), settings.get("grad_accum", 1)
    if case.framework in SERVING:
        return to("fewer tokens", "keep less on the device at a time", SERVING[case.framework],
                   "their share of the cache and of activations", "requests wait")  # fmt: skip
    if micro == 1 or not case.training or case.event.wording.name == "no-batch":
        return None
    half = max(1, (micro or 0) // 2)
    values = {"micro": str(half), "accum": str(accum * micro // half)} if micro else {}
    setting = "; ".join(_settings(case, **values))
    saving = "about half of the activations (a rule of thumb)"
    if asked:
        saving += (
            f"; a request of {gib(asked)} that grows with the batch becomes {gib(asked // 2)}"
        )
        free = case.event.amounts.free
        if case.event.amounts.short and free is not None:
            more = asked // 2 - free
            saving += (
                f", {gib(more)} more than was free: the activations have to give these"
                if more > 0 else f", and {gib(free)} were free"
            )  # fmt: skip
    if micro and micro % 2:
        saving += f"; the global batch is the same where {half} divides it"
    return to("smaller micro-batch", "half the micro-batch, twice the accumulation: the same"
                  " global batch", setting, saving, "a few percent (a rule of thumb)")  # fmt: skip


def _settings(case: Case, micro: str = "<half of now>", accum: str = "<twice now>") -> list[str]:
    """Micro-batch and accumulation, by their names in the log, else in the framework."""
    usual = MICRO.get(case.framework, MICRO["torch"])
    written = [
        case.context.batch_flag,
        case.context.last("grad_accum", written=True),
    ]
    first, second = (
        each.form.format(value) if each else as_said(text.format(micro=micro, accum=accum), case)
        for each, value, text in zip(written, (micro, accum), usual, strict=True)
    )
    whole = case.context.last("global_batch", written=True)
    if all(written[:1]) and "grad_accum" not in case.context.settings and _is_asked(whole):
        second = f"leave {whole.form.format(whole.value)}: accumulation follows from it"
    return [first, second]


def _is_asked(whole: FlagSetting | None) -> TypeGuard[FlagSetting]:
    """Whether the global batch `whole` was requested, as in Megatron, and is no mere sum."""
    return whole is not None and bool(re.match(r"-|.*(?:global|gbs)", whole.form))


def _checkpointing(case: Case) -> Advice | None:
    if case.on("checkpointing") or not case.training or case.framework == "llamafactory":
        return None
    return to(
        "checkpointing", "recompute activations in the backward pass", of(CHECKPOINTING, case),
        "activations of one block instead of all (a rule of thumb)",
        "a fourth to a third of the speed (a rule of thumb)",
    )  # fmt: skip


def _stage(case: Case) -> Advice | None:
    if case.has("evaluation", "saving"):
        return None
    ranks, stage = case.context.world_size or 1, case.context.settings.get("zero_stage", 0)
    if ranks < 2 or stage >= 3 or case.framework not in STAGE or case.on("sharded"):
        return None
    said = case.context.ranks_said
    share = 1 - 1 / ranks
    part = f"{share:.0%}" if said == ranks else f"at least {share:.0%}"
    more = ""
    if said != ranks:
        more = f" (the log shows at least {ranks} devices{f' and {said} ranks' if said else ''})"
    if case.on("lora"):
        return to(
            "stage", f"shard the weights over the ranks{more}; an adapter has little other state",
            of_deepspeed(STAGE, case).format(stage=3), f"{part} of 2 bytes a parameter (bf16)",
            "communication; little within a machine",
        )  # fmt: skip
    state = 2 if stage else OPTIMIZERS[case.context.text("optimizer") or "adam"]
    return to(
        "stage", f"shard the training state over the ranks{more}",
        of_deepspeed(STAGE, case).format(stage=3 if stage or case.has("loading the model") else 2),
        f"{part} of {_state(case, state, share)}", "communication; little within a machine",
    )  # fmt: skip


def _state(case: Case, each: int, share: float = 1.0) -> str:
    """In words, what takes `each` bytes a parameter; in bytes, a `share` of that."""
    name = case.context.text("optimizer") or "adam"
    parameters = case.context.parameters
    size = ""
    if parameters:
        saved = gib(round(share * each * parameters))
        size = f": {saved} with {parameters / 1e9:.2g}e9 parameters"
    title = name.upper() if name == "sgd" else name.capitalize()
    whose = "the weights'" if each == 2 else "the optimizer's"
    return (
        f"{whose} {each} bytes a parameter{size}; training takes {OPTIMIZERS[name] + 4} in all, in"
        f" mixed precision with {title} (a rule of thumb)"
    )


def _offload(case: Case) -> Advice | None:
    if case.framework in (*SERVING, "tensorflow", "paddle") or case.event.backend == "MPS":
        return None
    if case.on("offload", "lora"):
        return None
    if case.has("loading the model", "evaluation", "saving", "a corrupt size"):
        return None
    ranks = case.context.world_size or 1
    parts = ranks if case.context.settings.get("zero_stage") or case.on("sharded") else 1
    state = _state(case, OPTIMIZERS[case.context.text("optimizer") or "adam"], 1 / parts)
    part = f"a rank's 1/{parts} of " if parts > 1 else ""
    return to(
        "offload", "keep the optimizer's state in host memory", of_deepspeed(OFFLOAD, case),
        f"{part}{state}; as much host RAM is taken",
        "much: the optimizer step runs on the CPU",
    )  # fmt: skip


def _length_first(case: Case) -> Advice | None:
    """For long samples that a person tells of."""
    return _length(case) if "long" in case.context.told else None


def _length(case: Case) -> Advice | None:
    if case.framework in JOBS or not (case.training or case.framework in SERVING):
        return None
    settings, name = case.context.settings, "seq_len"
    if name not in settings and (case.context.images or "image" in settings):
        name = "image"
    length, written = settings.get(name), case.context.last(name, written=True)
    if name == "image":
        form = written.form if written else "resize or crop to {}"
        return to(
            "smaller images", "take smaller images, or crops of them",
            form.format(length // 2 if length else "<half of now>"),
            "three fourths of the activations at half the side (a rule of thumb)",
            "no speed, but what is trained is another",
        )  # fmt: skip
    return to(
        "shorter sequences", "cut sequences, or sort them by length",
        (written.form if written else of(LENGTH, case)).replace("{}", "{length}").format(
            length=length // 2 if length else "<half of now>"),
        "half of the activations at half the length (a rule of thumb)",
        "no speed, but it changes the training",
    )  # fmt: skip


_ROWS: dict[Kind, tuple[Measure, ...]] = dict.fromkeys(Kind, ()) | {
    Kind.DEVICE: (
        _share, _stop_others, _own_device, _limit, leak, _corrupt, tensor, _allocator, _loading,
        _saving, _apart, _inline, _loss, _length_first, _micro_batch, _checkpointing, _stage,
        _offload, _length,
    ),
    Kind.MEMORY: (
        _stop_others, leak, _loading, _saving, _apart, _loss, _micro_batch, _checkpointing,
        _length, *HOST[Kind.KILLED],
    ),
    **{kind: (_saving, *rows) for kind, rows in HOST.items()},
}  # fmt: skip
_LISTED: dict[str, tuple[Measure, ...]] = {
    **LISTED,
    "device memory": (_micro_batch, _checkpointing, _stage, _offload),
}
"""Remedies by the name of the bottleneck."""
