"""Who may import whom, read from the source of both packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, anywhere in it; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTS = {
    module_name(path): set(imported(path))
    for package in ("autotune", "probes")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def importers(*packages: str, among: tuple[str, ...]) -> set[str]:
    """Modules in `among` that import anything of `packages`."""
    return {
        module
        for module, names in IMPORTS.items()
        if within(module, *among) and any(within(name, *packages) for name in names)
    }


def test_the_walk_sees_both_packages() -> None:
    assert {
        "autotune.commands.app",
        "autotune.wire",
        "autotune.device.cpu",
        "probes.faults",
    } <= set(IMPORTS)
    assert "autotune.options" in IMPORTS["autotune.space.space"]


def test_probes_import_only_the_wire_of_autotune() -> None:
    names = set().union(*(names for module, names in IMPORTS.items() if within(module, "probes")))
    foreign = {name for name in names if within(name, "autotune")}
    assert {n for n in foreign if n != "autotune" and not within(n, "autotune.wire")} == set()


def test_autotune_never_imports_probes_or_torch() -> None:
    assert importers("probes", "torch", "deepspeed", among=("autotune",)) == set()


def test_only_study_sampler_and_journal_import_optuna() -> None:
    allowed = {"autotune.study.study", "autotune.samplers.adapter", "autotune.folder.journal"}
    assert importers("optuna", among=("autotune", "probes")) <= allowed


def test_export_and_report_read_records_and_never_the_live_study() -> None:
    live = ("autotune.study", "autotune.samplers", "autotune.folder", "autotune.runner")
    assert importers(*live, among=("autotune.export", "autotune.report")) == set()


def test_the_wire_needs_the_standard_library_alone() -> None:
    roots = {name.split(".")[0] for name in IMPORTS["autotune.wire.messages"]}
    assert roots <= sys.stdlib_module_names


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(flag: str) -> None:
    code = (
        "import sys; from autotune.commands.app import main; code = main(sys.argv[1:]);"
        "print('loaded', *sorted({'torch', 'optuna', 'pandas', 'numpy'} & sys.modules.keys()));"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, flag], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "loaded"
