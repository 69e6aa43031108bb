"""The latest decisions of the gateway from the AUDIT stream, for display. `moothall audit verify`
checks the chain itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache

from moothall.domain.event import Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, TaskKey, own_id
from moothall.domain.topic import Channel
from moothall.ports import Log

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

    async def last(self, who: Principal) -> Sequence[Decision]:
        """Return a tenant's decisions, latest first."""
        async with self._reading:
            read = self._read.get(who.tenant) or _Read()
            async for recorded in self._log.replay((Channel.AUDIT.of(who.tenant),), read.seq):
                read.seq = recorded.seq
                if recorded.event.tenant == who.tenant:
                    read.last.extend(_decisions_in(recorded.event, who.tenant))
            self._read[who.tenant] = read
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
