"""Between frozen dataclasses and JSON-shaped data, by pydantic's type adapters."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from moothall.errors import InvalidRequest

T = TypeVar("T")


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", kind))


def dump(value: object) -> dict[str, Any]:
    """Return a dataclass as JSON-shaped data."""
    return cast("dict[str, Any]", _adapter(cast("Hashable", type(value))).dump_python(value, mode="json"))


def load(kind: type[T], data: object) -> T:
    """Return data as a `kind`; raises `InvalidRequest` naming the fields that are wrong."""
    try:
        return cast("T", _adapter(cast("Hashable", kind)).validate_python(data))
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or kind.__name__}: {item['msg']}" for item in error.errors()[:5]
        )
        raise InvalidRequest(f"not a {kind.__name__}: {where}") from error
