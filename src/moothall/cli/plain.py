"""Text of others, made fit for a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str, limit: int = 400) -> str:
    """Return hostile text fit for a terminal: no control or direction characters, one length."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
