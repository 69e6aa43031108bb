"""What the guard decided last, as the AUDIT stream tells it: for people to look at. `moothall audit
verify` says whether that is whole.
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
from moothall.domain.ids import own_id
from moothall.domain.topic import Channel
from moothall.ports import Log

_KEPT, _TENANTS, _TEXT = 200, 100, 500


@dataclass(frozen=True, slots=True)
class Decision:
    """A call of a tool that ended, or was allowed by an operator, in the words of `ToolStatus`; or
    an alert. `time` is RFC 3339, empty where it is not known.
    """

    time: str
    status: str
    tool: str
    principal: str
    task_id: str
    seat: str
    said: str = ""

    @property
    def refused(self) -> bool:
        """Whether the guard said no, or called somebody out."""
        return self.status in {"blocked", "parked", "rate_limited", "invalid", "alert"}


@dataclass(slots=True)
class _Read:
    seq: int = 0
    last: deque[Decision] = field(default_factory=lambda: deque(maxlen=_KEPT))


class Decisions:
    """The last 200 of each of the tenants that were asked for last. The first question reads a
    tenant's whole stream, later ones what came since.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: LRUCache[str, _Read] = LRUCache(_TENANTS)
        self._reading = asyncio.Lock()

    async def last(self, who: Principal) -> Sequence[Decision]:
        """Return a tenant's, the latest first."""
        async with self._reading:
            read = self._read.get(who.tenant) or _Read()
            async for recorded in self._log.replay((Channel.AUDIT.of(who.tenant),), read.seq):
                read.seq = recorded.seq
                if recorded.event.tenant == who.tenant:
                    read.last.extend(_decisions_in(recorded.event, who.tenant))
            self._read[who.tenant] = read
            return tuple(reversed(read.last))


def _decisions_in(event: Event, tenant: str) -> Iterable[Decision]:
    """Return what an event tells. What is malformed tells nothing: many write to the log."""
    data = event.data
    if event.type is EventType.GUARD_ALERTED:
        said = f"{data.get('count', '')} {data.get('kind', '')}; the last: {data.get('reason', '')}"
        yield _decision(data, event.time, "alert", tenant, said)
    elif event.type is EventType.AUDIT_RECORDED:
        earlier = data.get("records")
        for record in (*(earlier if isinstance(earlier, list | tuple) else ()), data.get("record")):
            if isinstance(record, Mapping) and record.get("phase") in {"approved", "finish"}:
                by = record.get("approved_by")
                status = str(record.get("status") or record.get("phase"))
                yield _decision(
                    record,
                    str(record.get("time") or ""),
                    status,
                    tenant,
                    f"allowed by {by}" if by else "",
                )


def _decision(said: Mapping[str, Any], time: str, status: str, tenant: str, why: str) -> Decision:
    words = {
        name: str(said.get(name) or "")[:_TEXT] for name in ("tool", "principal", "task_id", "seat")
    }
    return Decision(
        time[:40],
        status[:40],
        words["tool"],
        words["principal"],
        own_id(words["task_id"], tenant),
        words["seat"],
        why[:_TEXT],
    )
