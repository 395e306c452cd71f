"""What the user asked for: every option of a study, declared once.

A field of `Options` holds what its option means; its `Flag` says how it is written, what it is for
and how its text is read. The command line, the TOML table, the manifest and `--resume` all come
from here. Nothing here looks at a device: what depends on one stays `None` until the testbed
fills it in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from autotune.errors import UsageError
from autotune.space import choices, engines
from autotune.space.axes import AXES, SCRIPT_AXES, ZERO_STAGES
from autotune.space.command import Command, parse_own, parse_set
from autotune.space.engines import stages_of
from autotune.space.models import family_name, gpt
from autotune.space.models.defaults import Asked, GptTraits, Lora, Mlp, parse_lora
from autotune.space.models.gpt import PRESETS
from autotune.space.models.hf import TASKS, kept
from autotune.space.outcome import Objective
from autotune.space.workload import Dtype, GlobalBatch, parse_global_batch
from autotune.units import (
    parse_bytes,
    parse_duration_s,
    parse_int,
    parse_ints,
    parse_name,
    parse_share,
)
from autotune.wire.recipe import HEAD_DIM
from autotune.wire.settings import Axis

T = TypeVar("T")


class Topic(Enum):
    """Under which heading `--help` shows an option, in this order."""

    LIMITS = "Budget and limits"
    DEVICES = "Devices"
    SCRIPT = "Your own script"
    SPACE = "Space"
    SEARCH = "Search"
    OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How an option is written, and what it is for."""

    name: str
    """With its hyphens."""
    topic: Topic
    help: str
    metavar: str | None
    read: Callable[[str, str], Any]
    """Text and flag to what the option means. Raises `UsageError`."""
    type: Any
    """What `--help` shows of it: str, bool for a switch, or a Literal of its words."""
    default: str | None
    """As text, where `--help` shows it; None for "not given"."""
    also: str | None = None
    """Another name of it on the command line."""


def option(
    name: str,
    topic: Topic,
    read: Callable[[str, str], T],
    metavar: str | None,
    text: str,
    *,
    type: Any = str,
    default: str | None = None,
    silently: str | None = None,
    also: str | None = None,
) -> Any:
    """A field of `Options`. It is None unless a default is given, `silently` where the help text
    says what it is."""
    flag = Flag(
        name=name,
        topic=topic,
        help=text,
        metavar=metavar,
        read=read,
        type=type,
        default=default,
        also=also,
    )
    given = silently if default is None else default
    value = None if given is None else read(given, name)
    return field(default=value, metadata={"flag": flag})


def _word(known: Any) -> tuple[Any, Callable[[str, str], Any]]:
    """Type and reader of one of the words of a Literal type or of a tuple of them."""
    words = known if isinstance(known, tuple) else get_args(known)
    return Literal.__getitem__(words), partial(parse_name, known=words)


def _values(text: str, flag: str, axis: Axis) -> tuple[str, ...]:
    """The comma-separated values of `text`, each one of `axis`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if not axis.takes(name):
            raise UsageError(f"{flag} {name}: unknown; known: {', '.join(axis.known)}")
    return names


def _on(axis: str) -> Any:
    """The option that sets the values of an axis of words."""
    row = AXES[axis]
    topic = Topic.SCRIPT if axis in SCRIPT_AXES else Topic.SPACE
    return option(row.flag, topic, partial(_values, axis=row), row.metavar, row.help)


def _parts(text: str, flag: str, parse: Callable[[str], object]) -> str:
    """`text`, which `parse` takes."""
    parse(text)
    return text


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _yes(text: str, flag: str) -> bool:
    return parse_name(text, flag, known=("true", "false")) == "true"


def _as_it_is(text: str, flag: str) -> str:
    return text


def _path(text: str, flag: str) -> Path:
    return Path(text)


def _least_0(text: str, flag: str) -> tuple[int, ...]:
    return parse_ints(text, flag, least=0)


_ENGINE, _read_engine = _word(engines.NAMES)
_DTYPE, _read_dtype = _word(Dtype)
_OBJECTIVE, _read_objective = _word(Objective)
_MLP, _read_mlp = _word(Mlp)
_PRESET, _read_preset = _word(tuple(PRESETS))
_TASK, _read_task = _word(TASKS)
_SAMPLER, _read_sampler = _word(tuple(choices.SAMPLERS))

Parallel = int | Literal["auto"]
"""Probes at once; "auto" for as many as there is room for."""


def _read_parallel(text: str, flag: str) -> Parallel:
    if text.strip() == "auto":
        return "auto"
    try:
        found = parse_int(text, flag)
    except UsageError as error:
        raise UsageError(f"{error}, or auto") from error
    if found < 1:
        raise UsageError(f"{flag} {found}: must be at least 1, or auto")
    return found


_ON_CUDA, _ON_CPU = gpt.FAMILY.defaults({}, "cuda"), gpt.FAMILY.defaults({}, "cpu")


def _list(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


_TRAITS = tuple(each.name for each in fields(GptTraits))
"""Names of options that are traits of a gpt."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """One study as the user asked for it. `None` means: choose what fits the device."""

    # fmt: off
    budget_s: float = option(
        "--budget", Topic.LIMITS, parse_duration_s, "TIME",
        "Wall-clock time for everything, from start to the written best.json: 90s, 30m or"
        " 1.5h (default: 30m; of a resumed study what is left of it).", silently="30m")
    ceiling: float = option(
        "--ceiling", Topic.LIMITS, parse_share, "SHARE",
        "Share of a device's memory that a configuration may use at its peak.", default="80%")
    host_ceiling: float = option(
        "--host-ceiling", Topic.LIMITS, parse_share, "SHARE",
        "Share of the host's memory that all ranks together may use at their peak.",
        default="90%")
    capacity_bytes: int | None = option(
        "--capacity", Topic.LIMITS, parse_bytes, "SIZE",
        "Pretend that each rank's device has only this much memory, e.g. 24GiB (default: the"
        " smallest device's memory; on cpu the host's, divided by the ranks).")
    device: str = option(
        "--device", Topic.DEVICES, _as_it_is, "DEVICE",
        "auto, cpu, cuda for all GPUs, cuda:0,2 for some, or replay:FILE.csv for a grid that"
        " was recorded (auto: all GPUs where there are any, else cpu).", default="auto")
    allow_busy: bool = option(
        "--allow-busy", Topic.DEVICES, _yes, None,
        "Measure even though other processes use the devices.", type=bool, silently="false")
    world_size: int | None = option(
        "--world-size", Topic.DEVICES, parse_int, "N",
        "Ranks that train together (default: one per GPU; on cpu one per node).")
    launch: str | None = option(
        "--launch", Topic.DEVICES, choices.parse_launch, "LAUNCHER",
        f"Who starts an agent on each node: {', '.join(choices.WRITTEN)} (default: this machine"
        " alone; slurm in a Slurm job of several nodes).")
    nodes: int | None = option(
        "--nodes", Topic.DEVICES, parse_int, "N",
        "How many nodes take part (default: all that the launcher has).")
    interface: str | None = option(
        "--interface", Topic.DEVICES, _as_it_is, "NAME",
        "Interface, or address, of this host that other nodes reach it by (default: the one by"
        " which this host reaches them).")
    parallel: Parallel = option(
        "--parallel", Topic.DEVICES, _read_parallel, "N",
        "Probes that run at once, each on devices of its own: a number, or auto for as many as the"
        " devices hold; on cpu cores and memory are divided.", default="1")
    allow_mixed: bool = option(
        "--allow-mixed", Topic.DEVICES, _yes, None,
        "Have nodes that differ take part; limits are those of the smallest.",
        type=bool, silently="false")
    script: str | None = option(
        "--script", Topic.SCRIPT, _as_it_is, "COMMAND",
        "Tune this command instead of a model: your own script, with {micro_batch}, {seq_len} and"
        " so on where their values go, {out} for a scratch folder, {deepspeed_config},"
        " {accelerate_config} and {training_args} for files.")
    axis: str | None = option(
        "--axis", Topic.SCRIPT, partial(_parts, parse=parse_own), "AXIS",
        'An axis of a script\'s own, which goes where {attn} is: "attn=sdpa,eager". May be given'
        " several times.", type=list[str])
    given: str | None = option(
        "--set", Topic.SCRIPT, partial(_parts, parse=parse_set), "VALUE",
        "What goes into a script's command where {lr} is: lr=1e-4. May be given several times.",
        type=list[str])
    data_workers: tuple[str, ...] | None = _on("data_workers")
    pin_memory: tuple[str, ...] | None = _on("pin_memory")
    prefetch: tuple[str, ...] | None = _on("prefetch")
    model: str = option(
        "--model", Topic.SPACE, _as_it_is, "NAME",
        f"gpt, a decoder with rotary embeddings, RMSNorm and heads of {HEAD_DIM}; hf:PATH, the"
        " folder or file of a config of transformers; factory:MODULE:FUNCTION, your own; or one"
        f" that is kept here: {', '.join(kept())}, each also with -tiny.", default="gpt")
    task: str | None = option(
        "--task", Topic.SPACE, _read_task, None,
        "What a model of transformers is trained for (default: what its config says).",
        type=_TASK)
    target_len: int | None = option(
        "--target-len", Topic.SPACE, parse_int, "N",
        "Tokens that a seq2seq model's decoder says of a sample (default: a quarter of its"
        " seq_len).")
    lora: Lora | None = option(
        "--lora", Topic.SPACE, parse_lora, "LORA",
        "Train low-rank adapters instead of the model: r=16, or r=16,targets=q_proj+v_proj"
        " (default: all linear modules but the head).")
    trust_remote_code: bool = option(
        "--trust-remote-code", Topic.SPACE, _yes, None,
        "Run the code that a model's folder brings.", type=bool, silently="false")
    preset: str | None = option(
        "--preset", Topic.SPACE, _read_preset, None,
        "Traits of a known gpt, where nothing else is said: nanochat has heads of 128, 65536"
        " tokens, normed queries and keys, logits within 15, and Muon.", type=_PRESET)
    aspect_ratio: int | None = option(
        "--aspect-ratio", Topic.SPACE, parse_int, "N",
        f"Channels of a gpt for each block (default: {GptTraits().aspect_ratio}).")
    head_dim: int | None = option(
        "--head-dim", Topic.SPACE, parse_int, "N",
        f"Channels of a gpt's attention heads (default: {GptTraits().head_dim}).")
    mlp: Mlp | None = option(
        "--mlp", Topic.SPACE, _read_mlp, None,
        f"A gpt's MLP: squared ReLU, or SwiGLU (default: {GptTraits().mlp}).", type=_MLP)
    qk_norm: bool = option(
        "--qk-norm", Topic.SPACE, _yes, None, "Norm a gpt's queries and keys.", type=bool,
        silently="false")
    tied: bool = option(
        "--tied", Topic.SPACE, _yes, None, "Make a gpt's head of its embedding.", type=bool,
        silently="false")
    softcap: int | None = option(
        "--softcap", Topic.SPACE, parse_int, "N", "Keep a gpt's logits within this of 0.")
    width: int | None = option(
        "--width", Topic.SPACE, parse_int, "N",
        f"Channels of a gpt, a multiple of {HEAD_DIM} (default: {gpt.FAMILY.width_rule}).")
    vocab_size: int | None = option(
        "--vocab-size", Topic.SPACE, parse_int, "N",
        f"Tokens in a gpt's vocabulary (default: {_ON_CUDA.vocab_size}; on cpu"
        f" {_ON_CPU.vocab_size}).", also="--vocab")
    depth: tuple[int, ...] | None = option(
        "--depth", Topic.SPACE, parse_ints, "INTS",
        f"{AXES['depth'].help} (default: the model's own, 1 of a factory; of gpt"
        f" {_list(_ON_CUDA.depth)}, on cpu {_list(_ON_CPU.depth)}).")
    seq_len: tuple[int, ...] | None = option(
        "--seq-len", Topic.SPACE, parse_ints, "INTS",
        f"{AXES['seq_len'].help} (default: {_list(_ON_CUDA.seq_len)}; on cpu"
        f" {_list(_ON_CPU.seq_len)}).")
    micro_batch: tuple[int, ...] | None = option(
        "--micro-batch", Topic.SPACE, parse_ints, "INTS",
        f"{AXES['micro_batch'].help} (default:"
        f" {len(_ON_CUDA.micro_batch)} sizes from {_ON_CUDA.micro_batch[0]} to"
        f" {_ON_CUDA.micro_batch[-1]}; on cpu"
        f" {_ON_CPU.micro_batch[0]}:{_ON_CPU.micro_batch[-1]}).")
    tokens_per_batch: tuple[int, ...] | None = option(
        "--tokens-per-batch", Topic.SPACE, parse_ints, "INTS",
        "Tokens per rank and micro-step in the place of --micro-batch, which is then as many"
        " samples of each seq_len as these hold: for data in buckets of lengths.")
    length_mix: str | None = option(
        "--length-mix", Topic.SPACE, _as_it_is, "FILE",
        "Lengths of your samples: a CSV of length,count, a .npy of lengths, or a .jsonl with a"
        " number or an object with length or input_ids a line. The longest is searched (or"
        " --seq-len, which longer ones are cut to), and finals run on a mix padded as a collator"
        " does it.")
    pad_to_multiple: int | None = option(
        "--pad-to-multiple", Topic.SPACE, parse_int, "N",
        "Pad batches of a --length-mix to a multiple of N tokens (default: 1).")
    engine: str = option(
        "--engine", Topic.SPACE, _read_engine, None,
        "Training engine (auto: ddp for stage 0, deepspeed for the others).",
        type=_ENGINE, default=engines.AUTO)
    zero: tuple[int, ...] | None = option(
        "--zero", Topic.SPACE, _least_0, "INTS",
        AXES["zero_stage"].help)
    offload: tuple[str, ...] | None = _on("offload")
    checkpointing: tuple[str, ...] | None = _on("checkpointing")
    attention: tuple[str, ...] | None = _on("attention")
    compile: tuple[str, ...] | None = _on("compile")
    loss: tuple[str, ...] | None = _on("loss")
    param_dtype: tuple[str, ...] | None = _on("param_dtype")
    allocator: tuple[str, ...] | None = _on("allocator")
    dtype: Dtype = option(
        "--dtype", Topic.SPACE, _read_dtype, None,
        "Type of the matrix products (auto: bf16 where the GPU has it, else fp16; on cpu"
        " fp32).", type=_DTYPE, default="auto")
    optimizer: tuple[str, ...] | None = _on("optimizer")
    global_batch: GlobalBatch | None = option(
        "--global-batch", Topic.SPACE, parse_global_batch, "BATCH",
        "What one optimizer step must see over all ranks, in tokens (65536tok) or in samples"
        " (256); candidates that do not divide it are left out (default: one micro-step per"
        " rank, whatever that is).")
    objective: Objective = option(
        "--objective", Topic.SEARCH, _read_objective, None,
        "What to maximise; flops is model FLOP/s, which unlike the others does not favour the"
        " shallowest model.", type=_OBJECTIVE, default="flops")
    sampler: str = option(
        "--sampler", Topic.SEARCH, _read_sampler, None,
        "Who proposes candidates: frontier, by what it believes of all of them, or one of"
        " Optuna's samplers (gp needs scipy).", type=_SAMPLER, default=choices.SAMPLER)
    seed: int = option(
        "--seed", Topic.SEARCH, parse_int, "N",
        "Seed of the sampler, the weights and the data.", default="0")
    trials: int | None = option(
        "--trials", Topic.SEARCH, parse_int, "N",
        "End the search after this many trials (default: when the budget is spent).")
    finals: int = option(
        "--finals", Topic.SEARCH, parse_int, "N",
        "Best candidates that are measured again in fresh processes at the end.", default="3")
    learn_from: str | None = option(
        "--learn-from", Topic.SEARCH, _as_it_is, "DIR",
        "Study, or folder of studies, whose measurements on the same devices and software sharpen"
        " what is expected (default: the study's neighbours in results, or in a folder that"
        " autotune made; none for none).")
    out: Path | None = option(
        "--out", Topic.OUTPUT, _path, "DIR",
        "Folder for everything the study writes, new or empty (default: results/<UTC"
        " time>-<model>-<device>).")
    storage: str | None = option(
        "--storage", Topic.OUTPUT, _as_it_is, "URL",
        "Where the trials go: sqlite:///PATH or postgresql://HOST/NAME, a database that other"
        " programs can open, and processes share (default: optuna.log in the study's folder).")
    log: tuple[str, ...] | None = option(
        "--log", Topic.OUTPUT, choices.parse_loggers, "NAMES",
        f"Trackers whose files are written at the end, as well: {', '.join(choices.LOGGERS)}.")
    # fmt: on

    def __post_init__(self) -> None:
        if why := choices.SAMPLERS[self.sampler].missing:
            raise UsageError(
                f"--sampler {self.sampler}: {why}, or use --sampler {choices.SAMPLER}"
            )
        if self.script is None:
            self._refuse_what_is_of_scripts()
            self._check_gpt()
        else:
            self._check_script()
        if self.target_len is not None and self.target_len < 1:
            raise UsageError(f"--target-len {self.target_len}: must be at least 1")
        self._check_stages()
        if self.tokens_per_batch is not None and self.micro_batch is not None:
            raise UsageError(
                f"--tokens-per-batch {_list(self.tokens_per_batch)}: --micro-batch"
                f" {_list(self.micro_batch)} says it already; give one of them"
            )
        self._check_mix()
        for flag, value in [
            ("--width", self.width), ("--vocab-size", self.vocab_size),
            ("--world-size", self.world_size), ("--nodes", self.nodes),
        ]:  # fmt: skip
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        if self.launch is not None and self.device.startswith("replay:"):
            raise UsageError(f"--launch {self.launch}: {self.device} needs no node; leave it out")
        if self.finals < 1:
            raise UsageError(
                f"--finals {self.finals}: must be at least 1, since what is written is confirmed"
            )
        if self.trials is not None and self.trials < 1:
            raise UsageError(f"--trials {self.trials}: must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed {self.seed}: must be 0 to {2**32 - 1}, e.g. 0")

    @property
    def command(self) -> Command:
        """What starts the script. Raises `UsageError` where it could not be started."""
        assert self.script is not None
        own, given = parse_own(self.axis or ""), parse_set(self.given or "")
        return Command(self.script, own, given, Path.cwd())

    @property
    def subject(self) -> str:
        """What is tuned, as people call it: the model, or the script."""
        return self.model if self.script is None else self.command.name

    @property
    def family(self) -> str:
        """The row of `models.FAMILIES` that the model is of. Raises `UsageError` for none."""
        return family_name(self.model)

    @property
    def gpt_traits(self) -> GptTraits:
        """Those that were given, else the preset's, else what a gpt is like."""
        given = {name: getattr(self, name) for name in _TRAITS}
        said = {
            name: value
            for name, value in given.items()
            if value is not None and value is not False
        }
        preset = PRESETS[self.preset].traits if self.preset else GptTraits()
        return replace(preset, **said)

    @property
    def asked_model(self) -> Asked:
        """What is said of the model, for its family."""
        return Asked(
            model=self.model,
            task=self.task,
            target_len=self.target_len,
            trust_remote_code=self.trust_remote_code,
            lora=self.lora,
            gpt=self.gpt_traits,
        )

    def _refuse_what_is_of_scripts(self) -> None:
        for name in ("axis", "given", *SCRIPT_AXES):
            if (value := getattr(self, AXES[name].option if name in AXES else name)) is not None:
                flag = FLAGS[AXES[name].option if name in AXES else name].name
                raise UsageError(f"{flag} {_shown(value)}: only with --script")

    def _check_script(self) -> None:
        """That the command can be started, and nothing is said that scripts decide themselves."""
        for name in ("task", "target_len", "lora", "trust_remote_code", "preset", "width",
                     "vocab_size", *_TRAITS):  # fmt: skip
            if getattr(self, name) not in (None, False):
                raise UsageError(f"{FLAGS[name].name}: the script has its own; leave it out")
        if self.model != "gpt":
            raise UsageError(f"--model {self.model}: --script brings its own; give one of them")
        if self.device.startswith("replay:"):
            raise UsageError(f"--device {self.device}: a recording launches no script")
        for name in ("launch", "nodes", "interface"):
            if (value := getattr(self, name)) is not None:
                flag = FLAGS[name].name
                raise UsageError(
                    f"{flag} {value}: a script is launched on this machine; leave it out"
                )
        if self.parallel != 1:
            raise UsageError(
                f"--parallel {self.parallel}: a script is launched once at a time; leave it out"
            )
        if self.length_mix is not None:
            raise UsageError(f"--length-mix {self.length_mix}: a script has data of its own")
        if self.objective == "flops":  # which nobody knows of a script; the order is the same
            object.__setattr__(self, "objective", "tokens_per_s")
        self.command  # noqa: B018 - which checks it

    def _check_gpt(self) -> None:
        """That what is said of a gpt goes together, and is said of one."""
        if self.family != "gpt":
            for name in ("width", "vocab_size", "preset", *_TRAITS):
                given = getattr(self, name)
                if given is not None and given is not False:
                    flag = FLAGS[name].name
                    raise UsageError(f"{flag} {given}: {self.model} has its own; leave {flag} out")
        if self.width is not None and self.aspect_ratio is not None:
            raise UsageError(f"--aspect-ratio {self.aspect_ratio}: --width says it already")
        traits = self.gpt_traits
        for flag, value in [
            ("--aspect-ratio", traits.aspect_ratio), ("--head-dim", traits.head_dim),
            ("--softcap", traits.softcap),
        ]:  # fmt: skip
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        if traits.head_dim % 2:
            raise UsageError(f"--head-dim {traits.head_dim}: must be even, for rotary positions")
        if self.width is not None:
            gpt.FAMILY.check_width(self.width, traits.head_dim)

    def _check_mix(self) -> None:
        """That what is said goes together with samples of different lengths."""
        if self.pad_to_multiple is not None and self.pad_to_multiple < 1:
            raise UsageError(
                f"--pad-to-multiple {self.pad_to_multiple}: must be at least 1, e.g. 8"
            )
        if self.length_mix is None:
            return
        mixed = f"--length-mix {self.length_mix}"
        if self.tokens_per_batch is not None:
            raise UsageError(
                f"--tokens-per-batch {_list(self.tokens_per_batch)}: packs samples of about one"
                f" length, and {mixed} draws all of them; give one of the two"
            )
        if self.global_batch is not None and self.global_batch.unit == "tokens":
            raise UsageError(
                f"--global-batch {self.global_batch}: with {mixed} steps differ in tokens; write"
                " it in samples, e.g. --global-batch 256"
            )
        compiled = {"--compile": ("on", self.compile, "off"),
                    "--attention": ("flex_attention", self.attention, "sdpa")}  # fmt: skip
        for flag, (value, asked, instead) in compiled.items():
            if value in (asked or ()):
                raise UsageError(
                    f"{flag} {value}: is compiled for each shape, and {mixed} has many; use"
                    f" {flag} {instead}"
                )

    def _check_stages(self) -> None:
        """That engine, stages and offloads go together, as far as that can be told from them."""
        stages = stages_of(self.engine)
        for stage in self.zero or ():
            if stage not in ZERO_STAGES:
                raise UsageError(f"--zero {stage}: no such stage; known: 0, 1, 2, 3")
            if stage not in stages:
                raise UsageError(
                    f"--zero {stage}: --engine {self.engine} has no such stage;"
                    f" use --zero {','.join(map(str, stages))}"
                )
        moved = [offload for offload in self.offload or () if offload != "none"]
        if not moved:
            return
        if not engines.engine_for(self.engine, max(stages)).offloads:
            raise UsageError(
                f"--offload {moved[0]}: --engine {self.engine} does not offload here;"
                " use --engine deepspeed, or --offload none"
            )
        if self.zero is not None and not any(self.zero):
            raise UsageError(
                f"--offload {moved[0]}: stage 0 keeps everything on the device;"
                " add a stage, e.g. --zero 2"
            )
        if "all" in moved and self.zero is not None and 3 not in self.zero:
            raise UsageError("--offload all: only stage 3 can offload parameters; add --zero 3")

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Options:
        """The options that `texts` mean: names of fields to what a user would write.

        Raises:
            UsageError: a text that its option does not take, or options that do not go together.
        """
        return cls(**{name: FLAGS[name].read(text, FLAGS[name].name)
                      for name, text in texts.items()})  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """These options as JSON types, for a manifest."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Options:
        """What `to_json` made `plain` of, without the folder, by the checks of `from_texts`.

        Raises:
            UsageError: an option that this version does not know, or would not take.
        """
        texts = {}
        for name, value in plain.items():
            if name not in FLAGS:
                raise UsageError(f"{name!a:.80} is no option of this version")
            if name != "out" and value is not None:
                texts[name] = text_of(value)
        return cls.from_texts(texts)


FLAGS: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}
"""By the names of the fields."""


def text_of(value: Any) -> str:
    """A JSON `value` as a user would write it. What no user could write is left as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")  # without an exponent
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ",".join(map(text_of, value))
    match value:
        case {"amount": amount, "unit": "tokens", **rest} if not rest:
            return f"{amount}tok"
        case {"amount": amount, "unit": "samples", **rest} if not rest:
            return str(amount)
        case {"rank": int(rank), "targets": list(targets), **rest} if not rest:
            return str(Lora(rank, tuple(map(str, targets))))
    return str(value)
