"""Facts about each model family for the study: names, dimensions, activations of a step.

One file and one row of `FAMILIES` each. The rows have the names of those in `probes.models`, which
builds the modules and makes their batches.
"""

from __future__ import annotations

from pathlib import Path

from autotune.errors import UsageError
from autotune.space.models import factory, gpt, hf
from autotune.space.models.family import Family

FAMILIES: dict[str, Family] = {"gpt": gpt.FAMILY, "hf": hf.Hf(), "factory": factory.Factory()}


def family_name(model: str) -> str:
    """The row of `FAMILIES` of `model`, a value of --model. Raises UsageError if there is no such
    model."""
    prefix, found, _ = model.partition(":")
    if model == "gpt" or (found and prefix in FAMILIES and prefix != "gpt"):
        return prefix
    if model in hf.ready():
        return "hf"
    if Path(model).exists():
        raise UsageError(f"--model {model}: unknown; did you mean hf:{model}?")
    if "/" in model:
        raise UsageError(f"--model {model}: {hf.why_missing(model, Path(model))}")
    raise UsageError(
        f"--model {model}: unknown model; known: gpt, hf:PATH for a config of transformers,"
        f" factory:MODULE:FUNCTION for your own, and {', '.join(hf.kept())}, each also with"
        f" {hf.TINY}"
    )
