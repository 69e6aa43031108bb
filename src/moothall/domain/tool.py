"""A typed action that an agent may ask for, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class ToolStatus(StrEnum):
    """How a tool call ended; the wire's words."""

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
    """Measured by the kernel, children included."""

    cpu_ms: int = 0
    max_rss_bytes: int = 0

    def __add__(self, other: ToolUsage) -> ToolUsage:
        """What two things used, one after the other."""
        return ToolUsage(self.cpu_ms + other.cpu_ms, max(self.max_rss_bytes, other.max_rss_bytes))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What tools may use at most, where that is less than the settings say; zero: as they say.
    `cpu_share`: processors, over the time that a command may take.
    """

    memory_bytes: int = 0
    cpu_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """A tool and its arguments, as a model, a caller or a plan has them. Nothing about them is
    checked yet.
    """

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a seat asks for; `request_id` is unique within a tenant."""

    request_id: str
    tool: str
    arguments: Mapping[str, Any]
    deadline: datetime


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Exactly one for each call. `cached`: it stood from an earlier one, and nothing ran."""

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
    may not
    write. Writing what `judged` covers is allowed but gains nothing: judges use it as it was on the
    base.
    """

    tools: tuple[str, ...]
    protected: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
