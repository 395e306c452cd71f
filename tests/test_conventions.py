"""What a reader may rely on in every file."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from autotune.space.engines import ENGINES
from tests.support.programs import ROOT

SOURCES = sorted(
    path for package in ("autotune", "probes") for path in (ROOT / package).rglob("*.py")
)
WRITTEN = [
    path for package in ("autotune", "probes", "scripts", "tests")
    for path in (ROOT / package).rglob("*") if path.suffix in ("", ".py", ".sh", ".c", ".h")
    and path.is_file()
]  # fmt: skip
MOST_WORDS = 20
_ENDS = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n *(?:[-*] |\d+\. )|\*\*")
_NO_MESSAGE = re.compile(r"\n|\(\?|_\w* \w+_")
_COMMENTS = re.compile(r"(?:^ *(?:# |#:|//).*\n)+", re.MULTILINE)
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


def long_sentences(text: str) -> list[str]:
    """What is in backticks is one word."""
    sentences = _ENDS.split(re.sub(r"`[^`]*`", "X", text))
    return [each for each in sentences if len(re.findall(r"\b\w\S*", each)) > MOST_WORDS]


def message(node: ast.AST) -> str:
    """A string that is no pattern or list of names; a placeholder is one word."""
    match node:
        case ast.Constant(str(text)):
            pass
        case ast.JoinedStr(parts):
            text = "".join(str(getattr(each, "value", "")) if isinstance(each, ast.Constant)
                           else "X" for each in parts)  # fmt: skip
        case _:
            return ""
    return "" if _NO_MESSAGE.search(text) else text


def texts(path: Path) -> Iterator[str]:
    """Docstrings and comments of a file; of the product also its messages."""
    source, of_product = path.read_text(encoding="utf-8"), path in SOURCES
    for block in _COMMENTS.findall(source):
        yield re.sub(r"^ *(?:#:?|//) ?", "", block, flags=re.MULTILINE)
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield str(node.value.value)
            elif of_product:
                yield message(node)


def test_sentences_of_comments_and_messages_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {' '.join(sentence.split())}"
        for path in WRITTEN
        for text in texts(path)
        for sentence in long_sentences(text)
    }
    assert long == set()
