"""The command that starts a script, with its placeholders and their values."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.errors import UsageError
from autotune.space.axes import AXES, DEGREES, meant
from autotune.space.candidate import Candidate
from autotune.space.workload import Workload
from autotune.units import parse_ints

_OWN_FILE = "file:"
_PLACEHOLDER = re.compile(rf"(?<![${{]){{([a-z_]\w*|{_OWN_FILE}[^{{}}]+)}}")
"""Neither a shell's ${name}, nor {{name}}, which stands for {name}."""
NAME = re.compile(r"[a-z_]\w*")
_LITERAL = re.compile(r"\{(\{[a-z_]\w*\})\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_RANKS = re.compile(
    r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|num[-_]accelerators)(?:=(\d+))?"
)
_PYTHON = re.compile(r"python[\d.]*|torchrun|accelerate")
_OF_SHELL = re.compile(r"&&?|\|\|?|\d?>>?\S*|<\S*|\S*;")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_READ_BYTES = 2**20

FILES = {
    "deepspeed_config": ("micro_batch", "zero_stage", "offload"),
    "accelerate_config": ("zero_stage", "offload", "compile"),
    "training_args": ("micro_batch", "zero_stage", "offload", "checkpointing", "compile"),
}
"""Files that are written for each candidate, and the axes in them."""
_ALSO = {"zero": "zero_stage"}
_OF_ENVIRONMENT = ("allocator",)
"""Axes that torch reads from an environment variable."""
_WHOLE = ("global_batch", "global_tokens")
"""Sizes of an optimizer step in samples and tokens. The script chooses its micro-steps."""
_DERIVED = ("grad_accum", *_WHOLE, "tokens_per_batch", "world_size", "dp", "dp_replicate",
            "dtype", "seed", "out")  # fmt: skip
_AXES = tuple(name for name in AXES if name != "own")
PREFIX = "AUTOTUNE_"


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command as the user wrote it, with the user's own axes and values of placeholders."""

    template: str
    own: Mapping[str, tuple[str, ...]]
    given: Mapping[str, str]
    """Values by `--set`."""
    folder: Path
    phase_args: str = ""
    """Words after the command that make it evaluate and save soon."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a command that cannot start."""
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            raise UsageError(f"--script: {error}; quote it as a shell would") from error
        for word in _QUOTED.sub("_", self.template).split():
            if _OF_SHELL.fullmatch(word):
                raise UsageError(f"--script: {word} needs a shell; write \"bash -c '...'\"")
        if not self._words(words):
            raise UsageError(
                '--script: the command is empty; write "python train.py --batch {...}"'
            )
        for name in (*self.own, *self.given):
            if name in (*DEGREES, "dp_shard"):
                values = ",".join(self.own.get(name, [self.given.get(name, "")]))
                instead = f"write {AXES[name].flag} {values} instead"
                raise UsageError(f"--axis or --set {name}: {instead}")
            if name in self._known_of_ours():
                raise UsageError(f"--axis or --set {name}: the name is reserved; choose another")
        if both := sorted(self.own.keys() & self.given.keys()):
            raise UsageError(
                f"--set {both[0]}: --axis {both[0]} sets it too; leave one of them out"
            )
        unknown = [name for name in self.placeholders if name not in self.known]
        if unknown:
            raise UsageError(f"--script: {self._unknown(unknown)}")
        program = self._words(words)[0]
        if not _PLACEHOLDER.search(program) and not self._found(program):
            instead = f'; write "python {program} ..."' * program.endswith(".py")
            raise UsageError(f"--script: {program}: command not found{instead}")

    def check_file(self) -> None:
        """Raises `UsageError` if python, or a launcher of it, would not find the script."""
        program, *words = self._words(shlex.split(self.template))
        if not _PYTHON.fullmatch(Path(program).name):
            return
        before = list(itertools.takewhile(lambda word: not word.endswith(".py"), words))
        if {"-m", "--module", "-c"}.intersection(before) or len(before) == len(words):
            return
        script = words[len(before)]
        if not _PLACEHOLDER.search(script) and not (self.folder / script).exists():
            raise UsageError(f"--script: {script}: no such file in {self.folder}")

    @property
    def with_phases(self) -> Command:
        """The command with `phase_args`: it evaluates and saves soon."""
        whole = f"{self.template} {self.phase_args}".rstrip()
        return replace(self, template=whole, phase_args="")

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders in the command, each once."""
        texts = (self.template, *self.files.values())
        return tuple(dict.fromkeys(name for text in texts for name in _PLACEHOLDER.findall(text)))

    @cached_property
    def files(self) -> dict[str, str]:
        """Texts of the user's files with placeholders, by their own placeholder. Raises UsageError
        if a file cannot be read, or has no placeholder."""
        found = {}
        for name in _PLACEHOLDER.findall(self.template):
            if name.startswith(_OWN_FILE):
                found[name] = self._text(name.removeprefix(_OWN_FILE))
        return found

    @property
    def named(self) -> set[str]:
        """Names of the axes and files that the placeholders stand for: {zero} is zero_stage."""
        return {_ALSO.get(each, each) for each in self.placeholders}

    @property
    def known(self) -> set[str]:
        """All placeholders that may be used."""
        return {*self._known_of_ours(), *self.own, *self.given, *self.files}

    @property
    def name(self) -> str:
        """A name to show: the script's file, else the program."""
        words = self._words(shlex.split(self.template))
        scripts = [Path(word).name for word in words if word.endswith((".py", ".sh"))]
        return (scripts or [Path(words[0]).name])[0]

    @property
    def ranks(self) -> int | None:
        """The number of ranks that a launcher starts here; None if it is not in the command."""
        words = shlex.split(self.template)
        for word, following in itertools.pairwise([*words, ""]):
            found = _RANKS.fullmatch(word)
            number = found and (found[1] or following)
            if number and number.isdigit() and int(number):
                return int(number)
        return None

    def says(self, name: str) -> bool:
        """Whether the script learns the axis `name`, or a value that follows from a candidate."""
        names = self.named
        if name in names or name in _OF_ENVIRONMENT:
            return True
        if any(name in axes for file, axes in FILES.items() if file in names):
            return True
        if name == "grad_accum" and {"deepspeed_config", "training_args"} & names:
            return True
        if name == "dtype" and FILES.keys() & names:
            return True
        if name == "grad_accum" and any(self.says(each) for each in _WHOLE):
            return True
        return self._reads(PREFIX + name.upper())

    def filled(
        self,
        candidate: Candidate,
        workload: Workload,
        seed: int,
        files: Mapping[str, str],
        replicas: int | None = None,
    ) -> tuple[dict[str, str], list[str]]:
        """Variables and words of the command for `candidate`; `files` are paths by name.

        `replicas` share a global batch; None as requested. An empty placeholder is left out.
        """
        values = self.values(candidate, workload, seed, replicas) | dict(files)
        words = [(word, _filled(word, values)) for word in shlex.split(self.template)]
        kept = [text for word, text in words if text or not _PLACEHOLDER.fullmatch(word)]
        command = self._words(kept)
        assigned = (_ASSIGNMENT.fullmatch(word) for word in kept[: len(kept) - len(command)])
        variables = {
            PREFIX + name.upper(): value
            for name, value in values.items() if not name.startswith(_OWN_FILE)
        }  # fmt: skip
        return variables | {found[1]: found[2] for found in assigned if found}, command

    def filled_files(self, values: Mapping[str, str]) -> dict[str, str]:
        """Texts of the user's `files` by path; `values` fill all placeholders and paths."""
        return {values[name]: _filled(text, values) for name, text in self.files.items()}

    def shown(
        self,
        candidate: Candidate,
        workload: Workload,
        seed: int,
        files: Mapping[str, str],
        replicas: int | None = None,
    ) -> list[str]:
        """Words that start the script with `candidate`, variables that it reads included."""
        variables, words = self.filled(candidate, workload, seed, files, replicas)
        told = [
            f"{name}={value}"
            for name, value in variables.items()
            if not name.startswith(PREFIX) or self._reads(name)
        ]
        return ["env", *told, *words] if told else words

    @property
    def assigned(self) -> dict[str, str]:
        """Variables before the command that are the same for all candidates."""
        words = shlex.split(self.template)
        in_front = words[: len(words) - len(self._words(words))]
        found = map(_ASSIGNMENT.fullmatch, in_front)
        return {each[1]: each[2] for each in found if each and not _PLACEHOLDER.search(each[2])}

    def values(
        self, candidate: Candidate, workload: Workload, seed: int, replicas: int | None = None
    ) -> dict[str, str]:
        """The values of all placeholders that are no files."""
        shared = workload.over(replicas, candidate)
        axes = {name: str(getattr(candidate, name)) for name in _AXES}
        axes["micro_batch_per_rank"] = ",".join(map(str, candidate.vector))
        own = dict(part.split("=", 1) for part in candidate.own.split(";") if "=" in part)
        dp = workload.replicas(candidate)
        shard = workload.shard(candidate)
        return {
            **axes,
            "dp": str(dp),
            "dp_shard": str(shard),
            "dp_replicate": str(dp // shard),
            **{also: axes[name] for also, name in _ALSO.items()},
            "grad_accum": str(shared.micro_steps(candidate)),
            "global_batch": str(shared.global_batch_samples(candidate)),
            "global_tokens": str(shared.global_batch_samples(candidate) * candidate.seq_len),
            "tokens_per_batch": str(candidate.tokens),
            "world_size": str(workload.world_size),
            "dtype": workload.dtype,
            "seed": str(seed),
            **self.given,
            **own,
        }

    def _unknown(self, names: Sequence[str]) -> str:
        """A message about unknown placeholders."""
        near = {name: found for name in names if (found := meant(name, self.known))}
        others = [f"{{{name}}}" for name in names if name not in near]
        said = [f"{{{name}}} is unknown; did you mean {{{one}}}?" for name, one in near.items()]
        if others:
            are = "is" if len(others) == 1 else "are"
            known = ", ".join(sorted(self.known))
            said.append(f"{', '.join(others)} {are} unknown; known: {known}.")
        own = f'for example --axis "{(*others, *names)[0].strip("{}")}=1,2"'
        return f"{' '.join(said)} A name of your own needs --axis or --set, {own}"

    @property
    def has_engine(self) -> bool:
        """Whether the command gets a configuration of DeepSpeed."""
        return "deepspeed_config" in self.placeholders

    def _known_of_ours(self) -> set[str]:
        return {*_AXES, *_ALSO, *_DERIVED, *FILES}

    @staticmethod
    def _words(words: Sequence[str]) -> list[str]:
        """The command without the variables before it."""
        return list(itertools.dropwhile(_ASSIGNMENT.fullmatch, words))

    def _text(self, path: str) -> str:
        try:
            text = (self.folder / path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "is no text"
            raise UsageError(f"--script: {{{_OWN_FILE}{path}}}: {why}") from error
        if not _PLACEHOLDER.search(text):
            raise UsageError(
                f"--script: {{{_OWN_FILE}{path}}}: the file has no placeholder; write"
                " {micro_batch} where that value stands"
            )
        return text

    def _found(self, program: str) -> bool:
        if "/" in program:
            return shutil.which(str(self.folder / program)) is not None
        return shutil.which(program) is not None

    def _reads(self, variable: str) -> bool:
        """Whether a file or module that the command names mentions `variable`."""
        words = [_PLACEHOLDER.sub("", word) for word in shlex.split(self.template)]
        files = [self.folder / word for word in words if word]
        for option, module in itertools.pairwise(words):
            if option in ("-m", "--module"):
                path = self.folder / module.replace(".", "/")
                files += [path.with_name(f"{path.name}.py"), path / "__main__.py"]
        return any(re.search(rf"\b{variable}\b", _text(path)) for path in files)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with values in the place of its placeholders."""
    return _LITERAL.sub(r"\1", _PLACEHOLDER.sub(lambda found: values[found[1]], text))


def parse_own(text: str, flag: str) -> dict[str, tuple[str, ...]]:
    """Own axes as "attn=sdpa,eager;fused=0,1;lanes=1:8". Raises UsageError if the text has another
    form, or names an axis twice."""
    found: dict[str, tuple[str, ...]] = {}
    why = 'write a name once, and its values: "attn=sdpa,eager"'
    for name, values in _pairs(text, flag, why):
        if name in found:
            raise UsageError(f"{flag} {name}={values}: {why}")
        each = [value.strip() for value in values.split(",")]
        words = [ints for one in each for ints in _whole(one, f"{flag} {name}={values}")]
        found[name] = tuple(dict.fromkeys(words))
    return found


def _whole(value: str, flag: str) -> Sequence[str]:
    """The integers of a range as "2:8" or "2:8:2"; any other `value` as it is."""
    if not re.fullmatch(r"\d+:\d+(:\d+)?", value):
        return [value]
    return [str(each) for each in parse_ints(value, flag, least=0)]


def parse_set(text: str, flag: str) -> dict[str, str]:
    """Values of placeholders as "lr=1e-4;data=/data". Raises UsageError if the text has another
    form."""
    return dict(_pairs(text, flag, "write lr=1e-4"))


def _pairs(text: str, flag: str, why: str) -> Iterator[tuple[str, str]]:
    """Names and values of "name=value;name=value"."""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, sign, value = part.partition("=")
        if not sign or not NAME.fullmatch(name):
            short = re.sub(r"\W", "_", name.strip("-").rpartition(".")[2]).lower()
            if sign and NAME.fullmatch(short):
                why = (
                    "a name has small letters, digits and _ only; write"
                    f' {flag} "{short}={value}", and {name}={{{short}}} in --script'
                )
            raise UsageError(f"{flag} {part}: {why}")
        yield name, value


def combined(own: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Every combination of values of own axes. A space has them as one axis."""
    each = ([f"{name}={value}" for value in values] for name, values in own.items())
    return tuple(";".join(parts) for parts in itertools.product(*each)) if own else ()


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_READ_BYTES)
    except OSError:
        return ""
