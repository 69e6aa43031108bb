"""A client for the kernel of a remote server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from moothall import config, errors
from moothall.api import protobuf
from moothall.api.identity import is_loopback, read_tokens
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import LOCAL, Principal, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import ConfigurationError, Permanent, Temporary
from moothall.pb.kernel.v1 import kernel_pb2 as pb
from moothall.pb.kernel.v1 import kernel_pb2_grpc as pb_grpc
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as council_pb
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as orchestrator_grpc

_CALL_SECONDS = 30.0
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # a connection that died silently is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_receive_message_length", -1),  # an event may be as large as the bus allows
)
_MAX_RECONNECTS, _RETRY_PAUSE_SECONDS = 20, 0.5
_ERROR_TYPES: dict[grpc.StatusCode, type[errors.Permanent]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: errors.Refused,
    grpc.StatusCode.UNAUTHENTICATED: errors.Refused,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}
_EMPTY_REQUEST = DeliberationRequest("", "")
_SENT_FIELDS = {"description", *council_pb.DeliberateRequest.DESCRIPTOR.fields_by_name}
_LOCAL_FIELDS = tuple(
    field.name for field in fields(DeliberationRequest) if field.name not in _SENT_FIELDS
)
TEMPORARY_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Status codes of errors that may go away by themselves."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task that a server has accepted."""

    own_id: TaskId


class RemoteKernel:
    """A client that submits deliberations, or tasks of one agent, to a server and follows them.
    Each is followed at the service that accepted it: with one process per role, no server has both
    services. The token identifies the caller; `principal` is ignored. `pause_seconds` is the first
    delay before a reconnect; it doubles.
    """

    def __init__(
        self, channel: grpc.aio.Channel, token: str, pause_seconds: float = _RETRY_PAUSE_SECONDS
    ) -> None:
        self._stub: Any = pb_grpc.AgentKernelStub(channel)
        self._councils: Any = orchestrator_grpc.OrchestratorServiceStub(channel)
        self._deliberation_ids: set[TaskId] = set()
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._retry_pause_seconds = pause_seconds

    async def submit(self, request: DeliberationRequest, principal: Principal) -> Submitted:
        """Create a task. Repeating a request returns the same task. Raises the server's errors."""
        del principal
        if request.protocol != "ask":
            return await self._submit_deliberation(request)
        constraints, budget = request.constraints, request.budget
        if constraints.max_iterations or request.seed is not None:
            raise errors.InvalidRequest(
                "a remote server does not accept turns and seed: its own settings decide them"
            )
        repository = request.repository
        created = await self._call(
            "CreateTask",
            pb.CreateTaskRequest(
                prompt=request.description,
                workspace=(repository.id or repository.url) if repository else "",
                agent=request.role,
                budget=common_pb2.Budget(
                    tokens=budget.tokens,
                    seconds=constraints.timeout_seconds or budget.seconds,
                    calls=budget.calls,
                    cost_usd=budget.cost_usd,
                ),
                task_id=request.task_id,
                ref=repository.ref if repository else "",
                follows=request.follows,
            ),
        )
        return Submitted(TaskId(created.task_id))

    async def _submit_deliberation(self, request: DeliberationRequest) -> Submitted:
        if unsupported := [
            name.replace("_", " ")
            for name in _LOCAL_FIELDS
            if getattr(request, name) != getattr(_EMPTY_REQUEST, name)
        ]:
            raise errors.InvalidRequest(
                f"a remote server does not accept {', '.join(unsupported)}: its own settings "
                "decide this"
            )
        submitted = await self._call(
            "SubmitDeliberation", protobuf.request_message(request), self._councils
        )
        task_id = TaskId(submitted.task_id)
        self._deliberation_ids.add(task_id)
        return Submitted(task_id)

    async def watch(
        self, task_id: TaskId, after_seq: int, principal: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the task's events until its decision. A lost connection is reopened after the last
        seq.
        """
        del principal
        last_seq, failures = after_seq, 0
        while True:
            stream = self._open_stream(task_id, last_seq)
            try:
                with translate_errors():
                    async for update in stream:
                        last_seq, failures = update.seq, 0
                        if (recorded := _recorded(task_id, update)) is not None:
                            yield recorded
            except errors.Temporary:
                failures += 1
                if failures > _MAX_RECONNECTS:
                    raise
                await asyncio.sleep(min(self._retry_pause_seconds * 2 ** min(failures - 1, 4), 5.0))
            else:
                return
            finally:
                stream.cancel()

    def _open_stream(self, task_id: TaskId, after_seq: int) -> Any:
        if task_id in self._deliberation_ids:
            watch_request = council_pb.WatchDeliberationRequest(
                task_id=task_id, after_seq=after_seq
            )
            return self._councils.WatchDeliberation(watch_request, metadata=self._metadata)
        return self._stub.StreamTaskEvents(
            pb.StreamTaskEventsRequest(task_id=task_id, after_seq=after_seq),
            metadata=self._metadata,
        )

    async def result(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Wait for the outcome: the server offers no other way to read it."""
        return await self.wait(task_id, principal)

    async def wait(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Wait for the outcome."""
        async with aclosing(self.watch(task_id, 0, principal)) as events:
            async for recorded in events:
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        raise errors.NotFound(f"task {task_id!r} ended without a decision")

    async def cancel(
        self, task_id: TaskId, reason: str, principal: Principal
    ) -> DeliberationStatus:
        """Cancel a task and return its status."""
        del principal
        if task_id in self._deliberation_ids:
            cancel_request = council_pb.CancelDeliberationRequest(task_id=task_id, reason=reason)
            return protobuf.read_status(
                (await self._call("CancelDeliberation", cancel_request, self._councils)).status
            )
        response = await self._call(
            "CancelTask", pb.CancelTaskRequest(task_id=task_id, reason=reason)
        )
        return DeliberationStatus(response.status)

    async def _call(self, method: str, request: Any, stub: Any = None) -> Any:
        with translate_errors():
            return await getattr(stub or self._stub, method)(
                request, metadata=self._metadata, timeout=_CALL_SECONDS
            )


def _recorded(
    task_id: TaskId, update: pb.TaskEvent | council_pb.DeliberationUpdate
) -> Recorded | None:
    """Convert an update to an event; None for types that only newer versions know."""
    type_name, data = (
        (update.type, update.payload)
        if isinstance(update, pb.TaskEvent)
        else (update.event.type, update.event.data)
    )
    try:
        event_type = EventType(type_name)
    except ValueError:
        return None
    return Recorded(
        update.seq, Event("", event_type, task_id, protobuf.struct_data(data, "payload"))
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the server's errors as our own types: by the code in their details, else by status."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code, message = error.code(), str(error.details() or "")[:1000]
        reason, retry_after = _read_details(error)
        error_type = _TYPES_BY_CODE.get(reason)
        if error_type is None and code in TEMPORARY_CODES:
            error_type = errors.Temporary
            message = f"the server cannot be reached or is overloaded: {message}"
        error_type = error_type or _ERROR_TYPES.get(code, errors.Permanent)
        translated_error = error_type(message or f"the server answered {code.name}")
        translated_error.code = reason or error_type.code
        if isinstance(translated_error, errors.Temporary):
            translated_error.retry_after = retry_after
        raise translated_error from error


def _read_details(error: grpc.aio.AioRpcError) -> tuple[str, float | None]:
    """Return the machine code and the seconds to wait of an error's details; '' and None if it has
    none.
    """
    reason, retry_after = "", None
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # it is one
    for detail in status.details if status is not None else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, retry_after


def _subtypes(kind: type[errors.MoothallError]) -> Iterator[type[errors.MoothallError]]:
    for subtype in kind.__subclasses__():
        yield subtype
        yield from _subtypes(subtype)


_TYPES_BY_CODE = {
    kind.code: kind for kind in _subtypes(errors.MoothallError) if "code" in vars(kind)
}


@asynccontextmanager
async def remote_kernel(
    server: str, token: str, ca: Path | None = None
) -> AsyncIterator[RemoteKernel]:
    """Connect to `HOST:PORT`: in plain text on loopback, otherwise over TLS, with `ca` or this
    machine's trusted authorities.

    Raises `ConfigurationError`.
    """
    async with await open_channel(server, ca) as channel:
        yield RemoteKernel(channel, token)


async def open_channel(server: str, ca: Path | None = None) -> grpc.aio.Channel:
    """Return a channel to `HOST:PORT`: over TLS if `ca` is named or the host is not loopback.

    Raises `ConfigurationError`.
    """
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise errors.ConfigurationError(
            f"{server[:80]!r} is not the HOST:PORT of a server, such as 127.0.0.1:50055"
        )
    if ca is None and is_loopback(host):
        return grpc.aio.insecure_channel(server, options=_CHANNEL_OPTIONS)
    return await _secure_channel(server, ca)


async def _secure_channel(server: str, ca: Path | None) -> grpc.aio.Channel:
    try:
        roots = await asyncio.to_thread(ca.read_bytes) if ca is not None else None
    except OSError as error:
        raise ConfigurationError(
            f"the certificate {ca} cannot be read: {error.strerror}"
        ) from error
    return grpc.aio.secure_channel(
        server, grpc.ssl_channel_credentials(roots), options=_CHANNEL_OPTIONS
    )


def local_server(
    settings: config.GrpcSettings, data_dir: Path, port: int
) -> tuple[str, str, Path | None]:
    """Return the address of this machine's server, the token of the operator of this data
    directory, and the certificate to trust. Raises `ConfigurationError` if no token belongs to the
    operator's tenant.
    """
    tokens = (
        token
        for token, principal in read_tokens(settings, data_dir).items()
        if principal.tenant == LOCAL.tenant
    )
    token = next(tokens, None)
    if token is None:
        raise ConfigurationError(
            f"no token of the gRPC server belongs to the tenant {LOCAL.tenant}, so a command "
            "cannot call it"
        )
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::", ""} else settings.host  # noqa: S104 - not bound here
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", token, settings.tls_cert


@asynccontextmanager
async def open_local_channel(
    settings: config.GrpcSettings, data_dir: Path, port: int
) -> AsyncIterator[tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]:
    """Yield a channel to this machine's server and the metadata that authenticates the operator of
    this data directory.

    Raises `Temporary` or `Permanent` for errors of calls, and what `local_server` raises.
    """
    server, token, certificate = local_server(settings, data_dir, port)
    try:
        async with (
            grpc.aio.insecure_channel(server, options=_CHANNEL_OPTIONS)
            if certificate is None
            else await _secure_channel(server, certificate) as channel
        ):
            yield channel, (("authorization", f"Bearer {token}"),)
    except grpc.aio.AioRpcError as error:
        error_type = Temporary if error.code() in TEMPORARY_CODES else Permanent
        raise error_type(f"the server answered: {error.details()}") from error
