"""What the catalogue says of MCP servers' tools. They are in it as they were when the operator took
them: a list that lies in a file, whatever their server says since. What a server says is hostile:
names, descriptions and schemas are cleaned, bounded or refused.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.config import Settings
from moothall.domain.ids import digest
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError
from moothall.toolkits.mcp.schema import arguments_of
from moothall.toolkits.mcp.settings import Declared, McpServerSettings, McpSettings
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Requirements, ToolSpec

_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,63}")
_SAID = 160
_LIST_BYTES = 20_000_000


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


_FILES: Mapping[str, Any] = {"none": "none", "read": "read", "write": "write"}


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
