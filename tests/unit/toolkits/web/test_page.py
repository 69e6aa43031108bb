"""Conversion of pages to text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from moothall.toolkits.web.toolkit import MAX_LINKS, read_page

HERE = URL("https://example.org/docs/a")


def test_a_page_is_read_as_text_title_and_links() -> None:
    """Scripts and styles are omitted."""
    page = read_page(
        "<html><head><title>A &amp; "
        "B</title><style>p{}</style></head><body><script>steal()</script><h2>Head</h2><p>One   two"
        "<ul><li>first<li>second</ul><a href='../b#x'>b</a><a "
        "href='javascript:x'>no</a><template>unseen</template>",
        HERE,
    )
    assert page.title == "A & B"
    assert page.links == ("https://example.org/b",)
    assert page.text.split("\n\n")[0] == "## Head"
    assert "One two" in page.text
    assert "- first\n" in page.text
    assert not {"steal", "unseen", "p{}"} & set(page.text.split())


def test_links_are_bounded() -> None:
    """At most a hundred links of a page are returned."""
    page = read_page(
        "".join(f"<a href='/{number}'>x</a>" for number in range(MAX_LINKS + 50)), HERE
    )
    assert len(page.links) == MAX_LINKS


@given(st.text(alphabet="<>/!-[]&;'\"= abdiv\n\0script", max_size=300))
def test_hostile_markup_can_be_read(html: str) -> None:
    """Malformed markup gives odd text at worst."""
    assert isinstance(read_page(html, HERE).text, str)


def test_deeply_nested_markup_can_be_read() -> None:
    """The parser does not recurse."""
    assert read_page("<div>" * 50_000 + "deep", HERE).text == "deep"
