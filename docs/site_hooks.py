"""Owns what `make docs` does beside MkDocs: it adds the pages that lie above docs/, and turns links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES_ABOVE = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the repository's top folder under names of their own."""
    for name, page in PAGES_ABOVE.items():
        text = (ROOT / name).read_text()
        for other, other_page in PAGES_ABOVE.items():
            text = text.replace(f"]({other}", f"]({other_page}")
        text = text.replace("](docs/decisions/)", "](README.md#decisions)").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turns links of pages in docs/ that lead above it, and those that name a folder."""
    for name, other_page in PAGES_ABOVE.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(#[^)]*)?\)", rf"]({other_page}\1)", markdown)
    return markdown.replace("](decisions/)", "](#decisions)") if page.file.src_uri == "README.md" else markdown
