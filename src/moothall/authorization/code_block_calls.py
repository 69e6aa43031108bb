"""Tool calls of a Python block on their way to the gateway: numbered, counted, and checked like any
other call.
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
    """The tool calls and sub-agents that a block and its sub-agents may still start."""

    calls: int
    agents: int = 0


@dataclass(slots=True)
class BlockCalls:
    """The tool calls of one block. `call_tool` calls the gateway; `id_prefix` starts its request
    ids.
    """

    call_tool: Callable[[ToolCall], Awaitable[ToolResult]]
    id_prefix: str
    deadline: datetime
    budget: BlockBudget
    completed: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    exhausted: bool = False

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool and return its result; `budget_exceeded` if the block has no calls left.
        Raises what the gateway raises.
        """
        call = ToolCall(
            f"{self.id_prefix}.{len(self.completed) + 1}", tool, arguments, self.deadline
        )
        if self.budget.calls <= 0:
            self.exhausted = True
            return ToolResult(
                call.request_id,
                tool,
                ToolStatus.BUDGET_EXCEEDED,
                error="this block may call no more tools",
            )
        self.budget.calls -= 1
        result = await self.call_tool(call)
        self.completed.append((call, result))
        return result

    @property
    def results(self) -> list[ToolResult]:
        """The results of the block's calls, in order."""
        return [result for _, result in self.completed]

    @property
    def operations(self) -> list[Operation]:
        """The block's calls as they are recorded, in order."""
        return [
            Operation(
                result.tool,
                arguments_digest(call.arguments),
                str(result.status),
                result.duration_ms,
            )
            for call, result in self.completed
        ]
