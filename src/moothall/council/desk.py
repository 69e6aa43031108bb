"""The front desk: checks what a caller asks, records it, and answers from the log.

Stateless over the bus, so any process that reaches the bus can have one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from cachetools import LRUCache

from moothall import telemetry
from moothall.config import Limits, Models
from moothall.council import params
from moothall.council.choices import cheaper, checks_of, digest_of, elsewhere_of, models_of
from moothall.council.roster import Roster
from moothall.council.text import tokens
from moothall.domain.briefing import BriefingRequest
from moothall.domain.budget import Budget, check_budget
from moothall.domain.causes import requested_id
from moothall.domain.codec import dump, load
from moothall.domain.council import Council
from moothall.domain.event import Data, EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, key_of, new_task_id, own_id, read_role, seat_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.pauses import Pauses
from moothall.domain.protocol import PROTOCOLS
from moothall.domain.task import (
    DEFAULT_SEATS,
    Deliberation,
    DeliberationRequest,
    RepositoryRef,
    check_deliberation,
)
from moothall.domain.topic import Channel, deliberation_topics
from moothall.errors import AlreadyExists, GraphUnavailable, InvalidRequest, MoothallError, NotFound
from moothall.ports import Bus, Repositories
from moothall.telemetry.events import write, write_of

log = telemetry.get_logger(__name__)

_REMEMBERED = 10_000
_NAMED = ("task_id", "call_id", "agent_id")
"""What in an event's data is a task's key, or begins with it."""


Tell = Callable[[BriefingRequest, Principal, int], Awaitable[str]]
"""`Briefings.tell`."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What fills the zeros of a request."""

    limits: Limits
    repository: str = ""
    seed: int = 0
    models: Models = field(default_factory=Models)
    endpoints: frozenset[str] = frozenset()


class Desk:
    """Implements `ports.Deliberations`. Callers know tasks by ids of their own tenant, and the house by their keys (`ids.key_of`): here is
    where the one becomes the other. Remembers the last deliberations that came through it. `tell`: what councils are told of
    their story, once: it is recorded with the request, and the graph is not asked again.
    """

    def __init__(
        self,
        bus: Bus,
        repositories: Repositories,
        defaults: Defaults,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        councils: Roster | None = None,
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
            span.set({"moothall.protocol": deliberation.protocol, "moothall.seats": len(deliberation.seats)})
            return replace(deliberation, task_id=own_id(deliberation.task_id, who.tenant))

    async def _submit(self, request: DeliberationRequest, who: Principal) -> Deliberation:
        request_digest = digest_of(request, who)
        key = key_of(check_id(request.task_id, "task_id"), who.tenant) if request.task_id else ""
        # Before a repository is fetched for it in vain. Without one the log itself says whether it is the first.
        if key and (request.repository or self._defaults.repository) and (known := await self._requested(key)):
            return await self._again(known, request_digest)
        role = read_role(request.role)
        try:
            council = self._councils.find(role, who.tenant) if self._councils else None
            deliberation = plan(request, who, self._defaults, self._clock(), council)
        except MoothallError:
            # What was right when it was asked for first stays so, whatever became of councils and limits since.
            if key and (known := await self._requested(key)):
                return await self._again(known, request_digest)
            raise
        if deliberation.repository is not None:
            base = await self._repositories.resolve(deliberation.repository, tenant=who.tenant)
            deliberation = replace(
                deliberation,
                repository=RepositoryRef(id=base.repository, url=deliberation.repository.url, ref=deliberation.repository.ref),
                base_sha=base.sha,
            )
        deliberation = replace(deliberation, context=await self._told(request, deliberation, who))
        asked = dump(deliberation) | {"request_digest": request_digest, "num_agents": len(deliberation.seats)}
        event = write_of(deliberation, EventType.DELIBERATION_REQUESTED, asked, time=self._clock().isoformat())
        try:
            seq = await self._bus.create(event)
        except AlreadyExists:
            recorded = await self._requested(deliberation.task_id)
            if recorded is None:
                raise
            return await self._again(recorded, request_digest)
        self._known[deliberation.task_id] = seq
        await self._bus.enqueue(Channel.WORK.of(deliberation.role), event, fresh=True)
        telemetry.metrics.DELIBERATIONS_REQUESTED.add(deliberation.role, deliberation.protocol)
        return deliberation

    async def _told(self, request: DeliberationRequest, deliberation: Deliberation, who: Principal) -> str:
        """Return what the council is told beside its task: what those before it decided, and what the graph knows of the story. One that
        brings words from elsewhere has those alone; a merge asks no model.
        """
        brought = request.context
        if self._tell is None or not request.story_id or request.merge or (brought and request.origin != "plan"):
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
                "a council is told nothing of its story: the graph does not answer", task_id=asked.task_id, reason=error.message
            )
            return brought
        return "\n\n".join(part for part in (told, brought) if part)

    async def _again(self, known: Recorded, request_digest: str) -> Deliberation:
        """Return what is recorded of the same request. Raises `AlreadyExists` where it is another one."""
        if known.event.data.get("request_digest") != request_digest:
            raise AlreadyExists(f"task_id {own_id(known.event.subject, known.event.tenant)!r} is taken by another deliberation")
        # The work item may have been lost with a crash between the two publishes; a repeat of it is deduplicated.
        deliberation = check_deliberation(load(Deliberation, known.event.data))
        await self._bus.enqueue(Channel.WORK.of(deliberation.role), known.event)
        return deliberation

    async def result(self, task_id: str, who: Principal) -> Outcome:
        """Return how it stands now."""
        requested = await self._visible(task_id, who)
        document = await self._bus.get(key_of(task_id, who.tenant))
        if document is not None:
            return replace(load(Outcome, document), task_id=task_id)
        data = requested.event.data
        return Outcome(
            task_id=task_id,
            status=DeliberationStatus.PENDING,
            tenant=requested.event.tenant,
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

    async def watch(self, task_id: str, after_seq: int, who: Principal) -> AsyncGenerator[Recorded, None]:
        """Yield the deliberation's events in order, each once; end after its decision."""
        await self._visible(task_id, who)
        key = key_of(task_id, who.tenant)
        ended = await self._decided(key)
        if ended is not None and not ended.comes_after(after_seq):
            return
        told: set[str] = set()  # two hosts at once record the same fact in different messages, and the bus does not notice
        async with aclosing(self._bus.follow(deliberation_topics(key), after_seq)) as events:
            async for recorded in events:
                if recorded.event.id in told:
                    continue
                told.add(recorded.event.id)
                yield _told_to(who, recorded)
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return

    async def growing(self, task_id: str, who: Principal) -> AsyncGenerator[tuple[str, str], None]:
        """Yield seats and the end of what each is writing, until closed."""
        await self._visible(task_id, who)
        async with aclosing(self._bus.signals(Channel.GROWING.of(key_of(task_id, who.tenant)))) as signals:
            async for data in signals:
                if isinstance(seat := data.get("seat"), str) and isinstance(text := data.get("text"), str):
                    yield seat, text

    async def steer(self, task_id: str, message: str, who: Principal, *, key: str) -> None:
        """Record what the seats hear at their next turn, and tell its host that there is something."""
        await self._visible(task_id, who)
        task, message = key_of(task_id, who.tenant), message.strip()
        if not message:
            raise InvalidRequest("the message is empty; say in a sentence what the seats should know")
        if await self._decided(task) is not None:
            raise InvalidRequest(f"deliberation {task_id!r} has ended: nobody hears this any more")
        data = {"task_id": task, "message": message, "by": who.name}
        event = write(
            EventType.DELIBERATION_STEERED,
            task,
            data,
            ordinal=digest(who.name, key),
            causationid=requested_id(task),
            tenant=who.tenant,
            time=self._clock().isoformat(),
        )
        said = {recorded.event.id: recorded.event async for recorded in self._bus.replay((Channel.WORDS.of(task),))}
        most = self._defaults.limits.steer_chars
        if sum(len(str(one.data.get("message", ""))) for one in ({**said, event.id: event}).values()) > most:
            raise InvalidRequest(f"all that is said to a deliberation has at most {most} characters (limits.steer_chars)")
        await self._bus.publish(event)
        await self._bus.signal(Channel.STEER.of(task), {"task_id": task})

    async def pause(self, task_id: str, who: Principal, *, paused: bool = True) -> bool:
        """Let it wait from the next turn on, or go on; return whether that changes anything."""
        await self._visible(task_id, who)
        task, kind = key_of(task_id, who.tenant), EventType.DELIBERATION_PAUSED if paused else EventType.DELIBERATION_RESUMED
        if await self._decided(task) is not None:
            raise InvalidRequest(f"deliberation {task_id!r} has ended: it can neither wait nor go on")
        pauses = Pauses.of([recorded.event async for recorded in self._bus.replay((Channel.WORDS.of(task),))])
        if pauses.held is paused:
            return False
        number = len(pauses.turns)
        event = write(
            kind,
            task,
            {"task_id": task, "number": number, "by": who.name},
            ordinal=number,
            causationid=requested_id(task),
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
        ended = await self._decided(key)
        if ended is not None:
            return load(Outcome, ended.event.data).status
        event = write(
            EventType.DELIBERATION_CANCELLED,
            key,
            {"task_id": key, "reason": reason[:1000], "by": who.name},
            causationid=requested_id(key),
            tenant=who.tenant,
            time=self._clock().isoformat(),
        )
        await self._bus.publish(event)
        await self._bus.signal(Channel.CANCEL.of(key), {"task_id": key, "reason": reason[:1000]})
        return DeliberationStatus.CANCELLED

    async def _requested(self, key: str) -> Recorded | None:
        first = await self._bus.first(Channel.RESULTS.of(key))
        if first is None or first.event.type is EventType.DELIBERATION_REQUESTED:
            return first
        async for recorded in self._bus.replay((Channel.RESULTS.of(key),)):
            if recorded.event.type == EventType.DELIBERATION_REQUESTED:
                return recorded
        return None

    async def _decided(self, key: str) -> Recorded | None:
        async for recorded in self._bus.replay((Channel.RESPONSES.of(key),)):
            if recorded.event.type == EventType.DELIBERATION_DECIDED:
                return recorded
        return None

    async def _visible(self, task_id: str, who: Principal) -> Recorded:
        check_id(task_id, "task_id")
        requested = await self._requested(key_of(task_id, who.tenant))
        if requested is None or requested.event.tenant != who.tenant:
            raise NotFound(f"no deliberation {task_id!r}")
        return requested


def _told_to(who: Principal, recorded: Recorded) -> Recorded:
    """Return an event with the ids that its tenant knows."""
    event = recorded.event
    if event.subject == own_id(event.subject, who.tenant):
        return recorded
    named: Data = {name: own_id(value, who.tenant) for name in _NAMED if isinstance(value := event.data.get(name), str)}
    own = replace(
        event,
        subject=own_id(event.subject, who.tenant),
        correlationid=own_id(event.correlationid, who.tenant),
        data={**event.data, **named},
    )
    return replace(recorded, event=own)


def plan(
    request: DeliberationRequest, who: Principal, defaults: Defaults, now: datetime, council: Council | None = None
) -> Deliberation:
    """Check a request and fill in its defaults, the council's before the house's.

    Raises `InvalidRequest` naming what is wrong and what would be right.
    """
    limits = defaults.limits
    role = read_role(request.role)
    if council is not None:
        request = params.filled(request, council.config.params, params.COUNCIL)
    description = request.description.strip()
    if not description:
        raise InvalidRequest("the task is empty; say in a sentence what should be done")
    if len(description) > limits.task_chars:
        raise InvalidRequest(f"the task has {len(description)} characters; at most {limits.task_chars} (limits.task_chars)")
    check_budget(request.budget)
    texts = (request.constraints.rubric, *request.constraints.requirements, *request.constraints.metadata.values())
    if sum(map(len, texts)) > limits.task_chars:
        raise InvalidRequest(f"rubric, requirements and metadata together have more than {limits.task_chars} characters")
    if tokens(request.context) > limits.context_tokens:
        raise InvalidRequest(f"the context has about {tokens(request.context)} tokens; at most {limits.context_tokens}")
    protocol = params.check_protocol(request.protocol)
    members = [agent.id for agent in council.agents] if council else []
    model, seat_models = models_of(request, role, defaults.models, council)
    seats = _within("num_agents", request.num_agents or len(members) or DEFAULT_SEATS, 1, limits.agents)
    if PROTOCOLS[protocol].one_seat or request.merge:
        seats = 1
    if members and seats > len(members):
        raise InvalidRequest(f"num_agents is {seats}; the {role} council has {len(members)}: {', '.join(members)}")
    rounds = request.rounds or (council.config.rounds if council else 0) or PROTOCOLS[protocol].rounds
    default_one = bool(defaults.repository) and not request.about_text
    seconds = request.constraints.timeout_seconds or request.budget.seconds
    _within("timeout_seconds", seconds, 0, int(limits.deliberation_seconds))
    house = Budget(tokens=limits.tokens, seconds=int(limits.deliberation_seconds), calls=limits.calls, cost_usd=limits.cost_usd)
    return Deliberation(
        task_id=key_of(check_id(request.task_id, "task_id") if request.task_id else new_task_id(), who.tenant),
        description=description,
        role=role,
        protocol=protocol,
        seats=tuple(members[:seats] or (seat_id(role, number) for number in range(1, seats + 1))),
        rounds=_within("rounds", rounds, 0, limits.rounds),
        deadline=now + timedelta(seconds=seconds or limits.deliberation_seconds),
        max_turns=_within("max_iterations", request.constraints.max_iterations or limits.turns, 1, limits.turns),
        constraints=request.constraints,
        budget=cheaper(request.budget.or_default(house), house),
        repository=request.repository or (RepositoryRef(id=defaults.repository) if default_one else None),
        adaptive=request.adaptive,
        peer_review=request.peer_review or bool(council and council.config.peer_review),
        story_id=check_id(request.story_id, "story_id") if request.story_id else "",
        plan_id=check_id(request.plan_id, "plan_id") if request.plan_id else "",
        origin=request.origin,
        context=request.context,
        reviewer=read_role(request.reviewer) if request.reviewer else "",
        merge=request.merge,
        model=model,
        seat_models=seat_models,
        checks=checks_of(request),
        tools=request.tools,
        agent=request.agent,
        elsewhere={} if request.merge else elsewhere_of(council, defaults.endpoints),
        tenant=who.tenant,
        principal=who.name,
        seed=defaults.seed if request.seed is None else request.seed,
    )


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; allowed are {low} to {high} here")
    return value
