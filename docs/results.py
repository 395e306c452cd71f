"""Puts the reports of results/ into the site: links to them then work there and on disk.

On disk a page names a report as ../../results/plan.md, or with one ../ more in a subfolder.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.md", "public/*.md", "pictures/*", "samples/*.png", "samples/*/*", "grids/*.csv")
OUTSIDE = re.compile(r"(\]\((?:\.\./)*)\.\./\.\./(results/)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports, and what they link to."""
    for pattern in PATTERNS:
        for path in sorted((ROOT / "results").glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to results/ of the repository become links to results/ of the site."""
    return OUTSIDE.sub(r"\1\2", markdown)
