"""Publishing what happens in a deliberation: every fact once, with an id that a repeat has too."""

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
    """The log of one deliberation.

    Nobody waits for a fact to be recorded but who asks for `recorded`: the acks come while the work
    goes on. A crash
    loses the last ones as it loses the last steps; what is recorded is always a beginning of what
    was said.
    """

    log: Log
    deliberation: Deliberation
    source: str = "host"
    recorded_ids: frozenset[str] = frozenset()
    """The ids of what an earlier run recorded: it is not said again."""
    progress: ProgressEstimate | None = None
    """What tells how far its agent is, where it has one."""
    _receipts: deque[Receipt] = field(default_factory=deque)

    async def publish(self, kind: EventType, ordinal: str, **data: Any) -> None:
        """Publish `data` and the task's id. `ordinal` tells facts of one kind apart, across
        restarts too.

        Raises `BusUnavailable` where an earlier fact could not be recorded.
        """
        while self._receipts and self._receipts[0].done():
            await self._receipts.popleft()
        event = write_of(self.deliberation, kind, data, ordinal=ordinal, source=self.source)
        await self._post(event)
        if self.progress is not None and (progress := self.progress.after(kind, data)) is not None:
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
        """Publish what was found of a proposal, once each `at`: by default the check that the
        evidence is of.
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
        """Return once all that was said is durable. Raises `BusUnavailable` where it could not be
        recorded.
        """
        while self._receipts:
            await self._receipts.popleft()
