"""The deliberation service: checks and records requests, and answers questions from the log.

It is stateless over the bus, so any process that reaches the bus can run one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from cachetools import LRUCache

from moothall import telemetry
from moothall.authorization.budgets import Quotas
from moothall.config.models import DEFAULT
from moothall.domain.chat import Writing
from moothall.domain.codec import dump, load
from moothall.domain.council import PROTOCOLS, BriefingRequest
from moothall.domain.event import (
    Channel,
    Data,
    Event,
    EventType,
    Recorded,
    deliberation_topics,
    request_event_id,
)
from moothall.domain.evidence import HIDDEN
from moothall.domain.ids import (
    Principal,
    TaskId,
    TaskKey,
    check_task_id,
    digest,
    key_of,
    own_id,
    read_role,
    seed_of,
)
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import (
    TASK_CHARS,
    Deliberation,
    DeliberationRequest,
    Fork,
    Pauses,
    RepositoryRef,
    check_deliberation,
)
from moothall.domain.text import tokens
from moothall.errors import (
    AlreadyExists,
    GraphUnavailable,
    InvalidRequest,
    MoothallError,
    NotFound,
    Permanent,
    QuotaExceeded,
    Refused,
)
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.fork import (
    STEERING_CHARS,
    continue_from,
    conversation_text,
    create_fork,
    find_decision,
    find_request,
    read_conversation,
)
from moothall.orchestrator.request_planning import (
    Defaults,
    check_hidden,
    digest_request,
    fail_seats,
    leaves_choice,
    plan_deliberation,
    refused_deliberation,
    store_hidden,
)
from moothall.orchestrator.seat_choice import (
    PAIR,
    TrackRecord,
    choose_models,
    kind_of,
    usual_language,
)
from moothall.ports import Bus, Repositories
from moothall.telemetry.tracing import write, write_of

log = telemetry.get_logger(__name__)

_MAX_KNOWN_TASKS = 10_000
_TASK_ID_KEYS = ("task_id", "call_id", "agent_id", "follows")
"""The keys of event data that hold a task's key, or start with it."""
_CONVERSATION_WINDOW_SHARE = 4
"""The divisor of the model's window that limits an earlier conversation."""
_MAX_ID_CHARS = 63
REFUSAL_KEY = "refused"
"""The field of a recorded request that says why it cannot start; it is never enqueued."""
_FORK_ORDINAL = "first"
"""The ordinal of the steering message that came with a fork's request."""


WriteBriefing = Callable[[BriefingRequest, Principal, int], Awaitable[str]]
"""`Briefings.brief_seats`."""


class DeliberationService:
    """Implements `ports.Deliberations`.

    Callers use the task ids of their tenant, the server uses keys (`ids.key_of`); this class
    translates between them. It remembers the requests of recent deliberations. write_briefing:
    returns the briefing of a council on its story. It is called once, and the result is recorded
    with the request.
    """

    def __init__(
        self,
        bus: Bus,
        repositories: Repositories,
        defaults: Defaults,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        councils: CouncilRegistry | None = None,
        write_briefing: WriteBriefing | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._councils = councils
        self._quotas = quotas
        self._write_briefing = write_briefing
        self._bus = bus
        self._repositories = repositories
        self._defaults = defaults
        self._clock = clock
        self._request_seqs: LRUCache[TaskKey, int] = LRUCache(_MAX_KNOWN_TASKS)
        self._track_record = TrackRecord(bus)

    async def submit(self, request: DeliberationRequest, principal: Principal) -> Deliberation:
        """Check a request, fill in defaults, pin the base commit, record it and enqueue it. The
        returned `task_id` is the key; callers get `own_id`.
        """
        with telemetry.span("submit") as span:
            deliberation = await self._submit_request(request, principal)
            span.set({"moothall.task_id": deliberation.task_id, "moothall.role": deliberation.role})
            span.set(
                {
                    "moothall.protocol": deliberation.protocol,
                    "moothall.seats": len(deliberation.seats),
                }
            )
            return deliberation

    async def _submit_request(
        self, request: DeliberationRequest, principal: Principal
    ) -> Deliberation:
        request_digest = digest_request(request, principal)
        task_key = (
            key_of(check_task_id(request.task_id), principal.tenant) if request.task_id else None
        )
        # Look first, to avoid fetching a repository in vain. Requests without one are recorded
        # directly: the log refuses a second one.
        needs_lookup = (
            request.repository or self._defaults.repository or request.follows or request.fork
        )
        if task_key and needs_lookup and (recorded := await find_request(self._bus, task_key)):
            return await self._return_recorded(recorded, request_digest)
        if request.fork is not None:
            return await self._record_fork(request, request.fork, principal, request_digest)
        earlier_tasks = (
            await read_conversation(self._bus, request.follows, principal)
            if request.follows
            else ()
        )
        if earlier_tasks:
            request = continue_from(request, earlier_tasks[0])
        request = await self._resolve_change(request, principal)
        try:
            deliberation = self._plan_request(request, principal)
        except MoothallError:
            # A recorded request stays valid, even if councils or limits have changed since.
            if task_key and (recorded := await find_request(self._bus, task_key)):
                return await self._return_recorded(recorded, request_digest)
            raise
        deliberation = await self._choose_models(
            request, await self._pin_base(deliberation), principal
        )
        context = await self._build_context(request, deliberation, principal)
        if earlier_tasks:
            max_tokens = (
                self._defaults.models.get(deliberation.model).assumed_window
                // _CONVERSATION_WINDOW_SHARE
            )
            context = "\n\n".join(
                filter(None, (conversation_text(earlier_tasks, max_tokens), context))
            )
        deliberation = await self._store_hidden(request, replace(deliberation, context=context))
        return await self._record_deliberation(deliberation, request_digest)

    async def _store_hidden(
        self, request: DeliberationRequest, deliberation: Deliberation
    ) -> Deliberation:
        """Store the caller's hidden tests where no event shows them."""
        if not request.hidden_tests:
            return deliberation
        key = await store_hidden(
            self._bus.bucket(HIDDEN),
            check_hidden(request.hidden_tests, deliberation),
            deliberation.tenant,
        )
        return replace(deliberation, hidden=key)

    async def check(self, request: DeliberationRequest, principal: Principal) -> None:
        """Raise what `submit` would raise for a new task; record nothing."""
        request = await self._resolve_change(request, principal)
        await self._check_delivery(await self._pin_base(self._plan_request(request, principal)))

    async def refuse(
        self, request: DeliberationRequest, reason: Permanent, principal: Principal
    ) -> None:
        """Record a task that cannot start: its result is FAILED with this reason.

        Do nothing if the task id is taken.
        """
        deliberation = refused_deliberation(request, principal, self._clock())
        refusal = {"code": reason.code, "message": reason.message}
        data = dump(deliberation) | {
            "request_digest": digest_request(request, principal),
            "num_agents": 1,
            REFUSAL_KEY: refusal,
        }
        event = write_of(
            deliberation, EventType.DELIBERATION_REQUESTED, data, time=self._clock().isoformat()
        )
        try:
            await self._bus.create(event)
        except AlreadyExists:
            return
        await fail_seats(self._bus, deliberation, reason.code, reason.message, "serve")

    def _plan_request(self, request: DeliberationRequest, principal: Principal) -> Deliberation:
        """Return the deliberation that a request asks for. Raises `NoCouncil`, `InvalidRequest`."""
        council = (
            self._councils.find(read_role(request.role), principal.tenant)
            if self._councils
            else None
        )
        return plan_deliberation(request, principal, self._defaults, self._clock(), council)

    async def _choose_models(
        self, request: DeliberationRequest, planned: Deliberation, principal: Principal
    ) -> Deliberation:
        """Return a planned deliberation with models chosen by their results, if the request leaves
        that to them.
        """
        role = planned.role
        council = self._councils.find(role, principal.tenant) if self._councils else None
        if planned.repository is None or not leaves_choice(
            request, planned, self._defaults, council
        ):
            return planned
        past = await self._track_record.read(principal.tenant)
        place = planned.repository.id or planned.repository.url
        language = usual_language(past, place)
        seats = len(planned.seats)
        if seats > PAIR and not request.num_agents and council is None:
            seats = PAIR
        choice = choose_models(
            kind_of(planned.description, place, language),
            past,
            ["", *self._defaults.models.named],
            seats,
            planned.budget,
        )
        if not choice.models:
            return replace(planned, choice=choice.reason)
        named = ",".join(model or DEFAULT for model in choice.models)
        chosen_plan = self._plan_request(replace(request, model=named, num_agents=seats), principal)
        return replace(
            planned,
            seats=chosen_plan.seats,
            model=chosen_plan.model,
            seat_models=chosen_plan.seat_models,
            choice=choice.reason,
        )

    async def _resolve_change(
        self, request: DeliberationRequest, principal: Principal
    ) -> DeliberationRequest:
        """Return a request with the commits of the change that it asks to judge. Raises
        `InvalidRequest`, and the errors of `Repositories.resolve_change`.
        """
        if not request.head:
            return request
        planned = self._plan_request(request, principal)
        if planned.repository is None:
            raise InvalidRequest("a change is judged in its repository; name the repository")
        change = await self._repositories.resolve_change(
            planned.repository, request.head, tenant=principal.tenant
        )
        return replace(
            request,
            head="",
            merge=(change.head_sha,),
            description=request.description
            or change.messages.strip()[:TASK_CHARS]
            or change.head_sha,
            repository=RepositoryRef(
                id=change.repository, url=planned.repository.url, ref=change.base_sha
            ),
        )

    async def _pin_base(self, deliberation: Deliberation) -> Deliberation:
        """Resolve the repository's ref to a commit. Raises the errors of `Repositories.resolve`."""
        if deliberation.repository is None:
            return deliberation
        base = await self._repositories.resolve(deliberation.repository, tenant=deliberation.tenant)
        pinned = RepositoryRef(
            id=base.repository, url=deliberation.repository.url, ref=deliberation.repository.ref
        )
        return replace(deliberation, repository=pinned, base_sha=base.sha)

    async def _check_delivery(self, deliberation: Deliberation) -> None:
        """Raise `RepositoryError` if a winner could not be delivered."""
        if (
            deliberation.repository is not None
            and deliberation.base_sha
            and not PROTOCOLS[deliberation.protocol].answers
            and not deliberation.judges
        ):
            await self._repositories.check_delivery(
                deliberation.repository.id,
                deliberation.base_sha,
                f"moothall/{deliberation.task_id}",
            )

    async def _record_fork(
        self, request: DeliberationRequest, fork: Fork, principal: Principal, request_digest: str
    ) -> Deliberation:
        """Record another run of a task, under an id that names the original and numbers the
        fork.
        """
        deliberation = await create_fork(self._bus, fork, principal, self._defaults, self._clock())
        for number in count(1):
            suffix = f"-f{number}"
            task_id = TaskId(
                request.task_id or f"{fork.task_id[: _MAX_ID_CHARS - len(suffix)]}{suffix}"
            )
            task_key = key_of(task_id, principal.tenant)
            if not request.task_id and await find_request(self._bus, task_key):
                continue
            seed = seed_of(deliberation.seed, task_id) if request.seed is None else request.seed
            try:
                return await self._record_deliberation(
                    replace(deliberation, task_id=task_key, seed=seed), request_digest
                )
            except AlreadyExists:
                if request.task_id:
                    raise
        raise AssertionError("unreachable")

    async def _record_deliberation(
        self, deliberation: Deliberation, request_digest: str
    ) -> Deliberation:
        """Record and enqueue a deliberation. Raises `RepositoryError` if its winner could not be
        delivered, `QuotaExceeded` if its tenant may not start another one.
        """
        await self._check_delivery(deliberation)
        if self._quotas is not None and not deliberation.asks_no_model:
            await self._check_quotas(self._quotas, deliberation)
        data = dump(deliberation) | {
            "request_digest": request_digest,
            "num_agents": len(deliberation.seats),
        }
        event = write_of(
            deliberation, EventType.DELIBERATION_REQUESTED, data, time=self._clock().isoformat()
        )
        try:
            seq = await self._bus.create(event)
        except AlreadyExists:
            recorded = await find_request(self._bus, deliberation.task_id)
            if recorded is None:
                raise
            return await self._return_recorded(recorded, request_digest)
        self._request_seqs[deliberation.task_id] = seq
        # A fork may have recorded steering messages already.
        await self._enqueue_deliberation(deliberation, event, fresh=deliberation.fork is None)
        telemetry.metrics.DELIBERATIONS_REQUESTED.add(deliberation.role, deliberation.protocol)
        return deliberation

    async def _check_quotas(self, quotas: Quotas, deliberation: Deliberation) -> None:
        """Raise `QuotaExceeded` for a deliberation beyond the quotas of its tenant, unless it was
        recorded before.
        """
        try:
            await quotas.admit(deliberation.tenant, deliberation.task_id, self._is_open)
        except QuotaExceeded:
            if await find_request(self._bus, deliberation.task_id) is None:
                raise

    async def _is_open(self, task_key: TaskKey) -> bool:
        """Return whether a deliberation is recorded and has not ended."""
        return (
            await find_request(self._bus, task_key) is not None
            and await find_decision(self._bus, task_key) is None
        )

    async def _build_context(
        self, request: DeliberationRequest, deliberation: Deliberation, principal: Principal
    ) -> str:
        """Return the context of the task: what the graph knows about the story, and the request's
        own context.

        Requests with their own context get no briefing, unless they come from a plan; merges ask no
        model.
        """
        own_context = request.context
        if (
            self._write_briefing is None
            or not request.story_id
            or request.merge
            or (own_context and request.origin != "plan")
        ):
            return own_context
        briefing_request = BriefingRequest(
            task_id=deliberation.own_id,
            story_id=request.story_id,
            role=deliberation.role,
            phase="design" if request.about_text else "build",
            description=deliberation.description,
            repository=deliberation.repository.id if deliberation.repository else "",
        )
        max_tokens = self._defaults.limits.context_tokens - (
            tokens(own_context) if own_context else 0
        )
        try:
            briefing = await self._write_briefing(briefing_request, principal, max_tokens)
        except GraphUnavailable as error:
            log.warning(
                "a council gets no briefing on its story: the graph does not answer",
                task_id=briefing_request.task_id,
                reason=error.message,
            )
            return own_context
        return "\n\n".join(part for part in (briefing, own_context) if part)

    async def _return_recorded(self, recorded: Recorded, request_digest: str) -> Deliberation:
        """Return the recorded deliberation of the same request. Raises `AlreadyExists` for a
        different one.
        """
        if recorded.event.data.get("request_digest") != request_digest:
            raise AlreadyExists(
                f"task_id {own_id(recorded.event.subject, recorded.event.tenant)!r} is taken by "
                "another deliberation"
            )
        # A crash between the two publishes may have lost the work item; a repeat is deduplicated.
        deliberation = check_deliberation(load(Deliberation, recorded.event.data))
        refusal = recorded.event.data.get(REFUSAL_KEY)
        if isinstance(refusal, Mapping):
            code, message = str(refusal.get("code")), str(refusal.get("message"))
            await fail_seats(self._bus, deliberation, code, message, "serve")
        else:
            await self._enqueue_deliberation(deliberation, recorded.event)
        return deliberation

    async def _enqueue_deliberation(
        self, deliberation: Deliberation, event: Event, *, fresh: bool = False
    ) -> None:
        """Enqueue it for a host; the steering message of a fork comes first, for its first turn."""
        if deliberation.fork is not None and deliberation.fork.words:
            await self._bus.publish(
                _steering_event(
                    deliberation.task_id,
                    deliberation.fork.words,
                    Principal(deliberation.principal, deliberation.tenant),
                    _FORK_ORDINAL,
                    self._clock(),
                )
            )
        await self._bus.enqueue(Channel.WORK.of(deliberation.role), event, fresh=fresh)

    async def result(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Return the current outcome."""
        task_key, request = await self._find_task(task_id, principal)
        document = await self._bus.get(task_key)
        if document is not None:
            return replace(load(Outcome, document), task_id=task_id)
        data = request.event.data
        return Outcome(
            task_id=task_id,
            status=DeliberationStatus.PENDING,
            tenant=request.event.tenant,
            role=str(data.get("role", "")),
            agent_count=len(seats) if isinstance(seats := data.get("seats"), list) else 0,
        )

    async def wait(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Wait for the decision and return the outcome."""
        task_key = key_of(task_id, principal.tenant)
        if (seq := self._request_seqs.get(task_key)) is None:
            _, request = await self._find_task(task_id, principal)
            seq = request.seq
        # A decision never precedes its request, so following from the request finds it.
        async with aclosing(self._bus.follow((Channel.RESPONSES.of(task_key),), seq)) as events:
            async for recorded in events:
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return replace(load(Outcome, recorded.event.data), task_id=task_id)
        raise NotFound(f"deliberation {task_id!r} ended without a decision in the log")

    async def watch(
        self, task_id: TaskId, after_seq: int, principal: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the events after a sequence number or position in order, each once; end after the
        decision.
        """
        task_key, _ = await self._find_task(task_id, principal)
        decision = await find_decision(self._bus, task_key)
        if decision is not None and not decision.comes_after(after_seq):
            return
        # Two concurrent hosts record the same event in different messages, which the bus does not
        # deduplicate. Read from the beginning: the first of the two may be before `after_seq`.
        seen_ids: set[str] = set()
        async with aclosing(self._bus.follow(deliberation_topics(task_key))) as events:
            async for recorded in events:
                if recorded.event.id in seen_ids:
                    continue
                seen_ids.add(recorded.event.id)
                if recorded.comes_after(after_seq):
                    yield _with_tenant_ids(principal, recorded)
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return

    async def watch_text(
        self, task_id: TaskId, principal: Principal
    ) -> AsyncGenerator[Writing, None]:
        """Yield the partial replies of seats until closed."""
        task_key, _ = await self._find_task(task_id, principal)
        async with aclosing(self._bus.signals(Channel.GROWING.of(task_key))) as signals:
            async for data in signals:
                seat, text, answer = (data.get(name, "") for name in ("seat", "text", "answer"))
                if (
                    isinstance(seat, str)
                    and isinstance(text, str)
                    and isinstance(answer, str)
                    and seat
                ):
                    yield Writing(seat, text, answer)

    async def steer(self, task_id: TaskId, message: str, principal: Principal, *, key: str) -> None:
        """Record a message for the seats' next turns, and signal its host."""
        task_key, _ = await self._find_task(task_id, principal)
        message = message.strip()
        if not message:
            raise InvalidRequest(
                "the message is empty; write in a sentence what the seats should know"
            )
        if await find_decision(self._bus, task_key) is not None:
            raise InvalidRequest(
                f"deliberation {task_id!r} has ended and receives no more messages"
            )
        event = _steering_event(
            task_key, message, principal, digest(principal.name, key), self._clock()
        )
        steering = {
            recorded.event.id: recorded.event
            async for recorded in self._bus.replay((Channel.WORDS.of(task_key),))
        }
        steering[event.id] = event
        total_chars = sum(
            len(str(steering_event.data.get("message", ""))) for steering_event in steering.values()
        )
        if total_chars > STEERING_CHARS:
            raise InvalidRequest(
                "the messages to a deliberation have at most "
                f"{STEERING_CHARS} characters in total, and these have {total_chars}"
            )
        await self._bus.publish(event)
        await self._bus.signal(Channel.STEER.of(task_key), {"task_id": task_key})

    async def pause(self, task_id: TaskId, principal: Principal, *, paused: bool = True) -> bool:
        """Pause it from the next turn on, or resume it; return True if that changes anything."""
        task_key, _ = await self._find_task(task_id, principal)
        event_type = EventType.DELIBERATION_PAUSED if paused else EventType.DELIBERATION_RESUMED
        if await find_decision(self._bus, task_key) is not None:
            raise InvalidRequest(
                f"deliberation {task_id!r} has ended and cannot be paused or resumed"
            )
        pauses = Pauses.of(
            [recorded.event async for recorded in self._bus.replay((Channel.WORDS.of(task_key),))]
        )
        if pauses.is_paused is paused:
            return False
        number = len(pauses.turns)
        event = write(
            event_type,
            task_key,
            {"task_id": task_key, "number": number, "by": principal.name},
            ordinal=number,
            causationid=request_event_id(task_key),
            tenant=principal.tenant,
            time=self._clock().isoformat(),
        )
        await self._bus.publish(event)
        await self._bus.signal(Channel.STEER.of(task_key), {"task_id": task_key})
        return True

    async def cancel(
        self, task_id: TaskId, reason: str, principal: Principal
    ) -> DeliberationStatus:
        """Stop it and return its status. An ended deliberation keeps its status.

        Raises `NotFound`, and `Refused` unless the caller submitted it or has a role.
        """
        task_key, request = await self._find_task(task_id, principal)
        submitter = load(Deliberation, request.event.data).principal
        if not principal.may_act and submitter != principal.name:
            raise Refused(
                f"{principal.name} did not submit {task_id!r}; cancelling it needs an operator, or "
                "one of the roles po, qa, architect"
            )
        decision = await find_decision(self._bus, task_key)
        if decision is not None:
            return load(Outcome, decision.event.data).status
        event = write(
            EventType.DELIBERATION_CANCELLED,
            task_key,
            {"task_id": task_key, "reason": reason[:1000], "by": principal.name},
            causationid=request_event_id(task_key),
            tenant=principal.tenant,
            time=self._clock().isoformat(),
        )
        await self._bus.publish(event)
        await self._bus.signal(
            Channel.CANCEL.of(task_key), {"task_id": task_key, "reason": reason[:1000]}
        )
        return DeliberationStatus.CANCELLED

    async def _find_task(self, task_id: TaskId, principal: Principal) -> tuple[TaskKey, Recorded]:
        """Return the key of a task and its request. Raises `NotFound`, also for another tenant's
        task.
        """
        task_key = key_of(task_id, principal.tenant)
        request = await find_request(self._bus, task_key)
        if request is None or request.event.tenant != principal.tenant:
            raise NotFound(f"no deliberation {task_id!r}")
        return task_key, request


def _steering_event(
    task_key: TaskKey, message: str, principal: Principal, ordinal: str, now: datetime
) -> Event:
    return write(
        EventType.DELIBERATION_STEERED,
        task_key,
        {"task_id": task_key, "message": message, "by": principal.name},
        ordinal=ordinal,
        causationid=request_event_id(task_key),
        tenant=principal.tenant,
        time=now.isoformat(),
    )


def _with_tenant_ids(principal: Principal, recorded: Recorded) -> Recorded:
    """Return an event with the tenant's own task ids."""
    event = recorded.event
    if event.subject == own_id(event.subject, principal.tenant):
        return recorded
    own_ids: Data = {
        name: own_id(value, principal.tenant)
        for name in _TASK_ID_KEYS
        if isinstance(value := event.data.get(name), str)
    }
    if isinstance(fork := event.data.get("fork"), Mapping):
        own_ids = {
            **own_ids,
            "fork": {**fork, "task_id": own_id(str(fork.get("task_id")), principal.tenant)},
        }
    own_event = replace(
        event,
        subject=own_id(event.subject, principal.tenant),
        correlationid=own_id(event.correlationid, principal.tenant),
        data={**event.data, **own_ids},
    )
    return replace(recorded, event=own_event)
