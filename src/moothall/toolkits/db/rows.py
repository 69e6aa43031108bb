"""The answer of a database as JSON of limited size."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.toolkits.answering import Output
from moothall.toolkits.db.family import DbSettings

_MAX_DEPTH = 40
RECEIVE_BYTES = 8_000_000
"""A server may send this much for one call; more ends the call."""
ANSWER_BYTES = 50_000
"""Size of one answer as JSON; a longer one is truncated."""


def jsonable(value: Any, depth: int = _MAX_DEPTH) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Convert a value to JSON: bytes to text, or to {"base64": …} if they are not text, and other
    types to text.
    """
    if depth == 0:
        return "[nested deeper than is shown]"
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return _bytes(value)
        case Mapping():
            return {
                str(jsonable(key, depth - 1)): jsonable(item, depth - 1)
                for key, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [jsonable(item, depth - 1) for item in value]
    return str(value)


def _bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def size(value: Any) -> int:
    """Return the number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


@dataclass(slots=True)
class Table:
    """Rows of an answer, up to the operator's limits."""

    columns: Sequence[str]
    limits: DbSettings
    rows: list[list[Any]] = field(default_factory=list)
    cut: bool = False
    _chars_left: int = 0

    def __post_init__(self) -> None:
        self._chars_left = ANSWER_BYTES - size(list(self.columns))

    def add(self, row: Iterable[Any]) -> bool:
        """Add a row. Return False if it does not fit; no more rows can be added then."""
        values = [jsonable(value) for value in row]
        self._chars_left -= size(values) + 2
        if len(self.rows) >= self.limits.rows or self._chars_left < 0:
            self.cut = True
            return False
        self.rows.append(values)
        return True

    def output(self) -> Output:
        """Return the table."""
        return {"columns": list(self.columns), "rows": self.rows, "truncated": self.cut}
