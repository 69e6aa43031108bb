"""What a database answers, as JSON, and only so much of it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.toolkits.answering import Output
from moothall.toolkits.db.family import DbSettings

_DEEP = 40


def jsonable(value: Any, depth: int = _DEEP) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Return a value as JSON has it: bytes as text where they are text, else {"base64": …}; what
    JSON lacks as text.
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
    """Return how many characters of JSON a value has."""
    return len(json.dumps(value, ensure_ascii=False))


@dataclass(slots=True)
class Table:
    """Rows as they come, until there are as many as the operator lets out."""

    columns: Sequence[str]
    limits: DbSettings
    rows: list[list[Any]] = field(default_factory=list)
    cut: bool = False
    _left: int = 0

    def __post_init__(self) -> None:
        self._left = self.limits.result_bytes - size(list(self.columns))

    def take(self, row: Iterable[Any]) -> bool:
        """Add a row; False where it has no room, and nothing more is taken."""
        shown = [jsonable(value) for value in row]
        self._left -= size(shown) + 2
        if len(self.rows) >= self.limits.rows or self._left < 0:
            self.cut = True
            return False
        self.rows.append(shown)
        return True

    def output(self) -> Output:
        """Return the table."""
        return {"columns": list(self.columns), "rows": self.rows, "truncated": self.cut}
