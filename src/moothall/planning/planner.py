"""The planner: writes plans to the log, and hands out their tasks, each once what it depends on is completed.

It keeps nothing that the log doesn't say. A plan is open from its `plan.derived`, for a story on the board from when the life cycle lets it be built, to its
`plan.finished`; after a restart the open ones are run again, and since a task's id and request follow from the plan,
asking again for what was asked before changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from moothall.config import Limits
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType, event_id
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.plan import AtomicTask, Derivation, Plan, PlanningEvent, Processed, Story, Strategy
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists, InvalidRequest, MoothallError, NotFound, Temporary
from moothall.planning import story as stories
from moothall.planning.board import Board, Card
from moothall.planning.derive import check_plan, derive
from moothall.ports import Deliberations, Log
from moothall.telemetry import get_logger
from moothall.telemetry.events import write

log = get_logger(__name__)

TOPICS = (Channel.STORIES.all,)
PLANNING = "planning"
"""What callers from outside call the moment in which a story's tasks are derived."""
_DESIGN, _BUILD = "design", "build"
SKIPPED, NO_WINNER = "SKIPPED", "NO_WINNER"
_AGAIN_SECONDS = 1.0
_LATEST_MS = 253_402_300_799_000  # the year 9999


class Planner:
    """Plans of stories; `run` hands out what is due until cancelled."""

    def __init__(self, bus: Log, desk: Deliberations, limits: Limits) -> None:
        self._bus = bus
        self._desk = desk
        self._board = Board(bus)
        self._limits = limits
        self._room = asyncio.Semaphore(limits.plans)
        self._begun: set[str] = set()

    # ---- what callers ask for

    async def process(self, told: PlanningEvent, who: Principal) -> Processed:
        """Record what happened to a story. One that moved to planning gets its tasks, which councils then take up.

        The same event again gives the same answer. Raises `InvalidRequest` naming what is wrong.
        """
        event = self._event_of(told, who)
        card = await self._card(told.case_id, who.tenant)
        if card is not None and (event.type is EventType.STORY_CHANGED or card.stand.state != _DESIGN):
            said = f"not recorded: a story on the board moves by planning.v1.PlanningService/Transition, and its tasks are derived in {_DESIGN}"
            return Processed(processed=False, message=f"{said}; this one is in {card.stand.state}")
        await self._bus.publish(event)
        if event.type is EventType.STORY_CHANGED:
            said = f"recorded what it says of the story, and no move; tasks are derived when a story moves to {PLANNING}"
            return Processed(processed=False, message=said)
        try:
            derivation = await self._derive_for(event)
        except NotFound as error:
            return Processed(processed=False, message=f"recorded; {error.message}")
        ids = tuple(task.task_id for task in derivation.tasks)
        return Processed(processed=True, message=f"{len(ids)} tasks, handed out in the order of their dependencies", task_ids=ids)

    async def derive(
        self, case_id: str, plan_id: str, roles: Sequence[str], strategy: Strategy, who: Principal, *, publish: bool
    ) -> Derivation:
        """Return the tasks of a story. With `publish` they are recorded, and councils take them up.

        A plan is derived once: asked for again with other roles, it is `AlreadyExists`. Raises `NotFound`
        where it should be published and nothing is known of the story, `InvalidRequest`.
        """
        check_id(case_id, "case_id")
        check_id(plan_id, "plan_id")
        story, known = await self._story(case_id, who.tenant, plan_id)
        tasks = derive(
            story, plan_id, roles, strategy, tenant=who.tenant, most=self._limits.plan_tasks, chars=self._limits.task_chars
        )
        derivation = Derivation(derivation_id(who.tenant, case_id, plan_id), tasks)
        if not publish:
            return derivation
        if known is not None:
            if _outline(known.tasks) != _outline(tasks):
                raise AlreadyExists(f"plan {plan_id!r} of {case_id!r} was derived with other tasks; choose another plan_id")
            return replace(derivation, tasks=known.tasks)
        return await self._record(story, derivation, plan_id, who)

    # ---- the work

    async def run(self) -> None:
        """Take up the open plans, then those that come, until cancelled."""
        async with asyncio.TaskGroup() as group:
            last = await self._take_up(group)
            async for recorded in self._bus.follow(TOPICS, last):
                await self._see(recorded.event, group)

    async def _take_up(self, group: asyncio.TaskGroup) -> int:
        """Begin what the log leaves open; return how far it was read."""
        while True:
            last, moved, derived, finished = 0, {}, {}, {}
            try:
                async for recorded in self._bus.replay(TOPICS):
                    last, event = recorded.seq, recorded.event
                    if event.type is EventType.PLAN_DERIVED:
                        derived[event.id] = event
                    elif event.type is EventType.PLAN_FINISHED:
                        self._begun.add(str(event.data.get("derivation_id")))
                        finished[event.id] = event
                    elif _moves_to_planning(event):
                        moved[_derivation_of(event)] = event
                for event in (
                    *derived.values(),
                    *(event for key, event in moved.items() if key not in derived),
                    *finished.values(),
                ):
                    await self._see(event, group)
            except Temporary as error:
                log.warning("the log could not be read; trying again", reason=error.message)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return last

    async def _see(self, event: Event, group: asyncio.TaskGroup) -> None:
        """Take up one event. A malformed one is told in the log of the process and changes nothing."""
        try:
            if _moves_to_planning(event):
                await self._derive_for(event)
            elif event.type is EventType.PLAN_DERIVED and event.id not in self._begun:
                await self._begin(event, await self._card(event.data.get("story_id"), event.tenant), group)
            elif event.type is EventType.STORY_TRANSITIONED:
                card = await self._card(event.data.get("story_id"), event.tenant)
                if card is not None and card.plan is not None and card.plan.id not in self._begun:
                    await self._begin(card.plan, card, group)
            elif event.type is EventType.PLAN_FINISHED:
                card = await self._card(event.data.get("story_id"), event.tenant)
                if card is not None and card.stand.state == _BUILD and "built" in card.stand.facts:
                    await self._board.move(card.story.id, "build", Principal("planner", event.tenant), system=True)
        except MoothallError as error:
            log.warning("an event of a story led to no plan", id=event.id, type=event.type, reason=error.message)

    async def _begin(self, derived: Event, card: Card | None, group: asyncio.TaskGroup) -> None:
        """Hand out the tasks of a plan; those of a story on the board once it is to be built."""
        plan = load(Plan, {"actor": "local", "publish": False} | dict(derived.data))
        check_plan(plan.tasks, self._limits.plan_tasks)
        if plan.publish and (card is None or card.stand.state == _BUILD):
            self._begun.add(derived.id)
            group.create_task(self._carry_out(plan, derived), name=f"plan-{plan.plan_id}")

    async def _card(self, story_id: object, tenant: str) -> Card | None:
        """Return a story that is on the board."""
        try:
            card = await self._board.card(str(story_id), Principal("planner", tenant))
        except (NotFound, InvalidRequest):
            return None
        return card if card.created else None

    async def _carry_out(self, plan: Plan, derived: Event) -> None:
        """See a plan to its end and record how it ended."""
        async with self._room:
            who = Principal(plan.actor, derived.tenant)
            running: dict[str, asyncio.Task[Outcome | str]] = {}
            async with asyncio.TaskGroup() as group:
                for task in plan.tasks:  # what it depends on stands before it
                    before = [running[name] for name in task.dependencies]
                    running[task.task_id] = group.create_task(self._one(task, before, who), name=task.task_id)
            ends = {name: _status(ended.result()) for name, ended in running.items()}
        whole = all(end == DeliberationStatus.COMPLETED.value for end in ends.values())
        data = {
            "story_id": plan.story_id,
            "plan_id": plan.plan_id,
            "derivation_id": derived.id,
            "status": "completed" if whole else "failed",
            "tasks": ends,
        }
        await self._persist(write(EventType.PLAN_FINISHED, plan.plan_id, data, cause=derived.id, tenant=derived.tenant))

    async def _one(self, task: AtomicTask, before: Sequence[asyncio.Task[Outcome | str]], who: Principal) -> Outcome | str:
        """Return how a task ended, or SKIPPED where one that it depends on has no winner."""
        done: list[Outcome] = []
        for earlier in before:
            end = await earlier
            if isinstance(end, str) or not end.winner_id:
                return SKIPPED
            done.append(end)
        while True:
            try:
                await self._desk.submit(_request(task, done, self._limits), who)
                return await self._desk.wait(task.task_id, who)
            except Temporary as error:
                await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
            except MoothallError as error:
                log.warning("a task of a plan could not be handed out", task_id=task.task_id, reason=error.message)
                return DeliberationStatus.FAILED.value

    async def _persist(self, event: Event) -> None:
        while True:
            try:
                await self._bus.publish(event)
            except Temporary as error:
                log.warning("a plan's end could not be recorded; trying again", reason=error.message)
                await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
            else:
                return

    # ---- the log

    async def _story(self, case_id: str, tenant: str, plan_id: str) -> tuple[Story, Plan | None]:
        """Return what the log says of a tenant's story, and its plan where it was derived."""
        story, known = Story(case_id), None
        wanted = derivation_id(tenant, case_id, plan_id)
        async for recorded in self._bus.replay((Channel.STORIES.of(key_of(case_id, tenant)),)):
            event = recorded.event
            if event.tenant != tenant:
                continue
            story = stories.fold(story, event)
            if event.type is EventType.PLAN_DERIVED and event.id == wanted and known is None:
                known = load(Plan, event.data)
        return story, known

    async def _derive_for(self, event: Event) -> Derivation:
        """Return the plan of a story that moved to planning; derived and recorded unless it was before."""
        data, tenant = event.data, event.tenant
        case_id, plan_id = check_id(str(data["story_id"]), "story_id"), _plan_of(event)
        story, known = await self._story(case_id, tenant, plan_id)
        identity = derivation_id(tenant, case_id, plan_id)
        if known is not None:
            return Derivation(identity, known.tasks)
        metadata = data.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        tasks = derive(
            story,
            plan_id,
            stories.roles_of(metadata),
            stories.strategy_of(metadata),
            tenant=tenant,
            most=self._limits.plan_tasks,
            chars=self._limits.task_chars,
        )
        who = Principal(str(data.get("actor") or "local"), tenant)
        return await self._record(story, Derivation(identity, tasks), plan_id, who)

    async def _record(self, story: Story, derivation: Derivation, plan_id: str, who: Principal) -> Derivation:
        if not story.told:
            raise NotFound(
                f"nothing is known of story {story.id!r}: tell its title and brief first, in the metadata of ProcessPlanningEvent"
            )
        plan = Plan(story.id, plan_id, derivation.tasks, publish=True, actor=who.name)
        event = write(
            EventType.PLAN_DERIVED, plan_id, dump(plan), correlationid=story.id, tenant=who.tenant, time=_now().isoformat()
        )
        await self._bus.publish(replace(event, id=derivation.id))
        _, known = await self._story(story.id, who.tenant, plan_id)  # another may have been first
        return derivation if known is None else replace(derivation, tasks=known.tasks)

    def _event_of(self, told: PlanningEvent, who: Principal) -> Event:
        """Return what is recorded: a move to planning, or what is told of the story. Any other move is the life cycle's. Raises `InvalidRequest`."""
        check_id(told.case_id, "case_id")
        if told.plan_id:
            check_id(told.plan_id, "plan_id")
        if not told.event_type.strip():
            raise InvalidRequest("event_type is empty; say what happened, for example story.transitioned")
        if not 0 <= told.timestamp_ms <= _LATEST_MS:
            raise InvalidRequest(f"timestamp_ms is {told.timestamp_ms}; milliseconds since 1970, or 0")
        texts = (told.event_type, told.from_state, told.to_state, *told.metadata, *told.metadata.values())
        if sum(map(len, texts)) > self._limits.task_chars:
            raise InvalidRequest(f"the event's texts have more than {self._limits.task_chars} characters (limits.task_chars)")
        stories.strategy_of(told.metadata)
        when = datetime.fromtimestamp(told.timestamp_ms / 1000, UTC) if told.timestamp_ms else _now()
        moves = told.to_state.strip().lower() == PLANNING
        data = {
            "story_id": told.case_id,
            "plan_id": told.plan_id,
            "event": told.event_type.strip(),
            **({"from_state": told.from_state.strip().lower(), "to_state": PLANNING} if moves else {}),
            "actor": who.name,
            "metadata": dict(told.metadata),
            **stories.fields_of(told.metadata),
        }
        ordinal = digest(who.tenant, str(told.timestamp_ms), str(sorted(data.items(), key=lambda item: item[0])))
        kind = EventType.STORY_TRANSITIONED if moves else EventType.STORY_CHANGED
        return write(kind, told.case_id, data, ordinal=ordinal, tenant=who.tenant, time=when.isoformat())


def derivation_id(tenant: str, case_id: str, plan_id: str) -> str:
    """Return the id of the event that records a plan: one a plan, whoever derives it."""
    return event_id(EventType.PLAN_DERIVED, plan_id, digest(tenant, case_id), 0)


def _plan_of(event: Event) -> str:
    named = event.data.get("plan_id")
    return check_id(str(named), "plan_id") if named else f"plan-{digest(str(event.data.get('story_id')))[:16]}"


def _moves_to_planning(event: Event) -> bool:
    data = event.data
    return event.type is EventType.STORY_TRANSITIONED and str(data.get("to_state")).lower() == PLANNING and "story_id" in data


def _derivation_of(event: Event) -> str:
    """The id of the plan that a move to planning leads to; of a malformed one, an id that no plan has."""
    try:
        return derivation_id(event.tenant, str(event.data["story_id"]), _plan_of(event))
    except InvalidRequest:
        return event.id


def _outline(tasks: Sequence[AtomicTask]) -> list[tuple[str, tuple[str, ...]]]:
    return [(task.task_id, task.dependencies) for task in tasks]


def _request(task: AtomicTask, done: Sequence[Outcome], limits: Limits) -> DeliberationRequest:
    """Return what is asked of a task's council: on the commit of the one task before it, told what texts decided."""
    repository = task.repository
    delivered = [outcome.commit_sha for outcome in done if outcome.commit_sha]
    if repository is not None and len(delivered) == len(done) == 1:
        repository = RepositoryRef(id=repository.id, url=repository.url, ref=delivered[0])
    texts = [f"{outcome.role}: {outcome.results[0].content}" for outcome in done if outcome.results and not outcome.commit_sha]
    # Three characters a token, as prompts count: what is longer would be refused.
    room = limits.context_tokens * 3 // max(1, len(texts))
    return DeliberationRequest(
        description=task.description,
        role=task.role,
        task_id=task.task_id,
        constraints=task.constraints,
        repository=repository,
        story_id=task.case_id,
        plan_id=task.plan_id,
        origin="plan",
        about_text=repository is None,
        context="\n\n".join(text[: room - 10] for text in texts),
    )


def _status(end: Outcome | str) -> str:
    if isinstance(end, str):
        return end
    return NO_WINNER if end.status is DeliberationStatus.COMPLETED and not end.winner_id else end.status.value


def _now() -> datetime:
    return datetime.now(UTC)
