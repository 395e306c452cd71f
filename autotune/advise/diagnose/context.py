"""A log's content beside errors: the framework, its settings, steps, and memory over steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autotune.advise.diagnose.amounts import SIZE, parse
from autotune.advise.diagnose.flags import TOLD, FlagSetting, launch_of, section_of, settings_of
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.listing import Listing
from autotune.advise.diagnose.memory import backends_in, ran_out
from autotune.advise.diagnose.prefixes import take_apart
from autotune.advise.diagnose.reading import MOST_OF_A_LINE
from autotune.advise.diagnose.settings import SERVING

FRAMEWORKS = {
    "axolotl": ("axolotl",),
    "llamafactory": ("llamafactory", "LLaMA-Factory", "LlamaFactory", "llmtuner"),
    "lightning": ("lightning/pytorch", "pytorch_lightning", "pytorch-lightning",
                  "lightning.pytorch",
                  "LightningModule"),
    "transformers": ("transformers/trainer", "TrainingArguments", "SFTTrainer", "Unsloth",
                     "unsloth", "per_device_train_batch_size",
                     "***** Running training *****", "Instantaneous batch size per device"),
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "accelerate": ("accelerate/", "accelerate launch", "accelerator.backward"),
    "vllm": ("vllm/", "vLLM", "vllm_ascend", "vllm serve", "vllm.entrypoints", "EngineCore",
             "RayWorkerWrapper", "VllmWorker"),
    "sglang": ("sglang/", "sglang.launch_server"),
    "llama.cpp": ("llama.cpp", ".gguf"),
}  # fmt: skip
"""Evidence of frameworks. If several are used, advice names the settings of the first."""
JOBS = {
    "quantization": re.compile(
        r"(?:gptq|awq|auto_?round|llm-?compressor|quanto|hqq)\w*/|in _?quantize\b"
        r"|quanti[sz]\w*\.(?:py|sh)\b|\b(?:while|when|during|in|after) (?:\w+ )?quanti[sz]"
        r"|\bquanti[sz](?:e|ing) (?:\S+ ){0,3}model|calibration (?:samples|data)",
        re.IGNORECASE,
    ),
    "conversion": re.compile(
        r"\b(?:convert|merge|export|consolidate)_\w+(?:\.py|\b in )|merge_and_unload"
        r"|onnx[./]export|\b(?:checkpoint|model|weight) conversion\b"
        r"|合并.{0,8}权重"
        r"|\b(?:convert|merg|export|reshap)ing (?:\S+ ){0,3}(?:model|weights|adapter|checkpoint)"
    ),
    "preprocessing": re.compile(
        r"(?:preprocess|tokeniz|prepare|build)\w*\.(?:py|sh)\b(?!:)|arrow_dataset\.py"
        r"|in (?:preprocess|tokenize)\w*|Map \(num_proc="
        r"|\b(?:[Tt]okeni[sz]|[Pp]reprocess)(?:e|ing|ation)\b|\btrain(?:ing)? (?:the|a) tokeniz"
    ),
    "inference": re.compile(
        r"ollama|ComfyUI|InvokeAI|Fooocus|webui|infer\.py|nference|generate\.py|demo\.py|gradio"
        r"|_completion|run_generation|diffusers/pipelines|in generate\b"
    ),
}
"""Evidence of what does not train: in a command or failure, else if nothing speaks of training."""
_JOB_STEMS = (
    "合并", "quanti", "gptq", "awq", "round", "compressor", "quanto", "hqq", "calibration",
    "convert", "conversion", "merg", "export", "consolidate", "reshap", "preprocess", "token",
    "prepare", "build", "arrow", "num_proc", "ollama", "comfyui", "invokeai", "fooocus", "webui",
    "infer", "generat", "demo.py", "gradio", "_completion", "diffusers",
)  # fmt: skip
"""Text without one of these in lower case has none of `JOBS`: a fast test."""
_IMAGES = ("detectron", "mmdet", "mmseg", "ultralytics", "yolo", "Yolo", "YOLO", "iffusion",
           "resnet", "ResNet", "unet", "UNet")  # fmt: skip
_HINTS = {
    Kind.DEVICE: re.compile(
        r"显[存卡]|VRAM|vram|(?<![/.\w])(?i:GPUs?)\b(?![/?]| in script)|RTX|freeMemory: "
    ),
    Kind.HOST: re.compile(
        r"内存|(?<![A-Za-z])RAM\b|(?i:host|system|cpu|main) (?i:memory|ram|oom)|메모리"
    ),
}
"""Words for a device's memory, and for the host's."""
_HINT_STEMS = ("gpu", "ram", "memory", "oom", "显", "内存", "메모리", "rtx")
"""Text without one of these in lower case has none of `_HINTS`: a fast test."""
_TRAINS = re.compile(r"(?<![a-z])(?:train|fine-?tun|backward\b|loss\b)", re.IGNORECASE)

_ASSIGN = r"['\"]?[ \t]*+(?:[=:,]|\.{3,}|(?<=[ \t]))[ \t]*+['\"]?"
_TEXTS = {
    "model": re.compile(
        rf"\b(?:model_name_or_path|base_model|pretrained_model_name_or_path){_ASSIGN}"
        r"([\w./][\w./-]{2,100})"
    ),
    "deepspeed_file": re.compile(
        r"\bdeepspeed(?:_config)?(?:_file)?(?:['\"]?[:=]|[ \t])[ \t]*['\"]?"
        r"([\w./-]{1,200}\.json)\b"
    ),
    "accelerate_file": re.compile(
        r"\baccelerate[ -]launch\b(?:[^\n]|\\\n){0,500}?--config_file[ =]([\w./-]{1,200}\.ya?ml)\b"
    ),
    "fraction": re.compile(r"(?i)mem(?:ory)?_fraction\W{1,3}?(1(?:\.0*)?|0?\.\d+)\b"),
    # TensorFlow's lines about a device before it takes its share.
    "at start": re.compile(rf"(?i)total ?memory: ?({SIZE})\s+free ?memory: ?({SIZE})"),
}
"""Settings that are texts, joined by "/" if there are several parts."""
_STAGE = re.compile(
    r"zero_optimization['\"]?: *\{\s*['\"]stage['\"]: *([123])|\bdeepspeed_stage_([123])"
    r"|(?:\bds_z|zero)_?([123])(?:_\w{1,30})?\.(?:json|ya?ml)"
    r"|--deepspeed[ =]zero([123])(?:_offload)?\b"
)
_SWITCHES = {
    "checkpointing": rf"(?:grad(?:ient)?|activation)_checkpoint(?:ing)?{_ASSIGN}[Tt]rue"
    r"|--gradient[_-]checkpointing[ \t]*(?:\\|--|$)"
    r"|[Gg]radient checkpointing enabled|incompatible with gradient checkpointing"
    r"|gradient_checkpointing_enable\(|--recompute-granularity|torch/utils/checkpoint\.py",
    "lora": rf"\b(?:finetuning_type|train_type|tuner_type|adapter){_ASSIGN}q?lora\b"
    rf"|\buse_(?:peft|lora){_ASSIGN}[Tt]rue|\|\| trainable%(?!: 100\b)|LoraConfig\("
    r"|(?:--lora[_-](?:r|rank)|LORA_R(?:ANK)?|--use[_-]q?lora(?![ =]+[Ff]alse))\b"
    r"|^lora_rank=\d|(?i:\bq?lora ?(?:微调|fine-?tun))"
    r"|peft/tuners/lora|lora_finetune|LoRAFinetune",
    "offload": r"offload_optimizer['\"]?: *\{\s*['\"]device['\"]: *['\"](?:cpu|nvme)"
    r"|offload_optimizer_device: *(?:cpu|nvme)|cpuoffload|DeepSpeedCPUAdam"
    r"|(?<!no)_offload(?:_config(?![a-z_])|\w{0,30}\.(?:json|ya?ml))|fsdp_offload_params: *true"
    r"|_offload['\"]\)|--(?:adam|cpu|optimizer)[_-]offload\b|--deepspeed[ =]zero[23]_offload"
    r"|(?i:(?:stage|zero)[ -]?[23](?: ?\+ ?|[ -]|,? (?:with|and) )(?:\w{0,3} )?offload"
    r"|cpu offload|offload(?:ing|ed)? (?:both )?(?:the )?optimizer)\b",
    "all of the node": r"--mem[= ]0\b",
    "watermark": r"(?<!Use[ \n])PYTORCH_MPS_HIGH_WATERMARK_RATIO\W{1,4}0",
    "sharded": r"torch/distributed/fsdp/|full_shard|FULL_SHARD|--enable_fsdp"
    r"|fully_sharded_data_parallel|fsdp\w{0,30}\.ya?ml",
}
"""Evidence of switches that are on."""
_OFF = {
    "checkpointing": rf"\bgradient_checkpointing{_ASSIGN}[Ff]alse|--no[_-]gradient[_-]checkpoint",
    "lora": rf"\buse_(?:peft|lora){_ASSIGN}[Ff]alse",
    "offload": r"offload_optimizer['\"]?: *\{\s*['\"]device['\"]: *['\"]none"
    r"|offload_optimizer_device: *none",
}
_SWITCH = [
    (name, on, re.compile(pattern, re.MULTILINE))
    for on, table in ((1, _SWITCHES), (0, _OFF))
    for name, pattern in table.items()
]
_ALLOCATOR = re.compile(
    r"(?<!setting[ \n])\b(?P<name>PYTORCH_(?:CUDA_|HIP_|NPU_)?ALLOC_CONF)"
    r"(?P<said>=(?=\s|$)|['\"]?\]?[ \t]*[=:,][ \t]*['\"]?(?P<value>[\w:,.\[\]]*))?"
    r"(?! to (?:avoid|reduce))"
)
_EXPANDABLE = re.compile(r"expandable_segments:(\w+)")
_COMMENT = re.compile(r"^[ \t]*#(?!SBATCH|PBS|BSUB).*$", re.MULTILINE)
_STEP = re.compile(
    r"\b(?:global_?)?(?:step|iter|iteration)\b['\"]?(?:\s*[:=/]\s*|\s+)\[?(\d{1,9})\b"
    r"|\depoch:train:\d+-(\d{1,9})batch"
    r"|\bepoch(?:\(train\))?:? *\[\d+\] ?\[ *(\d{1,9})/\d+\]",
    re.IGNORECASE,
)
_BAR = re.compile(r"\b(\d{1,9})/\d{1,9} \[\d*:?\d+:\d\d<")
_DOING = re.compile(
    r"(?:oading (?:checkpoint )?shards"
    r"|(?P<prepares>\b(?:Running tokenizer|Tokeniz|Preprocess|Map))\b[^|\n:]{0,40})"
    r": *(?P<percent>\d{1,3})%"
)
_WINDOWS = re.compile(r"\b[A-Z]:\\|\.\.\\|WinError|paging file")
_KILLED = re.compile(r"-9\b|[Kk]illed|SIGKILL|\b137\b")
_NOT_KILLED = re.compile(r"\bOOMKilled\W{1,4}[Ff]alse")
_VALIDATION = re.compile(r"[Vv]alid|[Ee]val|\b[Vv]al:")
_VALIDATED = re.compile(
    r"\b(?:[Ee]val(?:uation|_|\b)|[Vv]al(?:idation|idating|_loss)\b"
    r"|[Gg]enerat(?:ing|ed) (?:samples|images))"
)
_NO_TRAINING = re.compile(
    r"^\W*Step \d+[.:)] +[A-Z]"
    r"|[Ll]oading|shards|Map\b|[Tt]okeniz|ownload|Filter|Generat|files|[Vv]al(?:id|:)|[Ee]val|slurm|srun"
    r"|CANCELLED|StepId"
)
_MEMORY = re.compile(
    r"(?P<key>(?:\b(?:cpu|host|system|virtual|main|gpu|max|peak)[ _.-])?"
    r"[\w/]{0,24}(?:mem|alloc|reserved|\bMA|\bCA|rss|\bram\b)[\w/]{0,24}(?: us(?:age|ed?))?)"
    r"(?: ?\(?(?P<key_unit>[GM]i?B)\)?)?['\"]?\s*[:=]?\s*['\"]?"
    r"(?P<size>\d+(?:\.\d+)?) ?(?P<unit>[GM]i?B?\b)?",
    re.IGNORECASE,
)  # fmt: skip
_OF_HOST = re.compile(r"cpu|host|system|virtual|main|rss|\bram\b", re.IGNORECASE)
_EPOCH = re.compile(r"\b(?:epoch|file|chunk|round|fold)\W{0,3}(\d{1,6})\b", re.IGNORECASE)
_HAS_MEMORY = re.compile(r"[Mm]em|lloc|MA |[Rr]ss|RSS|RAM")
_WORD = re.compile(r"[a-zа-яё][a-zа-яё'’-]*+[,.;:!?)]*$")
_PAGE = re.compile(
    r"^(?:#+ )?[^\w\n]*(?:(Troubleshooting|Possible [Cc]auses)|FAQ|Frequently [Aa]sked)\b"
    r"[\w ]{0,20}[^\w\n]*$"
    r"|\band how to (?:fix|solve|avoid|resolve)\b",
    re.MULTILINE,
)
"""The heading of a page about failures. Issues may have the first one."""
_LESSON = re.compile(
    r"^\W*(?:Common (?:[Cc]auses|[Ss]ymptoms)|Causes (?:&|and) [Ff]ixes|Step-by-Step [Ff]ix)\W*$",
    re.MULTILINE,
)
"""The heading of a page that explains a failure to whoever met it."""
_CHANGE = re.compile(
    r"\A(?:# )?(?:\[[\w ]+\] ?)*(?:(?i:bug)?(?i:fix|feat|perf|refactor|docs?)(?:\([^)]*\))?!?: ?\S"
    r"|\[FIX\]|(?:Fix(?:e[sd])?|[Aa]dds?|Document(?:ation)?|Updates?|Support|Allow|Implement|Improve|Introduce|Refactor|Reduce|Avoid"
    r"|Prevent|Handle|Catch|Only)\b(?!.*(?:\b(?:still|causes?|leads?|results?|gets?|got|fails?|after"
    r"|runs out)\b|\?$)))"
    r"|\A(?!.*\b(?i:how|no|any|need|can)\b).*\b(?:OOM|out[ -]of[ -]memory|leak)s? (?i:fix)\b"
    r"|\b[Tt]his (?:PR|pull request|MR)\b|· (?:pull request #|review thread ·)"
    r"|^#+ (?:[^\w\s]+ )?(?:Pitch|Feature request|Type of [Cc]hange|What does this PR do)"
    r"|^(?:Closes|Resolves) #\d"
    r"|\b(?:These|Two|Three|Four) changes (?:\w+ )?(?:remov|fix|cut|reduc|bound|keep)",
    re.MULTILINE,
)
"""Words of who changed a program, or wishes it: its failures are those that it no longer has."""
_WISH = re.compile(
    r"\bseems (?:that )?we need\b|\b(?:I|[Ww]e)(?:['’]d| would) (?:like|love)\b"
    r"|\bwould be (?:nice|great|good|helpful)\b|\b[Aa]re there (?:any )?plans\b|\b[Aa]ny plans?\b"
    r"|^#+ (?:[^\w\s]+ )?Feature request",
    re.MULTILINE,
)
"""Words of who wishes a change, and mostly met what it would mend."""
PERSON = re.compile(r"(?<![\w.\"“])(?:[Ii]|[Mm]y|[Mm]e|[Яя]|[Мм](?:не|еня|о[йя]))\b(?![./])")
_TOLD = {
    "evaluation": re.compile(
        r"\b(?:during|in|at|for|to|start\w*|when)(?: the)? (?:validati|evaluati|eval\b|testing\b)"
        r"(?!\w* mode)|(?:验证|测试|评估)(?:[时集，]|阶段|过程)|(?:val|test) ?[的时]"
    ),
    "left": re.compile(
        r"\bafter (?:(?!of\b)\w+ ){0,3}?(?:validat|evaluat|eval\b|generat|sampling\b|inferenc)"
        r"(?!\w*_)"
        r"|(?:验证|测试|评估)(?:[完之]|结束)"
    ),
    "saving": re.compile(
        r"\b(?:while|when|during|after)(?: \w+)? sav(?:e[sd]?|ing)\b"
        r"|\b(?:while|when|during)(?: (?!grad|activ|using)\w+)? checkpointing\b(?! (?:is|on|off))"
        r"|\b(?:to|cannot|can't) save (?:\w+ ){0,3}?(?:model|weights|checkpoint|ckpt)"
        r"|STATE_DICT\b|保存[^，。]{0,12}[时候]"
    ),
    "long": re.compile(
        r"\b(?:long(?:er)?|larger?|higher|increas\w*) (?:\w+ )?"
        r"(?:context|sequence|seq|prompt|utterance|length)"
        r"|\b(?:context|seq\w*)[ -]?len\w* (?:incr|large|long)|\d+k context\b",
        re.IGNORECASE,
    ),
    "later": re.compile(
        r"\bafter (?:\w+ ){0,4}?(?:\d{2,}|hundreds?|thousands?) (?:\w+ ){0,2}?(?:step|iter|batch)"
        r"|(?:训练|跑)了?.{0,4}[几\d一两三四五六七八九十]\S?[百千万]步"
    ),
    "loading": re.compile(
        r"\b(?:while|when|during|as)\b[^.;]{0,20}\bload(?:s|ing|ed)?\b[^.;]{0,20}"
        r"\b(?:model|weights|shards|checkpoints)"
        r"|\.(?:to|cuda)\([^)]{0,15}\) (?:gives|fails|raises|throws|leads|causes|results|crashes)"
        r"|加载[^，。]{0,8}(?:模型|权重)(?!后)"
    ),
    "one device": re.compile(
        r"\b(?:first|one|GPU ?:?0|rank ?0|cuda:0)\b.{0,30}\b(?:more|much|most) (?:\w+ )?memory"
        r"|\b(?:more memory|memory (?:stack|load)\w*) .{0,20}(?:first|one card|GPU ?0)\b"
        r"|\b(?:in|on)to [`'\"]?cuda:0\b",
        re.IGNORECASE,
    ),
    "a leak": re.compile(
        r"\b(?:memory|V?R(?:AM|am)|usage|it)\b.{0,40}\b(?:keeps?|(?:is|was) (?=\w+ing)|continu\w+"
        r"|slowly|gradually|steadily|constantly|quickly) ?(?:\w+ )?"
        r"(?:increas|grow|ris|climb|go(?:es|ing) up)"
        r"|(?:increas|grow)(?:ing|e?s) (?:on|with|after|in|during) (?:each|every|train|iter|step)"
        r"|\b(?:(?:increas|grow|accumulat)(?:ing|es?) (?!in )|accumulation of )(?:\w+ )?"
        r"(?:memory|VRAM)"
        r"|\b(?:memory|V?RAM)\b.{0,12} (?:fill(?:s|ing) up|(?:increas|grow|ris|climb)\w+ until)\b"
        r"|\bmemory (?:usage )?(?:increment|increases?|growth)\b.{0,20} (?:each|every|per) \w"
        r"|(?:memory|RAM)\b.{0,12} (?:grow|increas|ris|climb)\w* (?:stead|slow|gradual|constant)"
        r"|\beventually\b.{0,30}\b(?:OOM|memory)"
        r"|^(?!.*\b(?:[Mm]ay ?be|[Pp]ossibl[ey]|could|might|[Ii]s (?:it|this|there))\b|.*#\d).*"
        r"[Mm]emory leak|\b(?:filled|full)\b.{0,20}after .{0,12}epoch"
        r"|after .{0,12}epoch.{0,40}\bfull"
        r"|(?:显存|内存)(?!.{0,5}(?:突然|剧烈|瞬间))[^，。]{0,12}"
        r"(?:(?:[上暴]|一直|不断|持续)[涨升增]|增[长加大]|越来越[大多高]|泄[漏露]|飙升)"
    ),
}
"""A person's words for the phase of a failure, and for a leak."""
_EVALUATES = re.compile(
    r"(?<!after )(?<!before )(?<!any )(?<!no )(?<![\w-])"
    r"(?:[Ee]?val|(?:[Vv]alid|[Ee]valu)at(?:e|ion|ing))"
    r"(?![\w-]| (?:disabled|off)|.*\bbackward)"
    r"|(?:while|when|in|during) testing\b(?! (?:the|my|it|this|with))",
    re.ASCII,
)
"""Words for evaluation in the line of a failure."""
_RESUMES = re.compile(
    r"\b(?:[Rr]esum|[Rr]estor)(?:es?|ing)\b|断点|恢复训练"
    r"|\b[Ll]oad(?:s|ing|ed)?(?: the| a| from)? checkpoint\b(?! shards)"
)
_CHINESE, _ASKS = re.compile("[\u4e00-\u9fff]"), re.compile("我(?!们)|请[教问]|大佬|吗")
_AUTHOR = (" commented", "· comment ·", "· description ·", "opened this issue")
_TURN = re.compile(r"(\S+) (?:· (?:description|comment) ·|commented |opened this)")
_READER = re.compile(r"\b[Yy]ou(?:rs?|['’]re)?\b")
OF_A_PAGE = 60
"""The least words of sentences on a page."""
_MOST_SAMPLES = 4000
_LONGEST_COMMAND = 8000
_NUMBERS = (
    "micro_batch", "grad_accum", "global_batch", "world_size", "ranks_per_node", "nodes",
    "seq_len", "image", "vocab_size", "zero_stage", "workers", "layers", "hidden", "parameters",
)  # fmt: skip


@dataclass(kw_only=True)
class Context:
    """Learns from the texts of one or several logs."""

    seen: set[str] = field(default_factory=set)
    """Frameworks."""
    log: str = ""
    until: tuple[str, int] | None = None
    """Log and line of the failure: later settings do not count."""
    last_step: int | None = None
    ranks: set[int] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)
    said: dict[str, list[tuple[str, int, FlagSetting]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By the name of a setting: the log and line of each time that it was set."""
    told: set[str] = field(default_factory=set)
    """Rows of `_TOLD` in sentences that tell of an error, or of memory."""
    loading: bool = False
    """Whether the last thing that a log shows is a model that is being loaded."""
    preparing: bool = False
    """Whether the last thing that a log shows is data that is being prepared."""
    hints: set[Kind] = field(default_factory=set)
    """Rows of `_HINTS` in the log."""
    windows: bool = False
    backends: set[str] = field(default_factory=set)
    """Backends that the log names."""
    torch: bool = False
    images: bool = False
    jobs: set[str] = field(default_factory=set)
    """Rows of `JOBS`."""
    trains: bool = False
    not_for_memory: bool = False
    """Whether a container's state says that it was not killed for memory."""
    is_change: bool = False
    """Whether it describes a change of a program."""
    is_wish: bool = False
    is_lesson: bool = False
    prose: int = 0
    """Words in lines of sentences."""
    persons: int = 0
    """Number of them that are "I" and the like."""
    readers: int = 0
    """Number of them that are "you" and the like."""
    plain: int = 0
    """Lines that are no sentences."""
    turns: list[tuple[int, str]] = field(default_factory=list)
    """Where the parts of a thread begin, and their authors."""
    listing: Listing = field(default_factory=Listing)
    memory: dict[tuple[str, int | None], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Steps and bytes, by the name of the size and the rank."""

    @property
    def is_article(self) -> bool:
        """Whether it is a page of documentation, or of a change: not a report."""
        return self.is_change or self.prose >= max(OF_A_PAGE, 200 * self.persons)

    @property
    def is_manual(self) -> bool:
        """Whether it is a page that tells its readers what to do, with examples of errors."""
        tells = self.is_article and self.readers >= 3 and self.prose > 12 * self.plain
        return not self.persons and (tells or self.is_lesson)

    @property
    def framework(self) -> str | None:
        found = next((name for name in FRAMEWORKS if name in self.seen), None)
        other = next((job for job in JOBS if job in self.jobs), None)
        return found if self.trains or found in SERVING else other or found

    def by_another(self, line: int) -> bool:
        """Whether another than the author of a thread wrote `line`."""
        said = [who for first, who in self.turns if first <= line]
        return bool(said) and said[-1] != said[0]

    def last(self, *names: str, written: bool = False) -> FlagSetting | None:
        """The last setting before the failure; `written` asks for a flag, not for a sentence.

        The clearest of several names of one setting counts.
        """
        by_name = [
            [row for row in reversed(self.said.get(name, ())) if row[2].form or not written]
            for name in names
        ]
        by_name = [[row for row in each if row[2].place < TOLD] or each for each in by_name]
        rows = [row for each in by_name for row in each]
        log, line = self.until or ("", 0)
        early = [row for row in rows if row[0] != log or row[1] <= line]
        return max(
            early or next((each[-1:] for each in by_name if each), []),
            key=lambda row: (-row[2].place, row[0] == log, row[1]),
            default=("", 0, None),
        )[2]  # fmt: skip

    def text(self, name: str) -> str | None:
        """The last setting `name` that is a text."""
        found = self.last(name)
        return str(found.value) if found else None

    @property
    def settings(self) -> dict[str, int]:
        """Numbers by name. A batch size is a rank's, unless the log says otherwise."""
        found = {
            name: setting.value for name in _NUMBERS
            if (setting := self.last(name)) is not None and isinstance(setting.value, int)
        }  # fmt: skip
        batch = self.last("batch")
        if batch is not None and isinstance(batch.value, int) and "micro_batch" not in found:
            found["global_batch" if self._whole(batch) else "micro_batch"] = batch.value
        ranks = found.get("world_size") or found.get("ranks_per_node", 0) * found.get("nodes", 1)
        unit = ranks * found.get("grad_accum", 0) or found.get("global_batch") == 1
        if "micro_batch" not in found and unit and found.get("global_batch", 1) % unit == 0:
            found["micro_batch"] = found["global_batch"] // unit
        return found

    def _whole(self, batch: FlagSetting) -> bool:
        """Whether `batch` is that of all ranks: its name in DeepSpeed's file is."""
        return "deepspeed" in self.seen and batch.form == '"train_batch_size": {}'

    @property
    def batch_flag(self) -> FlagSetting | None:
        """The flag of a rank's batch size."""
        found = self.last("micro_batch", "batch", written=True)
        return None if found is None or self._whole(found) else found

    @property
    def switches(self) -> set[str]:
        found = {name for name in _SWITCHES if (s := self.last(name)) is not None and s.value}
        segments = _EXPANDABLE.findall(self.allocator[1])
        return found | ({"expandable"} if segments and segments[-1].lower() == "true" else set())

    @property
    def allocator(self) -> tuple[str, str]:
        """The variable that torch's allocator reads, and its value; empty if none is set. If both
        are set, torch takes the name without a backend (since 2.9)."""
        names = sorted((name for name in self.said if name.endswith("ALLOC_CONF")), key=len)
        return next(((name, v) for name in names if (v := self.text(name))), ("", ""))

    @property
    def at_start(self) -> tuple[int, int] | None:
        """Free and all bytes of the device as the run started."""
        total, free = map(parse, (self.text("at start") or "/").split("/"))
        return None if total is None or free is None else (free, total)

    @property
    def fraction(self) -> float | None:
        """The share of a device that the program may take."""
        said = self.text("fraction")
        return None if said is None else float(said)

    @property
    def parameters(self) -> int | None:
        """Parameters of the model: as printed, or from its shape by 12 x layers x hidden^2."""
        settings = self.settings
        if "parameters" in settings:
            return max(int(row[2].value) for row in self.said["parameters"])
        layers, hidden = settings.get("layers", 0), settings.get("hidden", 0)
        blocks = 12 * layers * hidden**2
        return blocks + settings.get("vocab_size", 0) * hidden if blocks else None

    @property
    def ranks_said(self) -> int | None:
        """The number of ranks, if the log has it."""
        settings = self.settings
        ranks = settings.get("ranks_per_node", 0) * settings.get("nodes", 1)
        return settings.get("world_size", ranks) or None

    @property
    def world_size(self) -> int | None:
        """The number of ranks: at least the ranks and devices that the log names."""
        counts = [self.ranks_said or 0, *(n + 1 for n in (*self.ranks, *self.devices))]
        counts += [int(row[2].value) for row in self.said["gpus"]]
        counts += [int(row[2].value) + 1 for n in ("device", "rank") for row in self.said[n]]
        return max(*counts, max(self.listing.devices, default=-1) + 1) or None

    def hear(self, line: str) -> None:
        """Learn from a `line` that tells of a failure."""
        self.told.update(name for name, pattern in _TOLD.items() if pattern.search(line))
        phases = JOBS | {"evaluation": _EVALUATES, "resuming": _RESUMES}
        if ran_out(line) or _KILLED.search(line):
            self.told.update(name for name, words in phases.items() if words.search(line))

    def look(self, lines: Sequence[str], line: int = 1) -> None:
        """Learn from consecutive `lines`, the first of which has the number `line`."""
        whole = "\n".join(lines)
        if line == 1 and lines[1:2] == [""]:
            whole = whole.removeprefix("# ")  # a title, not a comment
        if line == 1:
            self.is_change |= bool(_CHANGE.search(whole.lstrip().split("· comment ·")[0]))
        self.is_wish |= bool(_WISH.search(whole))
        self.is_lesson |= bool(_LESSON.search(whole))
        self.prose += sum(OF_A_PAGE * (1 if issue else 4) for issue in _PAGE.findall(whole))
        self.persons += sum(map(whole.count, _AUTHOR))
        text = _COMMENT.sub("", whole)
        self._frameworks(text)
        self._patterns(text, line)
        self._lines(text.split("\n"), line)
        for number, whole in enumerate(lines, line):
            if ("·" in whole or "ed " in whole) and (turn := _TURN.match(whole)):
                self.turns.append((number, turn[1]))
        for each in (part for whole in lines for part in whole.split("\r")):
            self._count(each)
            step = step_of(each)
            if step is not None:
                self.last_step = step
            for shown in _DOING.finditer(each) if "%" in each and ": " in each else ():
                self.preparing = bool(shown["prepares"]) and shown["percent"] != "100"
                self.loading = not shown["prepares"] and shown["percent"] != "100"
            if _HAS_MEMORY.search(each):
                epoch = _EPOCH.search(each) if self.last_step is None else None
                if (at := int(epoch[1]) if epoch else self.last_step) is not None:
                    self._memory(each, at)

    def _count(self, line: str) -> None:
        words = [] if "pid=" in line[:80] else line.split()  # a program's words
        if not line.isascii() and len(chinese := _CHINESE.findall(line)) >= 16:
            self.prose += len(chinese) // 2
            self.persons += len(_ASKS.findall(line))
        if len(words) >= 8 and sum(map(bool, map(_WORD.match, words))) >= 0.6 * len(words):
            self.prose += len(words)
            self.persons += len(PERSON.findall(line))
            self.readers += len(_READER.findall(line))
        else:
            self.plain += bool(words)

    def _frameworks(self, text: str) -> None:
        low = text.lower()
        if any(stem in low for stem in _JOB_STEMS):
            self.jobs.update(job for job, marks in JOBS.items() if marks.search(text))
        self.torch = self.torch or "torch" in low
        self.images = self.images or any(mark in text for mark in _IMAGES)
        if any(stem in low for stem in _HINT_STEMS):
            self.hints |= {kind for kind, words in _HINTS.items() if words.search(text)}
        self.not_for_memory |= bool(_NOT_KILLED.search(text))
        self.windows = self.windows or bool(_WINDOWS.search(text))
        self.backends |= backends_in(text)
        self.trains = self.trains or bool(_TRAINS.search(text))
        for name, marks in FRAMEWORKS.items():
            if name not in self.seen and any(mark in text for mark in marks):
                self.seen.add(name)

    def _note(self, line: int, found: FlagSetting) -> None:
        rows = self.said[found.name]
        if (not rows or rows[-1] != (self.log, line, found)) and len(rows) < _MOST_SAMPLES:
            rows.append((self.log, line, found))

    def _patterns(self, text: str, line: int) -> None:
        """Learn from text that may span several lines."""

        def note(name: str, value: int | str, match: re.Match[str]) -> None:
            self._note(
                line + text.count("\n", 0, match.start()), FlagSetting(name=name, value=value)
            )

        for name, pattern in _TEXTS.items():
            for match in pattern.finditer(text):
                note(name, "/".join(match.groups()), match)
        for match in _STAGE.finditer(text):
            note("zero_stage", int(match[match.lastindex or 0]), match)
        for name, on, pattern in _SWITCH:
            for match in pattern.finditer(text):
                note(name, on, match)
        for match in _ALLOCATOR.finditer(text):
            start = text[max(0, match.start() - 40) : match.start()]
            if "setdefault(" in start and match["name"] in self.said:
                continue
            if match["said"] or start.endswith("unset "):
                note(match["name"], match["value"] or "", match)

    def _lines(self, lines: Sequence[str], line: int) -> None:
        section, command = (0, ""), ""
        for number, whole in enumerate(lines, line):
            text = whole[:MOST_OF_A_LINE]
            self.listing.look(text, number, self.log)
            indent = len(text) - len(text.lstrip())
            if text.strip() and indent <= section[0]:
                section = (0, "")
            section = section_of(text) or section
            for found in settings_of(text, section[1]):
                self._note(number, found)
            command += text.rstrip()
            if command.endswith("\\") and len(command) < _LONGEST_COMMAND:
                command = command[:-1]
                continue
            if (launch := launch_of(command)) is not None:
                place = 0 if launch[0] else 1
                self._note(number, FlagSetting(name="launch", value=launch[1], place=place))
            command = ""

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

    def grown(self, *, host: bool) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
        """The memory that grew: whose, and its first and last step and size; None without growth.

        Growth is at least 10 % over at least five samples. Three quarters of them rise, and so do
        those of the second half: caches fill at the beginning.
        """
        for (key, _), series in self.memory.items():
            if bool(_OF_HOST.search(key)) is not host:
                continue
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


def validated(lines: Sequence[str]) -> bool:
    """Whether an evaluation came between steps of training, and at most two steps follow it."""
    later, found = 0, False
    for line in reversed(lines):
        if step_of(line) is not None:
            if found:
                return True
            later += 1
        found = found or (later < 3 and bool(_VALIDATED.search(line)))
    return False


def validates(line: str) -> bool:
    """Whether a line shows the progress of a validation."""
    return bool(_BAR.search(line) and _VALIDATION.search(line))


def step_of(line: str) -> int | None:
    words = ("tep", "ter", "<", "poch")
    if not any(word in line for word in words) or _NO_TRAINING.search(line):
        return None
    match = _STEP.search(line) or _BAR.search(line)
    return int(match[match.lastindex or 0]) if match else None
