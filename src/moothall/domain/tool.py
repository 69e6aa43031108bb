"""Tool calls and blocks of Python, and their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

# Tool calls and their results.


class ToolStatus(StrEnum):
    """How a tool call ended, as on the wire."""

    SUCCESS = "success"
    ERROR = "error"
    INVALID = "invalid"
    BLOCKED = "blocked"
    PARKED = "parked"
    RATE_LIMITED = "rate_limited"
    CIRCUIT_OPEN = "circuit_open"
    BUDGET_EXCEEDED = "budget_exceeded"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    OUTPUT = "output"
    PROCESSES = "processes"
    DISK = "disk"
    CANCELLED = "cancelled"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """Resource usage measured by the kernel, children included."""

    cpu_ms: int = 0
    max_rss_bytes: int = 0

    def __add__(self, other: ToolUsage) -> ToolUsage:
        """Return the usage of two runs, one after the other."""
        return ToolUsage(self.cpu_ms + other.cpu_ms, max(self.max_rss_bytes, other.max_rss_bytes))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for tools that are lower than the settings; zero: as in the settings. `cpu_share`:
    processors, averaged over a command's time limit.
    """

    memory_bytes: int = 0
    cpu_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """A tool and its arguments, from a model, a caller or a plan, unchecked."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a seat or caller; `request_id` is unique within a tenant."""

    request_id: str
    tool: str
    arguments: Mapping[str, Any]
    deadline: datetime


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call. `cached`: it is from an earlier call, and nothing ran."""

    request_id: str
    tool: str
    status: ToolStatus
    output: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    duration_ms: int = 0
    usage: ToolUsage = ToolUsage()
    audit_id: str = ""
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The tools (fnmatch patterns) that a seat may use, and path patterns (gitignore style) that it
    may not write. Paths in `judged` may be written, but judges use the base's version.
    """

    tools: tuple[str, ...]
    protected: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()


# A block of Python written by a model, and its result.


Tier = Literal["monty", "python"]
AGENTS_RUN = "agents.run"

Ask = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Runs a tool call of a block: the tool's name and its arguments, neither of them checked."""

PYTHON_WINDOW = 16_000
"""The minimum window in tokens for which prompts offer Python; small models need short prompts."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block to run until `deadline`. `tools` maps the tools that the code may call to the names
    of their arguments, in order. `inputs` are bound as variables. Limits of 0 are the usual
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
class BlockLimits:
    """Limits of a block. seconds: its own computing time; its tools have limits of their own.
    memory_bytes: its memory; in CPython, that of the sandbox. tool_calls: its tool calls, including
    those of its sub-agents.
    """

    seconds: float = 10.0
    memory_bytes: int = 128_000_000
    tool_calls: int = 100


BLOCK_LIMITS = BlockLimits()


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
