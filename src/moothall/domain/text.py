"""Text of others: as any encoding takes it, and in one line as anybody may read it."""

from __future__ import annotations


def encodable(text: str) -> str:
    """Return a text with halves of characters, which no encoding takes, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_sentence(text: str) -> str:
    """Return a message with a full stop at its end, where it ends without a mark."""
    return text if text.rstrip().endswith((".", "!", "?", ":")) else f"{text.rstrip()}."


def one_line(text: str, most: int = 300) -> str:
    """Return a text in one line of at most `most` characters, without what is not seen: control,
    direction and zero-width characters. None of its escape sequences reaches a terminal.
    """
    return " ".join(
        "".join(sign if sign.isprintable() else " " for sign in text[: 4 * most]).split()
    )[:most]
