"""The one function through which a seat acts.

schema → identity, tenant and catalogue → grants → capability token → policy → rate limits → breaker
→ budget → cache →
run → audit → telemetry: a call passes every step in this order or stops with a tool result that
says why. Its start is on the audit before anything happens, its end before anyone hears of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic, perf_counter
from typing import Any

from moothall import telemetry
from moothall.authorization.alerts import Alerts, alert_event
from moothall.authorization.approval_queue import check_approval
from moothall.authorization.audit import AuditEntry, AuditLog
from moothall.authorization.cache import ResultCache, cache_key
from moothall.authorization.call_context import CallContext, Stopped
from moothall.authorization.checks import (
    CheckedCall,
    check_capability,
    check_grants,
    check_identity,
    check_schema,
    check_set,
    note_of,
    with_token,
)
from moothall.authorization.circuit_breaker import CircuitBreakers
from moothall.authorization.limits import (
    book_time,
    check_limits,
    check_spending,
    cut_output,
    reserve,
    shorten,
)
from moothall.authorization.rate_limits import Rates, check_rate, scope_of
from moothall.authorization.rules import Rules
from moothall.concurrency import TimeLimit, seconds_until
from moothall.config import GuardSettings
from moothall.domain.causation import call_event_id
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import AuditUnavailable
from moothall.ports import Publish
from moothall.telemetry.events import write
from moothall.tools.arguments import arguments_digest
from moothall.tools.catalogue import ToolSpec, list_tools

_ERROR_CHARS = 4000
_SHOWN_CHARS = 200
Noted = Callable[[ToolResult], ToolResult]
_UNKNOWN = "unknown"


class ToolGateway:
    """Lets calls of many seats through; one a process. Belongs to one event loop."""

    def __init__(
        self,
        limits: GuardSettings,
        audit: AuditLog,
        publish: Publish,
        rules: Rules | None = None,
        *,
        source: str = "host",
    ) -> None:
        self._rules = rules or Rules()
        self._rates = Rates()
        self._breakers = CircuitBreakers(limits.breaker_failures, limits.breaker_seconds)
        self._cache = ResultCache(limits.cache_bytes)
        self._alerts = Alerts(limits)
        self._limits = limits
        self._audit = audit
        self._publish_event = publish
        self._source = source
        self._slots = asyncio.Semaphore(limits.calls_in_flight)

    def list_tools(self, tenant: str, grant: Grant, *, core: bool = False) -> tuple[ToolSpec, ...]:
        """Return the tools that a grant covers and the tenant has, in catalogue order; with `core`
        only the few.
        """
        return list_tools(
            grant, core=core, without=self._rules.without(tenant), catalogue=self._rules.catalogue
        )

    @property
    def catalogue(self) -> Mapping[str, ToolSpec]:
        """The tools that there are."""
        return self._rules.catalogue

    def grant_for(self, role: str, protected: Sequence[str] = (), persona: str = "") -> Grant:
        """Return what a role's seats may do; see `Grants.of`. Raises `InvalidRequest`."""
        return self._rules.grants.of(role, protected, persona)

    def with_token(self, seat: CallContext) -> CallContext:
        """Return the seat with a capability token for its workspace, until its deadline."""
        return with_token(self._rules.tokens, seat)

    async def call(self, seat: CallContext, call: ToolCall) -> ToolResult:
        """Return exactly one result, whatever a model asked for; two audit records and one
        `tool.finished` go with it.

        Raises `WorkspaceFailed` when the executor is gone (audited; the seat fails), the
        publisher's own errors,
        and `CancelledError` (audited as cancelled). An audit that cannot be written gives an error
        result: before
        the run, the tool did not run.
        """
        with tool_call(seat, call, self._rules.catalogue) as noted:
            return noted(await self._call(seat, call))

    async def _call(self, seat: CallContext, call: ToolCall) -> ToolResult:
        started = monotonic()
        entry = AuditEntry(
            tenant=seat.tenant,
            principal=seat.principal.name,
            task_id=seat.task_id,
            seat=seat.seat,
            # A caller's own words, which are not checked yet: a record must not be as long as they
            # are.
            request_id=shorten(call.request_id, _SHOWN_CHARS),
            tool=shorten(str(call.tool), _SHOWN_CHARS),
            arguments_digest=arguments_digest(call.arguments),
        )
        try:
            audit_id = await self._audit.append(entry)
        except AuditUnavailable as error:
            result = _refusal(call, ToolStatus.ERROR, f"{error.message}; the tool was not run")
            await self._publish(seat, result)
            return result
        except asyncio.CancelledError:
            self._audit.submit(replace(entry, phase="finish", status=ToolStatus.CANCELLED))
            raise
        result = ToolResult(call.request_id, call.tool, ToolStatus.ERROR)
        try:
            result = await self._admit_and_run(seat, call, entry)
        except asyncio.CancelledError:
            result = replace(result, status=ToolStatus.CANCELLED)
            raise
        finally:
            result = replace(
                result, duration_ms=round((monotonic() - started) * 1000), audit_id=audit_id
            )
            # Handed over at once, awaited below: a seat that is being cancelled must not wait, nor
            # go unrecorded.
            finished = self._audit.submit(
                replace(entry, phase="finish", status=result.status, duration_ms=result.duration_ms)
            )
        try:
            await finished
        except AuditUnavailable as error:
            result = replace(
                result,
                status=ToolStatus.ERROR,
                error=f"{error.message}; the tool ran, its end is not recorded",
            )
        await self._publish(seat, result)
        for alert in self._alerts.take():
            await self._publish_event(alert_event(alert, seat.tenant, self._source))
        return result

    async def _admit_and_run(
        self, seat: CallContext, call: ToolCall, entry: AuditEntry
    ) -> ToolResult:
        try:
            checked = await self._admit(seat, call, entry)
            key = scope_of(seat, checked.spec)
            own_limit = min(checked.spec.timeout_seconds, self._limits.call_seconds)
            has_full_time = self._seconds(seat, call, checked) >= own_limit
            with self._breakers.watching(key, checked.spec, has_full_time=has_full_time) as told:
                check_spending(seat.ledger, seat.meter, self._limits)
                result = await self._run(seat, call, checked)
                told(result.status)
        except Stopped as stopped:
            if stopped.status is ToolStatus.BLOCKED:
                self._alerts.count_refusal(seat, call, stopped.reason, escape=stopped.escape)
            return _refusal(call, stopped.status, stopped.reason)
        if result.status is ToolStatus.BLOCKED:
            # What the gate let through, a wall refused: a link that leaves the workspace, an
            # address that is not public.
            self._alerts.count_refusal(seat, call, result.error, escape=True)
        return result

    async def _admit(self, seat: CallContext, call: ToolCall, entry: AuditEntry) -> CheckedCall:
        rules = self._rules
        off = rules.off(seat.tenant)
        checked = check_schema(
            call, seat.grant, self._limits.argument_bytes, catalogue=rules.catalogue, off=off
        )
        check_identity(seat, call)
        check_grants(seat.grant, checked, catalogue=rules.catalogue, off=off)
        check_set(checked, rules.unset(seat.tenant))
        check_capability(rules.tokens, seat, call, checked)
        try:
            await rules.policy.check(seat, checked)
        except Stopped as stopped:
            if rules.parking is None or not stopped.may_be_allowed:
                raise
            approval = await check_approval(rules.parking, seat, call, stopped)
            await self._record_approval(
                replace(entry, phase="approved", approved_by=approval.approver)
            )
        await check_rate(self._rates, rules.rates, seat, checked.spec)
        check_limits(seat.meter, self._limits)
        return checked

    async def _record_approval(self, entry: AuditEntry) -> None:
        try:
            await self._audit.append(entry)
        except AuditUnavailable as error:
            raise Stopped(ToolStatus.ERROR, f"{error.message}; the tool was not run") from error

    async def _run(self, seat: CallContext, call: ToolCall, checked: CheckedCall) -> ToolResult:
        allowed = self._seconds(seat, call, checked)
        if allowed <= 0:
            raise Stopped(ToolStatus.TIMEOUT, "the deadline was over before the tool could start")
        with reserve(seat.meter, self._limits, allowed) as held:
            key = ""
            if checked.spec.cache_seconds > 0:
                key = cache_key(seat.tenant, seat.workspace_id, checked.spec, checked.arguments)
                if (kept := self._cache.get(key)) is not None:
                    return replace(kept, request_id=call.request_id, cached=True)
            result = self._fit(
                await self._hand_over(seat, call, checked, held),
                call,
                checked,
                note_of(seat.grant, checked),
            )
            if key:
                self._cache.put(key, checked.spec, result)
        return result

    async def _hand_over(
        self, seat: CallContext, call: ToolCall, checked: CheckedCall, held: float
    ) -> ToolResult:
        """Let whoever runs the tool run it, for at most `held` seconds."""
        deadline = datetime.now(UTC) + timedelta(seconds=held)
        loop = asyncio.get_running_loop()
        end = loop.time() + held + self._limits.grace_seconds
        # A command may wait for a slot until the caller's deadline; its time begins when it runs.
        most = (
            max(held, seconds_until(min(call.deadline, seat.deadline))) + self._limits.grace_seconds
        )
        inner = ToolCall(call.request_id, call.tool, checked.arguments, deadline)
        toolkit = self._rules.toolkits.get(checked.spec.category)
        if checked.spec.outside:
            await self._publish_start(seat, call)
        try:
            async with self._slot(held), TimeLimit(end - loop.time(), most) as limit:
                with book_time(seat.meter, limit):
                    if toolkit is not None:
                        return await toolkit(inner, seat.workspace, seat.tenant)
                    return await seat.workspace.call(inner)
        except TimeoutError as error:
            raise Stopped(
                ToolStatus.TIMEOUT,
                f"{call.tool} did not end within {held:.0f} seconds and was stopped",
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

    def _seconds(self, seat: CallContext, call: ToolCall, checked: CheckedCall) -> float:
        until = min(call.deadline, seat.deadline) - datetime.now(UTC)
        return min(
            until.total_seconds(),
            checked.spec.call_seconds(checked.arguments),
            self._limits.call_seconds,
        )

    def _fit(
        self, result: ToolResult, call: ToolCall, checked: CheckedCall, note: str
    ) -> ToolResult:
        """What comes out of a workspace is untrusted: it answers this call, and only so much of
        it.
        """
        most = min(
            checked.spec.caps.result_bytes or self._limits.result_bytes, self._limits.result_bytes
        )
        output = cut_output(result.output, most)
        if note and result.status is ToolStatus.SUCCESS:
            output["note"] = note
        error = shorten(result.error, _ERROR_CHARS)
        return replace(
            result, request_id=call.request_id, tool=call.tool, output=output, error=error
        )

    async def _publish(self, seat: CallContext, result: ToolResult) -> None:
        # The tool's name is the model's word where there is no such tool.
        shown = replace(
            result,
            tool=shorten(result.tool, 100),
            output=cut_output(result.output, self._limits.event_bytes),
        )
        # What is parked may still run, under the same request id: its end is an event of its own.
        ordinal = (
            f"{result.request_id}/parked"
            if result.status is ToolStatus.PARKED
            else result.request_id
        )
        await self._say(
            EventType.TOOL_FINISHED, seat, result.request_id, dump(shown), ordinal=ordinal
        )

    async def _publish_start(self, seat: CallContext, call: ToolCall) -> None:
        """Tell of an effect outside before it happens: where its end is not told, whether it
        happened is not known.
        """
        told = {
            "request_id": call.request_id,
            "tool": call.tool,
            "arguments_digest": arguments_digest(call.arguments),
        }
        await self._say(EventType.TOOL_STARTED, seat, call.request_id, told)

    async def _say(
        self,
        kind: EventType,
        seat: CallContext,
        request_id: str,
        told: Mapping[str, Any],
        *,
        ordinal: str = "",
    ) -> None:
        event = write(
            kind,
            seat.workspace_id,
            {**told, "task_id": seat.task_id, "seat": seat.seat, "workspace": seat.workspace_id},
            ordinal=ordinal or request_id,
            # The seats' request ids begin with the call id of the model's answer that asked for
            # this.
            causationid=call_event_id(seat.task_id, request_id.rpartition(".")[0]),
            source=self._source,
            correlationid=seat.task_id,
            tenant=seat.tenant,
        )
        await self._publish_event(event)


def _refusal(call: ToolCall, status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult(
        call.request_id,
        shorten(str(call.tool), _SHOWN_CHARS),
        status,
        error=shorten(reason, _ERROR_CHARS),
    )


@contextmanager
def tool_call(seat: CallContext, call: ToolCall, known: Container[str]) -> Iterator[Noted]:
    """Watch one call of one of the tools `known`; give its result to what is yielded. One that ends
    otherwise was cancelled or failed.
    """
    tool = call.tool if call.tool in known else _UNKNOWN  # the name is the model's word
    status = ToolStatus.CANCELLED
    started = perf_counter()
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call.request_id,
        "moothall.seat": seat.seat,
        "moothall.workspace": seat.workspace_id,
    }
    with (
        telemetry.span("execute_tool", about) as span,
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
