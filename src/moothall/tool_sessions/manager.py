"""External callers: each opens a workspace, is given a capability token for it, calls tools and
closes it.
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

from moothall.authorization.approval_queue import Parked
from moothall.authorization.call_context import CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.tokens import Capability, Tokens, request_digest
from moothall.concurrency import seconds_until
from moothall.config import GuardSettings
from moothall.domain.identity import Principal
from moothall.domain.ids import key_of, own_id, read_role
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
from moothall.tool_sessions.answers import GONE, Answers
from moothall.tool_sessions.persistent_workspace import (
    PersistentWorkspace,
    ReopenState,
    WorkspaceLease,
)
from moothall.tools.catalogue import is_granted
from moothall.tools.spec import Danger, ToolSpec

log = get_logger(__name__)

_REQUEST_ID_CHARS = 200
_RESULTS_KEPT = 2000
_PARKED_KEPT = 100
SEAT = "visitor"


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What the caller of `open` is given."""

    workspace: str
    token: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class PendingWorkspace:
    """What a workspace is to be, such as one that is opened when it is first called."""

    repository: RepositoryRef
    role: str
    persona: str = ""


Find = Callable[[str, Principal], Awaitable[PendingWorkspace | None]]
"""Says what a workspace that is not open would be, for whom its token names; None where there is
none.
"""


@dataclass(slots=True)
class _Visit:
    """One open workspace. `answers` are the results by request id, so that a request that comes
    twice runs once. `flow` is the workflow that has it to itself, or empty; `settled` are set when
    an operator's word on a parked request has had its effect.
    """

    seat: CallContext
    standing: PersistentWorkspace
    close: asyncio.Event
    keeper: asyncio.Task[None]
    slots: asyncio.Semaphore
    answers: Answers[str, ToolResult]
    parked: dict[str, ToolCall] = field(default_factory=dict)
    settled: dict[str, asyncio.Event] = field(default_factory=dict)
    flow: str = ""


class ToolSessions:
    """All visits of this process; an async context manager that closes them. Belongs to one event
    loop.
    """

    def __init__(
        self,
        gate: ToolGateway,
        tokens: Tokens,
        workspaces: Workspaces,
        repositories: Repositories,
        settings: GuardSettings,
        *,
        run_code: RunCode | None = None,
    ) -> None:
        self._gate = gate
        self._tokens = tokens
        self._workspaces = workspaces
        self._repositories = repositories
        self._settings = settings
        self.run_code = run_code
        self._visits: dict[str, _Visit] = {}
        self._opening: Counter[str] = Counter()
        self._find: Find | None = None
        self._awaited: dict[str, asyncio.Future[None]] = {}
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
        for visit in self._visits.values():
            visit.close.set()
        await self._group.__aexit__(kind, error, traceback)

    async def open(
        self,
        who: Principal,
        repository: RepositoryRef,
        role: str,
        ttl_seconds: int = 0,
        persona: str = "",
    ) -> OpenedSession:
        """Open a workspace on a repository for `ttl_seconds` (0: the default).

        Raises `InvalidRequest`, `NotFound`, `RateLimited` and what preparing and opening raise.
        """
        seconds = float(ttl_seconds or self._settings.visit_seconds)
        if not 0 < seconds <= self._settings.token_seconds:
            raise InvalidRequest(
                f"ttl_seconds is {ttl_seconds}; allowed are 1 to {self._settings.token_seconds:.0f}"
            )
        return await self._prepare(
            f"ws-{secrets.token_hex(8)}", who, PendingWorkspace(repository, role, persona), seconds
        )

    async def _prepare(
        self, name: str, who: Principal, asked: PendingWorkspace, seconds: float
    ) -> OpenedSession:
        self._check_room(who.tenant)
        asked = replace(asked, role=read_role(asked.role))
        self._gate.grant_for(
            asked.role, persona=asked.persona
        )  # refused before anything is prepared
        self._opening[who.tenant] += 1
        try:
            base = await self._repositories.resolve(asked.repository, tenant=who.tenant)
            prepared = await self._repositories.prepare(base)
            workspace = PersistentWorkspace(name, self._workspaces, prepared, self._gate.catalogue)
            return await self._open(workspace, who, asked.role, asked.persona, seconds)
        finally:
            self._opening[who.tenant] -= 1

    def _check_room(self, tenant: str) -> None:
        """Raise `RateLimited` if the tenant, or all together, have opened as many as they may."""
        most = self._settings.visits
        own_most = min(self._settings.tenant_visits or most - most // 4, most)
        own = (
            sum(visit.seat.tenant == tenant for visit in self._visits.values())
            + self._opening[tenant]
        )
        if own >= own_most:
            raise RateLimited(
                f"{own} workspaces are open for callers of tenant {tenant} (guard.tenant_visits); "
                "close one, or try later"
            )
        if len(self._visits) + self._opening.total() >= most:
            raise RateLimited(
                f"{most} workspaces are open for callers (guard.visits); close one, or try later"
            )

    async def reopen(self, item: ReopenState) -> None:
        """Open a workspace again that a process had which is gone, under its id and with its files,
        for what is left of its time.

        Tokens that were given for it are good again. Raises `DeadlineExceeded` and what preparing
        and opening raise.
        """
        seconds = seconds_until(item.deadline)
        if seconds <= 0:
            raise DeadlineExceeded(
                "the time of its workspace was over before it could be opened again"
            )
        base = await self._repositories.resolve(
            RepositoryRef(id=item.repository, ref=item.base_sha), tenant=item.tenant
        )
        prepared = await self._repositories.prepare(base)
        diff = await self._repositories.diff(base, item.commit_sha) if item.commit_sha else ""
        who = Principal(item.principal, item.tenant)
        workspace = PersistentWorkspace(
            item.workspace, self._workspaces, prepared, self._gate.catalogue, diff
        )
        await self._open(workspace, who, item.role, item.persona, seconds)

    async def _open(
        self,
        workspace: PersistentWorkspace,
        who: Principal,
        role: str,
        persona: str,
        seconds: float,
    ) -> OpenedSession:
        name = workspace.id
        close = asyncio.Event()
        with bound(task_id=name, tenant=who.tenant):
            keeper = self._group.create_task(workspace.keep(close), name=f"keep {name}")
        try:
            await workspace.ready()
        except BaseException:
            close.set()
            raise
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        seat = self._gate.with_token(
            CallContext(
                principal=who,
                tenant=who.tenant,
                task_id=name,
                seat=SEAT,
                role=role,
                grant=self._gate.grant_for(
                    role, workspace.prepared.base.profile.protected, persona
                ),
                workspace=workspace,
                workspace_id=name,
                deadline=deadline,
                persona=persona,
            )
        )
        slots = asyncio.Semaphore(self._settings.seat_in_flight)
        self._visits[name] = _Visit(
            seat, workspace, close, keeper, slots, _answers(self._settings.visit_result_bytes)
        )
        self._group.create_task(self._end(name, seconds), name=f"end {name}")
        return OpenedSession(name, seat.token, deadline)

    async def _end(self, name: str, seconds: float) -> None:
        """Close a tool session when its time is over, or when its caller said so."""
        visit = self._visits[name]
        try:
            async with asyncio.timeout(seconds):
                await visit.close.wait()
        except TimeoutError:
            visit.close.set()
        finally:
            del self._visits[name]

    async def close(self, who: Principal, workspace: str) -> None:
        """Close a workspace. What is in its hands is stopped. Raises `NotFound`."""
        key = key_of(workspace, who.tenant)  # a task's
        visit = self._visit(key if key in self._visits else workspace, who.tenant, who.name)
        visit.close.set()
        await asyncio.wait({visit.keeper})

    def await_calls(self, find: Find) -> None:
        """From now on a call with a good token for a workspace that is not open opens what `find`
        says of it, for as long as the token lives.
        """
        self._find = find

    def token(self, who: Principal, workspace: str, role: str, seconds: float) -> str:
        """Return a capability token for a workspace that is not open yet."""
        return self._tokens.mint(
            principal=who.name,
            tenant=who.tenant,
            workspace=workspace,
            role=role,
            grant=self._gate.grant_for(role),
            seconds=min(max(seconds, 1.0), self._settings.token_seconds),
        )

    async def _open_called(self, workspace: str, capability: Capability, find: Find) -> None:
        """Open what is called for the first time; whoever calls it meanwhile waits for the same."""
        opening = self._awaited.get(workspace)
        if opening is None:
            opening = self._awaited[workspace] = asyncio.get_running_loop().create_future()
            self._group.create_task(
                self._begin(workspace, capability, find, opening), name=f"open {workspace}"
            )
        await asyncio.shield(opening)

    async def _begin(
        self, workspace: str, capability: Capability, find: Find, opening: asyncio.Future[None]
    ) -> None:
        who = Principal(capability.principal, capability.tenant)
        try:
            if (found := await find(workspace, who)) is not None:
                seconds = (
                    capability.ends - datetime.now(UTC).timestamp()
                )  # a narrower token may be for a moment only
                await self._prepare(workspace, who, found, seconds)
            opening.set_result(None)
        except MoothallError as error:
            opening.set_exception(error)
            opening.exception()  # nobody may be waiting any more
        finally:
            opening.cancel()  # where it is not done
            del self._awaited[workspace]

    def list_tools(self, who: Principal, role: str = "", persona: str = "") -> tuple[ToolSpec, ...]:
        """Return the tools that the caller's tenant has; with a role, those that it is granted.
        Raises `InvalidRequest`.
        """
        grant = self._gate.grant_for(read_role(role), persona=persona) if role else Grant(("*",))
        return self._gate.list_tools(who.tenant, grant)

    def is_open(self, workspace: str) -> bool:
        """Whether this process has it open."""
        return workspace in self._visits

    @property
    def gate(self) -> ToolGateway:
        """What every call goes through."""
        return self._gate

    def workspace(self, workspace: str) -> Workspace:
        """Return an open workspace. Raises `NotFound`."""
        visit = self._visits.get(workspace)
        if visit is None:
            raise NotFound(f"the workspace {workspace[:80]!r} was closed meanwhile")
        return visit.standing

    def capability(self, who: Principal | None, workspace: str, token: str) -> Capability:
        """Return what a token allows whom in an open workspace. `who` the door knows the caller as;
        None: the token alone says it.

        Raises `Refused` for a bad token, `NotFound` where this process has no such workspace for
        the caller.
        """
        capability = self._tokens.check(token, workspace)
        if who is not None and (who.tenant, who.name) != (capability.tenant, capability.principal):
            raise Refused("the capability token is somebody else's")
        self._visit(capability.workspace, capability.tenant, capability.principal)
        return capability

    def name_of(self, workspace: str, token: str) -> str:
        """Return what the workspace of a token is called here, whichever name its caller gives it.
        Raises `Refused`.
        """
        return self._tokens.check(token, workspace).workspace

    async def ready(self, who: Principal | None, workspace: str, token: str) -> Capability:
        """As `capability`, once the workspace is open: one that is awaited is opened."""
        named = self._tokens.check(token, workspace)
        theirs = who is None or (who.tenant, who.name) == (named.tenant, named.principal)
        if self._find is not None and named.workspace not in self._visits and theirs:
            await self._open_called(named.workspace, named, self._find)
        return self.capability(who, workspace, token)

    async def call(
        self,
        who: Principal | None,
        workspace: str,
        token: str,
        call: ToolCall,
        *,
        bound: bool = False,
        flow: str = "",
    ) -> ToolResult:
        """Return the one result of a request; the same request again has the same result and runs
        nothing.

        `who` as for `capability`. `bound`: the token must be for this request alone. `flow`: the
        workflow that calls. Raises what `capability` raises, `Refused` where a workflow has the
        workspace and the tool would change it, `AlreadyExists` where the request id was used for
        something else.
        """
        if not 0 < len(call.request_id) <= _REQUEST_ID_CHARS:  # it is kept with its result
            raise InvalidRequest(
                f"request_id has {len(call.request_id)} characters; it needs 1 to "
                f"{_REQUEST_ID_CHARS}"
            )
        capability = await self.ready(who, workspace, token)
        digest = request_digest(call)
        if bound and capability.request != digest:
            raise Refused(
                "on the bus a capability token is bound to its request: make one with "
                "moothall.authorization.tokens.narrow"
            )
        visit = self._visits[capability.workspace]
        spec = self._gate.catalogue.get(call.tool)
        if visit.flow != flow and spec is not None and spec.danger is not Danger.READ:
            raise Refused(
                f"workflow {visit.flow} has this workspace until it ends; meanwhile it may be "
                "looked at only"
            )

        def check_grant() -> None:
            if not is_granted(
                capability.grant, call.tool
            ):  # it was asked for under a token that allows more
                raise Refused(f"{call.tool[:60]} is not covered by the capability token")

        try:
            given = await visit.answers.find(call.request_id, digest, check_grant)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the request id {call.request_id[:80]!r} was used for another request"
            ) from error
        return given or await self._once(visit, token, call, digest)

    async def _once(self, visit: _Visit, token: str, call: ToolCall, digest: str) -> ToolResult:
        answer = visit.answers.begin(call.request_id, digest)
        seat = (
            visit.seat if visit.seat.token == token else replace(visit.seat, token=token)
        )  # the same meter, under a narrower token
        try:
            async with visit.slots:
                result = await self._gate.call(seat, call)
        except BaseException as error:
            visit.answers.fail(call.request_id, answer, error)
            raise
        visit.answers.settle(call.request_id, answer, result)
        if result.status is ToolStatus.PARKED and len(visit.parked) < _PARKED_KEPT:
            visit.parked[call.request_id] = call
        return result

    async def wait_until_resolved(self, workspace: str, request_id: str) -> None:
        """Wait until an operator's word on a parked request has had its effect: then the request
        has another result.
        """
        await self._visits[workspace].settled.setdefault(request_id, asyncio.Event()).wait()

    @contextmanager
    def lend(self, workspace: str, flow: str) -> Iterator[WorkspaceLease]:
        """Let a workflow have an open workspace to itself. Raises `Refused` where another one has
        it.
        """
        visit = self._visits[workspace]
        if visit.flow:
            raise Refused(
                f"workflow {visit.flow} has this workspace until it ends; run one after the other"
            )
        visit.flow = flow
        try:
            yield WorkspaceLease(visit.seat, visit.standing, visit.close, self._repositories)
        finally:
            self.give_back(workspace, flow)

    def give_back(self, workspace: str, flow: str) -> None:
        """Others may use the workspace again. Done before the end is told: who hears of that may
        call at once.
        """
        visit = self._visits.get(workspace)
        if visit is not None and visit.flow == flow:
            visit.flow = ""

    def heed_resolution(self, item: Parked) -> None:
        """Heed an operator's word on what waits here: what is allowed runs, and its result comes
        under the same request id.
        """
        visit = self._visits.get(item.workspace)
        call = visit.parked.pop(item.request_id, None) if visit is not None else None
        if visit is None or call is None:
            return
        if item.state == "allowed":
            self._group.create_task(self._resume(visit, call), name=f"resume {item.id}")
        else:
            visit.answers.forget(call.request_id)  # asked for again, it is refused
            visit.settled.setdefault(call.request_id, asyncio.Event()).set()

    async def _resume(self, visit: _Visit, call: ToolCall) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=self._settings.call_seconds)
        again = replace(call, deadline=deadline)
        visit.answers.forget(call.request_id)
        try:
            # Its own token was looked at when it was parked, and may have been for a moment only.
            await self._once(visit, visit.seat.token, again, request_digest(again))
        except MoothallError as error:
            log.warning(
                "an allowed request could not run", request=call.request_id, reason=error.message
            )
        finally:
            visit.settled.setdefault(call.request_id, asyncio.Event()).set()

    def _visit(self, workspace: str, tenant: str, principal: str) -> _Visit:
        visit = self._visits.get(workspace)
        if visit is None or visit.seat.tenant != tenant or visit.seat.principal.name != principal:
            name = own_id(workspace, tenant)
            raise NotFound(
                f"there is no open workspace {name[:80]!r}; it was closed, its time is over, or it "
                "is not yours"
            )
        return visit


def _answers(most_bytes: int) -> Answers[str, ToolResult]:
    return Answers(
        most_bytes,
        _RESULTS_KEPT,
        size=lambda result: len(repr(result.output)) + len(result.error),
        slim=lambda result: replace(result, output={}, error=GONE),
    )
