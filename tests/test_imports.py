"""Who may import whom, read from the source of both packages."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import ROOT, python

FLOORS = (
    ("errors", "factory"),
    ("wire", "units", "installed"),
    ("device",),
    ("space.models",),
    ("space",),
    ("space.engines", "space.outcome"),
    ("space.trace", "space.options"),
    ("result",),
    ("result.export", "result.loggers"),
    ("result.folder",),
    ("measure.runner",),
    ("measure.agent", "measure.launch", "measure.replay", "measure.script"),
    ("measure.testbed",),
    ("show.report",),
    ("show.view",),
    ("study.predict",),
    ("study.samplers",),
    ("study",),
    ("advise.check", "advise.diagnose", "advise.loader", "advise.plan"),
    ("commands",),
    ("agent", "callbacks"),
)
"""The folders and modules of `autotune`, from the ground up. Imports only go down. What is not
named is on the floor of the folder that holds it."""
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ENTRANCE = "autotune.__main__"
HALLS = {name.split(".")[0] for name in FLOOR_OF} - FLOOR_OF.keys()
FACES = {"autotune", *(f"autotune.{hall}" for hall in HALLS)}
"""What is no room of its own: folders that only hold rooms."""


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


def room(module: str) -> str:
    """The row of `FLOORS` that `module` is in; empty where it is in none."""
    name = module.removeprefix("autotune.")
    while name and name not in FLOOR_OF:
        name = name.rpartition(".")[0]
    return name


def arrows() -> Iterator[tuple[str, str]]:
    """A module of `autotune` and another one that it imports."""
    for module, names in IMPORTS.items():
        if within(module, "autotune") and module not in (*FACES, ENTRANCE):
            yield from ((module, name) for name in names & IMPORTS.keys() - FACES - {module})


def test_the_walk_sees_both_packages() -> None:
    assert {"autotune.commands.app", "autotune.device.cpu", "probes.faults"} <= set(IMPORTS)
    assert "autotune.units" in IMPORTS["autotune.space.options.limits"]


def test_every_module_has_its_floor() -> None:
    found = {room(m) for m in IMPORTS.keys() - FACES - {ENTRANCE} if within(m, "autotune")}
    assert found == set(FLOOR_OF)


def test_autotune_has_at_most_nine_folders_and_eight_modules() -> None:
    inside = [path for path in (ROOT / "autotune").iterdir() if path.name != "__pycache__"]
    assert len([path for path in inside if path.is_dir()]) <= 9
    assert len([path for path in inside if path.suffix == ".py"]) <= 8


def test_imports_only_go_down() -> None:
    upward = [
        f"{module} imports {name}"
        for module, name in arrows()
        if room(module) != room(name) and FLOOR_OF[room(name)] >= FLOOR_OF[room(module)]
    ]
    assert upward == []


def test_no_circle_of_modules() -> None:
    """A folder's face may be imported by what is in it, if that is not imported by the face."""
    below = {module: {n for m, n in arrows() if m == module} for module in IMPORTS}

    def reaches(module: str, target: str, seen: set[str]) -> bool:
        for name in below.get(module, set()) - seen:
            seen.add(name)
            if name == target or reaches(name, target, seen):
                return True
        return False

    assert [module for module in below if reaches(module, module, set())] == []


def test_probes_import_only_the_wire_and_the_factory_of_autotune() -> None:
    names = set().union(*(names for module, names in IMPORTS.items() if within(module, "probes")))
    foreign = {name for name in names if within(name, "autotune")}
    known = ("autotune.wire", "autotune.factory")  # and what users write their models with
    assert {n for n in foreign if n != "autotune" and not within(n, *known)} == set()


def test_autotune_never_imports_probes_or_torch() -> None:
    found = importers("probes", "torch", "deepspeed", "transformers", among=("autotune",))
    # For its types, which only checkers read; and in a function that a user's script calls.
    assert found == {"autotune.factory", "autotune.callbacks"}
    code = "import sys, autotune.factory; print('torch' in sys.modules)"
    assert python("-c", code).stdout == "False\n"


def test_optuna_is_known_to_samplers_the_journal_and_storages_alone() -> None:
    known = importers("optuna", among=("autotune", "probes"))
    assert {m for m in known if not within(m, "autotune.study.samplers")} == {
        "autotune.result.folder.databases",
        "autotune.result.folder.journal",
        "autotune.result.folder.journal_file",
        "autotune.result.folder.past",
        "autotune.result.folder.processes",
        "autotune.result.folder.sampler",
        "autotune.result.folder.storage",
    }


def test_the_wire_needs_the_standard_library_and_msgspec_alone() -> None:
    names = {n for m, names in IMPORTS.items() if within(m, "autotune.wire") for n in names}
    roots = {n.split(".")[0] for n in names if not within(n, "autotune.wire")}
    assert roots <= sys.stdlib_module_names | {"msgspec"}


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(flag: str) -> None:
    code = (
        "import sys; from autotune.commands.app import main; code = main(sys.argv[1:]);"
        "print('loaded', *sorted({'torch', 'optuna', 'pandas', 'numpy'} & sys.modules.keys()));"
        "sys.exit(code)"
    )
    assert python("-c", code, flag).stdout.splitlines()[-1] == "loaded"
