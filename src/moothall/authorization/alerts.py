"""Alerts of the tool gateway: repeated refusals of one principal or task, and attempts to escape
the sandbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from cachetools import LRUCache

from moothall.authorization.call_context import CallContext
from moothall.authorization.limits import GATEWAY_LIMITS, GatewayLimits
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType
from moothall.domain.ids import TaskKey
from moothall.domain.tool import ToolCall
from moothall.telemetry import get_logger, metrics
from moothall.telemetry.events import write

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
        self, limits: GatewayLimits = GATEWAY_LIMITS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._windows: LRUCache[tuple[str, ...], deque[float]] = LRUCache(_MAX_WINDOWS)
        self._raised: list[Alert] = []

    def count_refusal(
        self, context: CallContext, call: ToolCall, reason: str, *, escape: bool
    ) -> None:
        """Count a refused call. At the limit, raise an alert and start counting anew."""
        self._count("denials", self._limits.alert_denials, context, call, reason)
        if escape:
            self._count("escapes", self._limits.alert_escapes, context, call, reason)

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
            while window[0] <= now - self._limits.alert_seconds:
                window.popleft()
        count = max(map(len, windows))
        if count < limit:
            return
        for window in windows:
            window.clear()
        alert = Alert(
            kind=kind,
            count=count,
            seconds=self._limits.alert_seconds,
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
