"""Writes the pages of docs/pages/reference from the code's own tables.

    scripts/docs reference

`tests/test_docs.py` fails if a page differs from this output. Texts that the code's tables lack,
such as remedies for verdicts, are here; a row without one is an error.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from autotune.commands import COMMANDS
from autotune.commands.app import app
from autotune.commands.exits import ExitCode
from autotune.result.best import Best, Config, json_schema
from autotune.result.export import EXPORTS
from autotune.result.export.format import FACTS
from autotune.result.folder.table import COLUMNS
from autotune.space.axes import AXES
from autotune.space.command import FILES
from autotune.space.engines import ENGINES
from autotune.space.options import FLAGS
from autotune.space.outcome import Verdict

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pages" / "reference"
SAMPLE = ROOT / "results" / "samples" / "cpu-2-cores" / "best.json"
SCHEMA = json_schema()
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
NOTE = "<!-- Written by scripts/docs reference. Change the code, or that script, instead. -->\n"

VERDICTS = {
    Verdict.OK: ("It fits, and its speed was measured.", "Nothing."),
    Verdict.PRUNED: ("It fits. It was stopped early: it is too slow to win.", "Nothing."),
    Verdict.SKIPPED: ("It was not measured.", "Read the `reason` in trials.csv."),
    Verdict.OOM: ("An allocation failed.", "Lower `--micro-batch`, try checkpointing or ZeRO."),
    Verdict.OVER_CEILING: (
        "The peak is over the ceiling, or the allocator had to retry.",
        "Lower `--micro-batch`, try checkpointing or ZeRO.",
    ),
    Verdict.OVER_HOST_CEILING: (
        "The ranks' host memory is over its ceiling.", "Offload less, or use fewer ranks.",
    ),
    Verdict.UNSUPPORTED: ("The engine or a library cannot do this.", "Read the `reason`."),
    Verdict.HUNG: ("A rank gave no sign of life for too long.", "Read its log in `logs/`."),
    Verdict.CRASHED: ("A rank failed, and not for memory.", "Read its log in `logs/`."),
}  # fmt: skip
EXITS = {
    ExitCode.FOUND: ("A configuration was found.", "Train with `best.json`."),
    ExitCode.INTERNAL: (
        "The study folder cannot be written, or autotune has an error.",
        "Make room and `--resume`, or report the traceback.",
    ),
    ExitCode.USAGE: ("The input is wrong.", "Read the line on stderr."),
    ExitCode.NOTHING_FITS: (
        "Nothing fits (also `plan`). `loader`: no setting keeps up.",
        "Read the least peak in the message. Allow more memory or smaller candidates.",
    ),
    ExitCode.STOPPED: (
        "You stopped the study, or no node is left. The best so far is written.",
        "Go on with `--resume`.",
    ),
    ExitCode.NO_MEASUREMENT: (
        "Nothing could be measured, or some candidates did not fit and the others broke."
        " `verify`: the machine was too busy to tell.",
        "Read the first cause in the message, repair it and `--resume`.",
    ),
    ExitCode.NOT_VERIFIED: (
        "`verify`: the result does not hold.",
        "Measure again, for longer, or on an idle machine.",
    ),
    ExitCode.FINDINGS: ("`check` has findings, warnings included.", "Read them."),
}
PLACEHOLDERS = {
    "grad_accum": "Micro-steps of an optimizer step.",
    "global_batch": "Samples of an optimizer step, over all ranks.",
    "global_tokens": "Tokens of an optimizer step, over all ranks.",
    "tokens_per_batch": "Tokens of a micro-batch.",
    "world_size": "Number of ranks.",
    "dp": "Replicas: ranks / (tp x pp x cp).",
    "dp_replicate": "Copies of the weights: dp / dp_shard.",
    "dtype": "Value of `--dtype`.",
    "seed": "Value of `--seed`.",
    "out": "A scratch folder for checkpoints and logs. It is deleted with the launch.",
    "zero": "The same as `{zero_stage}`.",
}
COLUMN_TEXTS = {
    "verdict": "How the trial ended: see [verdicts](verdicts.md).",
    "tokens_per_s": "Tokens per second, all ranks together.",
    "model_flops_per_s": "Model FLOP/s, all ranks together.",
    "step_s_median": "Seconds of one optimizer step: the median.",
    "peak_device_bytes": "Peak memory of a device: the largest of all ranks.",
    "peak_host_bytes": "Peak host memory: the sum over the ranks of a host.",
    "predicted_peak_bytes": "Peak that was predicted before the probe.",
    "started_s": "Start of the trial, in seconds since the study's start.",
    "probe_s": "Seconds that the trial took, group start included.",
    "witness": "Key of the candidate whose failure stands for this one's.",
    "reason": "Reason of a failure or a skip.",
    "number": "Number of the trial. It is empty where the trial was never proposed.",
    "kind": "`search`, `final`, or `phases` of a launch with `--phase-args`, which is not timed.",
    "key": "Short name of the candidate.",
    "group_start_s": "Part of `probe_s` that started processes. It is 0 in running ones.",
    "warmup_s": "Part of `probe_s` in warm-up steps, over all attempts.",
    "timed_s": "Part of `probe_s` in timed steps, over all attempts.",
    "step_s_low": "Lower end of the 95 % interval of `step_s_median`.",
    "step_s_high": "Upper end of the 95 % interval of `step_s_median`.",
    "steps": "Number of timed steps.",
    "samples_per_s": "Samples per second, all ranks together.",
    "peak_reserved_bytes": "Peak that torch's allocator reserved.",
    "peak_allocated_bytes": "Peak that torch's allocator had given out.",
    "alloc_retries": "Retries of the allocator in timed steps.",
    "disturbed_share": "Share of processor time that other programs took during timed steps, or of"
    " the GPU's time if that is more.",
    "attempts": "Runs of the probe. A disturbed run is repeated.",
    "sm_clock_mhz": "Clock of the GPU.",
    "power_w": "Power of the GPU.",
    "temperature_c": "Temperature of the GPU.",
    "throttle_reasons": "Reasons why the GPU throttled, as NVML has them.",
    "predicted_low_bytes": "Lower end of the 95 % interval of `predicted_peak_bytes`.",
    "predicted_high_bytes": "Upper end of the 95 % interval of `predicted_peak_bytes`.",
    "compile_s": "Seconds that compiling took, before the first step.",
    "kernels": "Attention kernels that ran. It is empty under torch.compile.",
    "waiting_share": "Share of a script's step that waits for the data loader.",
    "tokens": "`seen`: autotune counted a script's tokens. `claimed`: it could not.",
    "joules_per_token": "Energy per token. It is empty where no counter can be read.",
    "log": "Log of rank 0, or of the script's launch, in `logs/`.",
}
OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "width": (320,), "nodes": (2,), "world_size": (4,), "dtype": ("bf16",), "zero_stage": (3,),
    **{name: axis.known for name, axis in AXES.items() if name in FACTS and axis.words},
}  # fmt: skip
"""Other values of facts that only need to be named if they are not plain."""

PROBED = {
    "bf16": {"enabled": True}, "fp16": {"enabled": False}, "zero_optimization": {"stage": 3},
}  # fmt: skip
"""A configuration of DeepSpeed."""


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").replace("<", "&lt;").split())


def _flags(name: str) -> list[Any]:
    return list(app[name].assemble_argument_collection())


def _written(flag: Any) -> str:
    """A flag or an argument, with the name of its value."""
    names = [each for each in flag.names if not each.startswith(("--no-", "--empty-"))]
    metavar = f" {flag.parameter.metavar}" if flag.parameter.metavar else ""
    return ", ".join(f"`{each}{metavar}`" for each in names)


def _said(flag: Any) -> str:
    """The help of a flag, its words and its default, as in --help."""
    kinds = [flag.hint, *get_args(flag.hint)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    choices = f" One of {', '.join(f'`{word}`' for word in words)}." if words else ""
    default = flag.field_info.default
    shown = default if isinstance(default, str | int | float) and default is not False else None
    return f"{flag.parameter.help}{choices}" + (f" Default: `{shown}`." if shown else "")


def commands() -> str:
    """Every command with its flags, as in --help."""
    of_tune = {flag.name: flag.parameter.help for flag in _flags("tune")}
    of_axes = {axis.flag for axis in AXES.values()}
    text = (
        "# Commands and flags\n\n`autotune COMMAND --help` prints the same."
        " `autotune` alone means `autotune tune`.\n\nFlags can also stand in the `[tool.autotune]`"
        " table of the nearest `pyproject.toml`. `--config FILE` names a TOML file with flags at"
        " its top level. The command line wins.\n\n`tune` and `plan` have a flag for each"
        " [axis](axes.md), too.\n"
    )
    for name, row in COMMANDS.items():
        own, shared, groups = [], [], dict[str, list[Any]]()
        for flag in _flags(name):
            same = of_tune.get(flag.name) == flag.parameter.help
            if same and flag.name in of_axes:
                continue
            if name != "tune" and same:
                shared.append(f"`{flag.name}`")
            else:
                own.append(flag)
                groups.setdefault(str(flag.parameter.group[0].name), []).append(flag)
        text += f"\n## {name}\n\n{row.help}\n"
        for group, flags in groups.items():
            heading = f"\n### {group}\n" if len(groups) > 1 and name == "tune" else ""
            rows = [(_written(each), _said(each)) for each in flags]
            text += f"{heading}\n{table(('flag', 'meaning'), rows)}"
        if shared:
            text += f"\nIt shares these flags with `tune`: {', '.join(shared)}.\n"
    return text


def axes() -> str:
    """`AXES`, with the help of their options."""
    needs = {"probe": "nothing", "build": "a new build", "launch": "a new launch"}
    rows = [
        (
            f"`{axis.name}`", f"`{axis.flag}`",
            ", ".join(f"`{word}`" for word in axis.known) or "numbers",
            "" if axis.plain is None else f"`{axis.plain}`", needs[axis.level],
            "`--script` only" if axis.of_script
            else ", ".join(f"`{has.name}`" for has in ENGINES.values() if axis.name in has.axes),
        )
        for axis in AXES.values()
    ]  # fmt: skip
    details = "".join(f"\n`{a.flag}`: {FLAGS[_field(a.option)].help}\n" for a in AXES.values())
    return (
        "# Axes\n\nAn axis is a setting that the search varies. Give several values to search it."
        " With one value it is fixed.\n\nAnother value may need a new *build* (model and engine)"
        " or a new *launch* (processes). Builds and launches take time.\n\n"
        + table(("axis", "flag", "values", "plain", "another value needs", "for"), rows)
        + "\n*Plain* is the default. Where a value has a pattern, the"
        f" last one shown is an example.\n\n## Details\n{details}"
    )


def _field(option: str) -> str:
    return option if option in FLAGS else f"{option}_"


def placeholders() -> str:
    """Placeholders for --script."""
    known = _known_placeholders()
    rows = [(f"`{{{name}}}`", known[name]) for name in known]
    return (
        "# Placeholders of --script\n\nautotune puts a value in the place of each placeholder."
        " The same value is in the environment: `AUTOTUNE_MICRO_BATCH` for `{micro_batch}`.\n\n"
        "Each [axis](axes.md) but `own` has a placeholder of its name, as `{micro_batch}`."
        " These are the others:\n\n"
        + table(("placeholder", "value"), rows)
        + '\n`--axis "attn=sdpa,eager"` adds `{attn}`, an axis of your own.'
        " `--set lr=1e-4` adds `{lr}`, a fixed value. Write `{{name}}` for a literal `{name}`.\n"
        "`{file:PATH}` is a file of yours that has placeholders: the path of a copy with values.\n"
    )


def _known_placeholders() -> Mapping[str, str]:
    from autotune.space import command

    made = command.Command(template="env", own={}, given={}, folder=ROOT)
    found = {}
    for name in sorted(made.known - set(AXES)):
        if name in FILES:
            found[name] = f"Path of a file. It sets {', '.join(f'`{a}`' for a in FILES[name])}."
        else:
            found[name] = PLACEHOLDERS[name]
    return found


def verdicts() -> str:
    """Verdicts of trials."""
    rows = [(f"`{each}`", *VERDICTS[each]) for each in Verdict]
    return (
        "# Verdicts\n\nA candidate that does not fit, hangs or crashes gets a verdict. The study"
        " goes on.\n\n" + table(("verdict", "meaning", "what to do"), rows)
    )


def exit_codes() -> str:
    """Exit codes of the program."""
    rows = [(f"{each.value}", *EXITS[each]) for each in sorted(ExitCode)]
    return "# Exit codes\n\n" + table(("code", "meaning", "what to do"), rows)


def trials() -> str:
    """Columns of trials.csv."""
    rows = [(f"`{name}`", COLUMN_TEXTS[name]) for name in COLUMNS if name not in AXES]
    return (
        "# Columns of trials.csv\n\nThere is one row per probe. Sizes are bytes, times seconds."
        " `autotune.load_trials(FOLDER)` reads them as a typed DataFrame. Each [axis](axes.md) has"
        " a column of its name. These are the others:\n\n" + table(("column", "meaning"), rows)
    )


def best() -> str:
    """Fields of best.json, from their types and docstrings."""
    said = _docstrings(ROOT / "autotune" / "result" / "best.py")
    text = (
        "# Fields of best.json\n\nThe fastest training configuration that fits, as autotune"
        " measured it. Sizes are bytes, times seconds, rates per second over all ranks.\n\n"
        "In a *Config*, each [axis](axes.md) is a field of its name. Those that every space has,"
        " and `optimizer`, are always there; the others are plain where they are missing.\n"
    )
    for name, part in SCHEMA["$defs"].items():
        rows = [
            (f"`{field}`", _kind(each), "yes" if field in part["required"] else "",
             said.get((name, field), ""))
            for field, each in part["properties"].items() if field not in AXES or name != "Config"
        ]  # fmt: skip
        doc = inspect.cleandoc(part.get("description", ""))  # as in docstrings of Python 3.13
        about = "" if name in ("Best", "Config") else f"{doc}\n\n"
        text += f"\n## {name}\n\n{about}" + table(
            ("field", "type", "always there", "meaning"), rows
        )
    return text


def _docstrings(path: Path) -> dict[tuple[str, str], str]:
    """The docstrings below fields in a file, by class and field."""
    found = {}
    for each in ast.parse(path.read_text("utf-8")).body:
        if isinstance(each, ast.ClassDef):
            for field, after in itertools.pairwise(each.body):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                    said = ast.literal_eval(after.value)
                    found[each.name, ast.unparse(field.target)] = " ".join(said.split())
    return found


def _kind(part: Mapping[str, Any]) -> str:
    """The values of a field, in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(each)}`" for each in part["enum"])
    if "anyOf" in part:
        return " or ".join(_kind(each) for each in part["anyOf"])
    kind = str(part.get("type", "any"))
    if "pattern" in part:
        kind += f", as `{part['pattern']}`"
    for bound, words in BOUNDS.items():
        if bound in part:
            kind += f", {words} {part[bound]}"
    if "items" in part:
        kind += f" of {_kind(part['items'])}"
    return kind


def exports() -> str:
    """Formats, their files, and the facts that each one lacks."""
    rows = []
    for name, row in EXPORTS.items():
        files, missing = _export(row.make)
        rows.append((
            f"`{name}`", row.content, ", ".join(f"`{each}`" for each in files),
            f"{row.checked} {row.checked_how}", ", ".join(f"`{each}`" for each in missing),
        ))  # fmt: skip
    return (
        "# Exports\n\n`autotune export FOLDER --format NAME` writes a result in the words of"
        " another tool.\n\n"
        + table(("format", "content", "files", "tested", "what it cannot say"), rows)
        + "\n- *launched*: a test trains 3 steps on 2 CPU ranks with the file. It finds the"
        " micro-batch, accumulation, ranks, stage, dtype and checkpointing of `best.json` inside"
        " the run.\n- *parsed*: the tool's own configuration classes and checks read the file,"
        " with the right values.\n- *names checked*: the names are in a list from the tool's"
        " source.\n\n"
        "A setting in the last column stands in a comment on top of the file, and on stderr, if"
        " it is not plain. What memory depends on comes first. A setting may be missing for some"
        " of its values only. Without a word for `checkpointing` selective or 1/2, files of tools"
        " that have full checkpointing say that: it needs no more memory, and is slower.\n\n"
        "A chunked `loss` is `use_liger_kernel` in transformers and ms-swift, its like in"
        " Axolotl and LLaMA-Factory, and `chunked_nll` in TRL. liger-kernel has to be installed,"
        " and passes over models that it does not know. It needs a GPU.\n"
    )


def _export(make: Callable[[Best], Any]) -> tuple[list[str], list[str]]:
    """Names of files, and of facts that the format cannot express, of plain and other values."""
    plain = Best.read(SAMPLE)
    exports: dict[str, dict[str, Any]] = {"env": {"A": "b"}, "deepspeed": PROBED}
    plain = replace(plain, exports=exports)
    made = make(plain)
    missing = {each.split()[0] for each in made.unexpressed} & set(FACTS)
    for name, value in ((name, each) for name, many in OTHER_VALUES.items() for each in many):
        engine = "deepspeed" if name in ("zero_stage", "offload") else plain.config.engine
        config: Config = replace(plain.config, **{"engine": engine, "world_size": 4, name: value})
        found = make(replace(plain, config=config))
        lacks = (*found.unexpressed, *found.instead)
        missing |= {each.split()[0] for each in lacks if each.split()[0] == name}
    return sorted(made.files), [name for name in FACTS if name in missing]


PAGES = {
    "commands.md": commands,
    "axes.md": axes,
    "placeholders.md": placeholders,
    "verdicts.md": verdicts,
    "exit-codes.md": exit_codes,
    "trials.md": trials,
    "best.md": best,
    "exports.md": exports,
}


def page(name: str) -> str:
    """The text of a file of the reference."""
    return NOTE + "\n" + PAGES[name]()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(page(name), encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
