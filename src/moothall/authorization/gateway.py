"""The tool gateway: the one function that every tool call passes, and its alerts of repeated
refusals.

schema → identity, tenant and catalogue → grants → capability token → policy → rate limits → breaker
→ budget → cache → run → audit → telemetry. A call passes all steps in this order, or stops with a
tool result that gives the reason. Its start is audited before it runs, and its end before its
result is returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Container,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic, perf_counter
from typing import Any, Literal

from cachetools import LRUCache

from moothall import telemetry
from moothall.authorization.approvals import check_approval
from moothall.authorization.audit import AuditEntry, AuditLog
from moothall.authorization.checks import (
    CallContext,
    CheckedCall,
    Stopped,
    check_capability,
    check_grants,
    check_identity,
    check_schema,
    check_set,
    note_of,
    with_token,
)
from moothall.authorization.limits import (
    GATEWAY_LIMITS,
    AlertLimits,
    GatewayLimits,
    Rates,
    ResultCache,
    ToolCircuits,
    book_time,
    cache_key,
    check_limits,
    check_rate,
    check_spending,
    cut_output,
    reserve,
    scope_of,
    shorten,
)
from moothall.authorization.rules import Rules
from moothall.concurrency import TimeLimit, seconds_until
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, call_event_id
from moothall.domain.ids import TaskKey
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import AuditUnavailable
from moothall.ports import Publish
from moothall.telemetry import get_logger, metrics
from moothall.telemetry.tracing import write
from moothall.tools.catalogue import ToolSpec, list_tools
from moothall.tools.schemas import arguments_digest

_MAX_ERROR_CHARS = 4000
_MAX_NAME_CHARS = 200
_CACHE_BYTES = 20_000_000
"""Results of cacheable tools that one gateway stores."""
NoteResult = Callable[[ToolResult], ToolResult]
_UNKNOWN = "unknown"


class ToolGateway:
    """The gateway for the calls of many seats. Use one per process. Belongs to one event loop."""

    def __init__(
        self,
        audit: AuditLog,
        publish: Publish,
        rules: Rules | None = None,
        *,
        source: str = "host",
        limits: GatewayLimits = GATEWAY_LIMITS,
    ) -> None:
        self._rules = rules or Rules()
        self._rates = Rates()
        self._breakers = ToolCircuits(limits.breaker_failures, limits.breaker_seconds)
        self._cache = ResultCache(_CACHE_BYTES)
        self._alerts = Alerts(limits.alerts)
        self._limits = limits
        self._audit = audit
        self._publish_event = publish
        self._source = source
        self._slots = asyncio.Semaphore(limits.calls_in_flight)

    def list_tools(self, tenant: str, grant: Grant, *, core: bool = False) -> tuple[ToolSpec, ...]:
        """Return the tools that the grant covers and the tenant has, in catalogue order. With
        `core`, return only the core tools.
        """
        return list_tools(
            grant,
            core=core,
            excluded=self._rules.hidden_tools(tenant),
            catalogue=self._rules.catalogue,
        )

    @property
    def catalogue(self) -> Mapping[str, ToolSpec]:
        """All tools by name."""
        return self._rules.catalogue

    def grant_for(self, role: str, protected: Sequence[str] = (), persona: str = "") -> Grant:
        """Return the grant of a role's seats; see `Grants.of`. Raises `InvalidRequest`."""
        return self._rules.grants.of(role, protected, persona)

    def with_token(self, context: CallContext) -> CallContext:
        """Return the seat with a capability token for its workspace, until its deadline."""
        return with_token(self._rules.tokens, context)

    async def call(self, context: CallContext, call: ToolCall) -> ToolResult:
        """Run a call and return exactly one result, for any input. The call writes two audit
        records and one `tool.finished` event.

        Raises `WorkspaceFailed` if the executor is gone (audited; the seat fails), the publisher's
        own errors, and `CancelledError` (audited as cancelled). If the audit cannot be written, the
        result is an error; if that happened before the run, the tool did not run.
        """
        with tool_call(context, call, self._rules.catalogue) as note_result:
            return note_result(await self._call(context, call))

    async def _call(self, context: CallContext, call: ToolCall) -> ToolResult:
        started = monotonic()
        entry = AuditEntry(
            tenant=context.tenant,
            principal=context.principal.name,
            task_id=context.task_id,
            seat=context.seat,
            # Names are not checked yet and can have any length.
            request_id=shorten(call.request_id, _MAX_NAME_CHARS),
            tool=shorten(str(call.tool), _MAX_NAME_CHARS),
            arguments_digest=arguments_digest(call.arguments),
        )
        try:
            audit_id = await self._audit.append(entry)
        except AuditUnavailable as error:
            result = _refusal(call, ToolStatus.ERROR, f"{error.message}; the tool was not run")
            await self._publish(context, result)
            return result
        except asyncio.CancelledError:
            self._audit.submit(replace(entry, phase="finish", status=ToolStatus.CANCELLED))
            raise
        result = ToolResult(call.request_id, call.tool, ToolStatus.ERROR)
        try:
            result = await self._admit_and_run(context, call, entry)
        except asyncio.CancelledError:
            result = replace(result, status=ToolStatus.CANCELLED)
            raise
        finally:
            result = replace(
                result, duration_ms=round((monotonic() - started) * 1000), audit_id=audit_id
            )
            # Submitted here and awaited below: a cancelled seat must not wait, but its call is
            # recorded.
            finished = self._audit.submit(
                replace(entry, phase="finish", status=result.status, duration_ms=result.duration_ms)
            )
        try:
            await finished
        except AuditUnavailable as error:
            result = replace(
                result,
                status=ToolStatus.ERROR,
                error=f"{error.message}; the tool ran, but its end is not recorded",
            )
        await self._publish(context, result)
        for alert in self._alerts.pop_raised():
            await self._publish_event(alert_event(alert, context.tenant, self._source))
        return result

    async def _admit_and_run(
        self, context: CallContext, call: ToolCall, entry: AuditEntry
    ) -> ToolResult:
        try:
            checked = await self._admit(context, call, entry)
            key = scope_of(context, checked.spec)
            own_limit = min(checked.spec.timeout_seconds, self._limits.call_seconds)
            has_full_time = self._seconds_allowed(context, call, checked) >= own_limit
            with self._breakers.watch_call(
                key, checked.spec, has_full_time=has_full_time
            ) as report_status:
                check_spending(context.ledger, context.meter, self._limits)
                result = await self._run_checked(context, call, checked)
                report_status(result.status)
        except Stopped as stopped:
            if stopped.status is ToolStatus.BLOCKED:
                self._alerts.count_refusal(context, call, stopped.reason, escape=stopped.escape)
            return _refusal(call, stopped.status, stopped.reason)
        if result.status is ToolStatus.BLOCKED:
            # The sandbox refused it: a link that leaves the workspace, or an address that is not
            # public.
            self._alerts.count_refusal(context, call, result.error, escape=True)
        return result

    async def _admit(self, context: CallContext, call: ToolCall, entry: AuditEntry) -> CheckedCall:
        rules = self._rules
        off = rules.off(context.tenant)
        checked_call = check_schema(
            call, context.grant, self._limits.argument_bytes, catalogue=rules.catalogue, off=off
        )
        check_identity(context, call)
        check_grants(context.grant, checked_call, catalogue=rules.catalogue, off=off)
        check_set(checked_call, rules.unset(context.tenant))
        check_capability(rules.tokens, context, call, checked_call)
        try:
            await rules.policy.check(context, checked_call)
        except Stopped as stopped:
            if rules.parking is None or not stopped.may_be_allowed:
                raise
            approval = await check_approval(rules.parking, context, call, stopped)
            await self._record_approval(
                replace(entry, phase="approved", approved_by=approval.approver)
            )
        await check_rate(self._rates, rules.rates, context, checked_call.spec)
        check_limits(context.meter, self._limits.seat_in_flight)
        return checked_call

    async def _record_approval(self, entry: AuditEntry) -> None:
        try:
            await self._audit.append(entry)
        except AuditUnavailable as error:
            raise Stopped(ToolStatus.ERROR, f"{error.message}; the tool was not run") from error

    async def _run_checked(
        self, context: CallContext, call: ToolCall, checked_call: CheckedCall
    ) -> ToolResult:
        seconds_allowed = self._seconds_allowed(context, call, checked_call)
        if seconds_allowed <= 0:
            raise Stopped(ToolStatus.TIMEOUT, "the deadline passed before the tool could start")
        with reserve(context.meter, seconds_allowed) as seconds:
            key = ""
            if checked_call.spec.cache_seconds > 0:
                key = cache_key(
                    context.tenant, context.workspace_id, checked_call.spec, checked_call.arguments
                )
                if (cached := self._cache.get(key)) is not None:
                    return replace(cached, request_id=call.request_id, cached=True)
            result = self._sanitize_result(
                await self._run_tool(context, call, checked_call, seconds),
                call,
                checked_call,
                note_of(context.grant, checked_call),
            )
            if key:
                self._cache.put(key, checked_call.spec, result)
        return result

    async def _run_tool(
        self, context: CallContext, call: ToolCall, checked: CheckedCall, seconds: float
    ) -> ToolResult:
        """Run the tool in the workspace or its toolkit, for at most `seconds`."""
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds + self._limits.grace_seconds
        # A command may wait for a slot until the caller's deadline; its own time starts when it
        # runs.
        max_seconds = (
            max(seconds, seconds_until(min(call.deadline, context.deadline)))
            + self._limits.grace_seconds
        )
        checked_call = ToolCall(call.request_id, call.tool, checked.arguments, deadline)
        toolkit = self._rules.toolkits.get(checked.spec.category)
        if checked.spec.outside:
            await self._publish_start(context, call)
        try:
            async with self._slot(seconds), TimeLimit(end - loop.time(), max_seconds) as limit:
                with book_time(context.meter, limit):
                    if toolkit is not None:
                        return await toolkit(checked_call, context.workspace, context.tenant)
                    return await context.workspace.call(checked_call)
        except TimeoutError as error:
            raise Stopped(
                ToolStatus.TIMEOUT,
                f"{call.tool} did not end within {seconds:.0f} seconds and was stopped",
            ) from error

    @asynccontextmanager
    async def _slot(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                await self._slots.acquire()
        except TimeoutError as error:
            reason = (
                f"{self._limits.calls_in_flight} tool calls are running and none ended in time; "
                "try again"
            )
            raise Stopped(ToolStatus.RATE_LIMITED, reason) from error
        try:
            yield
        finally:
            self._slots.release()

    def _seconds_allowed(
        self, context: CallContext, call: ToolCall, checked_call: CheckedCall
    ) -> float:
        until = min(call.deadline, context.deadline) - datetime.now(UTC)
        return min(
            until.total_seconds(),
            checked_call.spec.call_seconds(checked_call.arguments),
            self._limits.call_seconds,
        )

    def _sanitize_result(
        self, result: ToolResult, call: ToolCall, checked_call: CheckedCall, note: str
    ) -> ToolResult:
        """Return the result with this call's ids and limited sizes. Output of a workspace is
        untrusted.
        """
        max_bytes = min(
            checked_call.spec.caps.result_bytes or self._limits.result_bytes,
            self._limits.result_bytes,
        )
        output = cut_output(result.output, max_bytes)
        if note and result.status is ToolStatus.SUCCESS:
            output["note"] = note
        error = shorten(result.error, _MAX_ERROR_CHARS)
        return replace(
            result, request_id=call.request_id, tool=call.tool, output=output, error=error
        )

    async def _publish(self, context: CallContext, result: ToolResult) -> None:
        # The name of an unknown tool comes from the model.
        logged_result = replace(
            result,
            tool=shorten(result.tool, 100),
            output=cut_output(result.output, self._limits.event_bytes),
        )
        # A parked call may still run under the same request id, and its end is another event.
        ordinal = (
            f"{result.request_id}/parked"
            if result.status is ToolStatus.PARKED
            else result.request_id
        )
        await self._publish_about_call(
            EventType.TOOL_FINISHED,
            context,
            result.request_id,
            dump(logged_result),
            ordinal=ordinal,
        )

    async def _publish_start(self, context: CallContext, call: ToolCall) -> None:
        """Announce an effect outside the workspace before it happens. Without an event for its end,
        its outcome is unknown.
        """
        data = {
            "request_id": call.request_id,
            "tool": call.tool,
            "arguments_digest": arguments_digest(call.arguments),
        }
        await self._publish_about_call(EventType.TOOL_STARTED, context, call.request_id, data)

    async def _publish_about_call(
        self,
        kind: EventType,
        context: CallContext,
        request_id: str,
        data: Mapping[str, Any],
        *,
        ordinal: str = "",
    ) -> None:
        event = write(
            kind,
            context.workspace_id,
            {
                **data,
                "task_id": context.task_id,
                "seat": context.seat,
                "workspace": context.workspace_id,
            },
            ordinal=ordinal or request_id,
            # A seat's request id starts with the id of the model call that requested the tool.
            causationid=call_event_id(context.task_id, request_id.rpartition(".")[0]),
            source=self._source,
            correlationid=context.task_id,
            tenant=context.tenant,
        )
        await self._publish_event(event)


def _refusal(call: ToolCall, status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult(
        call.request_id,
        shorten(str(call.tool), _MAX_NAME_CHARS),
        status,
        error=shorten(reason, _MAX_ERROR_CHARS),
    )


@contextmanager
def tool_call(
    context: CallContext, call: ToolCall, known_tools: Container[str]
) -> Iterator[NoteResult]:
    """Trace and count one call. Pass its result to the yielded function; without a result, the call
    was cancelled or failed. Tools not in `known_tools` are traced as unknown.
    """
    tool = call.tool if call.tool in known_tools else _UNKNOWN  # the name comes from the model
    status = ToolStatus.CANCELLED
    started = perf_counter()
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.request_id,
        "moothall.seat": context.seat,
        "moothall.workspace": context.workspace_id,
    }
    with (
        telemetry.span("execute_tool", attributes) as span,
        telemetry.metrics.TOOL_CALLS_IN_FLIGHT.track_inprogress(tool),
    ):

        def note_result(result: ToolResult) -> ToolResult:
            nonlocal status
            status = result.status
            span.set({"moothall.tool.status": status, "moothall.tool.cpu_ms": result.usage.cpu_ms})
            if result.audit_id:
                span.set({"moothall.audit_id": result.audit_id})
            if status is not ToolStatus.SUCCESS:
                span.fail(status)
            return _count(tool, result)

        try:
            yield note_result
        finally:
            telemetry.metrics.TOOL_CALLS.add(tool, status)
            telemetry.metrics.TOOL_CALL_SECONDS.observe(perf_counter() - started, tool)


def _count(tool: str, result: ToolResult) -> ToolResult:
    if result.status is ToolStatus.BUDGET_EXCEEDED:
        telemetry.metrics.BUDGET_REFUSALS.add("tool")
    if result.usage.cpu_ms > 0:
        telemetry.metrics.TOOL_CPU_SECONDS.add(tool, amount=result.usage.cpu_ms / 1000)
    if result.usage.max_rss_bytes > 0:
        telemetry.metrics.TOOL_MEMORY_BYTES.observe(result.usage.max_rss_bytes, tool)
    return result


# Alerts: repeated refusals of one principal or task, and attempts to escape the sandbox.


log = get_logger(__name__)

Kind = Literal["denials", "escapes"]
_MAX_WINDOWS = 10_000
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class Alert:
    """The number of refusals of a kind within a time window, and the call that raised the alert."""

    kind: Kind
    count: int
    seconds: float
    principal: str
    task_id: TaskKey
    seat: str
    workspace: str
    tool: str
    reason: str
    request_id: str


class Alerts:
    """Counters of refusals in sliding windows, by principal and by task. Use one per gateway.
    Nothing here awaits.
    """

    def __init__(
        self,
        limits: AlertLimits = GATEWAY_LIMITS.alerts,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._windows: LRUCache[tuple[str, ...], deque[float]] = LRUCache(_MAX_WINDOWS)
        self._raised: list[Alert] = []

    def count_refusal(
        self, context: CallContext, call: ToolCall, reason: str, *, escape: bool
    ) -> None:
        """Count a refused call. At the limit, raise an alert and restart the count."""
        self._count("denials", self._limits.denials, context, call, reason)
        if escape:
            self._count("escapes", self._limits.escapes, context, call, reason)

    def pop_raised(self) -> Sequence[Alert]:
        """Return the alerts raised since the last call."""
        alerts, self._raised = self._raised, []
        return alerts

    def _count(
        self, kind: Kind, limit: int, context: CallContext, call: ToolCall, reason: str
    ) -> None:
        now = self._clock()
        windows = [
            self._windows.setdefault((kind, context.tenant, *scope), deque())
            for scope in (("of", context.principal.name), ("in", context.task_id))
        ]
        for window in windows:
            window.append(now)
            while window[0] <= now - self._limits.seconds:
                window.popleft()
        count = max(map(len, windows))
        if count < limit:
            return
        for window in windows:
            window.clear()
        alert = Alert(
            kind=kind,
            count=count,
            seconds=self._limits.seconds,
            principal=context.principal.name,
            task_id=context.task_id,
            seat=context.seat,
            workspace=context.workspace_id,
            tool=call.tool[:100],
            reason=reason[:_MAX_REASON_CHARS],
            request_id=call.request_id[:200],
        )
        self._raised.append(alert)
        metrics.GUARD_ALERTS.add(kind)
        log.warning(
            "the tool gateway raised an alert",
            kind=kind,
            count=count,
            principal=alert.principal,
            task=alert.task_id,
            tool=alert.tool,
        )


def alert_event(alert: Alert, tenant: str, source: str) -> Event:
    """Return the event that records an alert."""
    return write(
        EventType.GUARD_ALERTED,
        tenant,
        dump(alert),
        ordinal=f"{alert.kind}/{alert.task_id}/{alert.seat}/{alert.request_id}",
        source=source,
        correlationid=alert.task_id,
        tenant=tenant,
    )
