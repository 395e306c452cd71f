"""Importing this leaves out torch's compiler, which optimizers import at their first step.

That takes as much of the processor as torch itself, in each of the tests' many short scripts.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

modules: dict[str, Any] = sys.modules
modules["torch._dynamo"] = SimpleNamespace(
    graph_break=lambda: None, disable=lambda function, *_, **__: function
)
