"""A page as its elements and texts, for tests of what it shows and of what it may not hold."""

from __future__ import annotations

from html.parser import HTMLParser

VOID, HEADINGS = {"meta"}, {"h2", "h3"}


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
