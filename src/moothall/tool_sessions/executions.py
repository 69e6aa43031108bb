"""Code of external callers: run once for each execution id, its tools called as the caller's
own are.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.authorization.code_block_calls import BlockBudget, BlockCalls
from moothall.config import RunnerSettings
from moothall.domain.code import Ask, BlockRun, CodeBlock
from moothall.domain.identity import Principal
from moothall.domain.ids import digest
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import AlreadyExists, InvalidRequest, NotFound, Refused
from moothall.ports import RunCode
from moothall.tool_sessions.answers import GONE, Answers
from moothall.tool_sessions.manager import ToolSessions
from moothall.tools.arguments import arguments_digest
from moothall.tools.catalogue import is_granted

_KEPT = 1000
_CODE_CHARS = 100_000
_ID_CHARS = 200
_READS = "files.read"


@dataclass(frozen=True, slots=True)
class ExecutionOrder:
    """What a caller wants run. Zeros are the configured limits, which nothing exceeds. Times in
    milliseconds.
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
    """How it ended."""

    run: BlockRun
    tool_calls: int


class Executions:
    """Runs code in the workspaces of visitors. Belongs to one event loop."""

    def __init__(self, visits: ToolSessions, run_code: RunCode, settings: RunnerSettings) -> None:
        self._visits = visits
        self._run_code = run_code
        self._settings = settings
        self._answers: Answers[tuple[str, str], Execution] = Answers(
            settings.kept_bytes,
            _KEPT,
            size=lambda ended: (
                len(repr(ended.run.value)) + len(ended.run.printed) + len(ended.run.error)
            ),
            slim=lambda ended: replace(
                ended, run=replace(ended.run, value=None, printed="", error=GONE)
            ),
        )

    async def execute(self, who: Principal, order: ExecutionOrder) -> Execution:
        """Return the one answer to an execution id; the same order again has the same answer and
        runs nothing.

        Raises `InvalidRequest` that names what is wrong, `NotFound` and `Refused` as
        `ToolSessions.ready`
        does, `AlreadyExists` where the execution id was used for something else.
        """
        _check(order)
        capability = await self._visits.ready(who, order.workspace, order.token)
        offered = {
            spec.name: spec
            for spec in self._visits.gate.list_tools(capability.tenant, capability.grant)
        }
        if unknown := [name for name in order.tools if name not in self._visits.gate.catalogue]:
            raise InvalidRequest(
                f"there is no tool {unknown[0][:60]!r}; moothall tools list shows them"
            )
        tools = {name: offered[name].argument_names for name in order.tools if name in offered}
        signature = _digest(order, tools)
        key = (capability.workspace, order.execution_id)
        try:
            given = await self._answers.find(key, signature)
        except AlreadyExists as error:
            told = (
                f"the execution id {order.execution_id[:80]!r} was used for another execution, or "
                "token"
            )
            raise AlreadyExists(told) from error
        if given is not None:
            return given
        limits = self._settings
        now = datetime.now(UTC)
        deadline = datetime.fromtimestamp(capability.expires, UTC)
        if order.timeout_ms:
            deadline = min(deadline, now + timedelta(milliseconds=order.timeout_ms))
        block = CodeBlock(
            code=order.code,
            tools=tools,
            deadline=deadline,
            tenant=capability.tenant,
            inputs=order.inputs,
            full=_READS in order.tools and is_granted(capability.grant, _READS),
            seconds=order.timeout_ms / 1000,
            memory_bytes=order.memory_mb * 1_000_000,
        )

        async def through(call: ToolCall) -> ToolResult:
            try:
                return await self._visits.call(who, order.workspace, order.token, call)
            except (
                Refused,
                NotFound,
                AlreadyExists,
            ) as error:  # the token's time is over, or the workspace's
                return ToolResult(
                    call.request_id, call.tool, ToolStatus.BLOCKED, error=error.message
                )

        allowance = BlockBudget(min(order.tool_calls or limits.tool_calls, limits.tool_calls))
        return await self._once(
            key, signature, block, BlockCalls(through, order.execution_id, deadline, allowance)
        )

    async def _once(
        self, key: tuple[str, str], signature: str, block: CodeBlock, calls: BlockCalls
    ) -> Execution:
        workspace = self._visits.workspace(key[0])
        answer = self._answers.begin(key, signature)
        try:
            ran = await self._run_code(block, workspace, _only(block, calls))
        except BaseException as error:
            self._answers.fail(key, answer, error)
            raise
        if calls.exhausted and ran.status is ToolStatus.ERROR:
            ran = replace(ran, status=ToolStatus.BUDGET_EXCEEDED)
        ended = Execution(ran, len(calls.completed))
        self._answers.settle(key, answer, ended)
        return ended


def _only(block: CodeBlock, calls: BlockCalls) -> Ask:
    async def ask(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in block.tools:
            return ToolResult(
                "",
                name,
                ToolStatus.BLOCKED,
                error="it is not one of this execution's tools, or not granted",
            )
        return await calls(name, arguments)

    return ask


def _check(order: ExecutionOrder) -> None:
    if not 0 < len(order.execution_id) <= _ID_CHARS:
        raise InvalidRequest(
            f"execution_id has {len(order.execution_id)} characters; it needs 1 to {_ID_CHARS}"
        )
    if not order.code.strip() or len(order.code) > _CODE_CHARS:
        raise InvalidRequest(
            f"code has {len(order.code)} characters; it needs 1 to {_CODE_CHARS} that are not blank"
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
                f"inputs: {name[:60]!r} cannot be a variable; use a name that is no keyword, tool "
                "or ws"
            )


def _digest(order: ExecutionOrder, tools: Iterable[str]) -> str:
    """Return what tells one execution from another: also by the tools that its token covers."""
    limits = (order.timeout_ms, order.memory_mb, order.tool_calls)
    return digest(
        order.code,
        arguments_digest(order.inputs),
        repr(order.tools),
        repr(sorted(tools)),
        repr(limits),
    )
