"""An export: files for another tool, and the settings that the tool cannot express."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from autotune.result.best import Best, Config
from autotune.space.axes import AXES, OTHER_AXES, SCRIPT_AXES

FACTS = (
    "model", "depth", "width", "vocab_size", "seq_len", "micro_batch", "grad_accum", "world_size",
    "nodes", "dtype", *(name for name in OTHER_AXES if name not in SCRIPT_AXES),
)  # fmt: skip
"""The settings that a training run takes from a result, by the names of `Config`."""
BATCHES = ("micro_batch", "grad_accum")
OF_DEEPSPEED = ("zero_stage", "offload", "reduce_dtype")
"""Facts in DeepSpeed's config."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A result in the words of another tool."""

    files: dict[str, str]
    """Name of a file to its text."""
    unexpressed: tuple[str, ...]
    """Settings that the tool cannot express, as "name value"."""


def exported(
    best: Best,
    says: Collection[str],
    files: Mapping[str, str | dict[str, Any]],
    *,
    missing: Collection[str] = (),
    comments: Collection[str] = (),
) -> Exported:
    """`files` of a tool that `says` these facts. A dict becomes JSON or YAML, by its file's name.
    All but JSON and .env begin with the remark and `comments`. `missing` joins the unexpressed."""
    lacks = (*unexpressed(best, says), *missing)
    head = remark(best, lacks) + "".join(f"# {line}\n" for line in comments)
    return Exported(
        files={name: _text(name, body, head) for name, body in files.items()}, unexpressed=lacks
    )


def _text(name: str, body: str | dict[str, Any], head: str) -> str:
    if name.endswith(".json"):
        return json.dumps(body, indent=2) + "\n"
    if name.endswith(".env"):  # DeepSpeed reads each line as NAME=VALUE
        return str(body)
    text = body if isinstance(body, str) else yaml.safe_dump(body, sort_keys=False)
    if not text.startswith("#"):
        return head + text
    first, _, rest = text.partition("\n")  # how a shell or shellcheck reads the file
    return f"{first}\n{head}{rest}"


def unexpressed(best: Best, says: Collection[str]) -> tuple[str, ...]:
    """Settings of `best` that are not in `says`. Plain values of axes need not be set."""
    config = best.config
    missing = [
        f"{name} {getattr(config, name)}"
        for name in FACTS
        if name not in says and not _plain(config, name)
    ]
    if "param_dtype" not in says and config.param_dtype == "auto" and best.dtypes is not None:
        # Tools load weights in all kinds of types.
        missing.append(f"weights in {best.dtypes['weights']}")
    if "lora" not in says and (lora := best.lora) is not None:
        missing.append(f"lora {lora}, of alpha {lora.alpha}")
    low = config.engine == "fsdp" and config.dtype != "fp32"
    if low and config.reduce_dtype == "auto" and "reduce_dtype" not in says:
        missing.append("gradients reduced in fp32")
    return tuple(missing)


def remark(best: Best, missing: Collection[str], sign: str = "#") -> str:
    """Comment lines on top of a file: its source, and the settings it lacks."""
    config, measured = best.config, best.measured
    found = best.expected or (
        f"{measured.tokens_per_s:.4g} tokens/s, {measured.share_of_capacity:.0%} of"
        f" {best.limits.capacity_bytes / 2**30:.4g} GiB"
    )
    lines = [
        f"From autotune: {config.model}, {config.engine}, {config.ranks}, {found}.",
    ]
    if best.device is not None:
        lines.append(
            "WARNING: weighed on emulated GPUs; its speed is modelled: nothing was timed."
        )
    elif not best.confirmed and not best.expected:
        lines.append("WARNING: not confirmed: it was not measured again in fresh processes.")
    if missing:
        lines.append(f"Not said here, set it yourself: {', '.join(missing)}.")
    return "".join(f"{sign} {_in_one_line(line)}\n" for line in lines)


def machines(config: Config) -> set[str]:
    """Facts in a number of nodes and one of ranks per node: none if nodes have unequal ranks."""
    return {"world_size", "nodes"} if config.world_size % config.nodes == 0 else set()


def every_nth(checkpointing: str) -> int | None:
    """2 of "1/2"; None where that is not how it is done."""
    _, slash, number = checkpointing.partition("/")
    return int(number) if slash else None


def _in_one_line(text: str) -> str:
    """Without what would end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _plain(config: Config, name: str) -> bool:
    if name in ("width", "vocab_size"):  # a model of its own has them in its config
        return config.model != "gpt" or getattr(config, name) is None
    if name == "nodes":
        return config.nodes == 1
    return name != "optimizer" and name in AXES and getattr(config, name) == AXES[name].plain
