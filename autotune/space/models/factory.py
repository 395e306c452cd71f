"""A model of the user's own, made by a function of theirs (autotune/factory.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.errors import UsageError
from autotune.space.models.defaults import LENGTHS, MICRO_BATCHES, Defaults, ModelRequest
from autotune.space.models.family import Family
from autotune.space.models.where import folder

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


def module_and_function(text: str) -> tuple[str, str] | None:
    """The two names in "package.module:function"; None for another form."""
    found = _NAME.fullmatch(text)
    return None if found is None else (found[1], found[2])


class Factory(Family):
    """The family. Its function may ignore the depth."""

    counted = True
    is_code = True

    def recipe(self, asked: ModelRequest) -> dict[str, Any]:
        """The function's names, and the folder that it is importable from. Raises UsageError if
        the name has another form."""
        found = module_and_function(asked.model.removeprefix("factory:"))
        if found is None:
            raise UsageError(
                f"--model {asked.model}: write factory:package.module:function, importable from"
                " this folder"
            )
        module, function = found
        if module.endswith(".py"):
            right = f"factory:{module.removesuffix('.py')}:{function}"
            raise UsageError(f"--model {asked.model}: write {right}, without .py")
        asked.refuse_what_is_of_transformers("a factory")
        found_in = {"module": module, "function": function, "folder": str(folder())}
        return found_in | dict.fromkeys(("seq_len", "dtype", "device"))  # filled in later

    def lacks(self, recipe: Mapping[str, Any], axis: str, value: str) -> str:
        if axis == "loss" and value != "whole":
            return "a factory's loss is its own"
        return ""

    def defaults(self, recipe: Mapping[str, Any], device_kind: str) -> Defaults:
        return Defaults((1,), LENGTHS[device_kind], MICRO_BATCHES[device_kind], 0)
