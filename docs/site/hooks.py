"""What the site does beside mkdocs: links that leave docs/, and the API from docstrings.

Pages link as the repository's viewer wants it: relative to their own file, out of docs/ too (``../scenarios/x.yaml``).
Such files are put on the site below ``repository/``, and the links are written anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = "repository/"
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
DOCSTRINGS = re.compile(r"<!-- docstrings: ([\w.]+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and those that these link to."""
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for match in LINK.finditer(Path(str(page.abs_src_path)).read_text(encoding="utf-8")):
            target = _path(page, match[2])
            if target.is_relative_to(DOCS) or not target.is_file():
                continue
            added = File.generated(config, _uri(target), abs_src_path=str(target))
            if added.src_uri not in files.src_uris:
                files.append(added)
                if added.is_documentation_page():
                    waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where the site has their targets, and ask for the docstrings."""

    def on_site(match: re.Match[str]) -> str:
        target = _path(page.file, match[2])
        if not target.exists():
            return match[0]  # mkdocs names it
        uri = os.path.relpath(_uri(target), os.path.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{uri}{match[3] or ''}{match[4]}"

    return DOCSTRINGS.sub(r"::: \1", LINK.sub(on_site, markdown))


def _path(page: File, link: str) -> Path:
    """Return the file that a link of a page leads to."""
    return Path(os.path.normpath(Path(str(page.abs_src_path)).parent / link))


def _uri(target: Path) -> str:
    """Return where the site has a file of the repository."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    return OUTSIDE + target.relative_to(ROOT).as_posix()
