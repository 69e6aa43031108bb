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
from moothall.toolkits.mcp import Declared, McpServerSettings, McpSettings
from moothall.tools.schemas import MAX_CONTENT, Arguments, Output
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
_DESCRIPTION_CHARS = 160
_LIST_BYTES = 20_000_000
_SCHEMA_BYTES = 20_000
_RESULT_BYTES = 50_000
_MAX_TOOLS = 100
"""Tools of one server."""
_FILE_ACCESS: Mapping[str, Any] = {"none": "none", "read": "read", "write": "write"}


class ArgumentsModel(Arguments):
    """Arguments that are dumped under the server's names, without unset optional ones."""

    model_config = ConfigDict(
        validate_by_alias=True, validate_by_name=False, serialize_by_alias=True
    )

    @model_serializer(mode="wrap")
    def _dump_set_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        set_names = {
            field.alias or name
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set or getattr(self, name) is not None
        }
        return {name: value for name, value in handler(self).items() if name in set_names}


def arguments_model(schema: Mapping[str, Any]) -> type[Arguments]:
    """Return the model of a tool's arguments. Raises `ValueError` with the reason if the schema
    cannot be bounded.
    """
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("its schema is not JSON") from error
    if size > _SCHEMA_BYTES:
        raise ValueError(f"its schema has {size} bytes; at most {_SCHEMA_BYTES} are allowed")
    if schema.get("type") != "object":
        raise ValueError("its schema does not describe an object")
    return _SchemaReader(schema).model(schema, 0)


class _SchemaReader:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._shared = {
            f"#/{section}/{name}": definition
            for section in ("$defs", "definitions")
            for name, definition in _object(schema.get(section)).items()
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
                    f"{name[:40]!r} is not an allowed argument name: letters, digits and _ . -"
                )
            kind, field = (
                self.kind(shape, depth + 1),
                f"argument_{number}" if _is_reserved(name) else name,
            )
            alias = None if field == name else name
            if name in required:
                fields[field] = (kind, Field(alias=alias))
            elif (default := _object(shape).get("default")) is not None:
                fields[field] = (kind, Field(default, validate_default=True, alias=alias))
            else:
                fields[field] = (_union([kind, type(None)]), Field(None, alias=alias))
        model: type[Arguments] = create_model("Given", __base__=ArgumentsModel, **fields)
        if any("default" in _object(shape) for shape in properties.values()):
            _check_defaults(model, required)
        return model

    def kind(self, shape: Any, depth: int, parents: tuple[str, ...] = ()) -> Any:
        self._parts += 1
        if depth > _DEPTH or self._parts > _PARTS:
            raise ValueError(f"its schema is deeper than {_DEPTH} or has more than {_PARTS} parts")
        if shape is True:
            return Any
        shape = _object(shape, strict=True)
        if "$ref" in shape:
            reference = str(shape["$ref"])
            if reference in parents or reference not in self._shared:
                raise ValueError(
                    f"its schema refers to {reference[:60]!r}, which is missing or refers to itself"
                )
            return self.kind(self._shared[reference], depth + 1, (*parents, reference))
        if "enum" in shape or "const" in shape:
            return _choice(shape.get("enum", [shape.get("const")]))
        for keyword in ("anyOf", "oneOf"):
            if keyword in shape:
                alternatives = shape[keyword]
                if not isinstance(alternatives, list) or not 0 < len(alternatives) <= _CHOICES:
                    raise ValueError(f"its schema has an invalid {keyword}")
                return _union(
                    [self.kind(alternative, depth + 1, parents) for alternative in alternatives]
                )
        type_name = shape.get("type")
        if isinstance(type_name, list) and type_name:
            return _union([self._type(str(name), shape, depth, parents) for name in type_name])
        return Any if type_name is None else self._type(str(type_name), shape, depth, parents)

    def _type(
        self, type_name: str, shape: Mapping[str, Any], depth: int, parents: tuple[str, ...]
    ) -> Any:
        if type_name == "array":
            items = self.kind(shape.get("items", True), depth + 1, parents)
            return Annotated[list[items], Field(max_length=_read_bound(shape, "maxItems", _ITEMS))]  # type: ignore[valid-type]
        if type_name == "object":
            if shape.get("properties"):
                return self.model(shape, depth)
            values = shape.get("additionalProperties", True)
            return dict[str, self.kind(values, depth + 1, parents) if values is not False else Any]  # type: ignore[misc]
        if type_name not in _PLAIN:
            raise ValueError(
                f"its schema has the type {type_name[:40]!r}, which is not a JSON type"
            )
        if type_name == "string":
            return Annotated[str, Field(max_length=_read_bound(shape, "maxLength", MAX_CONTENT))]
        if type_name in {"integer", "number"}:
            bounds = {
                bound: shape[keyword]
                for bound, keyword in (("ge", "minimum"), ("le", "maximum"))
                if _finite(shape.get(keyword))
            }
            return Annotated[_PLAIN[type_name], Field(**bounds)] if bounds else _PLAIN[type_name]
        return _PLAIN[type_name]


def _object(value: Any, *, strict: bool = False) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if strict:
        raise ValueError("its schema has an argument whose schema is not an object")
    return {}


def _is_reserved(name: str) -> bool:
    """Whether a model cannot have a field with this name."""
    return not name.isidentifier() or name.startswith(("_", "model_")) or hasattr(BaseModel, name)


def _check_defaults(model: type[Arguments], required: Any) -> None:
    """Use the defaults once: pydantic checks them only when they are used."""
    try:
        model.model_validate({})
    except ValidationError as error:
        if any(
            item.fault != "missing" or item.place[0] not in required for item in wrong_fields(error)
        ):
            raise ValueError("its schema has an invalid default") from error


def _choice(values: Any) -> Any:
    if not isinstance(values, list) or not 0 < len(values) <= _CHOICES:
        raise ValueError(f"its schema has an empty choice, or more than {_CHOICES} values in one")
    for value in values:
        if not (
            value is None
            or isinstance(value, bool | int)
            or (isinstance(value, str) and len(value) <= _CHOICE_CHARS and value.isprintable())
        ):
            raise ValueError(
                "its schema has a choice with a value that is not a short text or whole number"
            )
    return Literal[tuple(values)]


def _union(kinds: list[Any]) -> Any:
    if any(kind is Any for kind in kinds):
        return Any
    return reduce(lambda left, right: Union[left, right], kinds)  # noqa: UP007 - of values, not of written types


def _read_bound(shape: Mapping[str, Any], keyword: str, limit: int) -> int:
    value = shape.get(keyword)
    return min(value, limit) if isinstance(value, int) and value >= 0 else limit


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class McpOutput(Output):
    """The answer of a tool: its `text`, its `data` if structured, and a description of content that
    is left out, such as images and sound.
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
        """The digest of the tool's name, description and schema."""
        return digest(self.name, self.description, json.dumps(self.schema, sort_keys=True))


@dataclass(frozen=True, slots=True)
class AcceptedTool:
    """A tool of the catalogue, its server, and the server's description of it."""

    spec: ToolSpec
    server: str
    offer: OfferedTool


@dataclass(frozen=True, slots=True)
class AcceptedOffers:
    """The result of reading a server's list: the tools, and the reasons why others are refused."""

    tools: tuple[AcceptedTool, ...]
    refused: tuple[str, ...]


def read_offers(name: str, settings: McpSettings, offers: Iterable[OfferedTool]) -> AcceptedOffers:
    """Return the tools that a server offers as catalogue entries."""
    tools: dict[str, AcceptedTool] = {}
    refused: list[str] = []
    for offer in offers:
        offer_name = one_line(offer.name, 60)
        if len(tools) >= _MAX_TOOLS:
            refused.append(f"{offer_name}: a server has at most {_MAX_TOOLS} tools")
            break
        try:
            spec = _spec(name, settings, offer)
        except ValueError as error:
            refused.append(f"{offer_name}: {one_line(str(error), 300)}")
            continue
        key = spec.name.lower().replace("-", "_")
        if key in tools:
            refused.append(
                f"{offer_name}: {spec.name} is already the name of another tool, or too similar"
            )
            continue
        tools[key] = AcceptedTool(spec, name, offer)
    return AcceptedOffers(tuple(tools.values()), tuple(refused))


def _spec(server: str, settings: McpSettings, offer: OfferedTool) -> ToolSpec:
    if not _TOOL.fullmatch(offer.name):
        raise ValueError("a tool's name must have at most 64 letters, digits and _ - . / :")
    server_settings = settings.servers[server]
    declared = server_settings.tools.get(offer.name, Declared())
    name = f"mcp.{server}.{re.sub(r'[^A-Za-z0-9_-]', '_', offer.name)}"
    danger = Danger(declared.danger or server_settings.danger or "execute")
    is_read = danger is Danger.READ
    description = one_line(offer.description.replace('"', "'"), _DESCRIPTION_CHARS)
    return ToolSpec(
        name=name,
        summary=declared.summary
        or (
            f'of an MCP server, which says of it: "{description}"'
            if description
            else "of an MCP server, which says nothing of it"
        ),
        arguments=arguments_model(offer.schema),
        output=McpOutput,
        danger=Danger.OUTSIDE if server_settings.url else danger,
        caps=Caps(settings.seconds, _RESULT_BYTES),
        requirements=Requirements(
            os_access=bool(server_settings.command),
            network_access=bool(server_settings.url),
            file_system=_FILE_ACCESS[file_access(server_settings, danger)],
        ),
        tags=("mcp", server, "look" if is_read else "change"),
        version=offer.digest[:12],
        profiles=("mcp",),
        cost=Cost.LOW,
    )


def file_access(server: McpServerSettings, danger: Danger) -> str:
    """Return a tool's access to the workspace's files. A tool with the danger `read` cannot write,
    whatever its server may do.
    """
    return "read" if server.files == "write" and danger is Danger.READ else server.files


def list_file(settings: Settings, server: str) -> Path:
    """Return the path of the list of a server's accepted tools."""
    return settings.data_dir / "mcp" / f"{server}.json"


def accepted_tools(settings: Settings, mcp: McpSettings) -> Sequence[AcceptedTool]:
    """Return the accepted tools, in the order of the servers. Raises `ConfigurationError` for an
    invalid file.
    """
    tools: list[AcceptedTool] = []
    for name, server in mcp.servers.items():
        file = list_file(settings, name)
        try:
            with file.open("rb") as stream:
                text = stream.read(_LIST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from error
        tools += _read_accepted(str(file), name, text, _settings_text(mcp, server, name))
    return tools


def _settings_text(mcp: McpSettings, server: McpServerSettings, name: str) -> str:
    """Return the settings that determine a server's catalogue entries, as JSON."""
    return mcp.model_copy(
        update={"servers": {name: server.model_copy(update={"credentials": {}})}}
    ).model_dump_json(exclude_unset=True)


@functools.lru_cache(200)  # specs compare by identity, so each must be created only once
def _read_accepted(file: str, name: str, text: bytes, settings: str) -> tuple[AcceptedTool, ...]:
    try:
        offers = [
            OfferedTool(str(entry["name"]), str(entry["description"]), dict(entry["schema"]))
            for entry in json.loads(text)["tools"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file} is not a list of accepted tools; `moothall tools take {name}` rewrites it"
        ) from error
    return read_offers(name, McpSettings.model_validate_json(settings), offers).tools


def write_accepted_tools(settings: Settings, server: str, tools: Sequence[AcceptedTool]) -> Path:
    """Write the list of a server's accepted tools. Raises `ConfigurationError`."""
    file = list_file(settings, server)
    entries = [
        {
            "name": tool.offer.name,
            "description": tool.offer.description,
            "schema": tool.offer.schema,
        }
        for tool in tools
    ]
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_name(f".{file.name}")
        new.write_text(json.dumps({"tools": entries}, indent=2), encoding="utf-8")
        new.chmod(0o600)
        new.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    return file
