"""Agents: queries of other orchestrators, agents in YAML, and remote agents."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from moothall.config.section import Section


class AgentSettings(Section):
    """Agents: queries of other orchestrators, and runs of `moothall agents run`."""

    tasks: int = Field(
        64, ge=1, description="running queries of one tenant; further ones are refused"
    )
    calls_a_second: float = Field(
        10.0, gt=0, description="queries that one caller may start per second"
    )
    timeout_seconds: float = Field(
        900.0, gt=0, description="maximum duration of a query, whatever its caller requests"
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
