"""Links of README and docs lead to files and headings that there are; every page is in the index and on the site."""

import re

import yaml

from tests.docs.pages import FENCE, PAGES, ROOT, SPAN, anchors, links


def test_links_lead_somewhere():
    broken = []
    for page in PAGES:
        for path, anchor in links(page):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert broken == []


def test_pages_are_linked_and_not_only_named():
    texts = {page: FENCE.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
    spans = [(page.relative_to(ROOT), span) for page, text in texts.items() for span in SPAN.findall(text)]
    assert [found for found in spans if re.fullmatch(r"(docs/)?[a-z_/]+\.md", found[1])] == []


def test_every_page_is_in_the_index_and_on_the_site():
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    site = yaml.load((docs / "site" / "mkdocs.yml").read_text(), _Loader)

    def entries(node):
        if isinstance(node, str):
            return {node}
        return set().union(*(entries(each) for each in (node.values() if isinstance(node, dict) else node)))

    shown = entries(site["nav"])
    assert {name for name in shown if not name.startswith("repository/")} == pages
    indexed = {path for path, _ in links(docs / "index.md")} | {"index.md"}
    assert {page for page in pages if not page.startswith("measured/")} - indexed == set()


class _Loader(yaml.SafeLoader):
    """Reads over the tags with which mkdocs names functions."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
