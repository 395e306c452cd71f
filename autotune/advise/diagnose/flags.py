"""Settings in a line of a log, a script or a command: batch sizes, ranks, model, optimizer.

Frameworks have many names for one setting. A name is split into words, so `batch_size_per_gpu`,
`--train.micro-batch-size` and `perDeviceTrainBatchSize` are the same.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_STEMS = re.compile(
    r"batch|bsz| -b\b|\bbs\b|[mg]bs|accum|update_freq|world|nproc|num_proc|n_?gpu|gpus|卡|device"
    r"|nodes|ntasks|-np\b|_per_gpu|gres|rank|member|visible|localhost|cuda:\d|resol|im(?:age|g)|input_s|seq|_len|block_size"
    r"|vocab|zero|stage|worker|layer|depth|n_embd|d_model|hidden|width|dim\b|\d ?[x×*] ?\w|\dl\b"
    r"|param|optim|muon|processes|checkpointing"
)
"""Lines without one of these in lower case set nothing: a fast test."""
_ASSIGNED = re.compile(
    r"(?<![\w.\-])(?P<quote>['\"]?)(?P<key>[-+]{0,2}[A-Za-z_][\w.\-]{0,80})"
    r"(?=(?P<sep>['\"]?[ \t]*+(?:: (?:int|float) =|==?|[:,]|(?P<told>[调改设置]*(?:到了?|[为成]))"
    r"|[.]{3,}|[│┃|]|(?<=[ \t]))[ \t]*+['\"]?)"
    r"(?P<value>\d{1,9}(?:,\d{1,3})+(?![\d.])|\d{1,9}\b(?!\.\d|/|:\d|%| !=)|[A-Za-z][\w.]{1,40}))",
    re.ASCII,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_TRAINING = {
    "eval", "evaluation", "val", "valid", "validation", "test", "dev", "predict", "inference",
    "infer", "generation", "gen", "rollout", "teacher", "reward", "log", "logging", "max", "min",
}  # fmt: skip
"""Words in names of other batches than training's."""
_SECTION = re.compile(r"^(\s*)['\"]?([\w.]+)['\"]?\s*:\s*\{?\s*$")
_BATCH = {"bs", "bsz", "batchsize", "mbs", "microbatch", "gbs"}
_WHOLE_BATCH = {"global", "total", "effective", "overall", "gbs"}
_OF_A_RANK = {"micro", "per", "device", "local", "gpu", "mbs", "microbatch"}
_SAMPLES = {"samples", "imgs", "images", "sequences", "examples"}
_NO_SIZE = {"tokens", "num", "id", "idx", "index", "time", "sampler", "loss", "finder", "norm"}
_PROGRESS = re.compile(r"\bloss\b|\bgnorm\b|\bstep\b|it/s|\biter\b", re.IGNORECASE)
_NAMES = {
    "world_size": ("world_size", "dist_world_size", "num_processes", "slurm_ntasks", "ntasks",
                   "np", "num_ranks", "total_gpus"),
    "ranks_per_node": ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node",
                       "local_world_size", "n_gpus", "n_gpu", "ngpus", "gpus", "num_devices",
                       "devices"),
    "nodes": ("nnodes", "num_nodes", "num_node", "slurm_nnodes", "nodes"),
    "seq_len": ("max_seq_length", "sequence_len", "seq_length", "max_seq_len", "seq_len",
                "cutoff_len", "block_size", "max_length", "model_max_length"),
    "image": ("resolution", "image_size", "img_size", "imgsz", "input_size"),
    "vocab_size": ("vocab_size",),
    "zero_stage": ("zero_stage", "zero_optimization_stage", "deepspeed_stage"),
    "workers": ("dataloader_num_workers", "num_workers", "n_workers", "workers",
                "preprocessing_num_workers", "num_proc", "dataset_num_proc"),
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "depth"),
    "hidden": ("hidden_size", "d_model", "n_embd", "model_dim", "embed_dim", "hidden_dim",
               "width", "dim"),
    "rank": ("local_rank", "global_rank"),
}  # fmt: skip
"""Other names of each setting, the clearest first."""
_NAMED = {key: (name, at) for name, keys in _NAMES.items() for at, key in enumerate(keys)}
_SENSIBLE = {
    "micro_batch": (1, 2**20), "batch": (1, 2**20), "global_batch": (1, 2**27),
    "grad_accum": (1, 2**20), "image": (32, 2**14), "seq_len": (4, 2**27),
    "vocab_size": (2, 2**27), "world_size": (1, 2**20), "ranks_per_node": (1, 2**10),
    "nodes": (1, 2**17), "gpus": (1, 2**20), "device": (0, 2**10), "rank": (0, 2**20),
    "zero_stage": (0, 3), "workers": (0, 2**12), "layers": (1, 2**12), "hidden": (1, 2**17),
}  # fmt: skip
"""The least and the largest value of a training run; others are mistakes."""
TOLD = 50
"""The place of what a sentence says, which a flag says better."""
_ADVISES = re.compile(
    r"\W*(?:[Tt]ry|[Ii]f you|[Ss]et|[Cc]hange|[Rr]educe|[Ll]ower|[Dd]ecrease|[Uu]se)"
    r"\b(?! [A-Z_]+=)"
    r"|\W*\w+ing\b(?!.*n['’]t).*\b(?:allow|work|fix|solv|help)(?:e?[sd])\b"
)
"""The beginning of what a person advises."""
_LISTS = ("ranks_per_node",)
"""Settings whose value may be the length of a list, as in `--gpus 0,1,2,3`."""
_SENTENCES = tuple(
    (name, re.compile(pattern, re.IGNORECASE | re.ASCII))
    for name, pattern in (
        ("micro_batch", r"batch size per (?:device|gpu|rank)\D{1,12}?(\d{1,9})\b"),
        ("micro_batch", r"\b(\d{1,5}) (?:samples?|images?) (?:per|each|/) ?(?:gpu|device|card)\b"),
        ("batch", r"(?<!total train )(?<!total )(?<!global )(?<!effective )(?<!eval )"
                  r"(?<![-\w])(?:(?:local|micro|train)_)?batch"
                  r"(?:[- ]?size(?: of|:| =)*|_size`?(?= \w))"
                  r"(?: is| was| which| already| only| set| to| as| from \d{1,9})*"
                  r"[ =][\"“]?(\d{1,9})(?![.\d]\d|[A-Za-z])"),
        ("seq_len", r"\b(?:seq(?:uence)?|context|token)[ -]len(?:gth)?"
                    r"(?: is| was| set| to| of|:| =|=)* ?(\d{2,9}|\d{1,4}k)\b"),
        ("global_batch", r"(?:total train|global|effective|total) batch size[^=:\d]*[=: ] *"
                         r"(\d{1,9})\b"),
        ("grad_accum", r"gradient accumulation(?: steps)?(?: of|:| =)* (\d{1,9})\b"),
        ("world_size", r"num processes\W{1,3}(\d{1,9})\b"),
        ("world_size", r"\bmember: \d+/(\d{1,9})\b"),
        ("zero_stage", r"\b(?:deepspeed(?: zero)?[- (]*stage|zero)[- (]*(?:stage[ -]?)?([123])\b"
                       r"(?! *[/.]| \w+s\b)"),
        ("gpus", r"gres=gpu(?::[a-z]\w*)?:(\d{1,3})\b"),
        ("gpus", r"\b(\d{1,4}) ?[x×*] ?(?:nvidia |amd )?"
                 r"(?:[abhlv]\d{2,3}s?|gb?\d00|mi\d{3}x?|rtx\d*)\b"),
        ("gpus", r"\b(\d{1,4}) (?:[x×] )?gpus\b"
                 r"|(?<![\w第.])(\d{1,3}) ?(?:张(?:显?卡| ?[ahlv]\d| ?\d090)|卡(?!号))"),
        ("device", r"\bcuda:(\d{1,3})\b"),
        ("layers", r"\bdepth(?: of|:| =)* (\d{1,3})\b"),
        ("layers", r"\b(\d{1,3})[ -]?(?:layers?\b|blocks\b)"),
        ("layers", r"\b(\d{1,3})L[-/_, ]+\d{3,5}[dhw]\b"),
        ("hidden", r"\b\d{1,3}L[-/_, ]+(\d{3,5})[dhw]\b"),
        ("hidden", r"\b(?:width|hidden(?: size)?|channels|dimension)(?: of|:| =)* (\d{3,5})\b"),
        ("hidden", r"\b(\d{3,5})[ -](?:wide|hidden|channels|dim\w*)\b"),
    )
)  # fmt: skip
_SHAPE = re.compile(r"(?<![\dx×.])(\d{1,3}) ?[x×] ?(\d{3,5})\b(?! ?[x×])")
_OTHER_SHAPE = re.compile(r"batch|seq|token|image|pixel|resol|grid|tensor|micro", re.IGNORECASE)
_CHOSEN = re.compile(
    r"(?:VISIBLE_DEVICES['\"]?\]? ?[=:] ?['\"]?|localhost:|\bdevice=['\"]?)(\d+(?:,\d+)*)(?![\w.])"
)
_PARAMETERS = re.compile(
    r"\b(\d[\d,_]{0,30}+(?:\.\d{1,30}+)?) ?([KMBT])?(?:illion)? (?:\w+ ){0,2}param(?:eter)?s?\b"
    r"|\bparam(?:eter)?s?(?: count)?\b[^\d\n|]{0,12}(\d[\d,_]{0,30}+(?:\.\d{1,30}+)?)"
    r" ?([KMBT])?\b",
    re.IGNORECASE,
)
_MANY = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
OPTIMIZERS = {
    "adam8bit": 6, "muon": 8, "lion": 8, "adafactor": 4, "adagrad": 8, "rmsprop": 8, "sgd": 8,
    "adam": 12,
}  # fmt: skip
"""Bytes a parameter of optimizers' state in mixed precision, with the fp32 copy of the weights."""
_OPTIMIZER = re.compile(
    r"(?<![a-z])(?:\w{0,30}?(?P<small>adamw?_?(?:bnb_)?8bit)|(?P<name>muon|lion|adafactor|adagrad|rmsprop|sgd)"
    r"|(?:fused|deepspeedcpu|cpu|paged_)?(?P<adam>adamw?))(?![a-z])",
    re.IGNORECASE,
)  # fmt: skip
_OPTIMIZES = re.compile(r"optim|\bopt[ =:]|muon", re.IGNORECASE)
_LAUNCHER = (
    r"(?:\S{0,300}/)?(?:torchrun|accelerate(?:-launch| launch)|deepspeed|srun|mpirun|mpiexec"
    r"|horovodrun|composer|colossalai run|axolotl train|llamafactory-cli train"
    r"|python[\d.]* (?:-u )?-m (?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch)"
    r")(?= )"
)
_LAUNCH = re.compile(
    rf"(?:^|(?<=[\s;&'\"=`]))(?P<command>(?:[A-Z_]{{1,60}}=\S{{1,300}} +){{0,8}}"
    rf"(?:(?P<launcher>{_LAUNCHER})"
    r"|(?:\S{0,300}/)?python[\d.]*(?= .*\.py\b))(?P<rest>(?:(?! \d?>)[^;|>&`]){2,4000}))"
)
_STARTS = re.compile(r"torchrun|accelerate|deepspeed|srun|mpi|run |train |composer|python")
_SCRIPT = re.compile(r"\s(?:\S+\.(?:py|sh|ya?ml)\b|-m \S+|--?\w[\w.-]*)")
_OF_DEEPSPEED = re.compile(
    r"-m deepspeed\.launcher\.launch --world_info=(?P<hosts>[\w=-]{1,4000})"
    r" (?:--(?!module|no_python)\S{1,300} ){0,9}"
    r"(?P<typed>(?!-)\S{1,300}\.py\b.{0,4000})"
)
"""The command in the output of DeepSpeed's runner on one machine."""
_COMES_LATER = re.compile(r"launcher\.launch|--world_info|CANCELLED|error:|Error|usage:")


@dataclass(frozen=True, kw_only=True)
class FlagSetting:
    name: str
    value: int | str
    place: int = 0
    """The position of its name among those of the setting: 0 is the clearest."""
    form: str = ""
    """The user's text with {} for the value; empty for a sentence."""


def settings_of(line: str, section: str = "") -> Iterator[FlagSetting]:
    """The settings in `line`, under the heading `section` of YAML or JSON."""
    for found in _settings(line, section):
        least, most = _SENSIBLE.get(found.name, (0, 10**14))
        if isinstance(found.value, str) or least <= found.value <= most:
            yield found


def _settings(line: str, section: str) -> Iterator[FlagSetting]:
    if not _STEMS.search(line.lower()) or "<img" in line or _ADVISES.match(line):
        return
    training = not _NOT_TRAINING.intersection(_words(section))
    for match in _ASSIGNED.finditer(line):
        found = _assigned(match, line, section)
        if found is not None and (training or "batch" not in found.name):
            yield found
    for name, pattern in _SENTENCES:
        for match in pattern.finditer(line):
            near = re.findall(r"[a-z]+", line[max(0, match.start() - 30) : match.end()].lower())
            if "batch" in name and _NOT_TRAINING.intersection(near):
                continue
            value = int(match[match.lastindex or 0].lower().replace("k", "000"))
            yield FlagSetting(name=name, value=value, place=-1 if "batch" in name else TOLD)
    for match in _CHOSEN.finditer(line):
        if (count := match[1].count(",") + 1) > 1:
            yield FlagSetting(name="gpus", value=count)
    yield from _model(line)


def section_of(line: str) -> tuple[int, str] | None:
    """The indentation and name of a heading."""
    match = _SECTION.match(line)
    return (len(match[1]), match[2]) if match else None


def _words(name: str) -> list[str]:
    return re.split(r"[_.\-\s]+", _CAMEL.sub("_", name.strip("-+.")).lower())


def _assigned(match: re.Match[str], line: str, section: str) -> FlagSetting | None:
    key, said, sep = match["key"].rstrip("."), match["value"], match["sep"]
    words = _words(".".join(key.split(".")[-2:]))
    plain = "_".join(_words(key.rsplit(".", 1)[-1]))
    dots = ".." in sep or match["key"] != key
    form = "" if match["told"] else _form(match, key)
    if dots:  # the lists of Megatron's flags and of DeepSpeed's file
        form = "" if "train" in words else f"--{plain.replace('_', '-')} {{}}"
    elif not sep.strip() and key[0] != "-":
        form = ""
    if plain in ("optim", "optimizer", "optimizer_type", "optimizer_name", "opt"):
        named = optimizer_of(said)
        return None if named is None else FlagSetting(name="optimizer", value=named)
    if not said[0].isdigit():
        return None
    many = "," in said and not sep.strip().startswith(",")
    value = int(said.split(",")[0])
    name, place = _NAMED.get(plain, (None, 0))
    if plain == "stage" and section == "zero_optimization":
        name = "zero_stage"
    if name in ("layers", "hidden", "nodes", "rank") and not sep.strip(" ") and key[0] != "-":
        return None  # a sentence before a number
    if sep.strip() == "," and not match["quote"]:
        return None  # part of a sentence
    if plain == "np" and key[0] != "-":
        return None
    if name in _LISTS and many:
        value = said.count(",") + 1
    if name is None:
        name, place = _batch(words, key, line)
    if name is None:
        return None
    return FlagSetting(name=name, value=value, place=TOLD if match["told"] else place, form=form)


def _form(match: re.Match[str], key: str) -> str:
    sep = match["sep"]
    if key.startswith("-"):
        return f"{key}={{}}" if "=" in sep else f"{key} {{}}"
    if ":" in sep:
        return f'"{key}": {{}}' if match["quote"] else f"{key}: {{}}"
    return f"{key}={{}}"


def _batch(words: list[str], key: str, line: str) -> tuple[str | None, int]:
    said = set(words)
    if said & _NOT_TRAINING or said & _NO_SIZE:
        return None, 0
    if any(word.startswith("accum") for word in words) or {"update", "freq"} <= said:
        return "grad_accum", 0
    lone = words in (["batch"], ["b"], ["bs"], ["bsz"], ["train", "batch"])
    if lone and (key[0] != "-" and (_PROGRESS.search(line) or words == ["b"])):
        return None, 0
    if said & _SAMPLES and said & {"gpu", "device"}:
        return "micro_batch", 0
    if not lone and not said & _BATCH and not {"batch", "size"} <= said and "ims" not in said:
        return None, 0
    if said & _WHOLE_BATCH or said >= {"ims", "batch"}:
        return "global_batch", 0
    return ("micro_batch", 0) if said & _OF_A_RANK else ("batch", int("train" not in said))


def _model(line: str) -> Iterator[FlagSetting]:
    for match in _SHAPE.finditer(line):
        about = line[max(0, match.start() - 25) : match.end() + 12]
        if (
            2 <= int(match[1]) <= 200
            and int(match[2]) % 32 == 0
            and not _OTHER_SHAPE.search(about)
        ):
            yield FlagSetting(name="layers", value=int(match[1]), place=TOLD)
            yield FlagSetting(name="hidden", value=int(match[2]), place=TOLD)
            break
    for match in _PARAMETERS.finditer(line):
        number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
        count = float(number.replace(",", "").replace("_", "")) * _MANY[(unit or "").upper()]
        if 10**6 <= count < 10**14:
            yield FlagSetting(name="parameters", value=round(count))
    if _OPTIMIZES.search(line) and (named := optimizer_of(line)):
        yield FlagSetting(name="optimizer", value=named, place=1 + (named != "muon"))


def optimizer_of(text: str) -> str | None:
    """The kind of the optimizer that `text` names: a row of `OPTIMIZERS`."""
    found = [
        "adam8bit" if match["small"] else (match["name"] or "adam").lower()
        for match in _OPTIMIZER.finditer(text)
    ]
    return next((name for name in OPTIMIZERS if name in found), None)


def launch_of(line: str) -> tuple[bool, str] | None:
    """The command that starts training, and whether it is a launcher's."""
    line = _typed(line) or line
    if not _STARTS.search(line) or _COMES_LATER.search(line):
        return None
    for match in _LAUNCH.finditer(line):
        command = match["command"].rstrip("'\"\\ ")
        try:
            shlex.split(command)
        except ValueError:
            continue
        if _SCRIPT.search(match["rest"]):
            return bool(match["launcher"]), command
    return None


def _typed(line: str) -> str | None:
    """The user's command for DeepSpeed's output in `line`; None for several machines."""
    told = _OF_DEEPSPEED.search(line)
    if told is None:
        return None
    try:
        hosts = json.loads(base64.urlsafe_b64decode(told["hosts"]))
    except ValueError:
        return None
    if not isinstance(hosts, dict) or list(hosts) != ["localhost"]:
        return None
    devices = ",".join(map(str, hosts["localhost"]))
    return f"deepspeed --include localhost:{devices} {told['typed']}"
