"""Text by others, measured, cut and fenced before a model sees it."""

from __future__ import annotations

import re

from moothall.domain.ids import digest

CHARS_PER_TOKEN = (
    3.2  # code in a byte-pair vocabulary; low on purpose, so that windows are never overrun
)


def tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    return int(len(text) / CHARS_PER_TOKEN) + 1


# Letters as a word begins and goes on, then what has a token of its own mostly: a digit, a sign of
# another script, punctuation, space.
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d|[^\x00-\x7f]|([^\w\s]|_)\1*|[\t\n\r\f\v]+| {2,}")
_MARGIN = 1.1


def most_tokens(text: str) -> int:
    """Return an upper bound of the tokens of a text for any model. Ids, hashes, times and other
    scripts are denser than the words that `tokens` assumes. It is slower than `tokens`.
    """
    return max(tokens(text), int(sum(map(_piece_tokens, _PIECE.finditer(text))) * _MARGIN) + 1)


def _piece_tokens(match: re.Match[str]) -> int:
    piece = match[0]
    if not piece.isascii():
        return (len(piece.encode("utf-8", "replace")) + 1) // 2
    if piece.isupper():
        return len(piece)
    if piece.isalpha():
        return 1 + (len(piece) - 1) // 7 + max(0, len(piece) - 12) * 2 // 5
    return 1 + (len(piece) - 1) // 4


def clip(text: str, limit: int) -> str:
    """Return at most about `limit` characters: the head, and twice as much of the tail, since
    errors come last.
    """
    if len(text) <= limit:
        return text
    head = limit // 3
    return (
        f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n"
        f"{text[len(text) - (limit - head) :]}"
    )


def fence(label: str, text: str) -> str:
    """Return `text` between two marked lines that do not occur in it, so that it cannot close its
    fence.

    The mark depends only on label and text: the same input gives the same bytes.
    """
    plain_label = " ".join(label.split())[:200]
    full_digest = digest(plain_label, text)
    # The shortest beginning that is in neither: each mark costs tokens of every call.
    mark = next(
        (
            mark
            for size in range(4, len(full_digest))
            if (mark := full_digest[:size]) not in text and mark not in plain_label
        ),
        full_digest,
    )
    return f"--- {plain_label} [{mark}] ---\n{text.rstrip()}\n--- end [{mark}] ---"


def readable_diff(diff: str) -> str:
    """Return a git diff without the lines with object ids, which tell a model nothing."""
    return "\n".join(
        line for line in diff.splitlines() if not line.startswith(("index ", "diff --git "))
    )
