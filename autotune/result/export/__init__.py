"""A result in other tools' words. One file and one row of `EXPORTS` each."""

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
    nanochat,
    torchtitan,
    trl,
)
from autotune.result.export.format import Exported
from autotune.result.files import write_whole

FOLDER = "exports"
"""Of a study, beside best.json."""


@dataclass(frozen=True)
class ExportRow:
    """One format."""

    make: Callable[[Best, Path], Exported | None]
    """A pure function of a result, and of the folder that the files will lie in; None where the
    result has no use for it."""
    models: Literal["all", "transformers", "gpt"]
    """A study with one of these models writes it without being asked."""
    checked: Literal["launched", "parsed", "names checked"]
    """How it is tested: in runs of the tool itself, by its own parser, or by its names."""
    without: str = "there is nothing to say"
    """Why a result has no use for it."""


EXPORTS = {
    "deepspeed": ExportRow(
        deepspeed.export, "all", "launched", "{engine} was the engine, and not DeepSpeed"
    ),
    "accelerate": ExportRow(accelerate.export, "all", "launched"),
    "hf": ExportRow(hf.export, "transformers", "launched"),
    "trl": ExportRow(trl.export, "transformers", "launched"),
    "axolotl": ExportRow(axolotl.export, "transformers", "parsed"),
    "llama-factory": ExportRow(llama_factory.export, "transformers", "parsed"),
    "lightning": ExportRow(lightning.export, "all", "launched"),
    "torchtitan": ExportRow(torchtitan.export, "transformers", "parsed"),
    "nanochat": ExportRow(nanochat.export, "gpt", "names checked"),
    "megatron": ExportRow(megatron.export, "gpt", "parsed"),
    "launch": ExportRow(launch.export, "all", "launched"),
    "env": ExportRow(
        env.export, "all", "launched", "no variables were set beyond the machine's own"
    ),
}
"""By the name that `--format` takes."""


def write(best: Best, folder: Path, names: Collection[str] | None = None) -> dict[str, Exported]:
    """Write the formats of these `names` to `folder`, or all that fit the result.

    Returns what was written, by format. Scripts are made executable.

    Raises:
        UsageError: the result has no use for a format that was named.
        OSError: they cannot be written.
    """
    model = best.config.model
    own = model.startswith(("factory:", "script:"))
    fits = {"all", "gpt" if model == "gpt" else "" if own else "transformers"}
    made: dict[str, Exported] = {}
    for name in EXPORTS if names is None else names:
        row = EXPORTS[name]
        found = row.make(best, folder.absolute()) if names or row.models in fits else None
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
