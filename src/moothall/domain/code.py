"""A block of Python that a model wrote, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from moothall.domain.tool import ToolResult, ToolStatus, ToolUsage

Tier = Literal["monty", "python"]
AGENTS_RUN = "agents.run"

Ask = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""What a block asks for: a tool by its name, with arguments by name. Nothing about either is
checked yet.
"""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """What is to run, until `deadline`. `tools` are the names that the code may call, each with the
    names of its arguments in order; `inputs` are bound as variables. Limits of 0 are the configured
    ones, and none is ever more than those.
    """

    code: str
    tools: Mapping[str, tuple[str, ...]]
    deadline: datetime
    tenant: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    agents: bool = False
    full: bool = True
    """Whether it may go to CPython, which reads all files of the workspace."""
    seconds: float = 0.0
    memory_bytes: int = 0
    depth: int = 0
    """How many agents deep: 0 is a seat's own block, or a caller's."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """How a block ended. `value` is its last expression as JSON-shaped data, `printed` what it
    printed. `tier` ran it, and `why` says why it was not the first one. `error` is what a model can
    act on.
    """

    status: ToolStatus
    value: Any = None
    printed: str = ""
    error: str = ""
    tier: Tier = "monty"
    why: str = ""
    duration_ms: int = 0
    usage: ToolUsage = ToolUsage()
