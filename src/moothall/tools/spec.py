"""What the catalogue says of a tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel

from moothall.tools.arguments import Arguments

SCHEMA_STRING = 8000


class Danger(StrEnum):
    """The worst that a tool can do, which is also the operation that a role is granted. `execute`
    runs code that a
    model wrote; `outside` acts beyond the workspace.
    """

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    OUTSIDE = "outside"


class Cost(StrEnum):
    """What a call costs the operator, roughly: nothing to speak of, a process, minutes of a core,
    money.
    """

    NONE = "none"
    LOW = "low"
    HIGH = "high"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a tool needs to run. Only the catalogue says so: a caller's claim is ignored."""

    os_access: bool = False
    network_access: bool = False
    file_system: Literal["none", "read", "write"] = "none"


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls that may be made; 0: no limit. Of a seat where the effect stays in its workspace, else
    of a tenant.
    """

    per_minute: int = 0
    per_hour: int = 0


@dataclass(frozen=True, slots=True)
class Caps:
    """How far one call may go: `seconds` on the wall, and `result_bytes` of JSON (0: as much as the
    gate lets out). `usual_seconds` is what a call gets that does not ask for another time with its
    argument `timeout_seconds` (0: the tool has no such argument).
    """

    seconds: float
    result_bytes: int = 0
    usual_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """A call as it would be made, and what comes of it."""

    about: str
    arguments: Mapping[str, Any]
    output: Mapping[str, Any] = field(default_factory=dict)


_USUAL_RATE: Final[Mapping[Danger, Rate]] = {
    Danger.READ: Rate(),  # a seat's budget of calls bounds these
    Danger.WRITE: Rate(),
    Danger.EXECUTE: Rate(10, 300),
    Danger.OUTSIDE: Rate(10, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolSpec:
    """One tool. `paths` names the arguments that hold paths or globs (a string or a list of them),
    `writes` those of them whose file is changed. `profiles` are named sets that it belongs to;
    `core` is what a model with a small window is offered. `cache_seconds`: how long a result stands
    for the same call of the same tenant; 0: not at all.
    `version` changes whenever the same call would be answered otherwise. There is one of each,
    equal to itself alone.
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
        """The name: it is unique."""
        return self.name

    @property
    def category(self) -> str:
        """The first part of the name: files, git, tests."""
        return self.name.partition(".")[0]

    @property
    def timeout_seconds(self) -> float:
        """The longest that a call may take."""
        return self.caps.seconds

    def call_seconds(self, arguments: Mapping[str, Any]) -> float:
        """Return how long a call with these arguments may take."""
        asked = arguments.get("timeout_seconds") or self.caps.usual_seconds
        return min(asked, self.caps.seconds) if self.caps.usual_seconds else self.caps.seconds

    @property
    def rate(self) -> Rate:
        """Its own rate limit, or the usual one of its danger."""
        return self.own_rate or _USUAL_RATE[self.danger]

    @property
    def core(self) -> bool:
        """Whether a model with a small window is offered it."""
        return "core" in self.profiles

    @property
    def outside(self) -> bool:
        """Whether the effect leaves the workspace: intent is recorded before, result after."""
        return self.danger is Danger.OUTSIDE

    @property
    def dangerous(self) -> bool:
        """Whether it runs code that a model wrote, or acts beyond the workspace."""
        return self.danger in {Danger.EXECUTE, Danger.OUTSIDE}

    def schema(self, max_string: int | None = SCHEMA_STRING) -> dict[str, Any]:
        """Return the JSON schema of the arguments: flat, closed, every string and list bounded.

        A string's `maxLength` is at most `max_string`: a model's reply is never longer anyway, and
        decoders
        compile a smaller grammar. None gives the bounds that the gateway enforces. The dict is the
        caller's own.
        """
        shape: dict[str, Any] = json.loads(_schema(self.arguments))
        if max_string is not None:
            _lower(shape, max_string)
        return shape

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a successful result. It may hold more: `note` and `truncated`
        are the gateway's.
        """
        return self.output.model_json_schema()

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(field.alias or name for name, field in self.arguments.model_fields.items())

    @property
    def signature(self) -> str:
        """As in `files.read(path, start?, lines?)`."""
        fields = zip(self.argument_names, self.arguments.model_fields.values(), strict=True)
        names = [name if field.is_required() else f"{name}?" for name, field in fields]
        return f"{self.name}({', '.join(names)})"


@cache
def _schema(model: type[Arguments]) -> str:
    shape = model.model_json_schema()
    shared = shape.get("$defs", {})
    fields = {name: _plain(field, shared) for name, field in shape.get("properties", {}).items()}
    return json.dumps(
        {
            "type": "object",
            "properties": fields,
            "required": shape.get("required", []),
            "additionalProperties": False,
        }
    )


def _plain(shape: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what decoders don't use (titles, defaults, what a class says of itself), and put
    what is shared in its place.
    """
    if "$ref" in shape:
        return _plain(shared[shape["$ref"].rpartition("/")[2]], shared)
    plain: dict[str, Any] = {}
    for key, value in shape.items():
        if key == "properties":
            plain[key] = {name: _plain(field, shared) for name, field in value.items()}
        elif key == "anyOf":
            ways = [
                way for inner in value if (way := _plain(inner, shared)) != {"type": "null"}
            ]  # what may be left out need not be null
            plain |= ways[0] if len(ways) == 1 else {key: ways}
        elif key not in {"title", "default", "description"}:
            plain[key] = (
                _plain(value, shared)
                if key in {"items", "additionalProperties"} and isinstance(value, Mapping)
                else value
            )
    return plain


def _lower(shape: dict[str, Any], most: int) -> None:
    if "maxLength" in shape:
        shape["maxLength"] = min(shape["maxLength"], most)
    within = [
        shape[name]
        for name in ("items", "additionalProperties")
        if isinstance(shape.get(name), dict)
    ]
    for inner in (*shape.get("properties", {}).values(), *within, *shape.get("anyOf", ())):
        _lower(inner, most)
