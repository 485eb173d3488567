"""A page as its elements and texts, for tests of what it shows and of what it may not hold."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from html.parser import HTMLParser

VOID, HEADINGS = {"meta"}, {"h2", "h3"}
ACTING = {
    "script", "img", "iframe", "link", "object", "embed", "form", "base", "foreignobject", "image", "set", "b", "i", "u"
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would see: every element is closed.

    Attributes:
        tags: elements in order, with their attributes.
        texts: (element, text right inside it).
        folded: ids of the headings of folded sections.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.folded: list[str] = []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag in HEADINGS and "summary" in self.stack:
            self.folded.append(dict(attrs)["id"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.stack[-1] if self.stack else "", data))

    def text(self, tag: str) -> list[str]:
        """Return the texts right inside elements of this name."""
        return [text for name, text in self.texts if name == tag and text.strip()]

    def assert_harmless(self) -> None:
        """Fail where an element or attribute could act, or where the policy would let one."""
        (policy,) = [own["content"] for _, own in self.tags if own.get("http-equiv") == "Content-Security-Policy"]
        (style,) = self.text("style")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        assert "url(" not in style
        assert "@import" not in style
        assert not {tag for tag, _ in self.tags} & ACTING
        attributes = {name for _, own in self.tags for name in own}
        assert not {"style", "src", "srcset", "action", "xlink:href"} & attributes
        assert not any(name.startswith("on") for name in attributes)
        assert all(str(own["href"]).startswith("#") for _, own in self.tags if "href" in own)
        assert max(Counter(own["id"] for _, own in self.tags if "id" in own).values()) == 1
