"""Events of a deliberation as a council publishes them, an in-memory bus, and repositories that
record deliveries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.concurrency import Capacity
from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Event, EventType, Recorded, Topic, new_event
from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.ids import TaskKey, digest
from moothall.domain.proposal import Proposal, Review, SeatOutcome, SeatStatus
from moothall.domain.repository import Base, ChangeRange, Prepared, Profile
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import (
    AlreadyExists,
    BusUnavailable,
    InvalidRequest,
    MoothallError,
    PatchRefused,
    Permanent,
    RepositoryError,
    Temporary,
)
from moothall.ports import Glance, Handler
from moothall.testing.bus import MemoryBus

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SEATS = ("agent-dev-001", "agent-dev-002", "agent-dev-003")
DEADLINE = START + timedelta(seconds=600)


def deliberation(
    task_id: str = "task-a", *, text: bool = False, seats: tuple[str, ...] = SEATS
) -> Deliberation:
    """Return a plan with three seats and ten minutes."""
    return Deliberation(
        task_id=TaskKey(task_id),
        description="Add hello_world() function\nto src/utils.py\n\nIt greets the world.",
        role="dev",
        protocol="vote",
        seats=seats,
        rounds=0,
        deadline=DEADLINE,
        max_turns=4,
        repository=None if text else RepositoryRef(id="sample", url="/r", ref="main"),
        base_sha=None if text else "b" * 40,
        story_id="story-1",
    )


@dataclass
class Story:
    """Events in the order of a council, a second apart."""

    task_id: str = "task-a"
    text: bool = False
    events: list[Event] = field(default_factory=list)

    def add(self, kind: EventType, data: Mapping[str, Any], *, at: float | None = None) -> Story:
        """Append an event a second after the last one, or `at` seconds after the start."""
        time = START + timedelta(seconds=len(self.events) if at is None else at)
        ordinal = f"{len(self.events)}"
        full = {"task_id": self.task_id, "unknown": "field", **data}
        self.events.append(
            new_event(kind, self.task_id, full, ordinal=ordinal, time=time.isoformat())
        )
        return self

    def requested(self) -> Story:
        """Append the request."""
        request = dump(deliberation(self.task_id, text=self.text)) | {"request_digest": "d"}
        return self.add(EventType.DELIBERATION_REQUESTED, request)

    def begun(self) -> Story:
        """Append the start of every seat."""
        self.requested().add(EventType.DELIBERATION_STARTED, {"seats": SEATS})
        for seat in SEATS:
            self.add(
                EventType.SEAT_STARTED,
                {"seat": seat, "role": "dev", "agent_id": seat, "approach": "plainly"},
            )
        return self

    def called(self, seat: str, call_id: str, tokens: int = 10) -> Story:
        """Append a model call."""
        usage = dump(Usage(prompt_tokens=tokens, completion_tokens=1, calls=1, cost_usd=0.1))
        return self.add(
            EventType.MODEL_CALLED,
            {"seat": seat, "call_id": call_id, "phase": "propose", "usage": usage},
        )

    def proposed(self, seat: str, body: str, revision: int = 0) -> Story:
        """Append an answer of one line, or a revision of it."""
        diff = (
            ""
            if self.text
            else f"diff --git a/u.py b/u.py\n--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+{body}\n"
        )
        proposal = Proposal(
            seat, "dev", body, diff, commit_sha=digest(body)[:40], revision=revision
        )
        kind = EventType.SEAT_REVISED if revision else EventType.SEAT_PROPOSED
        return self.add(
            kind, {"seat": seat, "candidate": proposal.candidate, "proposal": dump(proposal)}
        )

    def checked(
        self, seat: str, *, passed: bool = True, proven: bool = True, candidate: str = ""
    ) -> Story:
        """Append the clean re-check of a candidate."""
        verdict = Verdict.PASSED if passed else Verdict.FAILED
        facts = {
            "applies": True,
            "required": ["tests"],
            "regressions": [],
            "proven": proven and passed,
            "behaviour": verdict.value,
        }
        evidence = Evidence("tests", verdict, passed=int(passed), failed=int(not passed))
        common = {"seat": seat, "candidate": candidate or seat}
        self.add(EventType.CHECK_FINISHED, {**common, "evidence": dump(evidence)})
        return self.add(
            EventType.CHECK_FINISHED,
            {**common, "evidence": dump(Evidence("applies", Verdict.PASSED)), "assessment": facts},
        )

    def crossed(self, seat: str, author: str, *, passed: bool) -> Story:
        """Append the run of another author's tests on a candidate."""
        evidence = dump(Evidence("cross", Verdict.PASSED if passed else Verdict.FAILED))
        return self.add(
            EventType.CHECK_FINISHED,
            {"seat": seat, "candidate": seat, "evidence": evidence, "cross_author": author},
        )

    def reviewed(self, seat: str, candidate: str, score: float) -> Story:
        """Append a review with a false claim about its author."""
        review = dump(Review("someone", "something", score))
        return self.add(
            EventType.SEAT_REVIEWED, {"seat": seat, "candidate": candidate, "review": review}
        )

    def failed(self, seat: str, code: str = "MODEL_UNAVAILABLE") -> Story:
        """Append the failure of a seat."""
        return self.add(
            EventType.SEAT_FAILED, {"seat": seat, "error": {"code": code, "message": "went wrong"}}
        )

    def finished(
        self,
        seat: str,
        status: SeatStatus = SeatStatus.PROPOSED,
        code: str = "",
        *,
        at: float | None = None,
    ) -> Story:
        """Append the end of a seat."""
        outcome = dump(SeatOutcome(seat, status, code, "went wrong" if code else ""))
        return self.add(EventType.SEAT_FINISHED, {"seat": seat, "outcome": outcome}, at=at)

    def cancelled(self, reason: str = "enough", *, at: float | None = None) -> Story:
        """Append a caller's cancellation."""
        return self.add(EventType.DELIBERATION_CANCELLED, {"reason": reason}, at=at)


def full(task_id: str = "task-a", *, text: bool = False) -> Story:
    """Return a story of three seats: the first is proven, the second fails its test, the third
    fails itself.
    """
    story = Story(task_id, text).begun()
    first, second, third = SEATS
    story.called(first, f"{task_id}/{first}/propose/0.0").proposed(first, "good").called(
        second, f"{task_id}/{second}/propose/0.0", 7
    )
    story.proposed(second, "bad").failed(third)
    if not text:
        story.checked(first).checked(second, passed=False).crossed(first, second, passed=True)
    story.reviewed(second, first, 0.9).reviewed(first, second, 0.2)
    return (
        story.finished(third, SeatStatus.FAILED, "MODEL_UNAVAILABLE")
        .finished(first)
        .finished(second)
    )


def topic_of(event: Event) -> Topic:
    """Return the topic of an event."""
    answers = {EventType.DELIBERATION_DECIDED, EventType.DELIBERATION_CANCELLED}
    pause_types = {EventType.DELIBERATION_PAUSED, EventType.DELIBERATION_RESUMED}
    channel = (
        Channel.RESPONSES
        if event.type in answers
        else Channel.WORDS
        if event.type in pause_types
        else Channel.RESULTS
    )
    return channel.of(str(event.data.get("task_id")))


class FaultyBus(MemoryBus):
    """A log, one durable consumer and a bucket that outlive their users. Duplicates are dropped by
    id.
    """

    def __init__(self, max_deliver: int = 50) -> None:
        super().__init__()
        self.log: list[Recorded] = []
        self.documents: dict[str, Mapping[str, Any]] = {}
        self.history: list[tuple[str, str]] = []
        self.dead: list[tuple[str, str]] = []
        self.pending: dict[int, int] = {}
        self.failures: dict[str, int] = {}
        self.repeat = 1
        self.held_puts: dict[str, asyncio.Event] = {}
        self.waiting: set[str] = set()
        self.changed = asyncio.Event()
        self.shuffled: Callable[[list[int]], list[int]] = sorted
        self._max_deliver = max_deliver
        self._delivery = 0
        self._news = asyncio.Event()
        self._publication = asyncio.Event()
        self._takers: list[set[int]] = []
        self._idle = asyncio.Event()

    def _fail(self, act: str) -> None:
        if self.failures.get(act, 0) > 0:
            self.failures[act] -= 1
            raise BusUnavailable(f"{act} failed")

    async def publish(self, event: Event) -> int:
        """Append an event; drop a duplicate."""
        await asyncio.sleep(0)
        self._fail("publish")
        existing = next((item.seq for item in self.log if item.event.id == event.id), 0)
        if existing:
            return existing
        self.log.append(Recorded(len(self.log) + 1, event))
        self.pending[len(self.log)] = 0
        self._news.set()
        published, self._publication = self._publication, asyncio.Event()
        published.set()
        return len(self.log)

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Append an event if it follows the latest one of its topic."""
        last = max(
            (item.seq for item in self.log if topic_of(item.event) == topic_of(event)), default=0
        )
        if last != after_seq:
            raise AlreadyExists("something is recorded there already")
        return await self.publish(event)

    async def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the existing events."""
        self._fail("replay")
        for item in list(self.log):
            await asyncio.sleep(0)
            if item.seq > after_seq and any(topic.covers(topic_of(item.event)) for topic in topics):
                yield item

    async def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield existing and new events, over failures."""
        while True:
            for item in self.log[after_seq:]:
                after_seq = item.seq
                if any(topic.covers(topic_of(item.event)) for topic in topics):
                    yield item
            await self._publication.wait()

    async def consume(
        self,
        durable: str,
        handler: Handler,
        *,
        concurrency: int | Capacity = 1,
        glance: Glance | None = None,
    ) -> None:
        """Deliver unacknowledged events concurrently, some to each consumer. What is in hand at a
        cancellation is redelivered.
        """
        if durable != "collector":
            raise InvalidRequest(f"there is only the collector's consumer here, not {durable}")
        in_hand: set[int] = set()
        self._takers.append(in_hand)
        try:
            await self._consume(
                handler,
                concurrency if isinstance(concurrency, int) else concurrency.count,
                glance,
                in_hand,
            )
        finally:
            self._takers = [taker for taker in self._takers if taker is not in_hand]
            self._news.set()

    def _is_given(self, seq: int, in_hand: set[int]) -> bool:
        """Return whether an event is delivered now to this consumer."""
        taker = self._takers[int(digest(self.log[seq - 1].event.id), 16) % len(self._takers)]
        return taker is in_hand and not any(seq in taker_seqs for taker_seqs in self._takers)

    async def _consume(
        self, handler: Handler, concurrency: int, glance: Glance | None, in_hand: set[int]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                ready = [seq for seq in self.pending if self._is_given(seq, in_hand)]
                for seq in self.shuffled(ready)[: concurrency - len(in_hand)]:
                    self.pending[seq] += 1
                    handled = glance is not None and glance(self._delivered(seq))
                    if isinstance(handled, asyncio.Future):
                        in_hand.add(seq)
                        group.create_task(self._hold(seq, handled, in_hand))
                        continue
                    if handled:
                        self.pending.pop(seq)
                        continue
                    in_hand.add(seq)
                    group.create_task(self._deliver(seq, handler, in_hand))
                if not self.pending:
                    self._idle.set()
                await self._news.wait()

    async def _hold(self, seq: int, until: asyncio.Future[None], in_hand: set[int]) -> None:
        await asyncio.wait({until})
        self.pending.pop(seq, None)
        in_hand.discard(seq)
        self._news.set()

    def _delivered(self, seq: int) -> Recorded:
        """Return an event as it is delivered; out of order, its position is unknown."""
        self._delivery += 1
        place = str(self._delivery) if self.shuffled is sorted else "0"
        return replace(
            self.log[seq - 1], extra={"deliveries": str(self.pending[seq]), "place": place}
        )

    async def _deliver(self, seq: int, handler: Handler, in_hand: set[int]) -> None:
        try:
            for _ in range(self.repeat):
                await handler(self.log[seq - 1])
        except Temporary:
            await asyncio.sleep(0.001)
            if self.pending[seq] >= self._max_deliver:
                self._give_up(seq, "delivered too often")
        except Permanent as error:
            self._give_up(seq, error.message)
        else:
            self.pending.pop(seq, None)
        in_hand.discard(seq)
        self._news.set()

    def _give_up(self, seq: int, reason: str) -> None:
        self.dead.append((self.log[seq - 1].event.id, reason))
        self.pending.pop(seq, None)

    async def settled(self) -> None:
        """Wait until nothing is pending."""
        self._idle.clear()
        self._news.set()
        await self._idle.wait()

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document."""
        self._fail("put")
        if (tool_gateway := self.held_puts.get(str(document["status"]))) is not None:
            self.waiting.add(str(document["status"]))
            await tool_gateway.wait()
        self.documents[key] = document
        self.history.append((key, str(document["status"])))
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        await asyncio.sleep(0)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Read a document."""
        await asyncio.sleep(0)
        return self.documents.get(key)

    def bucket(self, name: str) -> Any:
        """Return the documents."""
        assert name == "deliberations"
        return _Documents(self)

    @property
    def decisions(self) -> list[Event]:
        """Return every decision on the log."""
        return [
            item.event for item in self.log if item.event.type is EventType.DELIBERATION_DECIDED
        ]


@dataclass(frozen=True, slots=True)
class _Documents:
    bus: FaultyBus

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        return await self.bus.get(key), len(
            [stored_key for stored_key, _ in self.bus.history if stored_key == key]
        )

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        if len([stored_key for stored_key, _ in self.bus.history if stored_key == key]) != revision:
            raise AlreadyExists("another was faster")
        await self.bus.put(key, document)

    async def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        position = len(self.bus.history)
        for entry in tuple(self.bus.documents.items()):
            yield entry
        while True:
            while position < len(self.bus.history):
                key, _ = self.bus.history[position]
                position += 1
                yield key, self.bus.documents[key]
            await self.bus.changed.wait()


class Remembering:
    """Repositories that create the same commit for the same input."""

    def __init__(self, error: MoothallError | None = None) -> None:
        self.branches: dict[str, str] = {}
        self.messages: set[str] = set()
        self.refs: list[RepositoryRef] = []
        self.tenants: set[str] = set()
        self.error = error
        self.gates: dict[str, asyncio.Event] = {}
        self.deliveries = 0
        self.blocked: set[str] = set()

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Return the base; every commit exists."""
        self.tenants.add(tenant)
        self.refs.append(ref)
        return Base(ref.id, ref.ref, Profile())

    async def resolve_change(
        self, ref: RepositoryRef, head: str, *, tenant: str = "local"
    ) -> ChangeRange:
        """Return the two refs as commits."""
        self.tenants.add(tenant)
        return ChangeRange(ref.id, ref.ref, head, f"The change {head[:7]}")

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        """Not supported."""
        raise NotImplementedError(base, on_progress)

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Not supported."""
        raise NotImplementedError(base, path, limit)

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Refuse the branches of `blocked`."""
        if branch in self.blocked:
            raise RepositoryError(f"the branch {branch!r} could not be made")

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Not supported."""
        raise PatchRefused(f"the commit {commit_sha} of {base.repository} is not here")

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Record the branch; wait at its gate if it has one."""
        self.deliveries += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if branch in self.gates:
            await self.gates[branch].wait()
        sha = digest(base.sha, diff, message)[:40]
        self.branches[branch] = sha
        self.messages.add(message)
        return sha


async def publish_story(bus: FaultyBus, story: Story) -> None:
    """Publish the events of a story."""
    for event in story.events:
        await bus.publish(event)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
