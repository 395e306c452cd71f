"""What a reader may rely on in every file."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from autotune.space.engines import ENGINES
from tests.support.programs import ROOT

SOURCES = sorted(
    path for package in ("autotune", "probes") for path in (ROOT / package).rglob("*.py")
)
AT_HOME = (
    "autotune/advise/check/",
    "autotune/advise/diagnose/",
    "autotune/result/best.py",
    "autotune/space/engines/",
    "autotune/result/export/",
    "probes/engines/",
)


def modules() -> Iterator[Any]:
    for path in SOURCES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            yield importlib.import_module(name)


def code(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_dataclasses_of_more_than_four_fields_are_keyword_only() -> None:
    found = {
        each
        for module in modules()
        for each in vars(module).values()
        if isinstance(each, type) and is_dataclass(each) and each.__module__ == module.__name__
    }
    assert len(found) > 50
    positional = [
        each.__qualname__
        for each in found
        if len(fields(each)) > 4 and not all(field.kw_only for field in fields(each))
    ]
    assert positional == []


def test_no_engine_is_named_away_from_home() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if not str(path.relative_to(ROOT)).startswith(AT_HOME)
        for node in code(path)
        if isinstance(node, ast.Constant) and node.value in ENGINES
    ]
    assert named == []


def test_no_test_imports_a_test() -> None:
    imported = [
        f"{path.name}: {node.module}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in code(path)
        if isinstance(node, ast.ImportFrom)
        and any(part.startswith("test_") for part in (node.module or "").split("."))
    ]
    assert imported == []


def test_each_class_name_stands_once() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in code(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
