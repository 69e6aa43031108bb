"""The planner: answers questions about plans from the log, and writes plans to it. It keeps no
state that the log lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from moothall.config import LimitSettings
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, event_id
from moothall.domain.ids import Principal, TaskId, check_id, derived_task_id, digest, key_of
from moothall.domain.plan import (
    AtomicTask,
    Derivation,
    Plan,
    PlanningEvent,
    Processed,
    Story,
    Strategy,
)
from moothall.domain.task import TASK_CHARS, DeliberationRequest, RepositoryRef
from moothall.errors import (
    AlreadyExists,
    ConcurrentUpdate,
    InvalidRequest,
    NoCouncil,
    NotFound,
    Permanent,
    Refused,
)
from moothall.ports import Log
from moothall.stories import story_state as stories
from moothall.stories.board import EDITOR_ROLES, Board
from moothall.stories.plans import (
    MAX_PLAN_TASKS,
    Outline,
    create_tasks,
    derive,
    design_task,
    task_request,
)
from moothall.stories.story_state import COMPLETED, StoryState
from moothall.telemetry import get_logger
from moothall.telemetry.tracing import write

log = get_logger(__name__)

PLANNING = "planning"
"""The state of external callers in which a story's tasks are derived."""
_DESIGN = "design"
_RETRY_ROLES = ("po", "architect", "operator")
_LATEST_MS = 253_402_300_799_000  # the year 9999


Check = Callable[[DeliberationRequest, Principal], Awaitable[None]]
"""`Deliberations.check`."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """The plan of a story that moved to planning. `is_recorded`: it is in the log already."""

    story: Story
    plan_id: str
    derivation: Derivation
    is_recorded: bool = False


class Planner:
    """Plans of stories. `check` raises if a council could not start on a task."""

    def __init__(self, bus: Log, limits: LimitSettings, check: Check | None = None) -> None:
        self._bus = bus
        self._board = Board(bus)
        self._limits = limits
        self._check = check
        self._plans: dict[tuple[str, TaskId], Event] = {}
        """The plan that holds a task, by tenant and task id."""
        self._last_seq, self._read_lock = 0, asyncio.Lock()

    async def process(self, planning_event: PlanningEvent, principal: Principal) -> Processed:
        """Record what happened to a story. If it moved to planning, derive its tasks for councils
        to take up.

        The same event again gives the same answer. If a task could not start, nothing is recorded,
        and the answer says why. Raises `InvalidRequest` naming what is wrong.
        """
        event = self._event_for(planning_event, principal)
        card = await self._board.find(planning_event.case_id, principal)
        if card is not None and (
            event.type is EventType.STORY_CHANGED or card.position.state != _DESIGN
        ):
            message = (
                "not recorded: a story on the board moves by "
                f"planning.v1.PlanningService/Transition, and its tasks are derived in {_DESIGN}"
            )
            return Processed(
                processed=False, message=f"{message}; this one is in {card.position.state}"
            )
        if card is not None:
            _check_may_plan(card, principal)
        if event.type is EventType.STORY_CHANGED:
            await self._bus.publish(event)
            message = (
                "recorded the story's data, but no transition; tasks are derived when a story "
                f"moves to {PLANNING}"
            )
            return Processed(processed=False, message=message)
        draft = await self._draft_plan(event)
        try:
            await self._check_draft(draft, principal)
        except Permanent as error:
            return Processed(processed=False, message=f"not recorded: {error.message}")
        await self._bus.publish(event)
        if not draft.story.has_content:
            return Processed(
                processed=False, message=f"recorded; {_unknown_story_message(draft.story)}"
            )
        derivation = (
            draft.derivation
            if draft.is_recorded
            else await self._record_derivation(
                draft.story, draft.derivation, draft.plan_id, principal
            )
        )
        ids = tuple(task.task_id for task in derivation.tasks)
        return Processed(
            processed=True,
            message=f"{len(ids)} tasks, handed out in the order of their dependencies",
            task_ids=ids,
        )

    async def derive(
        self,
        case_id: str,
        plan_id: str,
        roles: Sequence[str],
        strategy: Strategy,
        principal: Principal,
        *,
        publish: bool,
    ) -> Derivation:
        """Return the tasks of a story. With `publish`, record them so that councils take them up.

        A plan is derived once: `AlreadyExists` is raised if it is asked for again with other roles.
        Also raises `InvalidRequest`, `NotFound` if nothing is known of a story to publish, and
        `Refused` if the story is on the board and the caller has no role for it.
        """
        check_id(case_id, "case_id")
        check_id(plan_id, "plan_id")
        story, recorded_plan = await self._load_story(case_id, principal.tenant, plan_id)
        tasks = self.tasks(story, plan_id, roles, principal.tenant, strategy)
        derivation = Derivation(derivation_id(principal.tenant, case_id, plan_id), tasks)
        if not publish:
            return derivation
        if recorded_plan is not None:
            if _task_graph(recorded_plan.tasks) != _task_graph(tasks):
                raise AlreadyExists(
                    f"plan {plan_id!r} of {case_id!r} was derived with other tasks; choose another "
                    "plan_id"
                )
            return replace(derivation, tasks=recorded_plan.tasks)
        if (card := await self._board.find(case_id, principal)) is not None:
            _check_may_plan(card, principal)
        await self._check_draft(_Draft(story, plan_id, derivation), principal)
        return await self._record_derivation(story, derivation, plan_id, principal)

    async def check_repository(self, repository: str, principal: Principal) -> None:
        """Raise if a council could not work on a repository, given as an id, a path or a URL."""
        if self._check is not None and repository:
            with suppress(NoCouncil):  # it may be created later
                await self._check(
                    DeliberationRequest(
                        "any task", "dev", repository=RepositoryRef.from_name(repository)
                    ),
                    principal,
                )

    async def _check_draft(self, draft: _Draft, principal: Principal) -> None:
        """Raise the reason if a task of a plan could not start."""
        if self._check is None or draft.is_recorded or not draft.story.has_content:
            return
        for task in {
            (task.role, task.repository): task for task in draft.derivation.tasks
        }.values():
            await self._check(task_request(task, self._limits), principal)

    async def is_waiting(self, task_id: TaskId, principal: Principal) -> bool:
        """Return True if a task is in a plan that was published, or that will be when its story is
        built.
        """
        async with self._read_lock:
            async for recorded in self._bus.replay((Channel.STORIES.all,), self._last_seq):
                self._last_seq, event = recorded.seq, recorded.event
                if event.type is EventType.PLAN_DERIVED:
                    with suppress(InvalidRequest):
                        plan = plan_of(event)
                        self._plans |= {
                            (event.tenant, task.task_id): event
                            for task in plan.tasks
                            if plan.publish
                        }
        if (plan_event := self._plans.get((principal.tenant, task_id))) is None:
            return False
        card = await self._board.find(str(plan_event.data.get("story_id")), principal)
        return card is None or (card.plan is not None and card.plan.id == plan_event.id)

    def tasks(
        self,
        story: Story,
        plan_id: str,
        roles: Sequence[str],
        tenant: str,
        strategy: Strategy | None = None,
    ) -> tuple[AtomicTask, ...]:
        """Return the tasks of a story derived by its roles. Raises `InvalidRequest`."""
        return derive(
            story,
            plan_id,
            roles,
            strategy or Strategy(),
            tenant=tenant,
            max_tasks=MAX_PLAN_TASKS,
            chars=TASK_CHARS,
        )

    async def record_plan(self, card: StoryState, plan: Plan, principal: Principal) -> bool:
        """Record the tasks of a story on the board. Return False, and record nothing, if the story
        changed since `card` was read.
        """
        try:
            await self._bus.create(_plan_event(plan, principal), card.seq)
        except AlreadyExists:
            return False
        return True

    async def change(
        self, story_id: str, plan_id: str, outlines: Sequence[Outline], principal: Principal
    ) -> StoryState:
        """Replace the tasks of a story that is designed and not built yet. `plan_id` is the plan
        that the caller saw.

        Raises `NotFound`, `Refused` without the role, `ConcurrentUpdate` if the tasks were changed
        since, and `InvalidRequest`.
        """
        _check_role(principal)
        for outline in outlines:
            if not outline.description.strip():
                raise InvalidRequest(f"task {outline.id} has no description")
            if len(outline.description) > TASK_CHARS // 2:
                raise InvalidRequest(
                    f"the words of task {outline.id} are longer than {TASK_CHARS // 2} characters"
                )
        if not outlines:
            raise InvalidRequest("no task is left: a story needs at least one")
        new_plan_id = f"plan-{digest(story_id, plan_id, principal.name, str(outlines))[:16]}"
        while True:
            card = await self._board.card(story_id, principal)
            current = changeable(card)
            if current.plan_id == new_plan_id:  # ours: sent twice, or its ack was lost
                return card
            if current.plan_id != plan_id:
                raise ConcurrentUpdate(
                    f"the tasks of {story_id} were changed by {current.actor} since you saw them; "
                    "look at them again"
                )
            tasks = create_tasks(
                outlines,
                card.story,
                new_plan_id,
                tenant=principal.tenant,
                max_tasks=MAX_PLAN_TASKS,
                chars=TASK_CHARS,
            )
            design = current.design or (design_task(plan_id) if current.by == "architects" else "")
            plan = Plan(
                card.story.id,
                new_plan_id,
                tasks,
                publish=True,
                actor=principal.name,
                by="people",
                design=design,
            )
            if await self.record_plan(card, plan, principal):
                return await self._board.card(story_id, principal)

    async def retry(self, story_id: str, principal: Principal) -> StoryState:
        """Start the tasks of a build that ended without a winner again, each as a new deliberation.
        The tasks that won keep their results.

        Raises `NotFound`, `Refused` without the role, `InvalidRequest` unless the tasks have ended
        and one of them has no winner, and `ConcurrentUpdate` if the story changed during the call.
        """
        if not set(_RETRY_ROLES) & principal.all_roles:
            raise Refused(f"tasks can be retried by the roles {', '.join(_RETRY_ROLES)}")
        card = await self._board.card(story_id, principal)
        if not _has_lost_tasks(card) or card.plan is None or card.ended is None:
            raise InvalidRequest(
                f"story {story_id} is in {card.position.state} and has no task to retry: tasks can "
                "be retried in build, when all have ended and one has no winner"
            )
        plan = plan_of(card.plan)
        statuses = card.ended.data.get("tasks")
        statuses = statuses if isinstance(statuses, Mapping) else {}
        plan_id = f"plan-{digest(card.ended.id, 'retry')[:16]}"
        renamed = {
            task.task_id: derived_task_id(
                principal.tenant, story_id, plan_id, "retry", task.task_id
            )
            for task in plan.tasks
            if str(statuses.get(task.task_id)).lower() != COMPLETED
        }
        tasks = tuple(
            replace(
                task,
                task_id=renamed[task.task_id],
                plan_id=plan_id,
                dependencies=tuple(renamed.get(name, name) for name in task.dependencies),
            )
            if task.task_id in renamed
            else task
            for task in plan.tasks
        )
        # The actor stays: it is part of the requests of the tasks that won.
        retry_plan = replace(plan, plan_id=plan_id, tasks=tasks, by="retry", why="", design="")
        if not await self.record_plan(card, retry_plan, principal):
            raise ConcurrentUpdate(f"story {story_id} changed at the same time; look at it again")
        return await self._board.card(story_id, principal)

    async def _load_story(
        self, case_id: str, tenant: str, plan_id: str
    ) -> tuple[Story, Plan | None]:
        """Return a tenant's story from the log, and its plan if it was derived."""
        story, recorded_plan = Story(case_id), None
        plan_event_id = derivation_id(tenant, case_id, plan_id)
        async for recorded in self._bus.replay((Channel.STORIES.of(key_of(case_id, tenant)),)):
            event = recorded.event
            if event.tenant != tenant:
                continue
            story = stories.fold_story(story, event)
            if (
                event.type is EventType.PLAN_DERIVED
                and event.id == plan_event_id
                and recorded_plan is None
            ):
                recorded_plan = load(Plan, event.data)
        return story, recorded_plan

    async def derive_for(self, event: Event) -> Derivation:
        """Return the plan of a story that moved to planning; derive and record it if there is none.

        Raises `NotFound` for an unknown story, `InvalidRequest`, and what `check` raises.
        """
        draft = await self._draft_plan(event)
        if draft.is_recorded:
            return draft.derivation
        principal = Principal(str(event.data.get("actor") or "local"), event.tenant)
        if (card := await self._board.find(draft.story.id, principal)) is not None:
            _check_designing(card)
        await self._check_draft(draft, principal)
        return await self._record_derivation(
            draft.story, draft.derivation, draft.plan_id, principal
        )

    async def _draft_plan(self, event: Event) -> _Draft:
        """Return the plan that a move to planning leads to. Raises `InvalidRequest`."""
        data, tenant = event.data, event.tenant
        case_id, plan_id = check_id(str(data["story_id"]), "story_id"), _plan_id_of(event)
        story, recorded_plan = await self._load_story(case_id, tenant, plan_id)
        story = stories.fold_story(story, event)
        identity = derivation_id(tenant, case_id, plan_id)
        if recorded_plan is not None:
            return _Draft(
                story, plan_id, Derivation(identity, recorded_plan.tasks), is_recorded=True
            )
        metadata = data.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        tasks = self.tasks(
            story, plan_id, stories.read_roles(metadata), tenant, stories.read_strategy(metadata)
        )
        return _Draft(story, plan_id, Derivation(identity, tasks))

    async def _record_derivation(
        self, story: Story, derivation: Derivation, plan_id: str, principal: Principal
    ) -> Derivation:
        if not story.has_content:
            raise NotFound(_unknown_story_message(story))
        await self._bus.publish(
            _plan_event(
                Plan(
                    story.id,
                    plan_id,
                    derivation.tasks,
                    publish=True,
                    actor=principal.name,
                    by="roles",
                ),
                principal,
            )
        )
        _, recorded_plan = await self._load_story(
            story.id, principal.tenant, plan_id
        )  # another may have been first
        return (
            derivation if recorded_plan is None else replace(derivation, tasks=recorded_plan.tasks)
        )

    def _event_for(self, planning_event: PlanningEvent, principal: Principal) -> Event:
        """Return the event to record: a move to planning, or a change of the story. Other moves are
        left to the life cycle. Raises `InvalidRequest`.
        """
        check_id(planning_event.case_id, "case_id")
        if planning_event.plan_id:
            check_id(planning_event.plan_id, "plan_id")
        if not planning_event.event_type.strip():
            raise InvalidRequest(
                "event_type is empty; say what happened, for example story.transitioned"
            )
        if not 0 <= planning_event.timestamp_ms <= _LATEST_MS:
            raise InvalidRequest(
                f"timestamp_ms is {planning_event.timestamp_ms}; milliseconds since 1970, or 0"
            )
        texts = (
            planning_event.event_type,
            planning_event.from_state,
            planning_event.to_state,
            *planning_event.metadata,
            *planning_event.metadata.values(),
        )
        if sum(map(len, texts)) > TASK_CHARS:
            raise InvalidRequest(f"the event's texts have more than {TASK_CHARS} characters")
        stories.read_strategy(planning_event.metadata)
        time = (
            datetime.fromtimestamp(planning_event.timestamp_ms / 1000, UTC)
            if planning_event.timestamp_ms
            else _now()
        )
        moves_to_plan = planning_event.to_state.strip().lower() == PLANNING
        data = {
            "story_id": planning_event.case_id,
            "plan_id": planning_event.plan_id,
            "event": planning_event.event_type.strip(),
            **(
                {"from_state": planning_event.from_state.strip().lower(), "to_state": PLANNING}
                if moves_to_plan
                else {}
            ),
            "actor": principal.name,
            "metadata": dict(planning_event.metadata),
            **stories.story_fields(planning_event.metadata),
        }
        ordinal = digest(
            principal.tenant,
            str(planning_event.timestamp_ms),
            str(sorted(data.items(), key=lambda item: item[0])),
        )
        kind = EventType.STORY_TRANSITIONED if moves_to_plan else EventType.STORY_CHANGED
        return write(
            kind,
            planning_event.case_id,
            data,
            ordinal=ordinal,
            tenant=principal.tenant,
            time=time.isoformat(),
        )


def _unknown_story_message(story: Story) -> str:
    return (
        f"the story {story.id!r} is unknown: send its title and brief first, in the metadata "
        "of ProcessPlanningEvent"
    )


def _check_role(principal: Principal) -> None:
    if not set(EDITOR_ROLES) & principal.roles:
        raise Refused(
            "the tasks of a story on the board can be changed only with one of the roles "
            f"{', '.join(EDITOR_ROLES)}"
        )


def _check_may_plan(card: StoryState, principal: Principal) -> None:
    """Raise `Refused` or `InvalidRequest` if the caller may not replace the tasks of a story on the
    board now.
    """
    _check_role(principal)
    _check_designing(card)


def _check_designing(card: StoryState) -> None:
    if card.position.state != _DESIGN:
        raise InvalidRequest(
            f"story {card.story.id} is in {card.position.state}: its tasks are derived in {_DESIGN}"
        )


def changeable(card: StoryState) -> Plan:
    """Return the plan of a story whose tasks can be changed now. Raises `InvalidRequest` for other
    stories.
    """
    if card.position.state != _DESIGN or "planned" not in card.position.facts or card.plan is None:
        condition = (
            f"tasks can be changed once they are derived in {_DESIGN}, until the design is accepted"
        )
        raise InvalidRequest(f"story {card.story.id} is in {card.position.state}: {condition}")
    return plan_of(card.plan)


def may_retry(card: StoryState, principal: Principal) -> bool:
    """Return True if a user may start tasks of a build again now."""
    return _has_lost_tasks(card) and bool(set(_RETRY_ROLES) & principal.all_roles)


def _has_lost_tasks(card: StoryState) -> bool:
    """Return True if all tasks of a build have ended and one of them has no winner."""
    return (
        card.position.state == "build"
        and card.ended is not None
        and card.ended.data.get("status") != COMPLETED
    )


def plan_of(derived: Event) -> Plan:
    """Return the plan that an event derives. Raises `InvalidRequest` for a malformed event."""
    return load(Plan, {"actor": "local", "publish": False} | dict(derived.data))


def may_change(card: StoryState, principal: Principal) -> bool:
    """Return True if the caller may change a story's tasks now."""
    return (
        card.position.state == _DESIGN
        and "planned" in card.position.facts
        and bool(set(EDITOR_ROLES) & principal.roles)
    )


def _plan_event(plan: Plan, principal: Principal) -> Event:
    time = _now().isoformat()
    event = write(
        EventType.PLAN_DERIVED,
        plan.plan_id,
        dump(plan),
        correlationid=plan.story_id,
        tenant=principal.tenant,
        time=time,
    )
    return replace(event, id=derivation_id(principal.tenant, plan.story_id, plan.plan_id))


def derivation_id(tenant: str, case_id: str, plan_id: str) -> str:
    """Return the id of the event that records a plan. It is the same whoever derives the plan."""
    return event_id(EventType.PLAN_DERIVED, plan_id, digest(tenant, case_id), 0)


def _plan_id_of(event: Event) -> str:
    plan_id = event.data.get("plan_id")
    return (
        check_id(str(plan_id), "plan_id")
        if plan_id
        else f"plan-{digest(str(event.data.get('story_id')))[:16]}"
    )


def moves_to_planning(event: Event) -> bool:
    """Return True if an external event asks for a story's tasks to be derived."""
    data = event.data
    return (
        event.type is EventType.STORY_TRANSITIONED
        and str(data.get("to_state")).lower() == PLANNING
        and "story_id" in data
    )


def _task_graph(tasks: Sequence[AtomicTask]) -> list[tuple[TaskId, tuple[TaskId, ...]]]:
    return [(task.task_id, task.dependencies) for task in tasks]


def _now() -> datetime:
    return datetime.now(UTC)
