"""A web page as text: its visible text, its title and its links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from yarl import URL

_INVISIBLE_ELEMENTS = frozenset(
    {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}
)
_BLOCK_ELEMENTS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "td",
        "th",
        "tr",
        "ul",
    ]
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MAX_LINKS = 100


@dataclass(frozen=True, slots=True)
class Page:
    """A page as text. `links` are absolute, unique and in order."""

    title: str
    text: str
    links: tuple[str, ...]


@dataclass(slots=True)
class _Content:
    parts: list[str] = field(default_factory=list)
    title: list[str] = field(default_factory=list)
    links: dict[str, None] = field(default_factory=dict)


class _Reader(HTMLParser):
    """A parser of any page: open elements are closed at the end."""

    def __init__(self, base: URL) -> None:
        super().__init__(convert_charrefs=True)
        self.content = _Content()
        self._base = base
        self._invisible: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = self._in_title or tag == "title"
        if tag in _INVISIBLE_ELEMENTS:
            self._invisible.append(tag)
        elif tag == "body":
            self._invisible.clear()
        elif tag in _BLOCK_ELEMENTS:
            self.content.parts.append("\n" + _HEADINGS.get(tag, "- " if tag == "li" else ""))
        elif tag == "a" and len(self.content.links) < MAX_LINKS:
            self._link(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in self._invisible:
            del self._invisible[self._invisible.index(tag) :]
        elif tag in _BLOCK_ELEMENTS:
            self.content.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.content.title.append(data)
        elif not self._invisible:
            self.content.parts.append(data)

    def _link(self, href: str) -> None:
        try:
            target = self._base.join(URL(href)).with_fragment(None)
        except (ValueError, UnicodeError):
            return
        if target.scheme in {"http", "https"}:
            self.content.links[str(target)] = None


def read_page(html: str, url: URL) -> Page:
    """Parse a page. Invalid markup gives odd text, never an error."""
    reader = _Reader(url)
    try:
        reader.feed(html)
        reader.close()
    except (AssertionError, RecursionError):  # limits of the parser; keep what was read until then
        reader.content.parts.append("\n[the rest of the page cannot be read]")
    lines = (" ".join(line.split()) for line in "".join(reader.content.parts).split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return Page(
        " ".join("".join(reader.content.title).split())[:300], text, tuple(reader.content.links)
    )
