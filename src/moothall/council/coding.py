"""Blocks of Python in a seat's turn: run by the runner, their tool calls through the seat's own gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moothall import telemetry
from moothall.config import Runner
from moothall.council.subagents import Caller, Speech, SubAgents
from moothall.domain.code import AGENTS_RUN, CodeBlock, CodeRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.guard.blocks import Allowance, BlockCalls
from moothall.guard.gate import Gate
from moothall.guard.seat import SeatContext
from moothall.ports import CodeRunner
from moothall.tools.catalogue import ToolSpec, granted

PYTHON = "python"
_READS = "files.read"


@dataclass(frozen=True, slots=True)
class Coded:
    """How a block ended, with the results of its calls, those of its sub-agents included."""

    run: CodeRun
    results: tuple[ToolResult, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Coding:
    """Runs the blocks of one seat and of its sub-agents."""

    runner: CodeRunner
    settings: Runner
    speech: Speech

    async def run(
        self,
        code: str,
        context: SeatContext,
        gate: Gate,
        step: str,
        *,
        caller: Caller | None = None,
        allowance: Allowance | None = None,
    ) -> Coded:
        """Run a block; whatever becomes of it is in what is returned. `step` is what its request ids go on from: those of its
        calls are `<task>/<seat>/<step>.<n>`. Raises what the gate and the model raise.
        """
        caller = caller or Caller()
        allowance = allowance or Allowance(self.settings.tool_calls, self.settings.agents_fan_out)

        async def through(call: ToolCall) -> ToolResult:
            return await gate.call(context, call)

        calls = BlockCalls(through, f"{context.task_id}/{context.seat}/{step}", context.deadline, allowance)
        agents = SubAgents(self, context, gate, step, caller, allowance)

        async def ask(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await (agents.run(arguments) if name == AGENTS_RUN else calls(name, arguments))

        specs = gate.offered(context.tenant, context.grant)
        block = CodeBlock(
            code=code,
            tools=signatures(specs),
            deadline=context.deadline,
            tenant=context.tenant,
            agents=caller.depth < self.settings.agents_depth,
            full=granted(context.grant, _READS),
            depth=caller.depth,
        )
        with telemetry.span("python", {"moothall.workspace": context.workspace_id}) as span:
            ran = await self.runner.run(block, context.workspace, ask)
            span.set({"moothall.status": ran.status, "moothall.tier": ran.tier})
        if calls.exhausted and ran.status is ToolStatus.ERROR:
            ran = replace(ran, status=ToolStatus.BUDGET_EXCEEDED)
        own = Operation(PYTHON, digest(code), str(ran.status), ran.duration_ms)
        return Coded(
            ran,
            (*calls.results, *agents.results),
            (own, *calls.operations, *agents.operations),
        )


def signatures(specs: Sequence[ToolSpec]) -> dict[str, tuple[str, ...]]:
    """Return each tool with the names of its arguments in order."""
    return {spec.name: tuple(spec.arguments.model_fields) for spec in specs}
