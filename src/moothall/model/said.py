"""What a server says about itself and its errors, made fit for logs, terminals and error messages. No I/O."""

from __future__ import annotations

import json
from typing import Any

from moothall.domain.text import one_line

_NAME = 200
_KEYS = ("error", "message", "detail")


def error_message(raw: bytes) -> str:
    """Return what an error answer says, as one short line."""
    text = raw.decode(errors="replace")
    said: Any = text
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return one_line(text)
    for key in _KEYS:
        if isinstance(said, dict) and key in said:
            said = said[key]
    return one_line(str(said))


def read_models(raw: bytes) -> dict[str, str]:
    """Return the models of a `/v1/models` answer with their owners. Raises `ValueError` for what is no such list."""
    try:
        listed = json.loads(raw)["data"]
        return {one_line(model["id"], _NAME): one_line(str(model.get("owned_by") or ""), _NAME) for model in listed}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is no list of models") from error
