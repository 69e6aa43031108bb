"""Code of external callers. It runs once per execution id, and its tool calls are checked like the
caller's own.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.authorization.checks import BlockBudget, BlockCalls
from moothall.domain.ids import Principal, digest
from moothall.domain.tool import (
    BLOCK_LIMITS,
    Ask,
    BlockLimits,
    BlockRun,
    CodeBlock,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from moothall.errors import AlreadyExists, InvalidRequest, NotFound, Refused
from moothall.ports import RunCode
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.session_state import OUTPUT_DROPPED, Answers
from moothall.tools.catalogue import is_granted
from moothall.tools.schemas import arguments_digest

_MAX_ANSWERS = 1000
_MAX_CODE_CHARS = 100_000
_MAX_ID_CHARS = 200
_READ_TOOL = "files.read"
_STORED_RESPONSE_BYTES = 20_000_000
"""Responses to SecureRunner's callers that are stored for repeated requests."""


@dataclass(frozen=True, slots=True)
class ExecutionOrder:
    """The code that a caller wants to run. Zeros mean the configured limits, which are also the
    maximum. Times are in milliseconds.
    """

    workspace: str
    execution_id: str
    code: str
    token: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    timeout_ms: int = 0
    memory_mb: int = 0
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of an execution."""

    run: BlockRun
    tool_calls: int


class Executions:
    """Executor of code in the workspaces of tool sessions. Belongs to one event loop."""

    def __init__(
        self, sessions: ToolSessions, run_code: RunCode, limits: BlockLimits = BLOCK_LIMITS
    ) -> None:
        self._sessions = sessions
        self._run_code = run_code
        self._limits = limits
        self._answers: Answers[tuple[str, str], Execution] = Answers(
            _STORED_RESPONSE_BYTES,
            _MAX_ANSWERS,
            size=lambda execution: (
                len(repr(execution.run.value))
                + len(execution.run.printed)
                + len(execution.run.error)
            ),
            slim=lambda execution: replace(
                execution, run=replace(execution.run, value=None, printed="", error=OUTPUT_DROPPED)
            ),
        )

    async def execute(self, principal: Principal, order: ExecutionOrder) -> Execution:
        """Run the code and return the result of an execution id. A repeated order returns the same
        result without running.

        Raises `InvalidRequest` with what is wrong, `NotFound` and `Refused` as
        `ToolSessions.ensure_open` does, and `AlreadyExists` if the execution id was used for
        something else.
        """
        _check_order(order)
        capability = await self._sessions.ensure_open(principal, order.workspace, order.token)
        tools_by_name = {
            spec.name: spec
            for spec in self._sessions.gateway.list_tools(capability.tenant, capability.grant)
        }
        if unknown := [
            name for name in order.tools if name not in self._sessions.gateway.catalogue
        ]:
            raise InvalidRequest(
                f"there is no tool {unknown[0][:60]!r}; moothall tools list shows them"
            )
        tools = {
            name: tools_by_name[name].argument_names
            for name in order.tools
            if name in tools_by_name
        }
        signature = _digest(order, tools)
        key = (capability.workspace, order.execution_id)
        if (previous := await self._find_known(key, signature)) is not None:
            return previous
        deadline = datetime.fromtimestamp(capability.expires, UTC)
        if order.timeout_ms:
            timeout_time = datetime.now(UTC) + timedelta(milliseconds=order.timeout_ms)
            deadline = min(deadline, timeout_time)
        block = CodeBlock(
            code=order.code,
            tools=tools,
            deadline=deadline,
            tenant=capability.tenant,
            inputs=order.inputs,
            full=_READ_TOOL in order.tools and is_granted(capability.grant, _READ_TOOL),
            seconds=order.timeout_ms / 1000,
            memory_bytes=order.memory_mb * 1_000_000,
        )

        async def call_tool(call: ToolCall) -> ToolResult:
            try:
                return await self._sessions.call(principal, order.workspace, order.token, call)
            # The token or the workspace may have expired.
            except (Refused, NotFound, AlreadyExists) as error:
                return ToolResult(
                    call.request_id, call.tool, ToolStatus.BLOCKED, error=error.message
                )

        max_calls = self._limits.tool_calls
        budget = BlockBudget(min(order.tool_calls or max_calls, max_calls))
        return await self._run_once(
            key, signature, block, BlockCalls(call_tool, order.execution_id, deadline, budget)
        )

    async def _find_known(self, key: tuple[str, str], signature: str) -> Execution | None:
        """Return the result of an order that was run. Raises `AlreadyExists` for another order."""
        try:
            return await self._answers.find(key, signature)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the execution id {key[1][:80]!r} was used for another execution, or token"
            ) from error

    async def _run_once(
        self, key: tuple[str, str], signature: str, block: CodeBlock, calls: BlockCalls
    ) -> Execution:
        workspace = self._sessions.workspace(key[0])
        answer = self._answers.begin(key, signature)
        try:
            run = await self._run_code(block, workspace, _restrict_tools(block, calls))
        except BaseException as error:
            self._answers.fail(key, answer, error)
            raise
        if calls.exhausted and run.status is ToolStatus.ERROR:
            run = replace(run, status=ToolStatus.BUDGET_EXCEEDED)
        execution = Execution(run, len(calls.completed))
        self._answers.settle(key, answer, execution)
        return execution


def _restrict_tools(block: CodeBlock, calls: BlockCalls) -> Ask:
    async def call_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in block.tools:
            return ToolResult(
                "",
                name,
                ToolStatus.BLOCKED,
                error="it is not one of this execution's tools, or not granted",
            )
        return await calls(name, arguments)

    return call_tool


def _check_order(order: ExecutionOrder) -> None:
    if not 0 < len(order.execution_id) <= _MAX_ID_CHARS:
        raise InvalidRequest(
            f"execution_id has {len(order.execution_id)} characters; it needs 1 to {_MAX_ID_CHARS}"
        )
    if not order.code.strip() or len(order.code) > _MAX_CODE_CHARS:
        raise InvalidRequest(
            f"code has {len(order.code)} characters; it needs 1 to {_MAX_CODE_CHARS} that "
            "are not blank"
        )
    for name, value in (
        ("timeout_ms", order.timeout_ms),
        ("memory_mb", order.memory_mb),
        ("max_tool_calls", order.tool_calls),
    ):
        if value < 0:
            raise InvalidRequest(f"limits.{name} is {value}; 0 is the configured limit")
    groups = {"ws", "agents", "ToolError", *(tool.partition(".")[0] for tool in order.tools)}
    for name in order.inputs:
        if not name.isidentifier() or keyword.iskeyword(name) or name in groups:
            raise InvalidRequest(
                f"inputs: {name[:60]!r} cannot be a variable; use a name that is not a keyword, "
                "tool or ws"
            )


def _digest(order: ExecutionOrder, tools: Iterable[str]) -> str:
    """Return the digest of an execution. It includes the tools that the token covers."""
    limits = (order.timeout_ms, order.memory_mb, order.tool_calls)
    return digest(
        order.code,
        arguments_digest(order.inputs),
        repr(order.tools),
        repr(sorted(tools)),
        repr(limits),
    )
