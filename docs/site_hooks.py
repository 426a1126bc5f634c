"""Owns what `make docs` does beside MkDocs: it adds the pages that lie above docs/, and turns links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES_ABOVE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

LIST_OF_PAGES = "documents.md"


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the repository's top folder under names of their own."""
    # MkDocs would make docs/README.md, the list of all pages, the first page of the site.
    listed = files.get_file_from_path("README.md")
    assert listed is not None
    files.remove(listed)
    files.append(File.generated(config, LIST_OF_PAGES, content=listed.content_string))
    for name, page in PAGES_ABOVE.items():
        text = (ROOT / name).read_text()
        for other, other_page in PAGES_ABOVE.items():
            text = text.replace(f"]({other}", f"]({other_page}")
        text = text.replace("](docs/decisions/)", f"]({LIST_OF_PAGES}#decisions)")
        text = text.replace("](docs/README.md", f"]({LIST_OF_PAGES}").replace("](docs/", "](")
        if page == "index.md":  # Its diagram and its shell lines need the width of the table of contents.
            text = f"---\nhide: [toc]\n---\n\n{text}"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turns links of pages in docs/ that lead above it, and those that name a folder."""
    for name, other_page in PAGES_ABOVE.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(#[^)]*)?\)", rf"]({other_page}\1)", markdown)
    if page.file.src_uri == LIST_OF_PAGES:
        return markdown.replace("](decisions/)", "](#decisions)")
    return re.sub(r"\]\(((?:\.\./)?)README\.md", rf"](\1{LIST_OF_PAGES}", markdown)
