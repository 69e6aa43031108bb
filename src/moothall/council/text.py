"""Text that others wrote: measured, cut and fenced before a model sees it."""

from __future__ import annotations

from moothall.domain.ids import digest

CHARS_PER_TOKEN = 3.2  # code in a byte-pair vocabulary; low on purpose, so that windows are never overrun


def tokens(text: str) -> int:
    """Return about how many tokens `text` takes, rather too many than too few."""
    return int(len(text) / CHARS_PER_TOKEN) + 1


def clip(text: str, limit: int) -> str:
    """Return at most about `limit` characters: the head and, as errors stand last, twice as much of the tail."""
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[len(text) - (limit - head) :]}"


def fence(label: str, text: str) -> str:
    """Return `text` between two marked lines that `text` cannot hold, so that it cannot close its own fence.

    The mark depends on label and text only: the same input gives the same bytes.
    """
    plain_label = " ".join(label.split())[:200]
    whole = digest(plain_label, text)
    # The shortest beginning that is in neither: each mark costs tokens of every call.
    mark = next((mark for end in range(4, len(whole)) if (mark := whole[:end]) not in text and mark not in plain_label), whole)
    return f"--- {plain_label} [{mark}] ---\n{text.rstrip()}\n--- end [{mark}] ---"


def readable_diff(diff: str) -> str:
    """Return a git diff without the lines that name objects: to a model they are long and mean nothing."""
    return "\n".join(line for line in diff.splitlines() if not line.startswith(("index ", "diff --git ")))
