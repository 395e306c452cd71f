"""Importing this leaves out torch's compiler, which optimizers import at their first step. It also
leaves out what tells the shapes of results without data.

That takes more of the processor than the rest of torch, in each of the tests' many short scripts.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

modules: dict[str, Any] = sys.modules
modules["torch._dynamo"] = SimpleNamespace(
    graph_break=lambda: None,
    disable=lambda function, *_, **__: function,
    trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
    utils=SimpleNamespace(get_optimize_ddp_mode=lambda: ""),
)


class Shapes(MetaPathFinder, Loader):
    """Nothing in place of torch's module."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "torch._meta_registrations" else None

    def exec_module(self, module: ModuleType) -> None:
        modules["torch"]._C._set_generator_metaclass(type)  # that, too, is done on its import


sys.meta_path.insert(0, Shapes())
