"""Exports: a result as other tools' configuration. One file and one row of `EXPORTS` each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.export import (
    accelerate,
    axolotl,
    deepspeed,
    env,
    hf,
    launch,
    lightning,
    llama_factory,
    megatron,
    ms_swift,
    nanochat,
    torchtitan,
    trl,
)
from autotune.result.export.format import Exported
from autotune.result.files import write_whole
from autotune.space.models.tasks import SAMPLES
from autotune.space.workload import RECORDED, SCRIPTS

FOLDER = "exports"
"""The folder beside best.json."""


@dataclass(frozen=True, kw_only=True)
class ExportRow:
    make: Callable[[Best], Exported | None]
    """A pure function of a result; it returns None if the format does not fit the result."""
    models: Literal["all", "transformers", "text", "gpt"]
    """Studies with these models write it unasked. "text": transformers' own that read text."""
    checked: Literal["launched", "parsed", "names checked"]
    """How it is tested: in runs of the tool itself, by its own parser, or by its names."""
    checked_how: str = ""
    """More words after `checked`."""
    content: str
    """Its files, in words, for docs/pages/reference/exports.md (`scripts/docs reference`)."""
    without: str = "there is nothing to say"
    """Why the format does not fit a result."""
    of_script: bool = False
    """Whether it has only settings that a user's script was told, or was seen to have."""


_TO_MERGE = "YAML to merge with model and data, with `--lora` the adapters"

EXPORTS = {
    "deepspeed": ExportRow(
        make=deepspeed.export, models="all", checked="launched", of_script=True,
        checked_how="with torchrun and DeepSpeed's launcher",
        content="the measured config, for `deepspeed.initialize`; a `Trainer` takes `hf`, whose"
        " config leaves the learning rate to it",
        without="{engine} was the engine, and not DeepSpeed",
    ),
    "accelerate": ExportRow(
        make=accelerate.export, models="all", checked="launched",
        checked_how="with DeepSpeed; the others need GPUs or MPI, and were parsed",
        content="YAML for DeepSpeed, FSDP2 or several devices",
    ),
    "hf": ExportRow(
        make=hf.export, models="transformers", checked="launched", of_script=True,
        checked_how="with DDP and DeepSpeed",
        content="TrainingArguments with the names of transformers 5.23 and 4.57, and Python that"
        " takes the right ones; with `--base` also a BitsAndBytesConfig",
    ),
    "trl": ExportRow(
        make=trl.export, models="text", checked="launched",
        content="SFTConfig; with `--lora` also the LoraConfig, which peft made",
    ),
    "axolotl": ExportRow(
        make=axolotl.export, models="text", checked="parsed",
        checked_how="by axolotl 0.19", content=_TO_MERGE,
    ),
    "llama-factory": ExportRow(
        make=llama_factory.export, models="text", checked="parsed",
        checked_how="by LLaMA-Factory 0.9.5", content=_TO_MERGE,
    ),
    "ms-swift": ExportRow(
        make=ms_swift.export, models="text", checked="parsed",
        checked_how="by ms-swift 4.6",
        content="YAML for `swift sft` and `swift pt`, which take model and data after it; with"
        " `--lora` the adapters",
    ),
    "lightning": ExportRow(
        make=lightning.export, models="all", checked="launched",
        checked_how="with DDP; its DeepSpeed needs a GPU",
        content="Python: a Trainer with its strategy",
    ),
    "torchtitan": ExportRow(
        make=torchtitan.export, models="text", checked="parsed",
        checked_how="by torchtitan 0.3", content="Python config", of_script=True,
    ),
    "nanochat": ExportRow(
        make=nanochat.export, models="gpt", checked="names checked", content="flags",
    ),
    "megatron": ExportRow(
        make=megatron.export, models="gpt", checked="parsed",
        checked_how="by megatron-core 0.19", content="flags", of_script=True,
    ),
    "launch": ExportRow(
        make=launch.export, models="all", checked="launched", of_script=True,
        content="a shell script that starts the ranks as they were",
    ),
    "env": ExportRow(
        make=env.export, models="all", checked="launched", of_script=True,
        content="environment variables",
        without="no variables were set beyond the machine's own",
    ),
}  # fmt: skip
"""By the name for `--format`."""
ALSO = {"transformers": "hf"}
"""Other names of formats."""
_OF_SCRIPT = "a script's settings are its own, and launch.sh starts it with the result"
_TOLD = "; autotune export --format writes what the script was told, for {}"


def left_out(best: Best, made: Collection[str]) -> str:
    """A line with the formats that a study did not write, and why; empty if there are none."""
    names = [name for name in EXPORTS if name not in made]
    if best.command is not None:
        more = ", ".join(
            each for each in names if EXPORTS[each].of_script and EXPORTS[each].models != "all"
        )
        return f"no other tools' files: {_OF_SCRIPT}{_TOLD.format(more) if more else ''}"
    if best.config.model.startswith(RECORDED):
        return "none, for others ran it"
    whys: dict[str, list[str]] = {}
    for name in names:
        row = EXPORTS[name]
        why = row.without.format(engine=best.config.engine)
        if row.models != "all":
            kind = "transformers" if best.config.task is None else row.models
            kind = "gpt" if row.models == "gpt" else kind
            why = f"they are for {kind} models; --format writes them"
        whys.setdefault(why, []).append(name)
    return "; ".join(f"not {', '.join(each)}: {why}" for why, each in whys.items())


def write(best: Best, folder: Path, names: Collection[str] | None = None) -> dict[str, Exported]:
    """Write the formats of these `names` to `folder`, or all that fit the result.

    Returns the exports by format. Scripts are made executable.

    Raises:
        UsageError: a named format does not fit the result.
        OSError: a file cannot be written.
    """
    model, task = best.config.model, best.config.task
    own = model.startswith(("factory:", *SCRIPTS))
    script = best.command is not None
    fits = {"all", "gpt" if model == "gpt" else "" if own else "transformers"}
    if "transformers" in fits and (task is None or SAMPLES[task].has_text):
        fits.add("text")
    made: dict[str, Exported] = {}
    for name in EXPORTS if names is None else names:
        row = EXPORTS[name]
        if script and not row.of_script:
            if names is not None:
                raise UsageError(f"--format {name}: {_OF_SCRIPT}")
            continue
        usable = names or (row.models in fits and not model.startswith(RECORDED))
        found = row.make(best) if usable else None
        if found is not None:
            made[name] = found
        elif names is not None:
            raise UsageError(f"--format {name}: {row.without.format(engine=best.config.engine)}")
    folder.mkdir(parents=True, exist_ok=True)
    for exported in made.values():
        for file, text in exported.files.items():
            write_whole(folder / file, text)
            if text.startswith("#!"):
                (folder / file).chmod(0o755)
    return made
