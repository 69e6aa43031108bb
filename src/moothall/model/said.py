"""What a server says about itself and its errors, made fit for logs, terminals and error messages. No I/O."""

from __future__ import annotations

import json
from typing import Any

_NAME = 200
_MESSAGE = 300
_KEYS = ("error", "message", "detail")


def plain(text: str, limit: int = _MESSAGE) -> str:
    """Return one line of printable characters: no escape sequence of a server's reaches a terminal."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    return " ".join(shown.split())[:limit]


def error_message(raw: bytes) -> str:
    """Return what an error answer says, as one short line."""
    text = raw.decode(errors="replace")
    said: Any = text
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return plain(text)
    for key in _KEYS:
        if isinstance(said, dict) and key in said:
            said = said[key]
    return plain(str(said))


def read_models(raw: bytes) -> dict[str, str]:
    """Return the models of a `/v1/models` answer with their owners. Raises `ValueError` for what is no such list."""
    try:
        listed = json.loads(raw)["data"]
        return {plain(model["id"], _NAME): plain(str(model.get("owned_by") or ""), _NAME) for model in listed}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is no list of models") from error
