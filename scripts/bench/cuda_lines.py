"""The lines that only CUDA reaches, and those of them that tests on emulated cards run.

    export AUTOTUNE_TEST_CARDS=2xA100-80GB
    .venv-cuda/bin/python scripts/bench/cuda_lines.py [ARGUMENT ...]

They are lines in branches whose condition compares with "cuda", lines that call `torch.cuda`, and
the modules of NVML. `diagnose` is left out, since it reads texts. Every Python process of the
tests notes the lines that it runs, even if it is killed. Arguments go to pytest; without any, the
tests marked gpu or emulated run, but no campaign.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHOLE = ("autotune/device/cuda.py", "autotune/wire/sensors.py")
"""Files that only CUDA uses."""
TRACER = """
import os, sys, threading
FILES = frozenset({files!r})
seen = set()
def line(frame, event, _):
    key = frame.f_code.co_filename, frame.f_lineno
    if event == "line" and key not in seen:
        seen.add(key)
        file = os.open({out!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{{key[0]}}:{{key[1]}}\\n".encode())
        os.close(file)
    return line
def call(frame, event, _):
    return line if frame.f_code.co_filename in FILES else None
threading.settrace(call)
sys.settrace(call)
"""


def cuda_lines(path: Path) -> set[int]:
    """First lines of statements that only run on CUDA."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if str(path.relative_to(ROOT)) in WHOLE:
        return set(_begins(_inside(tree)))
    found: set[int] = set()
    for node in ast.walk(tree):
        for body in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            if isinstance(body, list):
                found |= set(_begins(_on_cuda(body)))
    calls = [n for n in _inside(tree) if not hasattr(n, "body") and _calls_cuda(n)]
    return found | set(_begins(calls))


def _on_cuda(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of `body`, at any depth, that only run on CUDA."""
    for place, statement in enumerate(body):
        condition = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
        if not isinstance(statement, ast.If) or "= 'cuda'" not in condition:
            continue
        if " != 'cuda'" not in condition:
            yield from (s for each in statement.body for s in _inside(each))
            continue
        yield from (s for each in statement.orelse for s in _inside(each))
        if isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
            yield from (s for each in body[place + 1 :] for s in _inside(each))


def _inside(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run in a function, in their order."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef):
            for inner in each.body:
                yield from (s for s in ast.walk(inner) if isinstance(s, ast.stmt))
    if isinstance(node, ast.stmt):
        yield from (s for s in ast.walk(node) if isinstance(s, ast.stmt))


def _calls_cuda(statement: ast.stmt) -> bool:
    names = (each for each in ast.walk(statement) if isinstance(each, ast.Attribute))
    return any(each.attr == "cuda" and ast.unparse(each.value).endswith("torch") for each in names)


def _begins(statements: Iterator[ast.stmt] | Sequence[ast.stmt]) -> Iterator[int]:
    for each in statements:
        text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if not (text or isinstance(each, ast.Global | ast.Nonlocal | ast.ImportFrom | ast.Import)):
            yield each.lineno


def report(wanted: dict[str, set[int]], ran: dict[str, set[int]]) -> str:
    """One row a file, and the share of all."""
    lines = ["| file | lines | run | not run |", "|---|---|---|---|"]
    for name, of in wanted.items():
        left = ", ".join(map(str, sorted(of - ran.get(name, set()))))
        lines.append(f"| {name} | {len(of)} | {len(of & ran.get(name, set()))} | {left} |")
    every = sum(map(len, wanted.values()))
    run = sum(len(of & ran.get(name, set())) for name, of in wanted.items())
    return "\n".join([*lines, f"| all | {every} | {run} | {run / max(1, every):.1%} run |"])


def main(arguments: list[str]) -> int:
    sources = [p for top in ("autotune", "probes") for p in sorted((ROOT / top).rglob("*.py"))]
    found = {p: cuda_lines(p) for p in sources if not {"emulated", "diagnose"} & set(p.parts)}
    wanted = {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines}
    marked = [
        str(p)
        for p in (ROOT / "tests").rglob("test_*.py")
        if any(f"mark.{mark}" in p.read_text(encoding="utf-8") for mark in ("gpu", "emulated"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ran"
        files = [str(ROOT / name) for name in wanted]
        (Path(folder) / "sitecustomize.py").write_text(
            TRACER.format(files=files, out=str(out)), encoding="utf-8"
        )
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        tests = arguments or ["-n", "2", "-m", "(gpu or emulated) and not campaign", *marked]
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths}, check=False,
        ).returncode  # fmt: skip
        ran: dict[str, set[int]] = {}
        for line in out.read_text().splitlines() if out.exists() else ():
            path, _, number = line.rpartition(":")
            ran.setdefault(str(Path(path).relative_to(ROOT)), set()).add(int(number))
    print(report(wanted, ran))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
