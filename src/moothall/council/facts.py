"""Publishing what happens in a deliberation: every fact once, with an id that a repeat has too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moothall import telemetry
from moothall.domain.causes import cause_of
from moothall.domain.event import EventType, new_event
from moothall.domain.task import Deliberation
from moothall.ports import Publisher


@dataclass(frozen=True, slots=True)
class Facts:
    """The log of one deliberation."""

    publisher: Publisher
    d: Deliberation
    source: str = "host"

    async def say(self, kind: EventType, ordinal: str, **data: Any) -> None:
        """Publish `data` and the task's id. `ordinal` tells facts of one kind apart, across restarts too."""
        event = new_event(
            kind,
            self.d.task_id,
            {"task_id": self.d.task_id, **data},
            ordinal=ordinal,
            causationid=cause_of(kind, self.d.task_id, ordinal, data),
            source=self.source,
            correlationid=self.d.story_id or self.d.task_id,
            tenant=self.d.tenant,
            traceparent=telemetry.traceparent(),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        await self.publisher.publish(event)
