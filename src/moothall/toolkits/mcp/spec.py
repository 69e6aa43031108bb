"""The specs of MCP servers' tools. The catalogue has them as they were when the operator added
them: they are read from a file, and later changes of a server have no effect. Everything from a
server is hostile: names, descriptions and schemas are cleaned, bounded or refused.

A server's JSON schema becomes a pydantic model that is closed, strict and bounded. Keywords that
only describe are dropped; a schema that cannot be bounded is refused.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    model_serializer,
)

from moothall.config import Settings
from moothall.domain.ids import digest
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, wrong_fields
from moothall.toolkits.mcp.settings import Declared, McpServerSettings, McpSettings
from moothall.tools.arguments import MAX_CONTENT, Arguments
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Requirements, ToolSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_PLAIN: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
}
_DEPTH, _PARTS, _CHOICES, _CHOICE_CHARS, _ITEMS = 6, 200, 100, 100, 1000
_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,63}")
_SAID = 160
_LIST_BYTES = 20_000_000
_FILES: Mapping[str, Any] = {"none": "none", "read": "read", "write": "write"}


class ArgumentsModel(Arguments):
    """Tells what was given and what has a default, under the server's own names."""

    model_config = ConfigDict(
        validate_by_alias=True, validate_by_name=False, serialize_by_alias=True
    )

    @model_serializer(mode="wrap")
    def _dump_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        kept = {
            field.alias or name
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set or getattr(self, name) is not None
        }
        return {name: value for name, value in handler(self).items() if name in kept}


def arguments_of(schema: Mapping[str, Any], most: int) -> type[Arguments]:
    """Return the model of what a tool takes. Raises `ValueError` with what is wrong with it."""
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("its schema is no JSON") from error
    if size > most:
        raise ValueError(
            f"its schema has {size} bytes; at most {most} are taken (mcp.schema_bytes)"
        )
    if schema.get("type") != "object":
        raise ValueError("its schema is not that of an object")
    return _Reading(schema).model(schema, 0)


class _Reading:
    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._shared = {
            f"#/{place}/{name}": one
            for place in ("$defs", "definitions")
            for name, one in _object(whole.get(place)).items()
        }
        self._parts = 0

    def model(self, schema: Mapping[str, Any], depth: int) -> type[Arguments]:
        properties, required = _object(schema.get("properties")), schema.get("required", ())
        if not isinstance(required, list | tuple) or not set(map(str, required)) <= set(properties):
            raise ValueError("its schema requires arguments that it does not describe")
        fields: dict[str, Any] = {}
        for number, (name, shape) in enumerate(properties.items()):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name[:40]!r} is no name of an argument that is taken: letters, digits and _ "
                    ". -"
                )
            kind, own = (
                self.kind(shape, depth + 1),
                f"argument_{number}" if _is_reserved(name) else name,
            )
            alias = None if own == name else name
            if name in required:
                fields[own] = (kind, Field(alias=alias))
            elif (default := _object(shape).get("default")) is not None:
                fields[own] = (kind, Field(default, validate_default=True, alias=alias))
            else:
                fields[own] = (_any_of([kind, type(None)]), Field(None, alias=alias))
        model: type[Arguments] = create_model("Given", __base__=ArgumentsModel, **fields)
        if any("default" in _object(shape) for shape in properties.values()):
            _check_defaults(model, required)
        return model

    def kind(self, shape: Any, depth: int, within: tuple[str, ...] = ()) -> Any:
        self._parts += 1
        if depth > _DEPTH or self._parts > _PARTS:
            raise ValueError(f"its schema is deeper than {_DEPTH} or has more than {_PARTS} parts")
        if shape is True:
            return Any
        shape = _object(shape, strict=True)
        if "$ref" in shape:
            place = str(shape["$ref"])
            if place in within or place not in self._shared:
                raise ValueError(
                    f"its schema refers to {place[:60]!r}, which is not there or refers to itself"
                )
            return self.kind(self._shared[place], depth + 1, (*within, place))
        if "enum" in shape or "const" in shape:
            return _choice(shape.get("enum", [shape.get("const")]))
        for word in ("anyOf", "oneOf"):
            if word in shape:
                ways = shape[word]
                if not isinstance(ways, list) or not 0 < len(ways) <= _CHOICES:
                    raise ValueError(f"its schema has a wrong {word}")
                return _any_of([self.kind(way, depth + 1, within) for way in ways])
        named = shape.get("type")
        if isinstance(named, list) and named:
            return _any_of([self._one(str(one), shape, depth, within) for one in named])
        return Any if named is None else self._one(str(named), shape, depth, within)

    def _one(
        self, named: str, shape: Mapping[str, Any], depth: int, within: tuple[str, ...]
    ) -> Any:
        if named == "array":
            items = self.kind(shape.get("items", True), depth + 1, within)
            return Annotated[list[items], Field(max_length=_read_bound(shape, "maxItems", _ITEMS))]  # type: ignore[valid-type]
        if named == "object":
            if shape.get("properties"):
                return self.model(shape, depth)
            values = shape.get("additionalProperties", True)
            return dict[str, self.kind(values, depth + 1, within) if values is not False else Any]  # type: ignore[misc]
        if named not in _PLAIN:
            raise ValueError(f"its schema has the type {named[:40]!r}, which JSON does not know")
        if named == "string":
            return Annotated[str, Field(max_length=_read_bound(shape, "maxLength", MAX_CONTENT))]
        if named in {"integer", "number"}:
            bounds = {
                ours: shape[theirs]
                for ours, theirs in (("ge", "minimum"), ("le", "maximum"))
                if _finite(shape.get(theirs))
            }
            return Annotated[_PLAIN[named], Field(**bounds)] if bounds else _PLAIN[named]
        return _PLAIN[named]


def _object(value: Any, *, strict: bool = False) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if strict:
        raise ValueError("its schema has something else where the schema of an argument belongs")
    return {}


def _is_reserved(name: str) -> bool:
    """Whether a model cannot have a field of that name."""
    return not name.isidentifier() or name.startswith(("_", "model_")) or hasattr(BaseModel, name)


def _check_defaults(model: type[Arguments], required: Any) -> None:
    """A default is checked when it is used: use it now."""
    try:
        model.model_validate({})
    except ValidationError as error:
        if any(
            item.fault != "missing" or item.place[0] not in required for item in wrong_fields(error)
        ):
            raise ValueError("its schema has a default that does not fit") from error


def _choice(values: Any) -> Any:
    if not isinstance(values, list) or not 0 < len(values) <= _CHOICES:
        raise ValueError(f"its schema lists none or more than {_CHOICES} values to choose from")
    for value in values:
        if not (
            value is None
            or isinstance(value, bool | int)
            or (isinstance(value, str) and len(value) <= _CHOICE_CHARS and value.isprintable())
        ):
            raise ValueError(
                "its schema lets choose among what is no short plain text or whole number"
            )
    return Literal[tuple(values)]


def _any_of(kinds: list[Any]) -> Any:
    if any(kind is Any for kind in kinds):
        return Any
    return reduce(lambda one, other: Union[one, other], kinds)  # noqa: UP007 - of values, not of written types


def _read_bound(shape: Mapping[str, Any], word: str, most: int) -> int:
    given = shape.get(word)
    return min(given, most) if isinstance(given, int) and given >= 0 else most


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Answered(Output):
    """What the tool said: its `text`, its `data` where that has a shape, and in a few words what is
    not shown (pictures, sound).
    """

    text: str
    data: Any = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Tells this description from another."""
        return digest(self.name, self.description, json.dumps(self.schema, sort_keys=True))


@dataclass(frozen=True, slots=True)
class TakenTool:
    """A tool of the catalogue, its server, and what that said of it."""

    spec: ToolSpec
    server: str
    offer: OfferedTool


@dataclass(frozen=True, slots=True)
class Read:
    """What came of a server's list: the tools, and why others are refused."""

    tools: tuple[TakenTool, ...]
    refused: tuple[str, ...]


def read_offers(name: str, settings: McpSettings, offers: Iterable[OfferedTool]) -> Read:
    """Return the tools that a server offers as the catalogue's."""
    tools: dict[str, TakenTool] = {}
    refused: list[str] = []
    for offer in offers:
        shown = one_line(offer.name, 60)
        if len(tools) >= settings.tools:
            refused.append(f"{shown}: a server has at most {settings.tools} tools (mcp.tools)")
            break
        try:
            spec = _spec(name, settings, offer)
        except ValueError as error:
            refused.append(f"{shown}: {one_line(str(error), 300)}")
            continue
        key = spec.name.lower().replace("-", "_")
        if key in tools:
            refused.append(
                f"{shown}: {spec.name} is another tool's name already, or too near to it"
            )
            continue
        tools[key] = TakenTool(spec, name, offer)
    return Read(tuple(tools.values()), tuple(refused))


def _spec(server: str, settings: McpSettings, offer: OfferedTool) -> ToolSpec:
    if not _TOOL.fullmatch(offer.name):
        raise ValueError("a tool's name is up to 64 letters, digits and _ - . / :")
    own = settings.servers[server]
    said = own.tools.get(offer.name, Declared())
    name = f"mcp.{server}.{re.sub(r'[^A-Za-z0-9_-]', '_', offer.name)}"
    danger = Danger(said.danger or own.danger or "execute")
    looks = danger is Danger.READ
    about = one_line(offer.description.replace('"', "'"), _SAID)
    return ToolSpec(
        name=name,
        summary=said.summary
        or (
            f'of an MCP server, which says of it: "{about}"'
            if about
            else "of an MCP server, which says nothing of it"
        ),
        arguments=arguments_of(offer.schema, settings.schema_bytes),
        output=Answered,
        danger=Danger.OUTSIDE if own.url else danger,
        caps=Caps(settings.seconds, settings.result_bytes),
        requirements=Requirements(
            os_access=bool(own.command),
            network_access=bool(own.url),
            file_system=_FILES[files_for(own, danger)],
        ),
        tags=("mcp", server, "look" if looks else "change"),
        version=offer.digest[:12],
        profiles=("mcp",),
        cost=Cost.LOW,
    )


def files_for(server: McpServerSettings, danger: Danger) -> str:
    """Return what a tool is given of the workspace's files: one that only reads cannot write,
    whatever its server may.
    """
    return "read" if server.files == "write" and danger is Danger.READ else server.files


def list_file(settings: Settings, own: McpSettings, server: str) -> Path:
    """Return where the list of a server's taken tools lies."""
    return (own.folder or settings.data_dir / "mcp") / f"{server}.json"


def taken_tools(settings: Settings, own: McpSettings) -> Sequence[TakenTool]:
    """Return the tools that were taken, those of one server after the other's. Raises
    `ConfigurationError` for a file that is no such list.
    """
    found: list[TakenTool] = []
    for name, server in own.servers.items():
        file = list_file(settings, own, name)
        try:
            with file.open("rb") as opened:
                text = opened.read(_LIST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from error
        found += _read(str(file), name, text, _settings_text(own, server, name))
    return found


def _settings_text(own: McpSettings, server: McpServerSettings, name: str) -> str:
    """What the settings say that a tool's entry goes by, as a text."""
    return own.model_copy(
        update={
            "servers": {
                name: server.model_copy(update={"credentials": {}, "credentials_file": None})
            }
        }
    ).model_dump_json(exclude_unset=True)


@functools.lru_cache(200)  # a tool has one entry, which is equal to itself alone
def _read(file: str, name: str, text: bytes, settings: str) -> tuple[TakenTool, ...]:
    try:
        offers = [
            OfferedTool(str(one["name"]), str(one["description"]), dict(one["schema"]))
            for one in json.loads(text)["tools"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file} is no list of taken tools; `moothall tools take {name}` writes it anew"
        ) from error
    return read_offers(name, McpSettings.model_validate_json(settings), offers).tools


def keep(settings: Settings, own: McpSettings, server: str, tools: Sequence[TakenTool]) -> Path:
    """Write the list of a server's taken tools. Raises `ConfigurationError`."""
    file = list_file(settings, own, server)
    told = [
        {"name": one.offer.name, "description": one.offer.description, "schema": one.offer.schema}
        for one in tools
    ]
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_name(f".{file.name}")
        new.write_text(json.dumps({"tools": told}, indent=2), encoding="utf-8")
        new.chmod(0o600)
        new.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    return file
