"""Translate schemas to the subset that strict servers accept, and replies back.

In the subset, the root is an object without `anyOf`, every property is required (optional ones may
be null), additional properties are forbidden, and keywords that limit sizes are not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_UNSUPPORTED_KEYWORDS = frozenset(
    {
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "default",
        "title",
    }
)


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in the strict subset. Alternatives at the root are merged into one object in
    which the properties of the other alternatives are null.
    """
    alternatives = schema.get("anyOf")
    if not isinstance(alternatives, list) or not all(
        isinstance(alternative, Mapping) and "properties" in alternative
        for alternative in alternatives
    ):
        return _strict(schema)
    properties: dict[str, list[Any]] = {}
    for alternative in alternatives:
        for name, value in alternative["properties"].items():
            if value not in properties.setdefault(name, []):
                properties[name].append(value)
    required = set.intersection(
        *(set(alternative.get("required", ())) for alternative in alternatives)
    )
    merged = {
        "type": "object",
        "properties": {
            name: values[0] if len(values) == 1 else {"anyOf": values}
            for name, values in properties.items()
        },
        "required": [name for name in properties if name in required],
    }
    return _strict(merged)


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    strict: dict[str, Any] = _translate(schema)
    return strict


def _translate(value: Any) -> Any:
    if isinstance(value, list):
        return [_translate(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    supported = {name: item for name, item in value.items() if name not in _UNSUPPORTED_KEYWORDS}
    if not isinstance(supported.get("properties"), Mapping):
        translated = {
            name: item if name in {"enum", "const"} else _translate(item)
            for name, item in supported.items()
        }
        if translated.get("type") == "object":
            translated |= {"properties": {}, "required": [], "additionalProperties": False}
        return translated
    required = set(supported.get("required", ()))
    properties = {
        name: _translate(item) if name in required else _make_nullable(_translate(item))
        for name, item in value["properties"].items()
    }
    rest = {
        name: _translate(item)
        for name, item in supported.items()
        if name not in {"properties", "required", "additionalProperties"}
    }
    return rest | {
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _make_nullable(schema: Any) -> dict[str, Any]:
    return (
        {"anyOf": [*schema["anyOf"], {"type": "null"}]}
        if set(schema) == {"anyOf"}
        else {"anyOf": [schema, {"type": "null"}]}
    )


def without_nulls(text: str) -> str:
    """Return a JSON reply without its null fields. In the strict subset, null stands for a missing
    optional field.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return (
        json.dumps(_drop_nulls(value), ensure_ascii=False).encode("utf-8", "replace").decode()
        if isinstance(value, dict)
        else text
    )


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value
