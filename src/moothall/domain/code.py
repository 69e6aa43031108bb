"""A block of Python written by a model, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from moothall.domain.tool import ToolResult, ToolStatus, ToolUsage

Tier = Literal["monty", "python"]
AGENTS_RUN = "agents.run"

Ask = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Runs a tool call of a block: the tool's name and its arguments, neither of them checked."""

PYTHON_WINDOW = 16_000
"""The minimum window in tokens for which prompts offer Python; small models need short prompts."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block to run until `deadline`. `tools` maps the tools that the code may call to the names
    of their arguments, in order. `inputs` are bound as variables. Limits of 0 are the configured
    ones; no limit exceeds those.
    """

    code: str
    tools: Mapping[str, tuple[str, ...]]
    deadline: datetime
    tenant: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    agents: bool = False
    full: bool = True
    """Whether it may run under CPython, which can read all files of the workspace."""
    seconds: float = 0.0
    memory_bytes: int = 0
    depth: int = 0
    """The nesting depth of agents; 0 for a block of a seat or caller."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """The result of a block. `value` is its last expression as JSON-shaped data, `printed` its
    output. `tier` is the runner used, and `why` tells why it was not the first one. `error` is a
    message for the model.
    """

    status: ToolStatus
    value: Any = None
    printed: str = ""
    error: str = ""
    tier: Tier = "monty"
    why: str = ""
    duration_ms: int = 0
    usage: ToolUsage = ToolUsage()
