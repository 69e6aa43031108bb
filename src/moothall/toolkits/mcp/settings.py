"""The settings of `mcp.*`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from moothall.config import Section

Danger = Literal["read", "write", "execute", "outside"]


def _read_lines(given: Any) -> Any:
    """Read what a file holds."""
    if not isinstance(given, str):
        return given
    pairs = [line.partition("=") for line in given.splitlines() if line.strip()]
    if not all(
        name.strip() and sign and value.strip().isprintable() for name, sign, value in pairs
    ):
        raise ValueError("credentials are lines of NAME=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


class Declared(Section):
    """What the operator says of one tool, which counts, whatever its server says."""

    danger: Danger | None = Field(
        None, description="the worst that it can do; unset: its server's `danger`"
    )
    summary: str = Field(
        "",
        max_length=200,
        description="what prompts say of it; empty: what its server says, in quotes",
    )


class McpServerSettings(Section):
    """A server, reached by a `command` or at a `url`."""

    command: tuple[str, ...] = Field(
        (),
        description="its program and arguments, run in a sandbox without a network, in /usr or a "
        "folder of sandbox.toolchains",
    )
    url: str = Field(
        "", description="http(s)://… of its streamable HTTP; http.allow and http.only_allowed hold"
    )
    files: Literal["none", "read", "write"] = Field(
        "none",
        description="of the workspace, for a command; read: what it writes there is gone when it "
        "ends",
    )
    credentials: Annotated[Mapping[str, SecretStr], BeforeValidator(_read_lines)] = Field(
        default_factory=dict,
        description="by name, of a command its environment, of a url headers; in the file lines of "
        "NAME=value. None for one that is given files",
    )
    credentials_file: Path | None = None
    keep_seconds: float = Field(
        900.0,
        ge=0,
        le=86_400,
        description="for how long without a call a command without files lives on for its "
        "workspace; 0: each call starts it anew",
    )
    danger: Danger | None = Field(
        None,
        description="of tools that `tools` says nothing of; unset: execute for a command; a url's "
        "are always outside",
    )
    tools: Mapping[str, Declared] = Field(
        default_factory=dict, description="what is said of tools, by the server's own names"
    )
    tenants: tuple[str, ...] = Field((), description="whose agents have it; empty: all tenants'")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url and self.files != "none":
            raise ValueError(
                "a server at a url is given no files of a workspace; files must be none"
            )
        if not self.lives_on and self.keep_seconds and "keep_seconds" in self.model_fields_set:
            raise ValueError(
                "a server at a url, or among the files, is there for one call; keep_seconds is for "
                "a command without files"
            )
        if self.files != "none" and self.credentials:
            raise ValueError(
                "a server that is given the workspace's files is given no credentials: what lies "
                "there could read them"
            )
        return self

    @property
    def lives_on(self) -> bool:
        """Whether it is there for the next call of its workspace, too."""
        return bool(self.command) and self.files == "none" and self.keep_seconds > 0

    def named_credentials(self) -> dict[str, str]:
        """Return them in clear."""
        return {name: value.get_secret_value() for name, value in self.credentials.items()}


ServerName = Annotated[str, Field(pattern="^[a-z][a-z0-9]{0,39}$")]


class McpSettings(Section):
    """The tools `mcp.*`, of MCP servers. `moothall tools take NAME` takes a server's into the
    catalogue. Granted to no role unless the table says so.
    """

    servers: Mapping[ServerName, McpServerSettings] = Field(
        default_factory=dict, description="by name; [mcp.servers.NAME] in the file"
    )
    folder: Path | None = Field(
        None, description="where the lists of taken tools lie; unset: mcp in the data directory"
    )
    seconds: float = Field(60.0, gt=0, le=3600, description="one call, the server's start included")
    at_once: int = Field(4, ge=1, description="calls that one process makes at the same time")
    kept: int = Field(
        16,
        ge=1,
        description="servers that live on at one time in one process; more end the one unused for "
        "the longest",
    )
    tools: int = Field(100, ge=1, le=1000, description="that one server may have; more are refused")
    schema_bytes: int = Field(
        20_000,
        ge=100,
        description="of the schema of one tool's arguments; a tool with more is refused",
    )
    receive_bytes: int = Field(
        8_000_000,
        ge=10_000,
        le=40_000_000,
        description="what a server may send for one call before it is ended",
    )
    result_bytes: int = Field(50_000, ge=1000, description="of one answer, as JSON; more is cut")
