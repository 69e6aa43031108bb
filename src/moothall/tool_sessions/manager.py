"""Tool sessions of external callers. Each opens a workspace, receives a capability token for it,
calls tools and closes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from moothall.authorization.approvals import Parked
from moothall.authorization.checks import CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import GATEWAY_LIMITS, TOKEN_SECONDS
from moothall.authorization.tokens import Capability, Tokens, request_digest
from moothall.concurrency import seconds_until
from moothall.domain.ids import Principal, TaskKey, key_of, own_id, read_role
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    NotFound,
    RateLimited,
    Refused,
)
from moothall.ports import Repositories, RunCode, Workspace, Workspaces
from moothall.telemetry import bound, get_logger
from moothall.tool_sessions.session_state import (
    OUTPUT_DROPPED,
    Answers,
    PersistentWorkspace,
    ReopenState,
    WorkspaceLease,
)
from moothall.tools.catalogue import is_granted
from moothall.tools.spec import Danger, ToolSpec

log = get_logger(__name__)

_MAX_REQUEST_ID_CHARS = 200
MAX_OPEN = 32
"""Workspaces that all callers together may have open; one tenant: three quarters of them."""
_MAX_RESULTS = 2000
_MAX_PARKED = 100
SEAT = "visitor"
_STORED_RESULT_BYTES = 20_000_000
"""Results that each tool session stores for repeated requests."""
_DEFAULT_SECONDS = 900.0
"""How long a tool session stays open if its caller does not say."""


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The result of `open`."""

    workspace: str
    token: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class PendingWorkspace:
    """A description of a workspace that is not open yet."""

    repository: RepositoryRef
    role: str
    persona: str = ""


Find = Callable[[str, Principal], Awaitable[PendingWorkspace | None]]
"""Returns the workspace to open for an id and the principal of its token, or None if there is
none.
"""


@dataclass(slots=True)
class _Session:
    """One open workspace. `answers` are the results by request id, so that a repeated request runs
    once. `flow` is the workflow that uses the workspace exclusively, or empty. The events in
    `settled` are set when the resolution of a parked request has taken effect.
    """

    seat: CallContext
    workspace: PersistentWorkspace
    close: asyncio.Event
    keep_task: asyncio.Task[None]
    slots: asyncio.Semaphore
    answers: Answers[str, ToolResult]
    parked: dict[str, ToolCall] = field(default_factory=dict)
    settled: dict[str, asyncio.Event] = field(default_factory=dict)
    flow: str = ""


class ToolSessions:
    """All tool sessions of this process. The async context manager closes them. Belongs to one
    event loop.
    """

    def __init__(
        self,
        gateway: ToolGateway,
        tokens: Tokens,
        workspaces: Workspaces,
        repositories: Repositories,
        *,
        max_open: int = MAX_OPEN,
        run_code: RunCode | None = None,
    ) -> None:
        self._gateway = gateway
        self._tokens = tokens
        self._workspaces = workspaces
        self._repositories = repositories
        self._max_open = max_open
        self.run_code = run_code
        self._sessions: dict[str, _Session] = {}
        self._opening: Counter[str] = Counter()
        self._find: Find | None = None
        self._opening_by_id: dict[str, asyncio.Future[None]] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for session in self._sessions.values():
            session.close.set()
        await self._group.__aexit__(kind, error, traceback)

    async def open(
        self,
        principal: Principal,
        repository: RepositoryRef,
        role: str,
        ttl_seconds: int = 0,
        persona: str = "",
    ) -> OpenedSession:
        """Open a workspace on a repository for `ttl_seconds` (0: the default).

        Raises `InvalidRequest`, `NotFound`, `RateLimited` and what preparing and opening raise.
        """
        seconds = float(ttl_seconds or _DEFAULT_SECONDS)
        if not 0 < seconds <= TOKEN_SECONDS:
            raise InvalidRequest(
                f"ttl_seconds is {ttl_seconds}; allowed are 1 to {TOKEN_SECONDS:.0f}"
            )
        return await self._prepare_and_open(
            f"ws-{secrets.token_hex(8)}",
            principal,
            PendingWorkspace(repository, role, persona),
            seconds,
        )

    async def _prepare_and_open(
        self, name: str, principal: Principal, pending: PendingWorkspace, seconds: float
    ) -> OpenedSession:
        self._check_limits(principal.tenant)
        pending = replace(pending, role=read_role(pending.role))
        # Raises for an unknown role before anything is prepared.
        self._gateway.grant_for(pending.role, persona=pending.persona)
        self._opening[principal.tenant] += 1
        try:
            base = await self._repositories.resolve(pending.repository, tenant=principal.tenant)
            prepared = await self._repositories.prepare(base)
            workspace = PersistentWorkspace(
                name, self._workspaces, prepared, self._gateway.catalogue
            )
            return await self._open_session(
                workspace, principal, pending.role, pending.persona, seconds
            )
        finally:
            self._opening[principal.tenant] -= 1

    def _check_limits(self, tenant: str) -> None:
        """Raise `RateLimited` if the tenant, or all tenants together, have too many open
        sessions.
        """
        limit = self._max_open
        tenant_limit = limit - limit // 4
        tenant_count = (
            sum(session.seat.tenant == tenant for session in self._sessions.values())
            + self._opening[tenant]
        )
        if tenant_count >= tenant_limit:
            raise RateLimited(
                f"{tenant_count} workspaces are open for callers of tenant {tenant}, "
                f"which may have {tenant_limit}; close one, or try later"
            )
        if len(self._sessions) + self._opening.total() >= limit:
            raise RateLimited(
                f"{limit} workspaces are open for callers, and more are not allowed; close one, or "
                "try later"
            )

    async def reopen(self, item: ReopenState) -> None:
        """Open the workspace of a process that is gone, under the same id, with its files, for the
        rest of its time.

        Earlier tokens for it stay valid. Raises `DeadlineExceeded` and what preparing and opening
        raise.
        """
        seconds = seconds_until(item.deadline)
        if seconds <= 0:
            raise DeadlineExceeded("its workspace expired before it could be opened again")
        base = await self._repositories.resolve(
            RepositoryRef(id=item.repository, ref=item.base_sha), tenant=item.tenant
        )
        prepared = await self._repositories.prepare(base)
        diff = await self._repositories.diff(base, item.commit_sha) if item.commit_sha else ""
        principal = Principal(item.principal, item.tenant)
        workspace = PersistentWorkspace(
            item.workspace, self._workspaces, prepared, self._gateway.catalogue, diff
        )
        await self._open_session(workspace, principal, item.role, item.persona, seconds)

    async def _open_session(
        self,
        workspace: PersistentWorkspace,
        principal: Principal,
        role: str,
        persona: str,
        seconds: float,
    ) -> OpenedSession:
        name = workspace.id
        close = asyncio.Event()
        with bound(task_id=name, tenant=principal.tenant):
            keep_task = self._group.create_task(workspace.hold_open(close), name=f"keep {name}")
        try:
            await workspace.wait_until_open()
        except BaseException:
            close.set()
            raise
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        seat = self._gateway.with_token(
            CallContext(
                principal=principal,
                task_id=TaskKey(name),
                seat=SEAT,
                role=role,
                grant=self._gateway.grant_for(
                    role, workspace.prepared.base.profile.protected, persona
                ),
                workspace=workspace,
                workspace_id=name,
                deadline=deadline,
                persona=persona,
            )
        )
        slots = asyncio.Semaphore(GATEWAY_LIMITS.seat_in_flight)
        self._sessions[name] = _Session(
            seat,
            workspace,
            close,
            keep_task,
            slots,
            _create_answers(_STORED_RESULT_BYTES),
        )
        self._group.create_task(self._close_at_end(name, seconds), name=f"end {name}")
        return OpenedSession(name, seat.token, deadline)

    async def _close_at_end(self, name: str, seconds: float) -> None:
        """Close a tool session when its time is over or its caller closes it."""
        session = self._sessions[name]
        try:
            async with asyncio.timeout(seconds):
                await session.close.wait()
        except TimeoutError:
            session.close.set()
        finally:
            del self._sessions[name]

    async def close(self, principal: Principal, workspace: str) -> None:
        """Close a workspace and stop its running calls. Raises `NotFound`."""
        key = key_of(workspace, principal.tenant)  # the workspace of a task
        session = self._require_session(
            key if key in self._sessions else workspace, principal.tenant, principal.name
        )
        session.close.set()
        await asyncio.wait({session.keep_task})

    def await_calls(self, find: Find) -> None:
        """Open a workspace that is not open when a call with a valid token arrives. `find`
        describes it; it stays open for as long as the token is valid.
        """
        self._find = find

    def token(self, principal: Principal, workspace: str, role: str, seconds: float) -> str:
        """Return a capability token for a workspace that is not open yet."""
        return self._tokens.mint(
            principal=principal.name,
            tenant=principal.tenant,
            workspace=workspace,
            role=role,
            grant=self._gateway.grant_for(role),
            seconds=min(max(seconds, 1.0), TOKEN_SECONDS),
        )

    async def _open_on_call(self, workspace: str, capability: Capability, find: Find) -> None:
        """Open a workspace at its first call. Concurrent calls wait for the same opening."""
        opening = self._opening_by_id.get(workspace)
        if opening is None:
            opening = self._opening_by_id[workspace] = asyncio.get_running_loop().create_future()
            self._group.create_task(
                self._open_pending(workspace, capability, find, opening), name=f"open {workspace}"
            )
        await asyncio.shield(opening)

    async def _open_pending(
        self, workspace: str, capability: Capability, find: Find, opening: asyncio.Future[None]
    ) -> None:
        principal = Principal(capability.principal, capability.tenant)
        try:
            if (pending := await find(workspace, principal)) is not None:
                # `expires` of a narrowed token can be much shorter.
                seconds = capability.ends - datetime.now(UTC).timestamp()
                await self._prepare_and_open(workspace, principal, pending, seconds)
            opening.set_result(None)
        except MoothallError as error:
            opening.set_exception(error)
            opening.exception()  # nobody may be waiting any more
        finally:
            opening.cancel()  # no effect if it is done
            del self._opening_by_id[workspace]

    def list_tools(
        self, principal: Principal, role: str = "", persona: str = ""
    ) -> tuple[ToolSpec, ...]:
        """Return the tools of the caller's tenant; with a role, those that the role is granted.
        Raises `InvalidRequest`.
        """
        grant = self._gateway.grant_for(read_role(role), persona=persona) if role else Grant(("*",))
        return self._gateway.list_tools(principal.tenant, grant)

    def is_open(self, workspace: str) -> bool:
        """Return whether the workspace is open in this process."""
        return workspace in self._sessions

    @property
    def gateway(self) -> ToolGateway:
        """The gateway of every call."""
        return self._gateway

    def workspace(self, workspace: str) -> Workspace:
        """Return an open workspace. Raises `NotFound`."""
        session = self._sessions.get(workspace)
        if session is None:
            raise NotFound(f"the workspace {workspace[:80]!r} was closed meanwhile")
        return session.workspace

    def capability(self, principal: Principal | None, workspace: str, token: str) -> Capability:
        """Return what a token allows in an open workspace. `principal` is the authenticated caller;
        None: the token alone identifies the caller.

        Raises `Refused` for a bad token, `NotFound` if this process has no such workspace for the
        caller.
        """
        capability = self._tokens.check(token, workspace)
        if principal is not None and (principal.tenant, principal.name) != (
            capability.tenant,
            capability.principal,
        ):
            raise Refused("the capability token belongs to another principal")
        self._require_session(capability.workspace, capability.tenant, capability.principal)
        return capability

    def name_of(self, workspace: str, token: str) -> str:
        """Return the id of a token's workspace, by whichever name the caller uses. Raises
        `Refused`.
        """
        return self._tokens.check(token, workspace).workspace

    async def ensure_open(
        self, principal: Principal | None, workspace: str, token: str
    ) -> Capability:
        """Do as `capability`, after opening the workspace if `await_calls` provides it."""
        claimed = self._tokens.check(token, workspace)
        is_holder = principal is None or (principal.tenant, principal.name) == (
            claimed.tenant,
            claimed.principal,
        )
        if self._find is not None and claimed.workspace not in self._sessions and is_holder:
            await self._open_on_call(claimed.workspace, claimed, self._find)
        return self.capability(principal, workspace, token)

    async def call(
        self,
        principal: Principal | None,
        workspace: str,
        token: str,
        call: ToolCall,
        *,
        bound: bool = False,
        flow: str = "",
    ) -> ToolResult:
        """Run a request and return its result. A repeated request returns the same result without
        running.

        `principal` as for `capability`. `bound`: the token must be for this request only. `flow`:
        the calling workflow. Raises what `capability` raises, `Refused` if a workflow uses the
        workspace and the tool would change it, and `AlreadyExists` if the request id was used for
        something else.
        """
        if not 0 < len(call.request_id) <= _MAX_REQUEST_ID_CHARS:  # it is stored with its result
            raise InvalidRequest(
                f"request_id has {len(call.request_id)} characters; it needs 1 to "
                f"{_MAX_REQUEST_ID_CHARS}"
            )
        capability = await self.ensure_open(principal, workspace, token)
        digest = request_digest(call)
        if bound and capability.request != digest:
            raise Refused(
                "on the bus a capability token is bound to its request: make one with "
                "moothall.authorization.tokens.narrow"
            )
        session = self._sessions[capability.workspace]
        spec = self._gateway.catalogue.get(call.tool)
        if session.flow != flow and spec is not None and spec.danger is not Danger.READ:
            raise Refused(
                f"workflow {session.flow} has this workspace until it ends; until then it can "
                "only be "
                "read"
            )

        def check_grant() -> None:
            # The first request may have had a token that allows more.
            if not is_granted(capability.grant, call.tool):
                raise Refused(f"{call.tool[:60]} is not covered by the capability token")

        try:
            previous = await session.answers.find(call.request_id, digest, check_grant)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the request id {call.request_id[:80]!r} was used for another request"
            ) from error
        return previous or await self._run_once(session, token, call, digest)

    async def _run_once(
        self, session: _Session, token: str, call: ToolCall, digest: str
    ) -> ToolResult:
        answer = session.answers.begin(call.request_id, digest)
        # A narrower token uses the same meter.
        seat = session.seat if session.seat.token == token else replace(session.seat, token=token)
        try:
            async with session.slots:
                result = await self._gateway.call(seat, call)
        except BaseException as error:
            session.answers.fail(call.request_id, answer, error)
            raise
        session.answers.settle(call.request_id, answer, result)
        if result.status is ToolStatus.PARKED and len(session.parked) < _MAX_PARKED:
            session.parked[call.request_id] = call
        return result

    async def wait_until_resolved(self, workspace: str, request_id: str) -> None:
        """Wait until the resolution of a parked request has taken effect. The request then has
        another result.
        """
        await self._sessions[workspace].settled.setdefault(request_id, asyncio.Event()).wait()

    @contextmanager
    def lease(self, workspace: str, flow: str) -> Iterator[WorkspaceLease]:
        """Let a workflow use an open workspace exclusively. Raises `Refused` if another workflow
        uses it.
        """
        session = self._sessions[workspace]
        if session.flow:
            raise Refused(
                f"workflow {session.flow} has this workspace until it ends; run one after the other"
            )
        session.flow = flow
        try:
            yield WorkspaceLease(session.seat, session.workspace, session.close, self._repositories)
        finally:
            self.give_back(workspace, flow)

    def give_back(self, workspace: str, flow: str) -> None:
        """End a workflow's exclusive use. Call this before publishing the workflow's end, because
        observers may call tools at once.
        """
        session = self._sessions.get(workspace)
        if session is not None and session.flow == flow:
            session.flow = ""

    def heed_resolution(self, item: Parked) -> None:
        """Apply an operator's resolution of a request parked here. An allowed request runs, and its
        result gets the same request id.
        """
        session = self._sessions.get(item.workspace)
        call = session.parked.pop(item.request_id, None) if session is not None else None
        if session is None or call is None:
            return
        if item.state == "allowed":
            self._group.create_task(self._run_allowed(session, call), name=f"resume {item.id}")
        else:
            session.answers.forget(call.request_id)  # a repeated request is refused
            session.settled.setdefault(call.request_id, asyncio.Event()).set()

    async def _run_allowed(self, session: _Session, call: ToolCall) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=GATEWAY_LIMITS.call_seconds)
        allowed_call = replace(call, deadline=deadline)
        session.answers.forget(call.request_id)
        try:
            # The request's own token was checked when it was parked, and may have expired since.
            await self._run_once(
                session, session.seat.token, allowed_call, request_digest(allowed_call)
            )
        except MoothallError as error:
            log.warning(
                "an allowed request could not run", request=call.request_id, reason=error.message
            )
        finally:
            session.settled.setdefault(call.request_id, asyncio.Event()).set()

    def _require_session(self, workspace: str, tenant: str, principal: str) -> _Session:
        session = self._sessions.get(workspace)
        if (
            session is None
            or session.seat.tenant != tenant
            or session.seat.principal.name != principal
        ):
            name = own_id(workspace, tenant)
            raise NotFound(
                f"there is no open workspace {name[:80]!r}; it was closed, has expired, or "
                "is not yours"
            )
        return session


def _create_answers(max_bytes: int) -> Answers[str, ToolResult]:
    return Answers(
        max_bytes,
        _MAX_RESULTS,
        size=lambda result: len(repr(result.output)) + len(result.error),
        slim=lambda result: replace(result, output={}, error=OUTPUT_DROPPED),
    )
