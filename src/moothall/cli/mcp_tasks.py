"""The tasks extension of MCP (`io.modelcontextprotocol/tasks`): a deliberation is a task with the
same id. A client that declares the extension gets the task at once and polls it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, RequestParams, TextContent
from mcp_types.jsonrpc import INVALID_PARAMS

from moothall.collector.overview import Overview
from moothall.domain.identity import LOCAL
from moothall.domain.ids import TaskId, check_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.errors import InvalidRequest, NotFound
from moothall.orchestrator.service import DeliberationService

IDENTIFIER = "io.modelcontextprotocol/tasks"
TASK_TOOLS = frozenset({"deliberate", "ask"})
_VERSIONS = frozenset({"2026-07-28"})
_POLL_MS = 2000
Call = ServerRequestContext[Any, Any]
started_tasks: ContextVar[list[TaskId] | None] = ContextVar("started_tasks", default=None)
"""The tasks that the current call has started; None if it answers with its result."""


class TaskParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`. `tasks/update` has responses as well, which
    are ignored: a deliberation asks for no input.
    """

    task_id: str


class TasksExtension(Extension):
    """Answers calls of the tools in `TASK_TOOLS` with a task, for clients with the extension.

    document: returns the result of a tool from an outcome.
    """

    identifier = IDENTIFIER

    def __init__(self, document: Callable[[Outcome], Mapping[str, Any]]) -> None:
        self._document = document

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of the extension."""
        handlers = {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
        }
        return [
            MethodBinding(name, TaskParams, handler, _VERSIONS)
            for name, handler in handlers.items()
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Call, call_next: CallNext
    ) -> HandlerResult:
        """Return the task that a tool has started; errors of the tool are results as usual."""
        if params.name not in TASK_TOOLS or not _is_declared(ctx):
            return await call_next(ctx)
        started: list[TaskId] = []
        token = started_tasks.set(started)
        try:
            result = await call_next(ctx)
        finally:
            started_tasks.reset(token)
        if not started:
            return result
        task = await self._task(ctx, started[0])
        task.pop("result", None)  # a repeated request, whose task has ended
        return task | {"resultType": "task"}

    async def _get(self, ctx: Call, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            return await self._task(ctx, check_task_id(params.task_id))

    async def _cancel(self, ctx: Call, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            await _deliberations(ctx).cancel(
                check_task_id(params.task_id), "cancelled over MCP", LOCAL
            )
        return {"resultType": "complete"}

    async def _update(self, ctx: Call, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            await _deliberations(ctx).result(check_task_id(params.task_id), LOCAL)
        return {"resultType": "complete"}

    async def _task(self, ctx: Call, task_id: TaskId) -> dict[str, Any]:
        """Return a deliberation as a task, with its result if it has ended. Raises `NotFound`."""
        outcome = await _deliberations(ctx).result(task_id, LOCAL)
        overview: Overview = ctx.lifespan_context.overview
        progress, timeline = await overview.get_details(task_id, LOCAL)
        requested = progress.state.requested if progress.state else None
        if requested is None:
            raise NotFound(f"no task {task_id!r}")
        task: dict[str, Any] = {
            "resultType": "complete",
            "taskId": task_id,
            "status": _status(outcome.status),
            "statusMessage": progress.last_step,
            "createdAt": _time(requested.time),
            "lastUpdatedAt": _time(requested.time + timedelta(seconds=timeline.seconds)),
            "ttlMs": None,
            "pollIntervalMs": _POLL_MS,
        }
        return task | ({"result": self._result(outcome)} if task["status"] == "completed" else {})

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        """Return what the tool returns without the extension."""
        document = dict(self._document(outcome))
        text = TextContent(type="text", text=json.dumps(document, indent=2))
        result = CallToolResult(content=[text], structured_content=document)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _is_declared(ctx: Call) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return ctx.protocol_version in _VERSIONS and IDENTIFIER in (declared or {})


def _deliberations(ctx: Call) -> DeliberationService:
    deliberations: DeliberationService = ctx.lifespan_context.deliberations
    return deliberations


@contextmanager
def _translated() -> Iterator[None]:
    """Report an invalid or unknown id as the extension requires."""
    try:
        yield
    except (InvalidRequest, NotFound) as error:
        raise MCPError(INVALID_PARAMS, f"{error.message} [{error.code}]") from error


def _status(status: DeliberationStatus) -> str:
    """Return a task's status. `failed` is reserved for errors of the protocol: a deliberation
    without a winner has completed, and its result says so.
    """
    if status is DeliberationStatus.CANCELLED:
        return "cancelled"
    return "completed" if status.ended else "working"


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
