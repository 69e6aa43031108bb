"""Blocks of Python in a turn: run by the runner, with tool calls through the seat's own gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moothall import telemetry
from moothall.authorization.checks import BlockBudget, BlockCalls, CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import (
    AGENTS_RUN,
    BlockLimits,
    BlockRun,
    CodeBlock,
    ToolResult,
    ToolStatus,
)
from moothall.ports import RunCode
from moothall.tools.catalogue import ToolSpec, is_granted

PYTHON = "python"
_READ_TOOL = "files.read"


@dataclass(frozen=True, slots=True)
class SubAgentLimits:
    """Limits of `agents.run`: the nesting of sub-agents (0: none), the sub-agents of one block, and
    the turns of each.
    """

    depth: int = 1
    fan_out: int = 6
    turns: int = 6


SUB_AGENT_LIMITS = SubAgentLimits()


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent of a turn: the seat itself at depth 0, or a sub-agent by its number, in its own
    turn.
    """

    depth: int = 0
    number: int = 0
    turn: int = 1

    def child(self, index: int, limits: SubAgentLimits) -> Caller:
        """Return the `index`-th sub-agent, from 1. Numbers are unique within a turn of the seat,
        and a repeated turn gives the same ones.
        """
        fan_out = limits.fan_out
        if self.depth:
            index += fan_out + ((self.number - 1) * limits.turns + self.turn - 1) * fan_out
        return Caller(self.depth + 1, index)

    def turn_offset(self, limits: SubAgentLimits) -> int:
        """Return how many turns earlier sub-agents may take: its own call ids start after those."""
        return (self.number - 1) * limits.turns


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The context of a turn: the call context of its seat, and the gateway.

    Request ids are `<task>/<seat>/<step>.<n>`. budget: what is left for the block that `caller`
    works for; None for a seat's own turn.
    """

    call_context: CallContext
    gateway: ToolGateway
    step: str = ""
    caller: Caller = Caller()
    budget: BlockBudget | None = None

    def create_calls(self, budget: BlockBudget) -> BlockCalls:
        """Return the turn's tool calls, limited by a budget."""
        call_context, gateway = self.call_context, self.gateway
        prefix = f"{call_context.task_id}/{call_context.seat}/{self.step}"
        return BlockCalls(
            lambda call: gateway.call(call_context, call), prefix, call_context.deadline, budget
        )


@dataclass(slots=True)
class Block:
    """A running block. `started`, `results` and `operations` cover its sub-agents."""

    turn_context: TurnContext
    budget: BlockBudget
    started: int = 0
    results: list[ToolResult] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """The outcome of a block, with the results of its calls and of its sub-agents."""

    run: BlockRun
    results: tuple[ToolResult, ...]
    operations: tuple[Operation, ...]
    arguments: tuple[Mapping[str, Any], ...]
    """The arguments of the calls in `results`; empty for the calls of sub-agents."""


@dataclass(frozen=True, slots=True)
class BlockRunner:
    """Runs the blocks of one seat and its sub-agents. `run_agents` implements `agents.run`."""

    run_code: RunCode
    limits: BlockLimits
    run_agents: Callable[[BlockRunner, Block, Mapping[str, Any]], Awaitable[ToolResult]]
    agent_limits: SubAgentLimits = SUB_AGENT_LIMITS

    async def run_block(self, code: str, turn_context: TurnContext) -> BlockOutcome:
        """Run a block; failures are part of its outcome. Raises errors of the gateway and the
        model.
        """
        context = turn_context.call_context
        budget = turn_context.budget or BlockBudget(
            self.limits.tool_calls, self.agent_limits.fan_out
        )
        calls, block = turn_context.create_calls(budget), Block(turn_context, budget)

        async def call_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await (
                self.run_agents(self, block, arguments)
                if name == AGENTS_RUN
                else calls(name, arguments)
            )

        code_block = CodeBlock(
            code=code,
            tools=tool_signatures(turn_context.gateway.list_tools(context.tenant, context.grant)),
            deadline=context.deadline,
            tenant=context.tenant,
            agents=turn_context.caller.depth < self.agent_limits.depth,
            full=is_granted(context.grant, _READ_TOOL),
            depth=turn_context.caller.depth,
        )
        with telemetry.span("python", {"moothall.workspace": context.workspace_id}) as span:
            result = await self.run_code(code_block, context.workspace, call_tool)
            span.set({"moothall.status": result.status, "moothall.tier": result.tier})
        if calls.exhausted and result.status is ToolStatus.ERROR:
            result = replace(result, status=ToolStatus.BUDGET_EXCEEDED)
        operation = Operation(PYTHON, digest(code), str(result.status), result.duration_ms)
        arguments = [*(call.arguments for call, _ in calls.completed), *({} for _ in block.results)]
        results = (*calls.results, *block.results)
        return BlockOutcome(
            result, results, (operation, *calls.operations, *block.operations), tuple(arguments)
        )


def tool_signatures(specs: Sequence[ToolSpec]) -> dict[str, tuple[str, ...]]:
    """Return the names of each tool's arguments, in order."""
    return {spec.name: spec.argument_names for spec in specs}
