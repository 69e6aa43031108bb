"""A kernel on another machine, as one who asks it sees it."""

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
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import ConfigurationError, Permanent, Temporary
from moothall.pb.kernel.v1 import kernel_pb2 as pb
from moothall.pb.kernel.v1 import kernel_pb2_grpc as pb_grpc
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as council_pb
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as orchestrator_grpc

_CALL_SECONDS = 30.0
_TRIES, _PAUSE = 20, 0.5
_KINDS: dict[grpc.StatusCode, type[errors.Permanent]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: errors.Refused,
    grpc.StatusCode.UNAUTHENTICATED: errors.Refused,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}
_NOTHING = DeliberationRequest("", "")
_SAID = {"description", *council_pb.DeliberateRequest.DESCRIPTOR.fields_by_name}
_UNSAID = tuple(field.name for field in fields(DeliberationRequest) if field.name not in _SAID)
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Codes of what may pass."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a server calls the task that it took."""

    task_id: str


class RemoteKernel:
    """Submits deliberations, or tasks of one agent, to a server and follows them, each by the
    service that took it: with processes by role, no door has both. Who asks is said by the token,
    whatever `who` is. `pause_seconds` is the first delay before a lost server is asked again; it
    doubles.
    """

    def __init__(
        self, channel: grpc.aio.Channel, token: str, pause_seconds: float = _PAUSE
    ) -> None:
        self._stub: Any = pb_grpc.AgentKernelStub(channel)
        self._councils: Any = orchestrator_grpc.OrchestratorServiceStub(channel)
        self._convened: set[str] = set()
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._pause = pause_seconds

    async def submit(self, request: DeliberationRequest, who: Principal) -> Submitted:
        """Create the task. A repeat is the same one. Raises what the server says."""
        del who
        if request.protocol != "ask":
            return await self._convene(request)
        constraints, budget = request.constraints, request.budget
        if constraints.max_iterations or request.seed is not None:
            raise errors.InvalidRequest(
                "turns and seed cannot be said to a server elsewhere: its own settings say them"
            )
        named = request.repository
        created = await self._call(
            "CreateTask",
            pb.CreateTaskRequest(
                prompt=request.description,
                workspace=(named.id or named.url) if named else "",
                agent=request.role,
                budget=common_pb2.Budget(
                    tokens=budget.tokens,
                    seconds=constraints.timeout_seconds or budget.seconds,
                    calls=budget.calls,
                    cost_usd=budget.cost_usd,
                ),
                task_id=request.task_id,
                ref=named.ref if named else "",
                follows=request.follows,
            ),
        )
        return Submitted(created.task_id)

    async def _convene(self, request: DeliberationRequest) -> Submitted:
        if unsaid := [
            name.replace("_", " ")
            for name in _UNSAID
            if getattr(request, name) != getattr(_NOTHING, name)
        ]:
            raise errors.InvalidRequest(
                f"{', '.join(unsaid)} cannot be said to a server elsewhere: its own settings say "
                "such things"
            )
        made = await self._call(
            "SubmitDeliberation", protobuf.request_message(request), self._councils
        )
        self._convened.add(made.task_id)
        return Submitted(made.task_id)

    async def watch(
        self, task_id: str, after_seq: int, who: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the task's events and end after its decision. A connection that is lost is made
        again, from the last seq.
        """
        del who
        seen, lost = after_seq, 0
        while True:
            stream = self._follow(task_id, seen)
            try:
                with _translate_errors():
                    async for told in stream:
                        seen, lost = told.seq, 0
                        if (recorded := _recorded(task_id, told)) is not None:
                            yield recorded
            except errors.Temporary:
                lost += 1
                if lost > _TRIES:
                    raise
                await asyncio.sleep(min(self._pause * 2 ** min(lost - 1, 4), 5.0))
            else:
                return
            finally:
                stream.cancel()

    def _follow(self, task_id: str, after_seq: int) -> Any:
        if task_id in self._convened:
            asked = council_pb.WatchDeliberationRequest(task_id=task_id, after_seq=after_seq)
            return self._councils.WatchDeliberation(asked, metadata=self._metadata)
        return self._stub.StreamTaskEvents(
            pb.StreamTaskEventsRequest(task_id=task_id, after_seq=after_seq),
            metadata=self._metadata,
        )

    async def result(self, task_id: str, who: Principal) -> Outcome:
        """Return the end, as `wait` does: there is nothing else to ask."""
        return await self.wait(task_id, who)

    async def wait(self, task_id: str, who: Principal) -> Outcome:
        """Return the end."""
        async with aclosing(self.watch(task_id, 0, who)) as events:
            async for recorded in events:
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        raise errors.NotFound(f"task {task_id!r} ended without a decision")

    async def cancel(self, task_id: str, reason: str, who: Principal) -> DeliberationStatus:
        """Stop it, and say how it stands."""
        del who
        if task_id in self._convened:
            asked = council_pb.CancelDeliberationRequest(task_id=task_id, reason=reason)
            return protobuf.status_of(
                (await self._call("CancelDeliberation", asked, self._councils)).status
            )
        answer = await self._call(
            "CancelTask", pb.CancelTaskRequest(task_id=task_id, reason=reason)
        )
        return DeliberationStatus(answer.status)

    async def _call(self, method: str, request: Any, stub: Any = None) -> Any:
        with _translate_errors():
            return await getattr(stub or self._stub, method)(
                request, metadata=self._metadata, timeout=_CALL_SECONDS
            )


def _recorded(task_id: str, told: pb.TaskEvent | council_pb.DeliberationUpdate) -> Recorded | None:
    """Return an event; None for a type that only newer versions know."""
    kind, data = (
        (told.type, told.payload)
        if isinstance(told, pb.TaskEvent)
        else (told.event.type, told.event.data)
    )
    try:
        found = EventType(kind)
    except ValueError:
        return None
    return Recorded(told.seq, Event("", found, task_id, protobuf.struct_data(data, "payload")))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Say what the server said in our own errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code, said = error.code(), str(error.details() or "")[:1000]
        if code in PASSING:
            raise errors.Temporary(
                f"the server cannot be reached or has too much to do: {said}"
            ) from error
        kind = _KINDS.get(code, errors.Permanent)
        wrong = kind(said or f"the server answered {code.name}")
        wrong.code = _reason(error) or kind.code
        raise wrong from error


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return the machine code that an error of ours carries."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # it is one
    info = error_details_pb2.ErrorInfo()
    return (
        info.reason
        if status is not None and any(detail.Unpack(info) for detail in status.details)
        else ""
    )


@asynccontextmanager
async def remote_kernel(
    server: str, token: str, ca: Path | None = None
) -> AsyncIterator[RemoteKernel]:
    """Connect to `HOST:PORT`: in plain text on loopback, else over TLS, trusting `ca` or this
    machine's own authorities.

    Raises `ConfigurationError`.
    """
    async with await open_channel(server, ca) as channel:
        yield RemoteKernel(channel, token)


async def open_channel(server: str, ca: Path | None = None) -> grpc.aio.Channel:
    """Return a channel to `HOST:PORT`, as `remote_kernel` has it. Raises `ConfigurationError`."""
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise errors.ConfigurationError(
            f"{server[:80]!r} is no HOST:PORT of a server, such as 127.0.0.1:50055"
        )
    if is_loopback(host):
        return grpc.aio.insecure_channel(server)
    return await _secure_channel(server, ca)


async def _secure_channel(server: str, ca: Path | None) -> grpc.aio.Channel:
    try:
        roots = await asyncio.to_thread(ca.read_bytes) if ca is not None else None
    except OSError as error:
        raise ConfigurationError(
            f"the certificate {ca} cannot be read: {error.strerror}"
        ) from error
    return grpc.aio.secure_channel(server, grpc.ssl_channel_credentials(roots))


@asynccontextmanager
async def calling(
    settings: config.GrpcSettings, data_dir: Path, port: int
) -> AsyncIterator[tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]:
    """Yield a channel to this machine's server and the metadata that says who calls: the operator
    of this data directory.

    A refusal comes out as `Permanent`, what may pass as `Temporary`. Raises `ConfigurationError`
    where no token is the operator's.
    """
    tokens = (
        token
        for token, principal in read_tokens(settings, data_dir).items()
        if principal.tenant == LOCAL.tenant
    )
    token = next(tokens, None)
    if token is None:
        raise ConfigurationError(
            f"no token of the gRPC server stands for tenant {LOCAL.tenant}: a command cannot call "
            "it"
        )
    cert = settings.tls_cert
    target = (
        f"127.0.0.1:{port}" if settings.host in {"0.0.0.0", "::", ""} else f"{settings.host}:{port}"  # noqa: S104 - not bound here
    )
    try:
        async with (
            grpc.aio.insecure_channel(target)
            if cert is None
            else await _secure_channel(target, cert) as channel
        ):
            yield channel, (("authorization", f"Bearer {token}"),)
    except grpc.aio.AioRpcError as error:
        kind = Temporary if error.code() in PASSING else Permanent
        raise kind(f"the process that serves says: {error.details()}") from error
