"""Conversion between frozen dataclasses and JSON-shaped data, by pydantic's type adapters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from moothall.errors import InvalidRequest, wrong_fields

T = TypeVar("T")
_MAX_ERRORS = 5


@cache
def _type_adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", kind))


def dump(value: object) -> dict[str, Any]:
    """Return a dataclass as JSON-shaped data."""
    return cast(
        "dict[str, Any]",
        _type_adapter(cast("Hashable", type(value))).dump_python(value, mode="json"),
    )


def load(kind: type[T], data: object) -> T:
    """Return data as a `kind`. Raises `InvalidRequest`, which names the invalid fields."""
    try:
        return cast("T", _type_adapter(cast("Hashable", kind)).validate_python(data))
    except ValidationError as error:
        raise InvalidRequest(
            f"not a {kind.__name__}: {describe_errors(error, kind.__name__)}"
        ) from error


def prepare_loading(*kinds: type) -> None:
    """Build what `load` needs for these kinds. It takes some ten milliseconds for each."""
    for kind in kinds:
        _type_adapter(cast("Hashable", kind))


def describe_errors(error: ValidationError, whole: str = "it") -> str:
    """Describe the first few invalid fields, without their values. `whole` names errors without a
    field.
    """
    return "; ".join(
        f"{'.'.join(map(str, field_error.place)) or whole}: {field_error.sentence}"
        for field_error in wrong_fields(error)[:_MAX_ERRORS]
    )


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object of JSON-shaped data, {} for other values."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: object) -> Sequence[Any]:
    """Return a list of JSON-shaped data, () for other values."""
    return value if isinstance(value, list | tuple) else ()


def text_of(value: object) -> str:
    """Return a text of JSON-shaped data, '' for other values."""
    return value if isinstance(value, str) else ""


def whole_numbers(value: Any) -> Any:
    """Return JSON data with integral floats as integers: 1.0 becomes 1."""
    if isinstance(value, Mapping):
        return {str(key): whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
