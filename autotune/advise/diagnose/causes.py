"""Causes of out-of-memory errors, by arithmetic with the log's own numbers.

Each rule looks at one event in its context. The first one that applies is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from autotune.advise.diagnose.amounts import OTHERS_SHARE
from autotune.advise.diagnose.context import Context
from autotune.advise.diagnose.events import Event
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.loads import Cause
from autotune.advise.diagnose.settings import LISTS
from autotune.units import gib

LEFT, OF_ONE = "left by an evaluation", "a limit of one allocation"
COPYING = "a copy of the model"
NOT_SAID, BY_NOW = "not said", "free by now"
"""Names of the first cause if the message does not tell it."""
CONTEXT_BYTES, CONTEXT_SHARE = 3 * 2**30, 0.05
"""Above both, or above a third of a device, memory is more than a process's context."""
CONTEXT_OF_RANK = 2 * 2**30
"""A rank that only opened the device, and joined an NCCL group, holds less."""
ALIKE = 1.2
SMALLEST_SEGMENT = 20 * 2**20
"""The least bytes that torch's allocator takes from the device, except for tiny requests."""
XPU_LIMIT = 2**32
"""Drivers of Intel GPUs may refuse a larger allocation."""
LARGEST_DEVICE, CORRUPT_BYTES = 2**39, 2**44
"""No device has so much; and a program that asks for so much computed it wrongly."""
SMALL_FRACTION = 0.5
"""A program that may take no more of a device mostly runs into that limit."""
IDLE_SHARE = 0.035
"""A smaller reserved and unallocated share of a device is no fragmentation."""
FULL_SHARE = 0.01
"""With a smaller free share, a device is full."""
LARGE_TENSOR = 4 * 2**30
LARGE_SHARE = 0.1
"""A request of this share of a device gets a remark."""


def lister(event: Event) -> str:
    """The tool that lists who holds the device of `event`."""
    return LISTS.get(event.backend or "", "nvidia-smi")


def causes(event: Event, context: Context) -> list[Cause]:
    """The causes of `event`, the main one first."""
    found = [each for rule in _RULES[event.kind] if (each := rule(event, context)) is not None]
    if not found and event.kind is Kind.DEVICE:
        found = [_too_big(event)]
        who = context.listing.holders(event.devices)
        if found[0].name == NOT_SAID and who:
            found = [replace(found[0], sentence=f"{found[0].sentence}. In the log, {who}")]
    return found


def own_bytes(total: int) -> float:
    """The most bytes of a process's context on a device of `total` bytes."""
    return min(max(CONTEXT_BYTES, CONTEXT_SHARE * total), total / 3)


def _other_process(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    others, outside = a.others_bytes, a.outside or 0
    total = a.total or 0
    own = own_bytes(total)
    if others is None and outside > own:
        return Cause(
            "another process",
            f"{gib(outside)} are in use that torch did not reserve here. A process's context takes"
            f" less than {gib(round(own))} (a rule of thumb): others, or libraries, hold most",
        )
    if len(a.others) > 1 and not others:
        return Cause(
            "contexts of other ranks",
            f"{len(a.others)} other processes have this device open, the message cannot say how"
            " much they hold: mostly ranks of the same run that did not choose their own device"
            " (a rule of thumb)",
        )
    if not others or others <= OTHERS_SHARE * total or others < (a.short or 0):
        return None
    sizes = [size for _, size in a.others]
    if len(sizes) > 1 and max(sizes) <= min(CONTEXT_OF_RANK, ALIKE * min(sizes)):
        return Cause(
            "contexts of other ranks",
            f"{len(a.others)} other processes hold {gib(others)} here, a context each: mostly"
            " ranks of the same run that did not choose their own device (a rule of thumb)",
        )
    who = " and ".join(f"process {pid} ({gib(size)})" for pid, size in a.others[:3])
    who += f" and {len(a.others) - 3} more" if len(a.others) > 3 else ""
    said = f"others hold {gib(others)} of the device" + (f": {who}" if who else "")
    lines: tuple[str, ...] = ()
    if a.asked is not None and a.free is not None:
        lines = (f"without them {gib(a.free + others)} would be free for {gib(a.asked)}",)
    return Cause("another process", said, lines)


def _told_device(event: Event, context: Context) -> Cause | None:
    if "one device" not in context.told or event.amounts.asked:
        return None
    return Cause(
        "contexts of other ranks", "the first device is fuller, as the text tells: mostly ranks of"
        " the same run that did not choose their own device (a rule of thumb)",
    )  # fmt: skip


_HUGE = re.compile(r"more than 1EB|\d PiB|\b\d{12,}[\d.]* ?[KMG]i?B|\b1844674407\d{10}\b")


def _corrupt(event: Event, context: Context) -> Cause | None:
    if not _HUGE.search(event.text) and (event.amounts.asked or 0) < CORRUPT_BYTES:
        return None
    return Cause(
        "a corrupt size",
        "nothing has that much memory: a shape or an offset was computed wrongly, or its file is"
        " damaged",
    )


def _vllm(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    if event.wording.name != "vllm" or not a.total or a.free is None:
        return None
    return Cause(
        "a share that is not free",
        f"it asks for a share of the device at its start, and {gib(a.total - a.free)} are in use"
        " already: by others, or by an earlier one that has not ended",
    )


def _started(event: Event, context: Context) -> Cause | None:
    """For programs that take a share of the device at their start, as TensorFlow does."""
    share, (free, total) = context.fraction, context.at_start or (0, 0)
    if event.amounts.total:
        return None
    if total - free > max(own_bytes(total), total / 10):
        return Cause("another process", f"only {gib(free)} of {gib(total)} were free as the run"
                     " started: others hold the rest")  # fmt: skip
    if share is not None and share <= SMALL_FRACTION:
        return Cause("a limit of the program", f"it allows itself {share:.0%} of the device")
    if share is not None and share * (total or 1) > (free or 0.9):
        return Cause("a share that is not free", f"it asks for {share:.0%} of the device at its"
                     " start: the driver and others hold a part of that")  # fmt: skip
    return None


def _nccl(event: Event, context: Context) -> Cause | None:
    if not event.wording.name.startswith("nccl"):
        return None
    return Cause(
        "outside torch",
        "NCCL's buffers are not in torch's allocator, which had left too little of the device",
    )


def _never(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    if a.asked is None or a.asked <= (a.total or LARGEST_DEVICE):
        return None
    if event.wording.name == "xla" and a.asked <= LARGEST_DEVICE:
        return None  # the request is the whole program's
    most = f"{gib(a.total)} in all = {a.asked / a.total:.1f}" if a.total else "no device has it"
    return Cause(
        "too big", "one request is larger than the whole device; no allocator setting helps",
        (f"{gib(a.asked)} asked / {most}",),
    )  # fmt: skip


def _fragmentation(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    if event.wording.name == "xla" and (a.free or 0) > (a.asked or 0):
        return Cause("fragmentation", "enough was free, but not in one piece where it was needed")
    if a.asked is None or not a.unallocated or a.unallocated < IDLE_SHARE * (a.total or 0):
        return None
    if a.total and (a.allocated or 0) > a.total:  # Windows lends a device main memory
        return None
    if a.unallocated >= a.asked:
        line = f"{gib(a.unallocated)} reserved but unallocated >= {gib(a.asked)} asked"
    elif a.total and a.short and a.unallocated >= max(a.short, LARGE_SHARE * a.total):
        line = (
            f"{gib(a.asked - a.short)} free + {gib(a.unallocated)} reserved but unallocated >="
            f" {gib(a.asked)} asked"
        )
    else:
        return None
    return Cause(
        "fragmentation", "torch holds enough unallocated memory, but in pieces that are too small",
        (line,),
    )  # fmt: skip


def _outside(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    if not a.process or not a.total or a.allocated is None:
        return None
    rest = a.process - a.allocated - (a.unallocated or 0)
    if rest < LARGE_SHARE * a.total:
        return None
    return Cause(
        "outside torch",
        f"{gib(rest)} of this process are not in torch's allocator: the driver and libraries",
    )


def _freed(event: Event, context: Context) -> Cause | None:
    a = event.amounts
    free = a.free
    if free is None:
        free = (a.total or 0) - (a.allocated or 0) - (a.unallocated or 0)
    if a.asked is None or free <= a.asked or event.wording.name == "xla":
        return None
    if free < max(FULL_SHARE * (a.total or 0), a.asked + SMALLEST_SEGMENT):
        return None  # the allocator takes whole segments
    if event.backend == "XPU" and a.asked >= XPU_LIMIT:
        return Cause(
            OF_ONE,
            f"{gib(free)} were free: drivers of Intel GPUs may limit one allocation, often to"
            f" {gib(XPU_LIMIT)} (a rule of thumb)",
        )
    if a.free is None:
        return None
    return Cause(
        BY_NOW,
        f"{gib(a.free)} were free when the message was written, more than was asked: another"
        " process or stream gave memory back meanwhile, or a limit below the capacity holds",
    )


def _leak(event: Event, context: Context) -> Cause | None:
    grown = context.grown(host=event.kind in (Kind.HOST, Kind.KILLED))
    if grown is None:
        return None
    key, (first, low), (last, high) = grown
    each, word = (high - low) / max(1, last - first), "step" if context.last_step else "epoch"
    return Cause(
        "a leak", f"memory grew from {word} to {word} ({key}); something keeps tensors alive",
        (f"{gib(low)} at {word} {first}, {gib(high)} at {word} {last}:"
         f" {gib(round(each))} more each {word}",),
    )  # fmt: skip


def _told_leak(event: Event, context: Context) -> Cause | None:
    if "a leak" not in context.told or _leak(event, context) or _phase(event, context):
        return None
    return Cause("a leak", "memory grew, as the text tells; something keeps tensors alive")


_LOADING = re.compile(
    r"(?:in |\.)from_pre(?:trained|set)\b|_load_(?:pretrained|state_dict)"
    r"|in load_(?:state_dict|checkpoint|model)|modeling_utils\.py|checkpoint_loader|model_loader"
    r"|safetensors|(?:torch|paddle)\.load\((?!.*cpu)|(?:module|model)\.to\(|t\.to\(device"
    r"|model\.cuda\(|_move_m\w+_to_device|in (?:_apply|convert|_materialize\w*)$|initialize_model",
    re.MULTILINE,
)
_FORWARD = re.compile(r"in forward$", re.MULTILINE)
_INITIALISING = re.compile(
    r"deepspeed\.initialize|deepspeed/__init__\.py|in _configure_(?:zero_)?optimizer"
    r"|initialize_optimizer_states|_broadcast_model|partition_parameters\.py"
    r"|in (?:_setup_for_real_optimizer|get_megatron_optimizer|_create_fp\w+_|_prepare_deepspeed)"
    r"|ds_initialize\(|dist\.Reducer\("
)
_OPTIMIZER = re.compile(
    r"torch/optim/|in _init_group|exp_avg|optimizer\.step\(|[/\\]optim[/\\](?:adam|optimizer)"
    r"|bitsandbytes/optim|apex/optimizers|optimizers/fused_|_init_optimizer_state"
)
_EVALUATION = re.compile(
    r"in (?:evaluate|predict|validate|nested_concat|torch_pad_and_concatenate|estimate_loss"
    r"|_?(?:on_)?(?:eval|evaluation|val|validation|predict|prediction)"
    r"_(?:step|loop|epoch|batch)(?:_end)?"
    r"|(?:_?run|do)_(?:eval|evaluate|evaluation|validation))\b"
)
TRAINING = re.compile(r"backward|optimizer|in train\w*$|training_step|_train_loop", re.MULTILINE)
GATHERING = re.compile(
    r"in (?:nested_(?:concat|gather)|torch_pad_and_concatenate|gather_(?:for_metrics|function)"
    r"|pad_across_processes|all_gather)\b"
)
"""Frames that join predictions of several batches or ranks."""
_SAVING = re.compile(
    r"in \w*(?:save_(?:ckpt|checkpoint|model|state)|state_dict_hook)|state_dict\(\) call"
    r"|serialization\.py:\d+ in _?save|in (?:async_save|save_file|save_pretrained)\b"
    r"|in (?:get_(?:model_|optimizer_)?state_dict|_?full_\w*state_dict|\w*optim_state_dict)\b"
)
_GENERATION = re.compile(r"in (?:generate|unwrap_model_for_generation)\b")
_COPYING = re.compile(r"in __deepcopy__\b")
_LOGITS = re.compile(
    r"cross_entropy|lm_head|(?<!return_)logits(?!\w* = \w*(?:model|net)\()"
    r"|loss_function|ForCausalLMLoss|_to_fp32|log_softmax|loss_utils\.py"
)


def _before_training(event: Event, context: Context) -> Cause | None:
    trace = "\n".join(event.trace)
    if event.step:
        return None
    if event.wording.name == "vllm" and event.amounts.total is None:
        return Cause("no room for the KV cache", "weights and warm-up left nothing for it")
    if _INITIALISING.search(trace) and ".to(self.device)" not in trace:
        return Cause(
            "before training started", "memory ran out while DDP, Megatron or DeepSpeed"
            " was set up: buffers and the optimizer's master weights; no batch was seen yet",
        )  # fmt: skip
    cut = context.loading or ("loading" in context.told and not trace)
    within = _SAVING.search(trace) or _FORWARD.search(trace)
    if cut or (_LOADING.search(trace) and not within):
        return Cause(
            "loading the model", "memory ran out while the model was loaded: every rank loads it"
            " whole, unless it is sharded; no batch was seen yet",
        )  # fmt: skip
    return None


def _first_step(event: Event, context: Context) -> Cause | None:
    if (event.step or 0) > 1 or not _OPTIMIZER.search("\n".join(event.trace or (event.text,))):
        return None
    a = event.amounts
    lines: tuple[str, ...] = ()
    if a.allocated is not None:
        lines = (f"{gib(a.allocated)} were allocated when the first state was to be added",)
    return Cause(
        "the first optimizer step",
        "optimizers make their state in the first step: Adam 8 bytes a parameter in fp32, which"
        " no forward or backward pass before it needed", lines,
    )  # fmt: skip


def _phase(event: Event, context: Context) -> Cause | None:
    trace = "\n".join(event.trace)
    told = set() if TRAINING.search(trace) else context.told
    if _EVALUATION.search(trace) or "evaluation" in told:
        where = ", where predictions are gathered" if GATHERING.search(trace) else ""
        return Cause("evaluation", f"memory ran out in evaluation{where}")
    if _SAVING.search(trace) or "saving" in told:
        return Cause("saving", "memory ran out while a checkpoint was put together for saving")
    if _COPYING.search(trace):
        return Cause(COPYING, "memory ran out as a model was copied: an average, a reference or"
                     " the best one takes its weights again")  # fmt: skip
    if _GENERATION.search(trace) and TRAINING.search(trace):
        return Cause("generation", "memory ran out as the trained model generated: keys and"
                     " values of all samples are held to their ends")  # fmt: skip
    if "resuming" in told:
        return Cause("resuming", "memory ran out as a run was resumed: the checkpoint's optimizer"
                     " state is loaded beside what is there, mostly on one device")  # fmt: skip
    return None


def _left(event: Event, context: Context) -> Cause | None:
    if _phase(event, context) or not (event.validated or "left" in context.told):
        return None
    return Cause(
        LEFT, "memory ran out in training soon after an evaluation or a generation: what it"
        " made is held still, or its sizes split the allocator's pieces (a rule of thumb)",
    )  # fmt: skip


def _logits(event: Event, context: Context) -> Cause | None:
    if not _LOGITS.search("\n".join(event.trace)):
        return None
    asked, vocabulary = event.amounts.asked, context.settings.get("vocab_size")
    lines: tuple[str, ...] = ()
    if asked and vocabulary:
        lines = (f"{gib(asked)} asked / {vocabulary} words / 4 bytes ="
                 f" {asked // vocabulary // 4} tokens in fp32",)  # fmt: skip
    return Cause(
        "logits", "memory ran out at the logits or the loss: tokens x vocabulary, held several"
        " times", lines,
    )  # fmt: skip


def _longer_sample(event: Event, context: Context) -> Cause | None:
    if "long" in context.told and event.amounts.asked is None:
        return Cause("a longer sample", "the text tells of long samples")
    later = "later" in context.told or (event.step or 0) > 1
    if not later or _phase(event, context) or _left(event, context):
        return None
    return Cause(
        "a longer sample",
        f"{event.step or 'many'} steps had fit; what changes from step to step is the batch,"
        " mostly the length of its samples (a rule of thumb: the log does not say lengths)",
    )


def _too_big(event: Event) -> Cause:
    a = event.amounts
    if a.short and a.allocated is None and a.process is None:
        return Cause(
            NOT_SAID, f"{gib(a.short)} are missing; the message does not say who held the rest"
        )
    if a.short:
        lines = []
        if a.asked and a.total and a.asked >= LARGE_SHARE * a.total:
            lines = [f"one request of {a.asked / a.total:.0%} of the device: a tensor like logits"
                     " or attention scores (a rule of thumb)"]  # fmt: skip
        return Cause("too big", f"{gib(a.short)} are missing; nothing in the message points to"
                     " anything but need", tuple(lines))  # fmt: skip
    if a.asked and a.total and a.asked > a.total:
        return Cause("too big", f"it needs {gib(a.asked - a.total)} more than there is")
    held = (a.allocated or 0) + (a.unallocated or 0)
    if a.asked and a.total and held + a.asked > a.total:
        return Cause("too big", f"torch holds {gib(held)} of the device itself")
    if a.total and a.free is not None and a.free < FULL_SHARE * a.total:
        return Cause("too big", "the device is full; nothing in the message points to anything but"
                     " need")  # fmt: skip
    if event.wording.name == "cuda":
        return Cause(
            NOT_SAID,
            "the message is CUDA's own, not that of torch's allocator, and says no sizes:"
            f" {lister(event)} says who holds the device",
        )
    return Cause(
        NOT_SAID, f"the message does not say who held how much of the device: {lister(event)}"
        " does, as the run starts and before it fails"
    )  # fmt: skip


def _one_tensor(event: Event, context: Context) -> Cause | None:
    if event.wording.name != "tensor" or (event.amounts.asked or 0) < LARGE_TENSOR:
        return None
    return Cause(
        "one large tensor",
        f"a single request of {gib(event.amounts.asked or 0)} of main memory: of one tensor or"
        " array, where the traceback ends",
    )


def _host(event: Event, context: Context) -> Cause | None:
    workers = context.settings.get("workers")
    line = (f"the log names {workers} data-loading processes a rank",) if workers else ()
    what = (
        "each rank's copy of the model as it loads, data-loading workers, pinned buffers, offload"
    )
    if event.step:
        what = f"after {event.step} steps, so workers' copies, caches or lists of results grew"
    return Cause(
        "host RAM", "the machine's or the job's main memory ran out, not the device's:"
        f" {what} (a rule of thumb)", line,
    )  # fmt: skip


Rule = Callable[[Event, Context], Cause | None]


def _always(name: str, sentence: str) -> Rule:
    """The cause of all events of a kind."""
    return lambda event, context: Cause(name, sentence)


_killed = _always(
    "host RAM",
    "SIGKILL leaves no message. The usual sender is the kernel, when main memory runs out (a"
    " rule of thumb); `dmesg -T | grep -i oom` on that machine says whether it was",
)
_shared = _always(
    "shared memory",
    "/dev/shm is full: data-loading workers hand batches over there; Docker gives it 64 MiB",
)
_bus = _always(
    "shared memory",
    "SIGBUS leaves no message. Mostly /dev/shm, or the disk of a mapped file, is full (a rule"
    " of thumb); `df -h /dev/shm` on that machine says whether it is",
)


def _batch(event: Event, context: Context) -> Cause | None:
    said = dict(event.groups)
    lines: tuple[str, ...] = ()
    if {"global", "micro", "world"} <= said.keys():
        whole, micro, world = (int(said[name]) for name in ("global", "micro", "world"))
        accum = int(said.get("accum", 1))
        lines = (f"{micro} x {accum} x {world} = {micro * accum * world}, not {whole}",)
        if micro * world and whole % (micro * world) == 0:
            lines += (f"{micro} x {whole // (micro * world)} x {world} = {whole} would do",)
    return Cause(
        "batch sizes", "global batch = micro-batch x accumulation x data-parallel ranks does not"
        " hold; no memory ran out", lines,
    )  # fmt: skip


_some = _always(
    NOT_SAID,
    "the words are those of memory that ran out: nvidia-smi shows the devices',"
    " `free -g` and `dmesg -T | grep -i oom` the host's",
)
_RULES: dict[Kind, tuple[Rule, ...]] = dict.fromkeys(Kind, ()) | {
    Kind.DEVICE: (
        _corrupt, _vllm, _started, _freed, _other_process, _told_device, _never, _leak,
        _before_training, _first_step, _phase, _fragmentation, _outside, _told_leak, _left,
        _logits, _nccl, _longer_sample,
    ),
    Kind.HOST: (_corrupt, _leak, _phase, _one_tensor, _told_leak, _host, _before_training),
    Kind.SHARED: (_shared,),
    Kind.MEMORY: (_phase, _before_training, _first_step, _leak, _told_leak, _left, _logits, _some),
    Kind.KILLED: (_leak, _phase, _told_leak, _killed, _before_training),
    Kind.BUS: (_bus,),
    Kind.BATCH: (_batch,),
}  # fmt: skip
