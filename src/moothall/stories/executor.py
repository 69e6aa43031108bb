"""The story executor: each due step of a story is done once, with all results in the log.

On the board, a story's tasks are derived in `design` and carried out in `build`. In `test` their
results are merged and checked as a whole, and in `done` the result is delivered, and merged if a
person requests it. A story that was sent back is repaired as its rejection says. A plan of a story
that is not on the board is open from its `plan.derived` to its `plan.finished`. Open work is
repeated after a restart: ids of tasks and requests follow from what is recorded, so repeated
requests change nothing.

If several processes execute stories, all see what is due and one of them does it. The others wait
for it to end, then check whether it is still due.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from moothall.concurrency import Pace
from moothall.config import LimitSettings
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import Principal, TaskId, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.plan import AtomicTask, Plan, Story
from moothall.domain.task import TASK_CHARS, Constraints, RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, NotFound, Skipped, Temporary
from moothall.ports import Bus, Deliberations, DeliverCommit
from moothall.stories.board import Board
from moothall.stories.integration import (
    IntegrationTarget,
    failure_reason,
    land,
    merge_commits,
    merge_task_ids,
    refuse,
    run_deliberation,
)
from moothall.stories.lifecycle import check_event, lifecycle
from moothall.stories.planner import Planner, moves_to_planning, plan_of
from moothall.stories.plans import (
    MAX_PLAN_TASKS,
    check_plan,
    design_request,
    design_task,
    plan_id_after,
    read_tasks,
    repair_task,
    task_request,
)
from moothall.stories.story_state import COMPLETED, FAILED, PASSED, StoryState
from moothall.telemetry import get_logger, metrics
from moothall.telemetry.tracing import write

log = get_logger(__name__)

TOPICS = (Channel.STORIES.all,)
DURABLE = "planning"
SKIPPED, NO_WINNER = Skipped.code, "NO_WINNER"
_LEAVING_MOVES = frozenset({("build", "design"), ("build", "draft"), ("design", "draft")})
"""Moves, as (from, to), that end the work of a state before its result is used."""
_AGAIN_SECONDS = 1.0
_MAX_PLANS = 32
"""Plans of a tenant whose tasks run concurrently; further ones wait."""
_PLANNER = "planner"


@dataclass(frozen=True, slots=True)
class _TaskEnd:
    """The end of a task: its status, its outcome if it has one, and the commits that hold its work
    and that of the tasks before it.
    """

    status: str
    outcome: Outcome | None = None
    commits: tuple[str, ...] = ()

    @property
    def won(self) -> bool:
        return self.outcome is not None and bool(self.outcome.winner_id)


class StoryExecutor:
    """The executor of due steps of stories, until cancelled.

    `deliver_commit` applies the merge policy of a repository to an approved commit. `architects` is
    the number of architects who divide a story into tasks; with 0, tasks are derived by roles.
    `lock_step` returns a lock that keeps other processes from the step of a given name; they wait.
    A `board` of the same process saves reading the stories twice.
    """

    def __init__(
        self,
        bus: Bus,
        deliberations: Deliberations,
        limits: LimitSettings,
        planner: Planner,
        deliver_commit: DeliverCommit,
        *,
        architects: int = 0,
        lock_step: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
        board: Board | None = None,
    ) -> None:
        self._bus = bus
        self._deliberations = deliberations
        self._limits = limits
        self._planner = planner
        self._deliver_commit = deliver_commit
        self._architects = architects
        self._lock = lock_step
        self._board = board or Board(bus)
        self._plan_slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_MAX_PLANS)
        )
        self._started: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Resume open work, then process events as they come, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bus.consume(DURABLE, self._handle_event), name="story events")
            last_seq = await self._resume_open_work(group)
            async for recorded in self._bus.follow(TOPICS, last_seq):
                await self._process_event(recorded.event, group)

    async def _resume_open_work(self, group: asyncio.TaskGroup) -> int:
        """Start the work that the log leaves open. Return the seq up to which the log was read."""
        while True:
            last_seq, derived, moves, stories = 0, {}, {}, {}
            try:
                async for recorded in self._bus.replay(TOPICS):
                    last_seq, event = recorded.seq, recorded.event
                    if event.type is EventType.PLAN_DERIVED:
                        derived[event.id] = event
                    elif event.type is EventType.PLAN_FINISHED:
                        self._started.add(str(event.data.get("derivation_id")))
                    elif event.type is EventType.STORY_TRANSITIONED:
                        moves[event.tenant, event.data.get("story_id")] = event
                    stories[event.tenant, event.data.get("story_id")] = event
                # Not one by one: there may be thousands.
                cards, pace = await self._board.list_all(), Pace()
                for event in (*derived.values(), *moves.values(), *stories.values()):
                    card = cards.get((event.tenant, str(event.data.get("story_id"))))
                    work = functools.partial(self._act_on, event, card, group)
                    await _retry_through_outages(work, event.id)
                    await pace.step()
            except Temporary as error:
                log.warning("the log could not be read; trying again", reason=error.message)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return last_seq

    async def _handle_event(self, recorded: Recorded) -> None:
        """Check a story event, and derive the tasks of a story that moved to planning.

        Raises `Permanent`, which makes the event a dead letter, if it is malformed, the story's
        life cycle does not allow it, or a task could not start.
        """
        event = recorded.event
        story_id = check_event(event)
        if moves_to_planning(event):
            await self._planner.derive_for(event)
        elif event.type is EventType.PLAN_DERIVED:
            check_plan(plan_of(event).tasks, MAX_PLAN_TASKS)
        elif event.type is EventType.STORY_TRANSITIONED:
            await self._board.check_move(story_id, event)

    async def _process_event(self, event: Event, group: asyncio.TaskGroup) -> None:
        """Process one event, retrying until it is done. A malformed event is logged and changes
        nothing.
        """

        async def process() -> None:
            card = await self._board.find(
                str(event.data.get("story_id")), Principal(_PLANNER, event.tenant)
            )
            await self._act_on(event, card, group)

        await _retry_through_outages(process, event.id)

    async def _act_on(
        self, event: Event, card: StoryState | None, group: asyncio.TaskGroup
    ) -> None:
        """Do what an event makes due. `card` is its story, None for one that is not on the
        board.
        """
        if card is not None:
            if event.type is EventType.STORY_TRANSITIONED:
                await self._cancel_left_work(card, event)
            await self._advance_story(card, group)
        elif event.type is EventType.PLAN_DERIVED:
            self._start_plan(event, group)

    async def _advance_story(self, card: StoryState, group: asyncio.TaskGroup) -> None:
        """Start what is due for a story in its current state."""
        await self._board.settle(card)
        state, facts, principal = (
            card.position.state,
            card.position.facts,
            Principal(_PLANNER, _tenant_of(card)),
        )
        if step := _due_step(card):
            key = card.merge_request.id if card.merge_request else card.moved
            self._start_once(key, lambda: self._execute_step(step, card, principal), group)
        elif state == "build" and "built" in facts:
            await self._board.move(card.story.id, "build", principal, system=True)
        elif state == "build" and card.ended_before:
            plan_id = plan_id_after(card.moved)
            tasks = (_repair_plan_task(card, plan_id),)
            await self._planner.record_plan(
                card,
                Plan(
                    card.story.id, plan_id, tasks, publish=True, actor=principal.name, by="repair"
                ),
                principal,
            )
        elif state == "build" and card.plan is not None:
            self._start_plan(card.plan, group)
        elif state == "done" and "failed" in facts:
            await self._board.move(card.story.id, "reopen", principal, system=True)

    async def _cancel_left_work(self, card: StoryState, move: Event) -> None:
        """Cancel the councils of the state that a move left, since their results would not be
        used.
        """
        from_state, to_state = move.data.get("from_state"), move.data.get("to_state")
        if (from_state, to_state) not in _LEAVING_MOVES:
            return
        principal = Principal(_PLANNER, move.tenant)
        moves = [
            counted_move.id for counted_move in await self._board.moves(card.story.id, principal)
        ]
        if move.id not in moves:
            return
        reason = f"{move.data.get('event')} by {move.data.get('actor')}"
        if from_state == "design":
            entering = moves[moves.index(move.id) - 1]
            await self._cancel_deliberation(design_task(plan_id_after(entering)), reason, principal)
            return
        derived = None
        for event in await self._board.history(card.story.id, principal):
            if event.id == move.id:
                break
            derived = event if event.type is EventType.PLAN_DERIVED else derived
        if derived is not None:
            await self._cancel_plan(derived, reason)

    async def _cancel_plan(self, derived: Event, reason: str) -> None:
        """Stop a plan: start no further task of it, and cancel the running ones."""
        if running := self._running.get(derived.id):
            running.cancel()
        plan = plan_of(derived)
        principal = Principal(plan.actor, derived.tenant)
        for task in plan.tasks:
            merges = merge_task_ids(f"{task.task_id}-base", len(task.dependencies))
            for task_id in (task.task_id, *merges):
                await self._cancel_deliberation(task_id, reason, principal)

    async def _cancel_deliberation(
        self, task_id: TaskId, reason: str, principal: Principal
    ) -> None:
        """Cancel a deliberation if it is running."""
        with suppress(NotFound):
            if not (await self._deliberations.result(task_id, principal)).status.ended:
                await self._deliberations.cancel(task_id, reason, principal)

    def _start_once(
        self, key: str, work: Callable[[], Coroutine[None, None, None]], group: asyncio.TaskGroup
    ) -> None:
        if key not in self._started:
            self._started.add(key)
            self._running[key] = group.create_task(_retry_through_outages(work, key), name=key)
            self._running[key].add_done_callback(lambda _: self._running.pop(key, None))

    async def _execute_step(self, step: str, seen_card: StoryState, principal: Principal) -> None:
        """Execute a step of a story, unless another process did it meanwhile."""
        async with self._lock(f"story.{seen_card.moved}"):
            card = await self._board.card(seen_card.story.id, principal)
            if (
                card.moved == seen_card.moved
                and card.merge_request == seen_card.merge_request
                and _due_step(card) == step
            ):
                run_step = {
                    "design": self._design_story,
                    "check": self._check_story,
                    "deliver": self._deliver_story,
                }[step]
                await run_step(card, principal)
                metrics.STORY_STEPS.add(step)

    async def _design_story(self, card: StoryState, principal: Principal) -> None:
        """Derive a story's tasks: by architects if they are asked and their answer is valid, by its
        roles otherwise.
        """
        plan_id = plan_id_after(card.moved)
        plan = Plan(card.story.id, plan_id, (), publish=True, actor=principal.name, by="roles")
        if self._architects:
            plan = await self._plan_by_architects(card, plan, principal)
        if not plan.tasks:
            plan = replace(
                plan,
                tasks=self._planner.tasks(
                    card.story, plan_id, lifecycle().roles[card.position.rigor], principal.tenant
                ),
            )
        entered_id = card.moved
        while (
            card.moved == entered_id
            and "planned" not in card.position.facts
            and not await self._planner.record_plan(card, plan, principal)
        ):
            card = await self._board.card(card.story.id, principal)

    async def _plan_by_architects(self, card: StoryState, plan: Plan, principal: Principal) -> Plan:
        """Return the plan with the tasks from a council of architects, or with the reason why it
        has none.
        """
        max_tasks, story = MAX_PLAN_TASKS, card.story
        comment = str(card.entered.data.get("comment") or "") if card.entered else ""
        request = design_request(
            story,
            design_task(plan.plan_id),
            plan.plan_id,
            seats=self._architects,
            max_tasks=max_tasks,
            comment=comment,
        )
        outcome = await run_deliberation(self._deliberations, request, principal)
        if not outcome.results or not outcome.winner_id:
            return replace(
                plan, why=f"the architects have no answer: {failure_reason(outcome)[:2000]}"
            )
        answer = outcome.results[0].content
        try:
            tasks = read_tasks(
                answer,
                story,
                plan.plan_id,
                tenant=principal.tenant,
                max_tasks=max_tasks,
                chars=TASK_CHARS,
            )
        except InvalidRequest as error:
            return replace(plan, why=f"the architects' answer is invalid: {error.message}")
        return replace(plan, tasks=tasks, by="architects")

    def _start_plan(self, derived: Event, group: asyncio.TaskGroup) -> None:
        plan = plan_of(derived)
        check_plan(plan.tasks, MAX_PLAN_TASKS)
        if plan.publish:
            self._start_once(derived.id, lambda: self._execute_plan(plan, derived), group)

    async def _execute_plan(self, plan: Plan, derived: Event) -> None:
        """Run the tasks of a plan and record how it ended, unless another process did."""
        async with self._lock(f"plan.{derived.id}"):
            if await self._is_finished(plan, derived):
                return
            await self._run_plan_tasks(plan, derived)
            metrics.STORY_STEPS.add("build")

    async def _is_finished(self, plan: Plan, derived: Event) -> bool:
        async for recorded in self._bus.replay(
            (Channel.STORIES.of(key_of(plan.story_id, derived.tenant)),)
        ):
            event = recorded.event
            if (
                event.type is EventType.PLAN_FINISHED
                and event.data.get("derivation_id") == derived.id
            ):
                return True
        return False

    async def _run_plan_tasks(self, plan: Plan, derived: Event) -> None:
        async with self._plan_slots[derived.tenant]:
            card = await self._board.find(plan.story_id, Principal(_PLANNER, derived.tenant))
            if card is not None and not (
                card.position.state == "build" and card.plan and card.plan.id == derived.id
            ):
                return  # the story was stopped or sent back while this plan waited
            principal = Principal(plan.actor, derived.tenant)
            running: dict[TaskId, asyncio.Task[_TaskEnd]] = {}
            async with asyncio.TaskGroup() as group:
                for task in plan.tasks:  # a task comes after those it depends on
                    predecessors = [running[name] for name in task.dependencies]
                    running[task.task_id] = group.create_task(
                        self._run_task(task, predecessors, principal), name=task.task_id
                    )
        results = {name: running_task.result() for name, running_task in running.items()}
        dependencies = {name for task in plan.tasks for name in task.dependencies}
        data = {
            "story_id": plan.story_id,
            "plan_id": plan.plan_id,
            "derivation_id": derived.id,
            "status": COMPLETED if all(result.won for result in results.values()) else "failed",
            "tasks": {name: result.status for name, result in results.items()},
            "why": {
                name: result.outcome.error_message
                for name, result in results.items()
                if result.outcome and result.outcome.error_message
            },
            "commits": list(
                dict.fromkeys(
                    sha
                    for name, result in results.items()
                    if name not in dependencies
                    for sha in result.commits
                )
            ),
        }
        await self._bus.publish(
            write(
                EventType.PLAN_FINISHED, plan.plan_id, data, cause=derived.id, tenant=derived.tenant
            )
        )

    async def _run_task(
        self, task: AtomicTask, predecessors: Sequence[asyncio.Task[_TaskEnd]], principal: Principal
    ) -> _TaskEnd:
        """Run a task and return how it ended. Return SKIPPED if a task that it depends on has no
        winner.
        """
        results = [await predecessor for predecessor in predecessors]
        if not all(result.won for result in results):
            missing = next(
                name
                for name, result in zip(task.dependencies, results, strict=True)
                if not result.won
            )
            reason = Skipped(f"not started: {missing}, whose work it builds on, has no winner")
            await refuse(self._deliberations, task_request(task, self._limits), reason, principal)
            return _TaskEnd(SKIPPED)
        commits = tuple(dict.fromkeys(sha for result in results for sha in result.commits))
        if task.repository is not None and len(commits) > 1:
            merge_outcome = await merge_commits(
                self._deliberations,
                f"{task.task_id}-base",
                commits,
                _integration_target(task),
                principal,
            )
            if not merge_outcome.commit_sha:
                reason = Skipped(
                    "not started: the work that it builds on cannot be merged: "
                    f"{failure_reason(merge_outcome)[:2000]}"
                )
                await refuse(
                    self._deliberations, task_request(task, self._limits), reason, principal
                )
                return _TaskEnd(SKIPPED, merge_outcome)
            commits = (merge_outcome.commit_sha,)
        outcome = await run_deliberation(
            self._deliberations,
            task_request(
                task,
                self._limits,
                commits,
                [result.outcome for result in results if result.outcome],
            ),
            principal,
        )
        status = outcome.status.value
        if outcome.status is DeliberationStatus.COMPLETED and not outcome.winner_id:
            status = NO_WINNER
        return _TaskEnd(status, outcome, (outcome.commit_sha,) if outcome.commit_sha else commits)

    async def _check_story(self, card: StoryState, principal: Principal) -> None:
        """Merge a story's winners on its branch, check the result as a whole, and record the
        outcome.
        """
        story = card.story
        data = {
            "story_id": story.id,
            "moved": card.moved,
            "task_id": "",
            "status": PASSED,
            "branch": "",
            "commit_sha": "",
            "why": "",
        }
        if story.repository is not None and card.commits:
            name = f"{story.id}-{card.checks + 1}" if card.checks else story.id
            target = IntegrationTarget(
                story.repository,
                story.id,
                _plan_id(card),
                _story_text(story),
                Constraints(requirements=story.ac),
            )
            outcome = await merge_commits(
                self._deliberations, name, card.commits, target, principal
            )
            merged_sha = outcome.commit_sha or next(
                (result.commit_sha for result in outcome.results), ""
            )
            data |= {"task_id": outcome.task_id, "branch": outcome.branch, "commit_sha": merged_sha}
            if not outcome.commit_sha:
                data |= {"status": "failed", "why": failure_reason(outcome)[:2000]}
        await self._bus.publish(
            write(
                EventType.STORY_CHECKED,
                story.id,
                data,
                ordinal=card.moved,
                causationid=card.moved,
                tenant=principal.tenant,
            )
        )

    async def _deliver_story(self, card: StoryState, principal: Principal) -> None:
        """Apply the merge policy of the repository to an approved story, or merge it as requested,
        and record the outcome.
        """
        history = await self._board.history(card.story.id, principal)
        if (
            delivery_event := await land(
                self._deliberations, self._deliver_commit, card, history, TASK_CHARS
            )
        ) is not None:
            await self._bus.publish(delivery_event)


async def _retry_through_outages(
    work: Callable[[], Coroutine[None, None, None]], work_id: str
) -> None:
    """Do some work, retrying through outages. Other errors are logged and end it."""
    while True:
        try:
            await work()
        except Temporary as error:
            log.warning(
                "work on a story was interrupted; trying again", id=work_id, reason=error.message
            )
            await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
        except MoothallError as error:
            log.warning("work on a story failed", id=work_id, reason=error.message)
            return
        else:
            return


def _due_step(card: StoryState) -> str:
    """Return the long-running step that is due for a story in its current state, or an empty
    string.
    """
    state, facts = card.position.state, card.position.facts
    if state == "design" and "planned" not in facts:
        return "design"
    if (
        state == "test"
        and "checked" not in facts
        and (card.check is None or card.check.data.get("moved") != card.moved)
    ):
        return "check"
    delivered = (
        card.delivery is not None
        and card.delivery.data.get("moved") == card.moved
        and card.merge_request is None
    )
    return "deliver" if state == "done" and "failed" not in facts and not delivered else ""


def _tenant_of(card: StoryState) -> str:
    return card.entered.tenant if card.entered else "local"


def _plan_id(card: StoryState) -> str:
    return str(card.plan.data.get("plan_id", "")) if card.plan else ""


def _story_text(story: Story) -> str:
    return "\n\n".join(part for part in (story.title, story.brief) if part) or f"Story {story.id}."


def _repair_plan_task(card: StoryState, plan_id: str) -> AtomicTask:
    """Return the task of a story that was sent back, or that does not merge with its base: it
    starts from the existing result and says why.
    """

    def repair_from(reason: str, start: str) -> AtomicTask:
        return repair_task(
            card.story,
            plan_id,
            reason,
            start,
            tenant=_tenant_of(card),
            chars=TASK_CHARS,
            remarks=card.remarks,
        )

    entered = card.entered.data if card.entered else {}
    if (
        card.delivery is not None
        and card.delivery.data.get("status") == FAILED
        and not card.commits
    ):
        delivery = card.delivery.data
        return repair_from(str(delivery["why"]), str(delivery["start"]))
    checked = str(card.check.data.get("commit_sha") or "") if card.check else ""
    start = checked or next(iter(card.commits), "")
    comment = str(entered.get("comment") or "") or (
        str(card.check.data.get("why") or "") if card.check else ""
    )
    return repair_from(comment, start)


def _integration_target(task: AtomicTask) -> IntegrationTarget:
    return IntegrationTarget(
        task.repository or RepositoryRef(),
        task.case_id,
        task.plan_id,
        task.description,
        task.constraints,
    )
