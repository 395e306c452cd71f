"""The commands of autotune in a document."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.support.programs import ROOT

PAGES = ROOT / "docs" / "pages"


def commands(page: Path) -> list[str]:
    """The commands in its blocks without a language, and in cells of its tables."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = "\n".join(block for language, block in fenced if not language)
    found = re.findall(r"^\|.*?\| `(autotune [^`]*)` \|", text, re.MULTILINE)
    lines = iter(blocks.replace("\\\n", " ").splitlines())
    for line in lines:
        if line.startswith("autotune "):
            found.append(line)
            while _open(found[-1]):
                found[-1] += next(lines)
    return found


def _open(line: str) -> bool:
    """Whether a quote goes on on the next line."""
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False
