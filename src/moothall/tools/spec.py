"""The entry of a tool in the catalogue, and the search of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel

from moothall.tools.schemas import Arguments

# The entry of a tool in the catalogue.


SCHEMA_STRING = 8000


class Danger(StrEnum):
    """The worst that a tool can do; it is also the operation that a role is granted. `execute` runs
    code that a model wrote; `outside` acts beyond the workspace.
    """

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    OUTSIDE = "outside"


class Cost(StrEnum):
    """The approximate cost of a call for the operator: negligible, a process, minutes of a core, or
    money.
    """

    NONE = "none"
    LOW = "low"
    HIGH = "high"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of a tool. Only the catalogue decides; a caller's claims are ignored."""

    os_access: bool = False
    network_access: bool = False
    file_system: Literal["none", "read", "write"] = "none"


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit; 0 means unlimited. It applies to a seat if the tool's effect stays in the
    workspace, otherwise to a tenant.
    """

    per_minute: int = 0
    per_hour: int = 0


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of one call.

    seconds: its longest time.
    result_bytes: the size of its result as JSON; 0: the limit of the gateway.
    usual_seconds: the time of a call that does not ask for another one with its argument
    `timeout_seconds`; 0: the tool has no such argument.
    """

    seconds: float
    result_bytes: int = 0
    usual_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """An example of a call, with its output."""

    about: str
    arguments: Mapping[str, Any]
    output: Mapping[str, Any] = field(default_factory=dict)


_DEFAULT_RATES: Final[Mapping[Danger, Rate]] = {
    Danger.READ: Rate(),  # limited by a seat's budget of calls
    Danger.WRITE: Rate(),
    Danger.EXECUTE: Rate(10, 300),
    Danger.OUTSIDE: Rate(10, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolSpec:
    """A tool. Each is a single object that is equal only to itself.

    paths: arguments that contain paths or globs (a string or a list of strings).
    writes: those of them whose files are changed.
    profiles: named sets of tools that it belongs to; `core` is offered to models with small
    windows.
    cache_seconds: how long a result is reused for the same call of the same tenant; 0: never.
    version: changes whenever the same call may be answered differently.
    """

    name: str
    summary: str
    arguments: type[Arguments]
    output: type[BaseModel]
    danger: Danger
    caps: Caps
    requirements: Requirements = Requirements()
    tags: tuple[str, ...] = ()
    version: str = "1.0.0"
    examples: tuple[Example, ...] = ()
    profiles: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    cost: Cost = Cost.NONE
    cache_seconds: float = 0.0
    own_rate: Rate | None = None

    @property
    def id(self) -> str:
        """The unique name."""
        return self.name

    @property
    def category(self) -> str:
        """The first part of the name, such as files, git or tests."""
        return self.name.partition(".")[0]

    @property
    def timeout_seconds(self) -> float:
        """The longest time of a call."""
        return self.caps.seconds

    def call_seconds(self, arguments: Mapping[str, Any]) -> float:
        """Return the longest time of a call with these arguments."""
        seconds = arguments.get("timeout_seconds") or self.caps.usual_seconds
        return min(seconds, self.caps.seconds) if self.caps.usual_seconds else self.caps.seconds

    @property
    def rate(self) -> Rate:
        """Its own rate limit, or the default of its danger."""
        return self.own_rate or _DEFAULT_RATES[self.danger]

    @property
    def core(self) -> bool:
        """Whether it is offered to models with small windows."""
        return "core" in self.profiles

    @property
    def outside(self) -> bool:
        """Whether its effect leaves the workspace, so that the intent is recorded before it."""
        return self.danger is Danger.OUTSIDE

    @property
    def dangerous(self) -> bool:
        """Whether it runs code that a model wrote, or acts beyond the workspace."""
        return self.danger in {Danger.EXECUTE, Danger.OUTSIDE}

    def schema(self, max_string: int | None = SCHEMA_STRING) -> dict[str, Any]:
        """Return the JSON schema of the arguments: flat, closed, every string and list bounded.

        max_string: an upper bound of each `maxLength`, because replies of models are never longer
        and decoders compile a smaller grammar. None: the bounds that the gateway enforces.

        The caller may change the returned dict.
        """
        shape: dict[str, Any] = json.loads(_schema(self.arguments))
        if max_string is not None:
            _lower_max_length(shape, max_string)
        return shape

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a successful result. The gateway may add `note` and
        `truncated`. The caller may change the returned dict.
        """
        shape: dict[str, Any] = json.loads(_output_schema(self.output))
        return shape

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(field.alias or name for name, field in self.arguments.model_fields.items())

    @property
    def signature(self) -> str:
        """The signature, such as `files.read(path, start?, lines?)`."""
        fields = zip(self.argument_names, self.arguments.model_fields.values(), strict=True)
        names = [name if field.is_required() else f"{name}?" for name, field in fields]
        return f"{self.name}({', '.join(names)})"


@cache
def _output_schema(model: type[BaseModel]) -> str:
    return json.dumps(model.model_json_schema())


@cache
def _schema(model: type[Arguments]) -> str:
    shape = model.model_json_schema()
    definitions = shape.get("$defs", {})
    fields = {
        name: _strip(field, definitions) for name, field in shape.get("properties", {}).items()
    }
    return json.dumps(
        {
            "type": "object",
            "properties": fields,
            "required": shape.get("required", []),
            "additionalProperties": False,
        }
    )


def _strip(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Remove keywords that decoders do not use (titles, defaults, descriptions), and inline
    references.
    """
    if "$ref" in shape:
        return _strip(definitions[shape["$ref"].rpartition("/")[2]], definitions)
    stripped: dict[str, Any] = {}
    for key, value in shape.items():
        if key == "properties":
            stripped[key] = {name: _strip(field, definitions) for name, field in value.items()}
        elif key == "anyOf":
            # An optional argument may be omitted, so null is not needed.
            alternatives = [
                alternative
                for option in value
                if (alternative := _strip(option, definitions)) != {"type": "null"}
            ]
            stripped |= alternatives[0] if len(alternatives) == 1 else {key: alternatives}
        elif key not in {"title", "default", "description"}:
            stripped[key] = (
                _strip(value, definitions)
                if key in {"items", "additionalProperties"} and isinstance(value, Mapping)
                else value
            )
    return stripped


def _lower_max_length(shape: dict[str, Any], limit: int) -> None:
    if "maxLength" in shape:
        shape["maxLength"] = min(shape["maxLength"], limit)
    nested = [
        shape[name]
        for name in ("items", "additionalProperties")
        if isinstance(shape.get(name), dict)
    ]
    for inner in (*shape.get("properties", {}).values(), *nested, *shape.get("anyOf", ())):
        _lower_max_length(inner, limit)


# Search of the tool catalogue.


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a search, all of which must match. Of several `categories`, `tags` or `profiles`,
    one must match. `limit` is the maximum number of results; 0: all.
    """

    query: str = ""
    categories: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    exclude_dangerous: bool = False
    limit: int = 0


def discover(specs: Iterable[ToolSpec], filters: Filters) -> tuple[ToolSpec, ...]:
    """Return the matching tools in catalogue order. Each word of the query must be in the name, the
    summary or a tag.
    """
    terms = filters.query.lower().split()
    matches = tuple(
        spec
        for spec in specs
        if _fits(spec, filters) and all(term in _text(spec) for term in terms)
    )
    return matches[: filters.limit] if filters.limit else matches


def _fits(spec: ToolSpec, filters: Filters) -> bool:
    return (
        (not filters.categories or spec.category in filters.categories)
        and (not filters.tags or bool(set(spec.tags) & set(filters.tags)))
        and (not filters.profiles or bool(set(spec.profiles) & set(filters.profiles)))
        and not (filters.exclude_dangerous and spec.dangerous)
    )


def _text(spec: ToolSpec) -> str:
    return " ".join((spec.name, spec.summary, *spec.tags)).lower()


def entry(spec: ToolSpec, *, enabled: bool = True) -> dict[str, Any]:
    """Return the catalogue entry of a tool as JSON."""
    return {
        "id": spec.id,
        "summary": spec.summary,
        "category": spec.category,
        "tags": list(spec.tags),
        "version": spec.version,
        "profiles": list(spec.profiles),
        "enabled": enabled,
        "danger": spec.danger.value,
        "dangerous": spec.dangerous,
        "requirements": {
            "os_access": spec.requirements.os_access,
            "network_access": spec.requirements.network_access,
            "file_system": spec.requirements.file_system,
        },
        "rate_limit": {"per_minute": spec.rate.per_minute, "per_hour": spec.rate.per_hour},
        "cache_seconds": spec.cache_seconds,
        "limits": {"seconds": spec.caps.seconds, "result_bytes": spec.caps.result_bytes},
        "cost": spec.cost.value,
        "input_schema": spec.schema(None),
        "output_schema": spec.output_schema(),
        "examples": [
            {
                "about": example.about,
                "arguments": _plain(example.arguments),
                "output": _plain(example.output),
            }
            for example in spec.examples
        ],
    }


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value)
