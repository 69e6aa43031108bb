"""An MCP server with councils, questions and provenance as tools.

It implements the extension for tasks (`io.modelcontextprotocol/tasks`): a deliberation is a task
with the same id. A client that declares the extension gets the task at once and polls it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, RequestParams, TextContent
from mcp_types.jsonrpc import INVALID_PARAMS

import moothall
from moothall.api.http.asgi import ServerLimits
from moothall.api.http.server import serve_app, tls_context
from moothall.api.identity import BearerTokens, read_tokens
from moothall.app.command_repository import line_provenance, register
from moothall.app.graph import open_answers
from moothall.app.server import open_app
from moothall.cli.council import run_deliberation
from moothall.cli.documents import outcome_document
from moothall.cli.runtime import print_status
from moothall.cli.serve import tokens_are
from moothall.collector.overview import Overview
from moothall.collector.progress import Progress, apply_event
from moothall.config import Settings, secret_values
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.council import BriefingRequest
from moothall.domain.event import Recorded
from moothall.domain.ids import LOCAL, TaskId, check_task_id, new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.domain.text import scrub
from moothall.errors import InvalidRequest, MoothallError, NotFound
from moothall.orchestrator.service import DeliberationService

IDENTIFIER = "io.modelcontextprotocol/tasks"
TASK_TOOLS = frozenset({"deliberate", "ask"})
_VERSIONS = frozenset({"2026-07-28"})
_POLL_MS = 2000
_Request = ServerRequestContext[Any, Any]
started_tasks: ContextVar[list[TaskId] | None] = ContextVar("started_tasks", default=None)
"""The tasks that the current call has started; None if the call returns the tool's result."""


class TaskParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`. The responses in `tasks/update` are
    ignored, because a deliberation requests no input.
    """

    task_id: str


class TasksExtension(Extension):
    """Answers calls of the tools in `TASK_TOOLS` with a task, for clients with the extension. Calls
    with unknown arguments are refused, which the SDK ignores.

    document: returns the result of a tool from an outcome.
    arguments: the names of the arguments of each tool.
    """

    identifier = IDENTIFIER

    def __init__(
        self,
        document: Callable[[Outcome], Mapping[str, Any]],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        self._document = document
        self._arguments = arguments

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
        self, params: CallToolRequestParams, ctx: _Request, call_next: CallNext
    ) -> HandlerResult:
        """Return the task that a tool has started, or the tool's result, which may be an error."""
        known = self._arguments.get(params.name, params.arguments or ())
        for name in params.arguments or ():
            if name not in known:
                text = f"{params.name} has no argument {name!r}; there are {', '.join(known)}"
                return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
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
        task.pop("result", None)  # it has one if a repeated request names an ended task
        return task | {"resultType": "task"}

    async def _get(self, ctx: _Request, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            return await self._task(ctx, check_task_id(params.task_id))

    async def _cancel(self, ctx: _Request, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            await _deliberations(ctx).cancel(
                check_task_id(params.task_id), "cancelled over MCP", LOCAL
            )
        return {"resultType": "complete"}

    async def _update(self, ctx: _Request, params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        with _translated():
            await _deliberations(ctx).result(check_task_id(params.task_id), LOCAL)
        return {"resultType": "complete"}

    async def _task(self, ctx: _Request, task_id: TaskId) -> dict[str, Any]:
        """Return a deliberation as a task, with its result if it has ended. Raises `NotFound`."""
        outcome = await _deliberations(ctx).result(task_id, LOCAL)
        overview: Overview = ctx.lifespan_context.overview
        progress, timeline = await overview.get_details(task_id, LOCAL)
        request_event = progress.state.requested if progress.state else None
        if request_event is None:
            raise NotFound(f"no task {task_id!r}")
        task: dict[str, Any] = {
            "resultType": "complete",
            "taskId": task_id,
            "status": _status(outcome.status),
            "statusMessage": progress.last_step,
            "createdAt": _time(request_event.time),
            "lastUpdatedAt": _time(request_event.time + timedelta(seconds=timeline.seconds)),
            "ttlMs": None,
            "pollIntervalMs": _POLL_MS,
        }
        return task | ({"result": self._result(outcome)} if task["status"] == "completed" else {})

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        """Return the tool's result, as for clients without the extension."""
        document = dict(self._document(outcome))
        text = TextContent(type="text", text=json.dumps(document, indent=2))
        result = CallToolResult(content=[text], structured_content=document)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _is_declared(ctx: _Request) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return ctx.protocol_version in _VERSIONS and IDENTIFIER in (declared or {})


def _deliberations(ctx: _Request) -> DeliberationService:
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
    """Return a task's status. A deliberation without a winner is `completed`, because `failed` is
    reserved for errors of the protocol.
    """
    if status is DeliberationStatus.CANCELLED:
        return "cancelled"
    return "completed" if status.ended else "working"


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


P = ParamSpec("P")
T = TypeVar("T")
Call = Context[Any, Any]

_INSTRUCTIONS = (
    "Councils of agents whose answer is selected by evidence. deliberate lets a council change a "
    "repository and returns the ranking, with the winner as a branch; ask lets one agent answer; "
    "result returns the status or the outcome of a task; why returns the origin of a line; context "
    "returns what is known about a story or a task."
)
_DIFF_CHARS = 60_000


async def serve_stdio(settings: Settings) -> None:
    """Serve on stdin and stdout until the client disconnects."""
    await _server(settings).run_stdio_async()


async def serve_http(settings: Settings, host: str, port: int) -> None:
    """Serve streamable HTTP at `/mcp` until cancelled, to callers with a token of the operator.

    Raises `ConfigurationError` if the port is taken, or if a non-loopback address has no TLS
    (web.tls_cert, web.tls_key) or no configured token.
    """
    web = settings.web.model_copy(update={"host": host, "port": port})
    grpc = settings.grpc.model_copy(update={"host": host})
    tokens = {
        token: principal
        for token, principal in read_tokens(grpc, settings.data_dir).items()
        if principal.operator and principal.tenant == LOCAL.tenant
    }
    configured = grpc.token is not None or grpc.tokens_file is not None
    context = tls_context(web, configured=configured)
    limits = ServerLimits(grace_seconds=grpc.grace_seconds)
    server = _server(settings)
    app = server.streamable_http_app(host=host)
    async with (
        server.session_manager.run(),
        serve_app(app, "MCP", web, BearerTokens(tokens), context, limits=limits) as bound,
    ):
        scheme, host_part = "https" if context else "http", f"[{host}]" if ":" in host else host
        print_status(
            f"serving MCP on {scheme}://{host_part}:{bound}/mcp; callers send "
            f"'Authorization: Bearer TOKEN'; {tokens_are(settings)}"
        )
        await asyncio.Event().wait()


def _server(settings: Settings) -> MCPServer[McpBackend]:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[McpBackend]:
        # Opened inside the transport, which owns stdout: everything else is printed to stderr.
        async with open_app(settings, print_status) as app:
            yield McpBackend(settings, app.deliberations, Overview(app.bus, tuple))

    tools = (deliberate, ask, result, why, context)
    arguments = {tool.__name__: list(inspect.signature(tool).parameters)[1:] for tool in tools}
    server: MCPServer[McpBackend] = MCPServer(
        "moothall",
        version=moothall.__version__,
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
        lifespan=lifespan,
        extensions=[TasksExtension(_document, arguments)],
    )
    for tool in tools:
        server.tool(description=inspect.getdoc(tool))(_report_errors(tool))
    return server


async def deliberate(
    call: Call,
    *,
    task: str,
    repository: str = "",
    ref: str = "",
    role: str = "dev",
    seats: int = 0,
    task_id: str = "",
) -> dict[str, Any]:
    """Let a council of agents work on a task in a git repository (a path, a URL or a registered id;
    ref names a commit) and return its ranking: each candidate with its evidence and reasons. The
    winner is stored as a branch, and nothing else is changed. A repeated call with the same task_id
    and task returns the same deliberation. Without a repository, the task is about text.
    """
    app = _app(call)
    repository_ref = await app.repository(repository, ref)
    request = DeliberationRequest(
        task,
        role,
        task_id,
        num_agents=seats,
        repository=repository_ref,
        about_text=repository_ref is None,
    )
    return await app.deliberate(request, call)


async def ask(
    call: Call, prompt: str, repository: str = "", ref: str = "", role: str = "dev"
) -> dict[str, Any]:
    """Let one agent answer a question about a git repository or make a small change. A change is
    returned as a diff and not applied.
    """
    app = _app(call)
    repository_ref = await app.repository(repository, ref)
    request = DeliberationRequest(
        prompt,
        role,
        num_agents=1,
        protocol="ask",
        repository=repository_ref,
        about_text=repository_ref is None,
    )
    return await app.deliberate(request, call)


async def result(call: Call, task_id: str) -> dict[str, Any]:
    """Return the status of a task, or its outcome if it has ended."""
    return _document(await _app(call).deliberations.result(check_task_id(task_id), LOCAL))


async def why(
    call: Call, file: str, line: int, repository: str = ".", ref: str = ""
) -> dict[str, Any]:
    """Return the origin of a line of a file: its commit, and for a commit by a council also the
    story, task, proposal, reviews, test runs and approver. `file` is relative to the repository's
    root, `line` counts from 1.
    """
    origin, rows = await line_provenance(
        _app(call).settings, (repository, ref, file, line), tenant=LOCAL.tenant
    )
    return {"line": asdict(origin), "proposals": [dict(row) for row in rows]}


async def context(
    call: Call,
    *,
    role: str = "dev",
    phase: str = "",
    story_id: str = "",
    task_id: str = "",
    repository: str = "",
) -> str:
    """Return the context of a story or a task for a role in a phase, as the seats of a council get
    it.
    """
    settings = _app(call).settings
    request = BriefingRequest(task_id, story_id, role, phase, repository=repository)
    async with open_answers(settings) as answers:
        return (
            await Briefings(
                answers.ask,
                settings.limits,
                clean=functools.partial(scrub, known_secrets=secret_values(settings)),
            ).brief(request, LOCAL)
        ).text


@dataclass(frozen=True, slots=True)
class McpBackend:
    """The parts of the open application that the tools use."""

    settings: Settings
    deliberations: DeliberationService
    overview: Overview

    async def repository(self, location: str, ref: str) -> RepositoryRef | None:
        """Register the repository that a client named; None if it named none. Raises the errors of
        `register`.
        """
        return await register(self.settings, location, ref) if location else None

    async def deliberate(self, request: DeliberationRequest, call: Call) -> dict[str, Any]:
        """Submit a task, report its progress, and return its outcome. The task is cancelled if the
        client disconnects. A client with the tasks extension gets the pending outcome at once, and
        the task is not cancelled.
        """
        if (started := started_tasks.get()) is not None:
            request = replace(request, task_id=request.task_id or new_task_id())
            started.append((await self.deliberations.submit(request, LOCAL)).own_id)
            return _document(await self.deliberations.result(started[-1], LOCAL))
        progress = Progress()

        async def report_event(recorded: Recorded) -> None:
            nonlocal progress
            progress, step = apply_event(progress, recorded)
            await call.report_progress(step.percent, 100, step.step)

        return _document(await run_deliberation(self.deliberations, request, report_event))


def _app(call: Call) -> McpBackend:
    app: McpBackend = call.request_context.lifespan_context
    return app


def _report_errors(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Wrap a tool so that its caller receives Moothall's errors as tool errors."""

    @functools.wraps(tool)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await tool(*args, **kwargs)
        except MoothallError as error:
            raise ToolError(f"{error.message} [{error.code}]") from error

    return answer


def _document(outcome: Outcome) -> dict[str, Any]:
    """Return the document of `--json`, with diffs cut to a length that models can use."""
    document = outcome_document(outcome)
    for result in document["results"]:
        if (omitted := len(result["diff"]) - _DIFF_CHARS) > 0:
            result["diff"] = (
                f"{result['diff'][:_DIFF_CHARS]}\n… {omitted:,} more characters: moothall diff "
                f"{outcome.task_id}"
            )
    return document
