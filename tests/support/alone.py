"""Importing this hides packages that transformers' trainer imports only because they are there.

That takes more of the processor than a script's whole training.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec

hidden = {"scipy", "torchao", "peft", "bitsandbytes"}
if not {"trl", "dpo", "grpo", "vlm"} & {*sys.argv}:
    hidden.add("datasets")
found = importlib.util.find_spec


def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
    return None if name in hidden else found(name, package)


importlib.util.find_spec = find_spec
