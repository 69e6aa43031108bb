"""What a block of Python asks for, on its way to the gate: numbered, counted, each call like any
other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moothall.domain.proposal import Operation
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.tools.arguments import arguments_digest


@dataclass(slots=True)
class BlockBudget:
    """What is left to a block and to all that it starts: tool calls and sub-agents."""

    calls: int
    agents: int = 0


@dataclass(slots=True)
class BlockCalls:
    """Calls tools for one block. `through` is the way to the gate, `ids` what its request ids begin
    with.
    """

    through: Callable[[ToolCall], Awaitable[ToolResult]]
    ids: str
    deadline: datetime
    allowance: BlockBudget
    made: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    exhausted: bool = False

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the tool's one result; `budget_exceeded` where the block may call no more. Raises
        what the gate raises.
        """
        call = ToolCall(f"{self.ids}.{len(self.made) + 1}", tool, arguments, self.deadline)
        if self.allowance.calls <= 0:
            self.exhausted = True
            return ToolResult(
                call.request_id,
                tool,
                ToolStatus.BUDGET_EXCEEDED,
                error="this block may call no more tools",
            )
        self.allowance.calls -= 1
        result = await self.through(call)
        self.made.append((call, result))
        return result

    @property
    def results(self) -> list[ToolResult]:
        """What came of its calls, in order."""
        return [result for _, result in self.made]

    @property
    def operations(self) -> list[Operation]:
        """What is remembered of its calls, in order."""
        return [
            Operation(
                result.tool,
                arguments_digest(call.arguments),
                str(result.status),
                result.duration_ms,
            )
            for call, result in self.made
        ]
