"""An export: files for another tool, and the settings that the tool cannot express."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from autotune.result.best import Best, Config
from autotune.result.choice import UNCONFIRMED
from autotune.space.axes import AXES, OTHER_AXES, SCRIPT_AXES

FACTS = (
    "model", "depth", "width", "vocab_size", "seq_len", "micro_batch", "grad_accum", "world_size",
    "nodes", "dtype", *(name for name in OTHER_AXES if name not in SCRIPT_AXES),
)  # fmt: skip
"""The settings that a training run takes from a result, by the names of `Config`."""
BATCHES = ("micro_batch", "grad_accum")
OF_DEEPSPEED = ("zero_stage", "offload", "reduce_dtype")
"""Facts in DeepSpeed's config."""
BESIDE = "{} is found from the folder that the tool is started in: start it here, or write a path."
LIGER = "loss chunked by liger-kernel; it fits only if that is installed and knows this model type"
LIGER_WHOLE = (LIGER, "liger-kernel's other kernels, which come with that of the loss")
"""For a tool that has one switch for all kernels."""
_HARMLESS = (
    "model", "depth", "width", "vocab_size", "grad_accum", "world_size", "nodes",
    "optimizer adamw", "dtype fp32", "weights in fp32", "gradients reduced in fp32",
)  # fmt: skip
"""Settings, some with a value, that need no memory or that a tool's users set themselves."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A result as another tool's configuration."""

    files: dict[str, str]
    """Name of a file to its text."""
    unexpressed: tuple[str, ...]
    """Settings that the tool cannot express, as "name value"."""
    instead: tuple[str, ...] = ()
    """What the tool does in the place of settings that it cannot express."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The unexpressed settings that memory and speed depend on."""
        return tuple(each for each in self.unexpressed if not _is_harmless(each))

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(filter(_is_harmless, self.unexpressed))

    @property
    def warnings(self) -> list[str]:
        """The first lines of its files: settings to add, else memory may run out."""
        fits = f"Fits only with settings that are missing here: {', '.join(self.needed)}."
        others = [f"Not as measured: {each}." for each in self.instead]
        return [fits, *others] if self.needed else others


def exported(
    best: Best,
    says: Collection[str],
    files: Mapping[str, str | dict[str, Any]],
    *,
    instead: Collection[str] = (),
    comments: Collection[str] = (),
) -> Exported:
    """`files` of a tool, in which it `says` these facts, some by a substitute (`instead`).

    A dict becomes JSON or YAML. All but JSON and .env begin with the remark and `comments`.
    """
    made = Exported(files={}, unexpressed=unexpressed(best, says), instead=tuple(instead))
    head = remark(best, made) + "".join(f"# {line}\n" for line in comments)
    return replace(made, files={name: _text(name, body, head) for name, body in files.items()})


def fallback(checkpointing: str) -> tuple[str, ...]:
    """A note that a tool checkpoints fully instead; empty if that would need more memory."""
    if checkpointing in ("none", "full", "host"):
        return ()
    return (f"checkpointing full, not {checkpointing}: slower, with another peak",)


def own_settings(best: Best, says: Collection[str] = ()) -> tuple[str, ...]:
    """Settings that only the script was told, as "name value", unless a tool `says` them."""
    names = [name for name in SCRIPT_AXES if name not in ("own", *says)]
    told = [f"{name} {value}" for name in names
            if (value := getattr(best.config, name)) != AXES[name].plain]  # fmt: skip
    own = best.config.own
    pairs = () if own == AXES["own"].plain else own.split(";")
    return (*told, *(each.replace("=", " ", 1) for each in pairs))


def otherwise(best: Best) -> list[str]:
    """A remark if a script was told other degrees than its ranks had."""
    seen = best.config.splits or {}
    asked = {name: getattr(best.config, name) for name in seen if best.knows(name)}
    if best.known is None or all(seen[name] == size for name, size in asked.items()):
        return []
    both = (" ".join(f"{name} {of[name]}" for name in asked) for of in (asked, seen))
    return ["The script was told {}; its ranks were seen to have {}, which counts.".format(*both)]


def _is_harmless(lack: str) -> bool:
    return lack in _HARMLESS or lack.split(maxsplit=1)[0] in _HARMLESS


def _text(name: str, body: str | dict[str, Any], head: str) -> str:
    if name.endswith(".json"):
        return json.dumps(body, indent=2) + "\n"
    if name.endswith(".env"):  # DeepSpeed reads each line as NAME=VALUE
        return str(body)
    text = body if isinstance(body, str) else yaml.safe_dump(body, sort_keys=False)
    if not text.startswith("#"):
        return head + text
    first, _, rest = text.partition("\n")  # the line for the shell and shellcheck
    return f"{first}\n{head}{rest}"


def unexpressed(best: Best, says: Collection[str]) -> tuple[str, ...]:
    """Settings of `best` that are not in `says`. Plain values of axes need not be set."""
    config, known = best.config, best.known
    missing = [
        f"{name} {getattr(config, name)}"
        for name in FACTS
        if name not in says and not _plain(config, name) and (known is None or name in known)
    ]
    if known is not None:
        return (*missing, *(() if "own" in says else own_settings(best, says)))
    if "param_dtype" not in says and config.param_dtype == "auto" and best.dtypes is not None:
        # Tools load weights in various dtypes.
        missing.append(f"weights in {best.dtypes['weights']}")
    if "lora" not in says and (lora := best.lora) is not None:
        missing.append(f"lora {lora}, of alpha {lora.alpha}")
    low = config.engine == "fsdp" and config.dtype != "fp32"
    if low and config.reduce_dtype == "auto" and "reduce_dtype" not in says:
        missing.append("gradients reduced in fp32")
    return tuple(missing)


def remark(best: Best, made: Exported | None = None) -> str:
    """Comment lines on top of a file: what it needs to fit, its source, what else is missing."""
    config, measured = best.config, best.measured
    found = best.expected or (
        f"{measured.tokens_per_s:.4g} tokens/s, {measured.share_of_capacity:.0%} of"
        f" {best.limits.capacity_bytes / 2**30:.4g} GiB"
    )
    lines = [
        *(made.warnings if made else ()),
        f"From autotune: {config.model}, {config.engine}, {config.ranks}, {found}.",
    ]
    if best.device is not None:
        lines.append(
            "WARNING: weighed on emulated GPUs; its speed is modelled: nothing was timed."
        )
    elif not best.confirmed and not best.expected:
        lines.append(f"WARNING: not confirmed: {UNCONFIRMED[best.unconfirmed or 'no finals']}.")
    if made and made.others:
        lines.append(f"This file does not set: {', '.join(made.others)}.")
    return "".join(f"# {_in_one_line(line)}\n" for line in lines)


def machines(config: Config) -> set[str]:
    """Facts that nodes and ranks per node express; none if nodes have unequal ranks."""
    return {"world_size", "nodes"} if config.world_size % config.nodes == 0 else set()


def every_nth(checkpointing: str) -> int | None:
    """2 for "1/2"; None for other kinds of checkpointing."""
    _, slash, number = checkpointing.partition("/")
    return int(number) if slash else None


def _in_one_line(text: str) -> str:
    """`text` without characters that would end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _plain(config: Config, name: str) -> bool:
    if name in ("width", "vocab_size"):  # the config of a model has them
        return config.model != "gpt" or getattr(config, name) is None
    if name in ("nodes", "seq_len"):  # a script's samples without tokens have length 1
        return int(getattr(config, name)) == 1
    return name != "optimizer" and name in AXES and getattr(config, name) == AXES[name].plain
