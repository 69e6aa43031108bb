"""Blocks of Python in a turn: run by the runner, their tool calls through the seat's own gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moothall import telemetry
from moothall.authorization.call_context import CallContext
from moothall.authorization.code_block_calls import BlockBudget, BlockCalls
from moothall.authorization.gateway import ToolGateway
from moothall.config import RunnerSettings
from moothall.domain.code import AGENTS_RUN, BlockRun, CodeBlock
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.ports import RunCode
from moothall.tools.catalogue import ToolSpec, is_granted

PYTHON = "python"
_READ_TOOL = "files.read"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose turn it is: the seat itself at depth 0, or a sub-agent by its number, in its own
    turn.
    """

    depth: int = 0
    number: int = 0
    turn: int = 1

    def child(self, index: int, settings: RunnerSettings) -> Caller:
        """Return the `index`-th sub-agent, from 1. No two of a turn have one number, and a turn
        done again gives the same.
        """
        fan_out = settings.agents_fan_out
        if self.depth:
            index += fan_out + ((self.number - 1) * settings.agents_turns + self.turn - 1) * fan_out
        return Caller(self.depth + 1, index)

    def turn_offset(self, settings: RunnerSettings) -> int:
        """Return how many turns the sub-agents before it may take: call ids of its own go on from
        there.
        """
        return (self.number - 1) * settings.agents_turns


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Where a turn acts: a seat in its workspace, behind the gate. Request ids are
    `<task>/<seat>/<step>.<n>`. `allowance` is what is left to the block that `caller` works for;
    None: a seat's own turn.
    """

    context: CallContext
    gateway: ToolGateway
    step: str = ""
    caller: Caller = Caller()
    budget: BlockBudget | None = None

    def create_calls(self, budget: BlockBudget) -> BlockCalls:
        """Return the turn's way to the gate."""
        context, gateway = self.context, self.gateway
        prefix = f"{context.task_id}/{context.seat}/{self.step}"
        return BlockCalls(
            lambda call: gateway.call(context, call), prefix, context.deadline, budget
        )


@dataclass(slots=True)
class Block:
    """A block that runs. `started`, `results` and `operations` are of its sub-agents and their
    tools, agent by agent.
    """

    context: TurnContext
    budget: BlockBudget
    started: int = 0
    results: list[ToolResult] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """How a block ended, with the results of its calls, those of its sub-agents included."""

    run: BlockRun
    results: tuple[ToolResult, ...]
    operations: tuple[Operation, ...]
    arguments: tuple[Mapping[str, Any], ...]
    """Those of `results`; none are known of sub-agents' calls."""


@dataclass(frozen=True, slots=True)
class BlockRunner:
    """Runs the blocks of one seat and of its sub-agents. `agents` is what `agents.run` does with
    its arguments in a block.
    """

    run_code: RunCode
    settings: RunnerSettings
    run_agents: Callable[[BlockRunner, Block, Mapping[str, Any]], Awaitable[ToolResult]]

    async def run_block(self, code: str, turn_context: TurnContext) -> BlockOutcome:
        """Run a block; whatever becomes of it is in what is returned. Raises what the gate and the
        model raise.
        """
        context = turn_context.context
        budget = turn_context.budget or BlockBudget(
            self.settings.tool_calls, self.settings.agents_fan_out
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
            agents=turn_context.caller.depth < self.settings.agents_depth,
            full=is_granted(context.grant, _READ_TOOL),
            depth=turn_context.caller.depth,
        )
        with telemetry.span("python", {"moothall.workspace": context.workspace_id}) as span:
            result = await self.run_code(code_block, context.workspace, call_tool)
            span.set({"moothall.status": result.status, "moothall.tier": result.tier})
        if calls.exhausted and result.status is ToolStatus.ERROR:
            result = replace(result, status=ToolStatus.BUDGET_EXCEEDED)
        operation = Operation(PYTHON, digest(code), str(result.status), result.duration_ms)
        arguments = [*(call.arguments for call, _ in calls.made), *({} for _ in block.results)]
        results = (*calls.results, *block.results)
        return BlockOutcome(
            result, results, (operation, *calls.operations, *block.operations), tuple(arguments)
        )


def tool_signatures(specs: Sequence[ToolSpec]) -> dict[str, tuple[str, ...]]:
    """Return each tool with the names of its arguments in order."""
    return {spec.name: spec.argument_names for spec in specs}
