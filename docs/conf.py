"""Build the documentation as a site: python -m sphinx -W -c docs . build/site (decision 34).

The source folder is the root of the repository, so that links between pages are the same here as
anywhere else the files are read. The navigation is the lists of docs/index.md.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
project = "Fusewire"
author = "The Fusewire authors"
project_copyright = "The Fusewire authors"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "benchmarks/results/*.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
# Folders that need not be searched for pages.
exclude_patterns = [".*", "build", "dist", "examples", "src", "tests"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Fusewire"
html_static_path = ["site.css"]
html_permalinks_icon = "#"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# What a browser would load from another server; links that people follow are not.
FOREIGN = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.https?://[^>]*")
LISTED = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\.md\)", re.MULTILINE)
# Pages whose lists of links are the navigation.
LISTS = ("docs/index", "docs/decisions/index", "docs/measurements")


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Turn each list of links into a part of the navigation; the lists stay as they are."""
    if page not in LISTS:
        return
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        links = [f"{title} <{target}>" for title, target in LISTED.findall(section)]
        if links:
            caption = section.partition("\n")[0] if page == "docs/index" else ""
            options = [":hidden:", f":caption: {caption}"] if caption else [":hidden:"]
            source[0] += "\n".join(["", "```{toctree}", *options, "", *links, "```", ""])


def add_files(app: Any, error: Exception | None) -> None:
    """Put beside the pages what assistants read, and a first page at the root."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    shutil.copy(ROOT / "llms.txt", out)
    for page in app.env.found_docs:
        shutil.copy(app.env.doc2path(page), out / f"{page}.md")
        if found := FOREIGN.search((out / f"{page}.html").read_text(encoding="utf-8")):
            raise ValueError(f"{page} loads something from another server: {found[0]}")
    to = "docs/index.html"
    text = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={to}">'
    (out / "index.html").write_text(f'{text}\n<a href="{to}">Fusewire</a>\n', encoding="utf-8")


def setup(app: Any) -> None:
    """Connect both to Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_files)
