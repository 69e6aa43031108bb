"""Councils for agents that speak A2A 1.0 (Agent2Agent): an agent card, and JSON-RPC. A task is a
deliberation, with the same id.

The library of the protocol is the extra `a2a`; only this module imports it, and only if it is
installed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from a2a.helpers import new_data_part, new_text_part
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message as AsgiMessage

import moothall
from moothall.api.http.documents import body, document
from moothall.api.http.routes import A2A_PATH
from moothall.api.identity import caller
from moothall.collector.overview import Overview
from moothall.collector.progress import Progress, apply_event
from moothall.domain.event import EventType
from moothall.domain.ids import Principal, TaskId, check_task_id, derived_task_id, digest
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.status import TaskView
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import MoothallError, NotFound, Permanent
from moothall.ports import Deliberations
from moothall.telemetry import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from a2a.server.context import ServerCallContext

log = get_logger(__name__)
# The library logs requests that it refuses, with tracebacks and the callers' texts.
logging.getLogger("a2a").setLevel(logging.CRITICAL)

_PROTOCOL_VERSION = "1.0"
_DEFAULT_TASKS, _MAX_TASKS, _MAX_DIGITS = 50, 100, 4
_STATES = {
    DeliberationStatus.PENDING: pb.TASK_STATE_SUBMITTED,
    DeliberationStatus.IN_PROGRESS: pb.TASK_STATE_WORKING,
    DeliberationStatus.COMPLETED: pb.TASK_STATE_COMPLETED,
    DeliberationStatus.FAILED: pb.TASK_STATE_FAILED,
    DeliberationStatus.TIMEOUT: pb.TASK_STATE_FAILED,
    DeliberationStatus.CANCELLED: pb.TASK_STATE_CANCELED,
}
_TEXT_OPTIONS = ("repository", "ref", "role", "protocol", "model")
_OPTIONS = (*_TEXT_OPTIONS, "agents")


class AgentEndpoints:
    """The endpoints of the agent card, which needs no token, and of JSON-RPC."""

    def __init__(self, deliberations: Deliberations, tasks: Overview) -> None:
        self._dispatcher = JsonRpcDispatcher(CouncilHandler(deliberations, tasks))

    async def card(self, request: Request) -> Response:
        """Return the card of the server, at the address of the request."""
        return document(agent_card_to_dict(agent_card(str(request.base_url).rstrip("/"))))

    async def call(self, request: Request) -> Response:
        """Answer a call of JSON-RPC, whose body has the limits of all bodies."""
        content = await body(request)

        async def receive() -> AsgiMessage:
            return {"type": "http.request", "body": content, "more_body": False}

        return await self._dispatcher.handle_requests(Request(request.scope, receive))


def agent_card(url: str) -> pb.AgentCard:
    """Return the card of the server with this URL."""
    return pb.AgentCard(
        name="Moothall",
        description="Councils of agents that change a git repository. Tests decide which answer "
        "wins; it is left as a branch.",
        version=moothall.__version__,
        supported_interfaces=[
            pb.AgentInterface(
                url=f"{url}{A2A_PATH}",
                protocol_binding="JSONRPC",
                protocol_version=_PROTOCOL_VERSION,
            )
        ],
        capabilities=pb.AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=["text/plain"],
        default_output_modes=["application/json", "text/x-diff", "text/plain"],
        security_schemes={
            "bearer": pb.SecurityScheme(
                http_auth_security_scheme=pb.HTTPAuthSecurityScheme(scheme="Bearer")
            )
        },
        security_requirements=[pb.SecurityRequirement(schemes={"bearer": pb.StringList()})],
        skills=[
            pb.AgentSkill(
                id="deliberate",
                name="Deliberate",
                description="Change a repository, or answer in text. Metadata of the message: "
                f"{', '.join(_OPTIONS)}.",
                tags=["code", "council", "review", "tests"],
                examples=["parse_date() must accept ISO weeks"],
            )
        ],
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Translate Moothall's errors into those of the protocol."""
    try:
        yield
    except NotFound as error:
        raise TaskNotFoundError(error.message) from error
    except Permanent as error:
        raise InvalidParamsError(f"{error.message} [{error.code}]") from error
    except MoothallError as error:
        raise InternalError(f"{error.message} [{error.code}]") from error
    except A2AError:
        raise
    except Exception as error:
        log.exception("a call over A2A failed because of a bug")
        raise InternalError("the call failed because of a bug") from error


class CouncilHandler(RequestHandler):
    """Answers the methods of the protocol for the principal of the request."""

    def __init__(self, deliberations: Deliberations, tasks: Overview) -> None:
        self._deliberations = deliberations
        self._tasks = tasks

    async def on_message_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> pb.Task:
        """Start a deliberation, or send a message to the seats of one that runs. Wait for its end,
        unless the client asks for an immediate answer.
        """
        del context
        principal = caller()
        with _translated():
            task_id = await self._submit(params, principal)
            if params.configuration.return_immediately:
                return _task(await self._deliberations.result(task_id, principal))
            return _task(await self._deliberations.wait(task_id, principal))

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Do the same, and yield the task, its steps and its result."""
        del context
        principal = caller()
        with _translated():
            task_id = await self._submit(params, principal)
            async with aclosing(self._follow_task(task_id, principal)) as updates:
                async for update in updates:
                    yield update

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Yield a running task, its steps and its result."""
        del context
        principal = caller()
        with _translated():
            task_id = check_task_id(params.id)
            if (await self._deliberations.result(task_id, principal)).status.ended:
                raise UnsupportedOperationError(f"{task_id} has ended; get it with GetTask")
            async with aclosing(self._follow_task(task_id, principal)) as updates:
                async for update in updates:
                    yield update

    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task:
        """Return a deliberation."""
        del context
        with _translated():
            return _task(await self._deliberations.result(check_task_id(params.id), caller()))

    async def on_cancel_task(
        self, params: pb.CancelTaskRequest, context: ServerCallContext
    ) -> pb.Task:
        """Cancel a running deliberation."""
        del context
        principal = caller()
        with _translated():
            task_id = check_task_id(params.id)
            if (await self._deliberations.result(task_id, principal)).status.ended:
                raise TaskNotCancelableError(f"{task_id} has ended")
            await self._deliberations.cancel(task_id, "cancelled over A2A", principal)
            return _task(await self._deliberations.wait(task_id, principal))

    async def on_list_tasks(
        self, params: pb.ListTasksRequest, context: ServerCallContext
    ) -> pb.ListTasksResponse:
        """Return the tenant's tasks, running ones first, without their artifacts. The token of a
        page is the index of its first task.
        """
        del context
        token = params.page_token or "0"
        if not (token.isascii() and token.isdecimal() and len(token) <= _MAX_DIGITS):
            raise InvalidParamsError(
                f"page_token {token[:40]!r} is not a page token of this server"
            )
        if params.context_id or params.status or params.HasField("status_timestamp_after"):
            raise UnsupportedOperationError("tasks are listed without filters")
        if params.page_size < 0:
            raise InvalidParamsError(f"page_size is {params.page_size}; it must be positive")
        size, first = min(params.page_size or _DEFAULT_TASKS, _MAX_TASKS), int(token)
        with _translated():
            views = await self._tasks.list_tasks(caller(), "", size + 1, first=first)
        return pb.ListTasksResponse(
            tasks=[_listed(view) for view in views[:size]],
            next_page_token=str(first + size) if len(views) > size else "",
            page_size=size,
        )

    async def _submit(self, params: pb.SendMessageRequest, principal: Principal) -> TaskId:
        """Return the id of the deliberation that a message starts or continues. The same message id
        starts no second one.
        """
        message = params.message
        text = _text(message)
        if message.task_id:
            task_id = check_task_id(message.task_id)
            if (await self._deliberations.result(task_id, principal)).status.ended:
                raise UnsupportedOperationError(
                    f"{task_id} has ended; send a message without a task id to start another task"
                )
            await self._deliberations.steer(task_id, text, principal, key=message.message_id)
            return task_id
        if message.context_id:
            raise InvalidParamsError("this server creates the contexts; leave contextId out")
        if not message.message_id:
            raise InvalidParamsError("the message has no messageId")
        options = {**_options(params.metadata), **_options(message.metadata)}
        repository = _repository(options)
        request = DeliberationRequest(
            text,
            options.get("role", "dev"),
            task_id=derived_task_id("a2a", principal.name, message.message_id),
            num_agents=_agents(options.get("agents", "0")),
            repository=repository,
            about_text=repository is None,
            protocol=options.get("protocol", ""),
            model=options.get("model", ""),
        )
        return (await self._deliberations.submit(request, principal)).own_id

    async def _follow_task(
        self, task_id: TaskId, principal: Principal
    ) -> AsyncGenerator[Any, None]:
        """Yield a task, its status at each new step, its artifact and its last status."""
        yield _task(await self._deliberations.result(task_id, principal), with_artifacts=False)
        progress, last = Progress(), ""
        async with aclosing(self._deliberations.watch(task_id, 0, principal)) as events:
            async for recorded in events:
                progress, step = apply_event(progress, recorded)
                decided = recorded.event.type is EventType.DELIBERATION_DECIDED
                if step.step and step.step != last and not decided:
                    last = step.step
                    status = pb.TaskStatus(
                        state=pb.TASK_STATE_WORKING, message=_message(last, task_id)
                    )
                    yield pb.TaskStatusUpdateEvent(
                        task_id=task_id, context_id=task_id, status=status
                    )
        ended = _task(await self._deliberations.wait(task_id, principal))
        for artifact in ended.artifacts:
            yield pb.TaskArtifactUpdateEvent(
                task_id=task_id, context_id=task_id, artifact=artifact, last_chunk=True
            )
        yield pb.TaskStatusUpdateEvent(task_id=task_id, context_id=task_id, status=ended.status)

    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Refuse: results are pushed to `webhook.url` of the settings only."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Refuse."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """Refuse."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        """Refuse: there is only the public card."""
        del params, context
        raise ExtendedAgentCardNotConfiguredError


def _text(message: pb.Message) -> str:
    """Return the text of a message. Raise `ContentTypeNotSupportedError` if it has other parts."""
    if any(not part.HasField("text") for part in message.parts):
        raise ContentTypeNotSupportedError("a message may have only text parts")
    return "\n\n".join(part.text for part in message.parts)


def _options(metadata: Any) -> Mapping[str, str]:
    """Return the options of a message. Keys of others are ignored, as they may be extensions."""
    try:
        fields = json_format.MessageToDict(metadata)
    except ValueError as error:  # NaN and infinity
        raise InvalidParamsError(f"metadata cannot be read: {error}") from error
    options = {name: fields[name] for name in _OPTIONS if name in fields}
    for name, value in options.items():
        if name in _TEXT_OPTIONS and not isinstance(value, str):
            raise InvalidParamsError(f"metadata {name} must be a string")
    return {name: str(value) for name, value in options.items()}


def _agents(number: str) -> int:
    count = number.removesuffix(".0")  # numbers of metadata are floats
    if not (count.isascii() and count.isdecimal() and len(count) <= _MAX_DIGITS):
        raise InvalidParamsError(f"metadata agents is {number[:40]!r}; it must be a whole number")
    return int(count)


def _repository(options: Mapping[str, str]) -> RepositoryRef | None:
    """Return the named repository, which is a registered id or a URL, as over gRPC."""
    if not (name := options.get("repository", "")):
        return None
    return RepositoryRef.from_name(name, options.get("ref", ""))


def _task(outcome: Outcome, *, with_artifacts: bool = True) -> pb.Task:
    """Return a deliberation as a task. Without a winner it has failed."""
    state = _STATES[outcome.status]
    if outcome.status is DeliberationStatus.COMPLETED and not outcome.results:
        state = pb.TASK_STATE_FAILED
    if outcome.final_state == "no_winner":
        state = pb.TASK_STATE_FAILED
    has_result = with_artifacts and state == pb.TASK_STATE_COMPLETED
    return pb.Task(
        id=outcome.task_id,
        context_id=outcome.task_id,
        status=pb.TaskStatus(state=state, message=_message(_summary(outcome), outcome.task_id)),
        artifacts=[_artifact(outcome)] if has_result else [],
    )


def _summary(outcome: Outcome) -> str:
    """Return the state of a deliberation in a sentence."""
    if outcome.error_message:
        return outcome.error_message
    if not outcome.winner_id:
        return f"{outcome.status.value.lower().replace('_', ' ')}"
    branch_note = f", branch {outcome.branch}" if outcome.branch else ""
    return f"{outcome.winner_id} wins ({outcome.level.words}){branch_note}"


def _artifact(outcome: Outcome) -> pb.Artifact:
    """Return the result: its figures, and the winner's diff, or its answer in text."""
    winner = outcome.results[0]
    figures = {
        "winner": outcome.winner_id,
        "evidence_level": outcome.level.value,
        "undecided": outcome.undecided,
        "final_state": outcome.final_state,
        "branch": outcome.branch,
        "commit": outcome.commit_sha,
        "reasons": list(winner.reasons),
        "tokens": outcome.usage.tokens,
        "cost_usd": outcome.usage.cost_usd,
    }
    answer = (
        new_text_part(outcome.diff, media_type="text/x-diff")
        if outcome.diff
        else new_text_part(winner.content or winner.message, media_type="text/plain")
    )
    return pb.Artifact(
        artifact_id="result",
        name="Result",
        parts=[new_data_part(figures, media_type="application/json"), answer],
    )


def _listed(view: TaskView) -> pb.Task:
    summary = view.error or (f"{view.winner_id} wins ({view.level})" if view.winner_id else "")
    state = pb.TASK_STATE_FAILED if view.final_state == "no_winner" else _STATES[view.status]
    return pb.Task(
        id=view.task_id,
        context_id=view.task_id,
        status=pb.TaskStatus(state=state, message=_message(summary, view.task_id)),
    )


def _message(text: str, task_id: str) -> pb.Message | None:
    """Return a message of the server, always with the same id; None without a text, because a
    message has a part.
    """
    if not text:
        return None
    return pb.Message(
        message_id=digest(task_id, text)[:32],
        context_id=task_id,
        task_id=task_id,
        role=pb.ROLE_AGENT,
        parts=[new_text_part(text)],
    )
