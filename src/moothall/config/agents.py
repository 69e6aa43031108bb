"""Agents: queries of other orchestrators, agents in YAML, and remote agents."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from moothall.config.section import Section


class AgentSettings(Section):
    """Agents: queries of other orchestrators, and runs of `moothall agents run`."""

    at_once: int = Field(4, ge=1, le=1000, description="concurrent agents of one run of specs")
    tasks: int = Field(
        64, ge=1, description="running queries of one tenant; further ones are refused"
    )
    tokens: int = Field(
        100_000,
        ge=100,
        description="approximate size of a query with its history and context; larger ones are "
        "refused",
    )
    calls_a_second: float = Field(
        10.0, gt=0, description="queries that one caller may start per second"
    )
    timeout_seconds: float = Field(
        900.0, gt=0, description="maximum duration of a query, whatever its caller requests"
    )
    session_seconds: int = Field(
        1800,
        ge=10,
        description="lifetime of a session's workspace since it was opened; then a new one is "
        "opened",
    )
    history: int = Field(
        20,
        ge=0,
        le=200,
        description="newest queries and answers of a session that are stored and sent with the "
        "next query",
    )
    endpoints: dict[str, tuple[str, ...]] = Field(
        {},
        description="remote agents that seats may use: the registered endpoint, and the "
        "HOST:PORTs of its replicas",
    )
    endpoint_token_file: Path | None = Field(None, description="the token that is sent to them")
    endpoint_ca: Path | None = Field(
        None,
        description="the certificate authority of their certificates; default: those of this "
        "machine",
    )
