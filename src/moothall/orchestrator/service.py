"""The deliberation service: checks what a caller asks, records it, and answers from the log.

Stateless over the bus, so any process that reaches the bus can have one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from cachetools import LRUCache

from moothall import telemetry
from moothall.deliberation.prompts.text import tokens
from moothall.domain.briefing import BriefingRequest
from moothall.domain.causation import request_event_id
from moothall.domain.chat import Writing
from moothall.domain.codec import dump, load
from moothall.domain.event import Data, Event, EventType, Recorded
from moothall.domain.evidence import HIDDEN
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, key_of, own_id, read_role, seed_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.pauses import Pauses
from moothall.domain.protocol import PROTOCOLS
from moothall.domain.task import (
    Deliberation,
    DeliberationRequest,
    Fork,
    RepositoryRef,
    check_deliberation,
)
from moothall.domain.topic import Channel, deliberation_topics
from moothall.errors import (
    AlreadyExists,
    GraphUnavailable,
    InvalidRequest,
    MoothallError,
    NotFound,
    Permanent,
)
from moothall.orchestrator.conversation_history import (
    conversation,
    find_decision,
    find_request,
    go_on_from,
    thread_text,
)
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.fork import fork_of
from moothall.orchestrator.hidden_tests import check_hidden, store_hidden
from moothall.orchestrator.planning import Defaults, digest_of, plan
from moothall.orchestrator.refusals import fail_seats, refused_deliberation
from moothall.ports import Bus, Repositories
from moothall.telemetry.events import write, write_of

log = telemetry.get_logger(__name__)

_REMEMBERED = 10_000
_NAMED = ("task_id", "call_id", "agent_id", "follows")
"""What in an event's data is a task's key, or begins with it."""
_TALK_SHARE = 4
"""A conversation so far has this part of the model's window."""
_ID_CHARS = 63
_REFUSED = "refused"
"""The field of a recorded request that says why it cannot start: it is never enqueued."""
_FIRST = "first"
"""Which words to a deliberation are those that came with its request."""


Tell = Callable[[BriefingRequest, Principal, int], Awaitable[str]]
"""`Briefings.tell`."""


class DeliberationService:
    """Implements `ports.Deliberations`. Callers know tasks by ids of their own tenant, and the
    server by their keys (`ids.key_of`): here is where the one becomes the other. Remembers the last
    deliberations that came through it. `tell`: what councils are told of their story, once: it is
    recorded with the request, and the graph is not asked again.
    """

    def __init__(
        self,
        bus: Bus,
        repositories: Repositories,
        defaults: Defaults,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        councils: CouncilRegistry | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._councils = councils
        self._tell = tell
        self._bus = bus
        self._repositories = repositories
        self._defaults = defaults
        self._clock = clock
        self._known: LRUCache[str, int] = LRUCache(_REMEMBERED)

    async def submit(self, request: DeliberationRequest, who: Principal) -> Deliberation:
        """Check, fill in defaults, pin the base commit, record and enqueue."""
        with telemetry.span("submit") as span:
            deliberation = await self._submit(request, who)
            span.set({"moothall.task_id": deliberation.task_id, "moothall.role": deliberation.role})
            span.set(
                {
                    "moothall.protocol": deliberation.protocol,
                    "moothall.seats": len(deliberation.seats),
                }
            )
            return replace(deliberation, task_id=own_id(deliberation.task_id, who.tenant))

    async def _submit(self, request: DeliberationRequest, who: Principal) -> Deliberation:
        request_digest = digest_of(request, who)
        key = key_of(check_id(request.task_id, "task_id"), who.tenant) if request.task_id else ""
        # Before a repository is fetched for it in vain. Without one the log itself says whether it
        # is the first.
        looks = request.repository or self._defaults.repository or request.follows or request.fork
        if key and looks and (known := await find_request(self._bus, key)):
            return await self._again(known, request_digest)
        if request.fork is not None:
            return await self._fork(request, request.fork, who, request_digest)
        before = await conversation(self._bus, request.follows, who) if request.follows else ()
        if before:
            request = go_on_from(request, before[0])
        try:
            deliberation = self._plan(request, who)
        except MoothallError:
            # What was right when it was asked for first stays so, whatever became of councils and
            # limits since.
            if key and (known := await find_request(self._bus, key)):
                return await self._again(known, request_digest)
            raise
        deliberation = await self._pin(deliberation)
        told = await self._context_of(request, deliberation, who)
        if before:
            room = self._defaults.models.get(deliberation.model).assumed_window // _TALK_SHARE
            told = "\n\n".join(filter(None, (thread_text(before, room), told)))
        deliberation = await self._store_hidden(request, replace(deliberation, context=told))
        return await self._record(deliberation, request_digest)

    async def _store_hidden(self, request: DeliberationRequest, d: Deliberation) -> Deliberation:
        """Store the caller's hidden tests where no event shows them."""
        if not request.hidden_tests:
            return d
        key = await store_hidden(
            self._bus.bucket(HIDDEN), check_hidden(request.hidden_tests, d), d.tenant
        )
        return replace(d, hidden=key)

    async def check(self, request: DeliberationRequest, who: Principal) -> None:
        """Raise what `submit` would raise if this were a new task; record nothing."""
        await self._check_delivery(await self._pin(self._plan(request, who)))

    async def refuse(self, request: DeliberationRequest, reason: Permanent, who: Principal) -> None:
        """Record a task that cannot start: its result is FAILED with this reason.

        Do nothing if the task id is taken.
        """
        deliberation = refused_deliberation(request, who, self._clock())
        refusal = {"code": reason.code, "message": reason.message}
        data = dump(deliberation) | {
            "request_digest": digest_of(request, who),
            "num_agents": 1,
            _REFUSED: refusal,
        }
        event = write_of(
            deliberation, EventType.DELIBERATION_REQUESTED, data, time=self._clock().isoformat()
        )
        try:
            await self._bus.create(event)
        except AlreadyExists:
            return
        await fail_seats(self._bus, deliberation, reason.code, reason.message, "serve")

    def _plan(self, request: DeliberationRequest, who: Principal) -> Deliberation:
        """Return the deliberation that a request asks for. Raises `NoCouncil`, `InvalidRequest`."""
        council = (
            self._councils.find(read_role(request.role), who.tenant) if self._councils else None
        )
        return plan(request, who, self._defaults, self._clock(), council)

    async def _pin(self, d: Deliberation) -> Deliberation:
        """Resolve its repository's ref to a commit. Raises what `Repositories.resolve` raises."""
        if d.repository is None:
            return d
        base = await self._repositories.resolve(d.repository, tenant=d.tenant)
        pinned = RepositoryRef(id=base.repository, url=d.repository.url, ref=d.repository.ref)
        return replace(d, repository=pinned, base_sha=base.sha)

    async def _check_delivery(self, d: Deliberation) -> None:
        """Raise `RepositoryError` if the winner of a deliberation could not be delivered."""
        if d.repository is not None and d.base_sha and not PROTOCOLS[d.protocol].answers:
            await self._repositories.check_delivery(
                d.repository.id, d.base_sha, f"moothall/{d.task_id}"
            )

    async def _fork(
        self, request: DeliberationRequest, fork: Fork, who: Principal, request_digest: str
    ) -> Deliberation:
        """Record another run of a task, under an id of its own that tells which one it is a fork
        of.
        """
        made = await fork_of(self._bus, fork, who, self._defaults, self._clock())
        for number in count(1):
            end = f"-f{number}"
            name = request.task_id or f"{fork.task_id[: _ID_CHARS - len(end)]}{end}"
            if not request.task_id and await find_request(self._bus, key_of(name, who.tenant)):
                continue
            seed = seed_of(made.seed, name) if request.seed is None else request.seed
            try:
                return await self._record(
                    replace(made, task_id=key_of(name, who.tenant), seed=seed), request_digest
                )
            except AlreadyExists:
                if request.task_id:
                    raise
        raise AssertionError("unreachable")

    async def _record(self, deliberation: Deliberation, request_digest: str) -> Deliberation:
        """Record and enqueue it. Raises `RepositoryError` if its winner could not be delivered."""
        await self._check_delivery(deliberation)
        asked = dump(deliberation) | {
            "request_digest": request_digest,
            "num_agents": len(deliberation.seats),
        }
        event = write_of(
            deliberation, EventType.DELIBERATION_REQUESTED, asked, time=self._clock().isoformat()
        )
        try:
            seq = await self._bus.create(event)
        except AlreadyExists:
            recorded = await find_request(self._bus, deliberation.task_id)
            if recorded is None:
                raise
            return await self._again(recorded, request_digest)
        self._known[deliberation.task_id] = seq
        await self._enqueue(
            deliberation, event, fresh=deliberation.fork is None
        )  # of a fork there are words on record already
        telemetry.metrics.DELIBERATIONS_REQUESTED.add(deliberation.role, deliberation.protocol)
        return deliberation

    async def _context_of(
        self, request: DeliberationRequest, deliberation: Deliberation, who: Principal
    ) -> str:
        """Return what the council is told beside its task: what those before it decided, and what
        the graph knows of the story. One that brings words from elsewhere has those alone; a merge
        asks no model.
        """
        brought = request.context
        if (
            self._tell is None
            or not request.story_id
            or request.merge
            or (brought and request.origin != "plan")
        ):
            return brought
        asked = BriefingRequest(
            task_id=own_id(deliberation.task_id, who.tenant),
            story_id=request.story_id,
            role=deliberation.role,
            phase="design" if request.about_text else "build",
            description=deliberation.description,
            repository=deliberation.repository.id if deliberation.repository else "",
        )
        room = self._defaults.limits.context_tokens - (tokens(brought) if brought else 0)
        try:
            told = await self._tell(asked, who, room)
        except GraphUnavailable as error:
            log.warning(
                "a council is told nothing of its story: the graph does not answer",
                task_id=asked.task_id,
                reason=error.message,
            )
            return brought
        return "\n\n".join(part for part in (told, brought) if part)

    async def _again(self, known: Recorded, request_digest: str) -> Deliberation:
        """Return what is recorded of the same request. Raises `AlreadyExists` where it is another
        one.
        """
        if known.event.data.get("request_digest") != request_digest:
            raise AlreadyExists(
                f"task_id {own_id(known.event.subject, known.event.tenant)!r} is taken by another "
                "deliberation"
            )
        # The work item may have been lost with a crash between the two publishes; a repeat of it is
        # deduplicated.
        deliberation = check_deliberation(load(Deliberation, known.event.data))
        refusal = known.event.data.get(_REFUSED)
        if isinstance(refusal, Mapping):
            code, message = str(refusal.get("code")), str(refusal.get("message"))
            await fail_seats(self._bus, deliberation, code, message, "serve")
        else:
            await self._enqueue(deliberation, known.event)
        return deliberation

    async def _enqueue(self, d: Deliberation, event: Event, *, fresh: bool = False) -> None:
        """Let a host have it, after what is said to a fork: its first turn of its own hears
        that.
        """
        if d.fork is not None and d.fork.words:
            await self._bus.publish(
                _words(
                    d.task_id, d.fork.words, Principal(d.principal, d.tenant), _FIRST, self._clock()
                )
            )
        await self._bus.enqueue(Channel.WORK.of(d.role), event, fresh=fresh)

    async def result(self, task_id: str, who: Principal) -> Outcome:
        """Return how it stands now."""
        asked = await self._visible(task_id, who)
        document = await self._bus.get(key_of(task_id, who.tenant))
        if document is not None:
            return replace(load(Outcome, document), task_id=task_id)
        data = asked.event.data
        return Outcome(
            task_id=task_id,
            status=DeliberationStatus.PENDING,
            tenant=asked.event.tenant,
            role=str(data.get("role", "")),
            agent_count=len(seats) if isinstance(seats := data.get("seats"), list) else 0,
        )

    async def wait(self, task_id: str, who: Principal) -> Outcome:
        """Return the end."""
        key = key_of(check_id(task_id, "task_id"), who.tenant)
        seq = self._known.get(key) or (await self._visible(task_id, who)).seq
        # Nothing answers a request before it: who has heard all since then need not look.
        async with aclosing(self._bus.follow((Channel.RESPONSES.of(key),), seq)) as events:
            async for recorded in events:
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return replace(load(Outcome, recorded.event.data), task_id=task_id)
        raise NotFound(f"deliberation {task_id!r} ended without a decision in the log")

    async def watch(
        self, task_id: str, after_seq: int, who: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the events after a seq or position in order, each once; end after the decision."""
        await self._visible(task_id, who)
        key = key_of(task_id, who.tenant)
        ended = await find_decision(self._bus, key)
        if ended is not None and not ended.comes_after(after_seq):
            return
        # Two hosts at once record the same event in different messages, which the bus does not
        # notice. Read from the beginning, since the first of the two may be before `after_seq`.
        told: set[str] = set()
        async with aclosing(self._bus.follow(deliberation_topics(key))) as events:
            async for recorded in events:
                if recorded.event.id in told:
                    continue
                told.add(recorded.event.id)
                if recorded.comes_after(after_seq):
                    yield _as_of_tenant(who, recorded)
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return

    async def watch_text(self, task_id: str, who: Principal) -> AsyncGenerator[Writing, None]:
        """Yield what seats are writing until closed."""
        await self._visible(task_id, who)
        async with aclosing(
            self._bus.signals(Channel.GROWING.of(key_of(task_id, who.tenant)))
        ) as signals:
            async for data in signals:
                seat, text, answer = (data.get(name, "") for name in ("seat", "text", "answer"))
                if (
                    isinstance(seat, str)
                    and isinstance(text, str)
                    and isinstance(answer, str)
                    and seat
                ):
                    yield Writing(seat, text, answer)

    async def steer(self, task_id: str, message: str, who: Principal, *, key: str) -> None:
        """Record what the seats hear at their next turn, and tell its host that there is
        something.
        """
        await self._visible(task_id, who)
        task, message = key_of(task_id, who.tenant), message.strip()
        if not message:
            raise InvalidRequest(
                "the message is empty; say in a sentence what the seats should know"
            )
        if await find_decision(self._bus, task) is not None:
            raise InvalidRequest(f"deliberation {task_id!r} has ended: nobody hears this any more")
        event = _words(task, message, who, digest(who.name, key), self._clock())
        said = {
            recorded.event.id: recorded.event
            async for recorded in self._bus.replay((Channel.WORDS.of(task),))
        }
        most = self._defaults.limits.steer_chars
        if (
            sum(
                len(str(one.data.get("message", "")))
                for one in ({**said, event.id: event}).values()
            )
            > most
        ):
            raise InvalidRequest(
                f"all that is said to a deliberation has at most {most} characters "
                "(limits.steer_chars)"
            )
        await self._bus.publish(event)
        await self._bus.signal(Channel.STEER.of(task), {"task_id": task})

    async def pause(self, task_id: str, who: Principal, *, paused: bool = True) -> bool:
        """Let it wait from the next turn on, or go on; return whether that changes anything."""
        await self._visible(task_id, who)
        task, kind = (
            key_of(task_id, who.tenant),
            EventType.DELIBERATION_PAUSED if paused else EventType.DELIBERATION_RESUMED,
        )
        if await find_decision(self._bus, task) is not None:
            raise InvalidRequest(
                f"deliberation {task_id!r} has ended: it can neither wait nor go on"
            )
        pauses = Pauses.of(
            [recorded.event async for recorded in self._bus.replay((Channel.WORDS.of(task),))]
        )
        if pauses.held is paused:
            return False
        number = len(pauses.turns)
        event = write(
            kind,
            task,
            {"task_id": task, "number": number, "by": who.name},
            ordinal=number,
            causationid=request_event_id(task),
            tenant=who.tenant,
            time=self._clock().isoformat(),
        )
        await self._bus.publish(event)
        await self._bus.signal(Channel.STEER.of(task), {"task_id": task})
        return True

    async def cancel(self, task_id: str, reason: str, who: Principal) -> DeliberationStatus:
        """Stop it. Cancelling what has ended changes nothing and says how it ended."""
        await self._visible(task_id, who)
        key = key_of(task_id, who.tenant)
        ended = await find_decision(self._bus, key)
        if ended is not None:
            return load(Outcome, ended.event.data).status
        event = write(
            EventType.DELIBERATION_CANCELLED,
            key,
            {"task_id": key, "reason": reason[:1000], "by": who.name},
            causationid=request_event_id(key),
            tenant=who.tenant,
            time=self._clock().isoformat(),
        )
        await self._bus.publish(event)
        await self._bus.signal(Channel.CANCEL.of(key), {"task_id": key, "reason": reason[:1000]})
        return DeliberationStatus.CANCELLED

    async def _visible(self, task_id: str, who: Principal) -> Recorded:
        check_id(task_id, "task_id")
        asked = await find_request(self._bus, key_of(task_id, who.tenant))
        if asked is None or asked.event.tenant != who.tenant:
            raise NotFound(f"no deliberation {task_id!r}")
        return asked


def _words(task: str, message: str, who: Principal, ordinal: str, now: datetime) -> Event:
    return write(
        EventType.DELIBERATION_STEERED,
        task,
        {"task_id": task, "message": message, "by": who.name},
        ordinal=ordinal,
        causationid=request_event_id(task),
        tenant=who.tenant,
        time=now.isoformat(),
    )


def _as_of_tenant(who: Principal, recorded: Recorded) -> Recorded:
    """Return an event with the ids that its tenant knows."""
    event = recorded.event
    if event.subject == own_id(event.subject, who.tenant):
        return recorded
    named: Data = {
        name: own_id(value, who.tenant)
        for name in _NAMED
        if isinstance(value := event.data.get(name), str)
    }
    if isinstance(fork := event.data.get("fork"), Mapping):
        named = {**named, "fork": {**fork, "task_id": own_id(str(fork.get("task_id")), who.tenant)}}
    own = replace(
        event,
        subject=own_id(event.subject, who.tenant),
        correlationid=own_id(event.correlationid, who.tenant),
        data={**event.data, **named},
    )
    return replace(recorded, event=own)
