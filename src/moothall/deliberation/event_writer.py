"""Publishing the events of a deliberation: each event once, with an id that a repeat shares."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from moothall.deliberation.resource_usage import ProgressEstimate
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType
from moothall.domain.evidence import Evidence
from moothall.domain.proposal import Proposal
from moothall.domain.task import Deliberation
from moothall.ports import Log, Receipt
from moothall.telemetry.events import write_of


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Publishes to the log of one deliberation.

    Publishing does not wait for the acknowledgement; only `flush` does. A crash loses the last
    events together with the last steps: what is recorded is always a prefix of what was published.
    """

    log: Log
    deliberation: Deliberation
    source: str = "host"
    recorded_ids: frozenset[str] = frozenset()
    """The ids of the events of earlier runs; they are not published again."""
    progress: ProgressEstimate | None = None
    """The progress of the deliberation's agent, if it has one."""
    _receipts: deque[Receipt] = field(default_factory=deque)

    async def publish(self, kind: EventType, ordinal: str, **data: Any) -> None:
        """Publish `data` and the task's id. `ordinal` distinguishes events of one type, across
        restarts.

        Raises `BusUnavailable` if an earlier event could not be recorded.
        """
        while self._receipts and self._receipts[0].done():
            await self._receipts.popleft()
        event = write_of(self.deliberation, kind, data, ordinal=ordinal, source=self.source)
        await self._post(event)
        if self.progress is not None and (progress := self.progress.update(kind, data)) is not None:
            await self._post(
                write_of(
                    self.deliberation,
                    EventType.AGENT_PROGRESS,
                    progress,
                    ordinal=event.id,
                    source=self.source,
                )
            )

    async def publish_evidence(
        self, proposal: Proposal, evidence: Evidence, at: str = "", **data: Any
    ) -> None:
        """Publish evidence about a proposal, once for each `at`; by default, that is the check of
        the evidence.
        """
        await self.publish(
            EventType.CHECK_FINISHED,
            f"{proposal.candidate}/{proposal.fingerprint}/{at or f'check/{evidence.check}'}",
            seat=proposal.seat,
            candidate=proposal.candidate,
            fingerprint=proposal.fingerprint,
            evidence=dump(evidence),
            **data,
        )

    async def _post(self, event: Event) -> None:
        if event.id not in self.recorded_ids:
            self._receipts.append(await self.log.post(event))

    async def flush(self) -> None:
        """Wait until all published events are durable. Raises `BusUnavailable` if one cannot be
        recorded.
        """
        while self._receipts:
            await self._receipts.popleft()
