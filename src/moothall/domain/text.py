"""Foreign text: encodable, and safe to show in one line."""

from __future__ import annotations


def encodable(text: str) -> str:
    """Return a text with lone surrogates, which cannot be encoded, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_sentence(text: str) -> str:
    """Return a message with a full stop if it has no end mark."""
    return text if text.rstrip().endswith((".", "!", "?", ":")) else f"{text.rstrip()}."


def one_line(text: str, most: int = 300) -> str:
    """Return a text in one line of at most `most` characters, without control, direction and
    zero-width characters, so that no escape sequence reaches a terminal.
    """
    return " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 4 * most]).split()
    )[:most]


def contains_words(text: str, query: str) -> bool:
    """Return whether a text contains every word of a query, in any order and case."""
    lower = text.lower()
    return all(word in lower for word in query.lower().split())
