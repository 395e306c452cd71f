"""The README and docs/: short, in step with the code, and with links that lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.app import parsed
from tests.support.documents import PAGES, commands
from tests.support.programs import ROOT
from tests.support.scripts import load

write_reference: Any = load("write_reference")
README = ROOT / "README.md"
COMMANDS = [each for page in (README, *PAGES.rglob("*.md")) for each in commands(page)]
PROSE = [
    *(page for page in PAGES.rglob("*.md") if "reference" not in page.parts),
    ROOT / "README.md", ROOT / "CONTRIBUTING.md",
]  # fmt: skip
MOST_WORDS = 20
DECISIONS = sorted((ROOT / "docs" / "decisions").iterdir())
ARCHITECTURE, CONTRIBUTING = ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"
DOCUMENTS = [
    *ROOT.glob("*.md"), *(ROOT / "results").glob("*.md"), *PAGES.rglob("*.md"), *DECISIONS
]  # fmt: skip
INSIDE = [ARCHITECTURE, CONTRIBUTING, *DECISIONS]
"""Those that name files and tables of the code."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`([\w.<>*-]+/[\w.<>*/-]*|\w+\.py)`")
TABLE = re.compile(r"`(?:(probes)\.)?((?:[a-z_]+\.)+)(_?[A-Z]+|Options)`")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 170


def test_the_readme_names_the_least_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = dict(each.split(">=") for each in project["dependencies"] if ";" not in each)
    named = {"Python": project["requires-python"].removeprefix(">="), **least}
    text = " ".join(README.read_text(encoding="utf-8").split())
    for name in ("Python", "torch", "transformers"):
        assert f"{name} {named[name].removesuffix('.0')}" in text


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.stem)
def test_files_that_are_named_are_there(path: Path) -> None:
    """From the root, or from `autotune/`; `<folder>` is any."""
    named = {re.sub("<.*?>", "*", name) for name in FILE.findall(path.read_text(encoding="utf-8"))}
    missing = {
        name
        for name in named
        if not any(any(root.glob(name.rstrip("/"))) for root in (ROOT, ROOT / "autotune"))
    }
    assert missing == set()


def test_tables_that_are_named_are_there() -> None:
    named = TABLE.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(named) > 10
    for package, module, table in named:
        path = (ROOT / (package or "autotune")).joinpath(*module.rstrip(".").split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert re.search(rf"^(class )?{table}\b", path.read_text("utf-8"), re.MULTILINE), module


def test_a_decision_has_a_number_a_title_and_three_parts() -> None:
    numbers = [int(path.name[:3]) for path in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        titles = re.findall(r"^(#+ .*)", text, re.MULTILINE)
        assert titles[1:] == ["## Context", "## Decision", "## Consequences"], path.name
        assert titles[0].startswith("# "), path.name
        assert 10 <= len(text.splitlines()) <= 45, path.name


@pytest.mark.parametrize("name", write_reference.PAGES)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    written = (write_reference.FOLDER / name).read_text(encoding="utf-8")
    assert written == write_reference.page(name), "run scripts/docs reference"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert broken == []


_NOT_PROSE = re.compile(r"```.*?```|^\|.*?$|^(?:#+|-|\d+\.) ", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    """Names in code and links count once; lists of names may be longer."""
    text = _NOT_PROSE.sub("\n\n", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", text)).replace("**", "\n\n")
    long = [
        " ".join(sentence.split())
        for paragraph in text.split("\n\n")
        for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph)
        if len(re.findall(r"\w[^\s,]*(?!,)(?=\s|$)", sentence)) > MOST_WORDS
    ]
    assert long == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES.rglob("*.md")
            if f" {page.relative_to(PAGES)}\n" not in navigation] == []  # fmt: skip


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_a_documented_command_is_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("batch: {micro_batch}\n")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    words = shlex.split(command, comments=True)[1:]
    assert parsed(words) is not None or words == ["--help"]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
         str(ROOT / "docs" / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "how-to" / "script.html").exists()
    page = (tmp_path / "site" / "how-to" / "report.html").read_text(encoding="utf-8")
    assert 'src="../results/pictures/report.png"' in page
    assert (tmp_path / "site" / "results" / "pictures" / "report.png").exists()
