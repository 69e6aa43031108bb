"""Decisions of the tool gateway: the latest ones, for display, and alerts of repeated refusals
and of attempts to escape.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from cachetools import LRUCache

from moothall.authorization.call_context import CallContext
from moothall.authorization.limits import GATEWAY_LIMITS, AlertLimits
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, TaskKey, own_id
from moothall.domain.tool import ToolCall
from moothall.ports import Log
from moothall.telemetry import get_logger, metrics
from moothall.telemetry.tracing import write

# The latest decisions of the gateway from the AUDIT stream, for display. `moothall audit verify`
# checks the chain itself.


REFUSALS = frozenset({"blocked", "parked", "rate_limited", "invalid", "alert"})
"""The statuses of refused calls and of alerts."""
_MAX_DECISIONS, _MAX_TENANTS, _MAX_TEXT_CHARS = 200, 100, 500


@dataclass(frozen=True, slots=True)
class Decision:
    """A finished tool call or one that an operator allowed, with its `ToolStatus`; or an alert.
    `time` is RFC 3339, or empty if unknown.
    """

    time: str
    status: str
    tool: str
    principal: str
    task_id: TaskId
    seat: str
    reason: str = ""

    @property
    def refused(self) -> bool:
        """Whether the gateway refused the call or raised an alert."""
        return self.status in REFUSALS


@dataclass(slots=True)
class _Read:
    seq: int = 0
    last: deque[Decision] = field(default_factory=lambda: deque(maxlen=_MAX_DECISIONS))


class Decisions:
    """The last 200 decisions of each recently requested tenant. The first request reads the
    tenant's whole stream, later ones only new events.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: LRUCache[str, _Read] = LRUCache(_MAX_TENANTS)
        self._reading = asyncio.Lock()

    async def last(self, principal: Principal) -> Sequence[Decision]:
        """Return a tenant's decisions, latest first."""
        async with self._reading:
            read = self._read.get(principal.tenant) or _Read()
            async for recorded in self._log.replay((Channel.AUDIT.of(principal.tenant),), read.seq):
                read.seq = recorded.seq
                if recorded.event.tenant == principal.tenant:
                    read.last.extend(_decisions_in(recorded.event, principal.tenant))
            self._read[principal.tenant] = read
            return tuple(reversed(read.last))


def _decisions_in(event: Event, tenant: str) -> Iterable[Decision]:
    """Return the decisions in an event. Malformed records are skipped, because others write to the
    stream too.
    """
    data = event.data
    if event.type is EventType.GUARD_ALERTED:
        summary = (
            f"{data.get('count', '')} {data.get('kind', '')}; the last: {data.get('reason', '')}"
        )
        yield _decision(data, event.time, "alert", tenant, summary)
    elif event.type is EventType.AUDIT_RECORDED:
        earlier = data.get("records")
        for record in (*(earlier if isinstance(earlier, list | tuple) else ()), data.get("record")):
            if isinstance(record, Mapping) and record.get("phase") in {"approved", "finish"}:
                approver = record.get("approved_by")
                status = str(record.get("status") or record.get("phase"))
                yield _decision(
                    record,
                    str(record.get("time") or ""),
                    status,
                    tenant,
                    f"allowed by {approver}" if approver else "",
                )


def _decision(
    record: Mapping[str, Any], time: str, status: str, tenant: str, summary: str
) -> Decision:
    fields = {
        name: str(record.get(name) or "")[:_MAX_TEXT_CHARS]
        for name in ("tool", "principal", "task_id", "seat")
    }
    return Decision(
        time[:40],
        status[:40],
        fields["tool"],
        fields["principal"],
        own_id(TaskKey(fields["task_id"]), tenant),
        fields["seat"],
        summary[:_MAX_TEXT_CHARS],
    )


# Alerts of the tool gateway: repeated refusals of one principal or task, and attempts to escape the
# sandbox.


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
        """Count a refused call. At the limit, raise an alert and start counting anew."""
        self._count("denials", self._limits.denials, context, call, reason)
        if escape:
            self._count("escapes", self._limits.escapes, context, call, reason)

    def pop_raised(self) -> Sequence[Alert]:
        """Return the alerts raised since the last call."""
        raised, self._raised = self._raised, []
        return raised

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
            "the guard raises an alert",
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
