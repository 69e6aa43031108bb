"""Our schemas in the subset that strict servers take, and replies in it back in ours.

The subset: an object at the root without `anyOf`, every property required (one that may be missing
may be null instead), no other properties, and none of the keywords that bound sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_UNKNOWN = frozenset(
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
    """Return a schema in the strict subset. Alternatives at the root become one object in which the
    parts of the others are null.
    """
    ways = schema.get("anyOf")
    if not isinstance(ways, list) or not all(
        isinstance(way, Mapping) and "properties" in way for way in ways
    ):
        return _strict(schema)
    properties: dict[str, list[Any]] = {}
    for way in ways:
        for name, value in way["properties"].items():
            if value not in properties.setdefault(name, []):
                properties[name].append(value)
    everywhere = set.intersection(*(set(way.get("required", ())) for way in ways))
    one = {
        "type": "object",
        "properties": {
            name: values[0] if len(values) == 1 else {"anyOf": values}
            for name, values in properties.items()
        },
        "required": [name for name in properties if name in everywhere],
    }
    return _strict(one)


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    strict: dict[str, Any] = _translate(schema)
    return strict


def _translate(value: Any) -> Any:
    if isinstance(value, list):
        return [_translate(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {name: item for name, item in value.items() if name not in _UNKNOWN}
    if not isinstance(kept.get("properties"), Mapping):
        made = {
            name: item if name in {"enum", "const"} else _translate(item)
            for name, item in kept.items()
        }
        if made.get("type") == "object":
            made |= {"properties": {}, "required": [], "additionalProperties": False}
        return made
    required = set(kept.get("required", ()))
    properties = {
        name: _translate(item) if name in required else _or_null(_translate(item))
        for name, item in value["properties"].items()
    }
    rest = {
        name: _translate(item)
        for name, item in kept.items()
        if name not in {"properties", "required", "additionalProperties"}
    }
    return rest | {
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _or_null(schema: Any) -> dict[str, Any]:
    return (
        {"anyOf": [*schema["anyOf"], {"type": "null"}]}
        if set(schema) == {"anyOf"}
        else {"anyOf": [schema, {"type": "null"}]}
    )


def without_nulls(text: str) -> str:
    """Return a JSON reply without the fields that are null because the strict subset has no
    optional ones.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return (
        json.dumps(_dropped(value), ensure_ascii=False).encode("utf-8", "replace").decode()
        if isinstance(value, dict)
        else text
    )


def _dropped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _dropped(item) for name, item in value.items() if item is not None}
    return [_dropped(item) for item in value] if isinstance(value, list) else value
