"""The work on stories: what is due is done, each once, and all that it comes to is in the log.

On the board: in `design` a story's tasks are derived, in `build` they are handed out, in `test`
what they came to is brought together and checked as a whole, in `done` it is delivered; one that
was sent back is changed as its rejection says. A plan of a story that is not on the board is open
from its `plan.derived` to its `plan.finished`. After a restart what is open is done again, and
since the ids of tasks and the requests follow from what is recorded, asking again for what was
asked before changes nothing.

Where several processes do it, all see what is due, and one of them is at it: the others wait for it
to end, and look whether it is due still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

from moothall.config import LimitSettings
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import digest, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.plan import AtomicTask, Plan, Story
from moothall.domain.task import Constraints, RepositoryRef
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest, MoothallError, Skipped, Temporary
from moothall.ports import Bus, Deliberations, Land
from moothall.stories.architect_prompts import design_task, question, read_tasks
from moothall.stories.board import Board
from moothall.stories.derive import check_plan, repair
from moothall.stories.intake import check_event
from moothall.stories.integration import IntegrationTarget, ask, refuse, together, why_not
from moothall.stories.lifecycle import lifecycle
from moothall.stories.merge_policy import land
from moothall.stories.planner import Planner, moves_to_planning, plan_of
from moothall.stories.requests import task_request
from moothall.stories.story_state import COMPLETED, FAILED, PASSED, StoryState
from moothall.telemetry import get_logger, metrics
from moothall.telemetry.events import write

log = get_logger(__name__)

TOPICS = (Channel.STORIES.all,)
DURABLE = "planning"
SKIPPED, NO_WINNER = Skipped.code, "NO_WINNER"
_AGAIN_SECONDS = 1.0
_PLANNER = "planner"


@dataclass(frozen=True, slots=True)
class _End:
    """How a task ended, in a word; its outcome, if it has one; and the commits that hold its work
    and that of those before it.
    """

    said: str
    outcome: Outcome | None = None
    commits: tuple[str, ...] = ()

    @property
    def won(self) -> bool:
        return self.outcome is not None and bool(self.outcome.winner_id)


class StoryExecutor:
    """Does what is due until cancelled. `land_` does with an approved commit what its repository's
    policy says. `architects`: how many divide a story into tasks; with none its roles do. `alone`
    keeps other processes from what this one is at, by its name; they wait.
    """

    def __init__(
        self,
        bus: Bus,
        deliberations: Deliberations,
        limits: LimitSettings,
        planner: Planner,
        land_: Land,
        *,
        architects: int = 0,
        alone: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._bus = bus
        self._deliberations = deliberations
        self._limits = limits
        self._planner = planner
        self._land = land_
        self._architects = architects
        self._alone = alone
        self._board = Board(bus)
        self._room = asyncio.Semaphore(limits.plans)
        self._begun: set[str] = set()

    async def run(self) -> None:
        """Take up what is open, then what comes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bus.consume(DURABLE, self._handle), name="story events")
            last = await self._take_up(group)
            async for recorded in self._bus.follow(TOPICS, last):
                await self._see(recorded.event, group)

    async def _take_up(self, group: asyncio.TaskGroup) -> int:
        """Begin what the log leaves open; return how far it was read."""
        while True:
            last, derived, stories = 0, {}, {}
            try:
                async for recorded in self._bus.replay(TOPICS):
                    last, event = recorded.seq, recorded.event
                    if event.type is EventType.PLAN_DERIVED:
                        derived[event.id] = event
                    elif event.type is EventType.PLAN_FINISHED:
                        self._begun.add(str(event.data.get("derivation_id")))
                    stories[event.tenant, event.data.get("story_id")] = event
                for event in (*derived.values(), *stories.values()):
                    await self._see(event, group)
            except Temporary as error:
                log.warning("the log could not be read; trying again", reason=error.message)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return last

    async def _handle(self, recorded: Recorded) -> None:
        """Check a story event, and derive the tasks of a story that moved to planning.

        Raises `Permanent`, which makes the event a dead letter, if it is malformed, the story's
        life cycle does not allow it, or a task could not start.
        """
        event = recorded.event
        story_id = check_event(event)
        if moves_to_planning(event):
            await self._planner.derive_for(event)
        elif event.type is EventType.PLAN_DERIVED:
            check_plan(plan_of(event).tasks, self._limits.plan_tasks)
        elif event.type is EventType.STORY_TRANSITIONED:
            await self._board.check_move(story_id, event)

    async def _see(self, event: Event, group: asyncio.TaskGroup) -> None:
        """Take up one event, however long it takes to reach the log. A malformed one is told in the
        log of the process and changes nothing.
        """

        async def take_up() -> None:
            card = await self._board.find(
                str(event.data.get("story_id")), Principal(_PLANNER, event.tenant)
            )
            if card is not None:
                await self._go_on(card, group)
            elif event.type is EventType.PLAN_DERIVED:
                self._hand_out(event, group)

        await _persist(take_up, event.id)

    async def _go_on(self, card: StoryState, group: asyncio.TaskGroup) -> None:
        """Do what is due for a story where it stands now."""
        await self._board.settle(card)
        state, facts, who = card.stand.state, card.stand.facts, Principal(_PLANNER, _tenant(card))
        if step := _step(card):
            self._once(card.moved, lambda: self._take(step, card, who), group)
        elif state == "build" and "built" in facts:
            await self._board.move(card.story.id, "build", who, system=True)
        elif state == "build" and card.worn:
            plan_id = _plan_name(card)
            tasks = (_repair(card, plan_id, self._limits),)
            await self._planner.record_plan(
                card,
                Plan(card.story.id, plan_id, tasks, publish=True, actor=who.name, by="repair"),
                who,
            )
        elif state == "build" and card.plan is not None:
            self._hand_out(card.plan, group)
        elif state == "done" and "failed" in facts:
            await self._board.move(card.story.id, "reopen", who, system=True)

    def _once(
        self, key: str, work: Callable[[], Coroutine[None, None, None]], group: asyncio.TaskGroup
    ) -> None:
        if key not in self._begun:
            self._begun.add(key)
            group.create_task(_persist(work, key), name=key)

    async def _take(self, step: str, seen: StoryState, who: Principal) -> None:
        """Do a step of a story, unless another process did it meanwhile."""
        async with self._alone(f"story.{seen.moved}"):
            card = await self._board.card(seen.story.id, who)
            if card.moved == seen.moved and _step(card) == step:
                work = {"design": self._design, "check": self._check, "deliver": self._deliver}[
                    step
                ]
                await work(card, who)
                metrics.STORY_STEPS.add(step)

    async def _design(self, card: StoryState, who: Principal) -> None:
        """Derive a story's tasks, by architects where they are asked and their answer can be taken,
        by its roles otherwise.
        """
        plan_id = _plan_name(card)
        plan = Plan(card.story.id, plan_id, (), publish=True, actor=who.name, by="roles")
        if self._architects:
            plan = await self._by_architects(card, plan, who)
        if not plan.tasks:
            plan = replace(
                plan,
                tasks=self._planner.tasks(
                    card.story, plan_id, lifecycle().roles[card.stand.rigor], who.tenant
                ),
            )
        entered = card.moved
        while (
            card.moved == entered
            and "planned" not in card.stand.facts
            and not await self._planner.record_plan(card, plan, who)
        ):
            card = await self._board.card(card.story.id, who)

    async def _by_architects(self, card: StoryState, plan: Plan, who: Principal) -> Plan:
        """Return the plan with the tasks of a council of architects, or with the reason why it has
        none.
        """
        most, story = self._limits.plan_tasks, card.story
        comment = str(card.entered.data.get("comment") or "") if card.entered else ""
        asked = question(
            story,
            design_task(plan.plan_id),
            plan.plan_id,
            seats=self._architects,
            most=most,
            comment=comment,
        )
        end = await ask(self._deliberations, asked, who)
        if not end.results or not end.winner_id:
            return replace(plan, why=f"the architects have no answer: {why_not(end)[:2000]}")
        said = end.results[0].content
        try:
            tasks = read_tasks(
                said,
                story,
                plan.plan_id,
                tenant=who.tenant,
                most=most,
                chars=self._limits.task_chars,
            )
        except InvalidRequest as error:
            return replace(plan, why=f"the architects' answer cannot be taken: {error.message}")
        return replace(plan, tasks=tasks, by="architects")

    def _hand_out(self, derived: Event, group: asyncio.TaskGroup) -> None:
        plan = plan_of(derived)
        check_plan(plan.tasks, self._limits.plan_tasks)
        if plan.publish:
            self._once(derived.id, lambda: self._carry_out(plan, derived), group)

    async def _carry_out(self, plan: Plan, derived: Event) -> None:
        """See a plan to its end and record how it ended, unless another process did."""
        async with self._alone(f"plan.{derived.id}"):
            if await self._is_finished(plan, derived):
                return
            await self._carry_out_alone(plan, derived)
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

    async def _carry_out_alone(self, plan: Plan, derived: Event) -> None:
        async with self._room:
            who = Principal(plan.actor, derived.tenant)
            running: dict[str, asyncio.Task[_End]] = {}
            async with asyncio.TaskGroup() as group:
                for task in plan.tasks:  # what it depends on stands before it
                    before = [running[name] for name in task.dependencies]
                    running[task.task_id] = group.create_task(
                        self._one(task, before, who), name=task.task_id
                    )
        ends = {name: ended.result() for name, ended in running.items()}
        inner = {name for task in plan.tasks for name in task.dependencies}
        data = {
            "story_id": plan.story_id,
            "plan_id": plan.plan_id,
            "derivation_id": derived.id,
            "status": COMPLETED if all(end.won for end in ends.values()) else "failed",
            "tasks": {name: end.said for name, end in ends.items()},
            "why": {
                name: end.outcome.error_message
                for name, end in ends.items()
                if end.outcome and end.outcome.error_message
            },
            "commits": list(
                dict.fromkeys(
                    sha for name, end in ends.items() if name not in inner for sha in end.commits
                )
            ),
        }
        await self._bus.publish(
            write(
                EventType.PLAN_FINISHED, plan.plan_id, data, cause=derived.id, tenant=derived.tenant
            )
        )

    async def _one(
        self, task: AtomicTask, before: Sequence[asyncio.Task[_End]], who: Principal
    ) -> _End:
        """Return how a task ended, or SKIPPED where one that it depends on has no winner."""
        done = [await earlier for earlier in before]
        if not all(end.won for end in done):
            missing = next(
                name for name, end in zip(task.dependencies, done, strict=True) if not end.won
            )
            reason = Skipped(f"not started: {missing}, whose work it builds on, has no winner")
            await refuse(self._deliberations, task_request(task, self._limits), reason, who)
            return _End(SKIPPED)
        held = tuple(dict.fromkeys(sha for end in done for sha in end.commits))
        if task.repository is not None and len(held) > 1:
            merged = await together(
                self._deliberations, f"{task.task_id}-base", held, _aim(task), who
            )
            if not merged.commit_sha:
                reason = Skipped(
                    "not started: the work that it builds on does not go together: "
                    f"{why_not(merged)[:2000]}"
                )
                await refuse(self._deliberations, task_request(task, self._limits), reason, who)
                return _End(SKIPPED, merged)
            held = (merged.commit_sha,)
        outcome = await ask(
            self._deliberations,
            task_request(task, self._limits, held, [end.outcome for end in done if end.outcome]),
            who,
        )
        said = outcome.status.value
        if outcome.status is DeliberationStatus.COMPLETED and not outcome.winner_id:
            said = NO_WINNER
        return _End(said, outcome, (outcome.commit_sha,) if outcome.commit_sha else held)

    async def _check(self, card: StoryState, who: Principal) -> None:
        """Bring a story's winners together on its branch, check that as a whole, and record how it
        ended.
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
            aim = IntegrationTarget(
                story.repository,
                story.id,
                _plan_id(card),
                _story_text(story),
                Constraints(requirements=story.ac),
            )
            end = await together(self._deliberations, name, card.commits, aim, who)
            tried = end.commit_sha or next((result.commit_sha for result in end.results), "")
            data |= {"task_id": end.task_id, "branch": end.branch, "commit_sha": tried}
            if not end.commit_sha:
                data |= {"status": "failed", "why": why_not(end)[:2000]}
        await self._bus.publish(
            write(
                EventType.STORY_CHECKED,
                story.id,
                data,
                ordinal=card.moved,
                causationid=card.moved,
                tenant=who.tenant,
            )
        )

    async def _deliver(self, card: StoryState, who: Principal) -> None:
        """Do with an approved story what its repository's policy says, and record what became of
        it.
        """
        history = await self._board.history(card.story.id, who)
        if (
            told := await land(
                self._deliberations, self._land, card, history, self._limits.task_chars
            )
        ) is not None:
            await self._bus.publish(told)


async def _persist(work: Callable[[], Coroutine[None, None, None]], what: str) -> None:
    """Do some work, through what is down for a while; what can't be done is told in the log of the
    process.
    """
    while True:
        try:
            await work()
        except Temporary as error:
            log.warning(
                "work on a story was cut short; trying again", id=what, reason=error.message
            )
            await asyncio.sleep(error.retry_after or _AGAIN_SECONDS)
        except MoothallError as error:
            log.warning("work on a story led to nothing", id=what, reason=error.message)
            return
        else:
            return


def _step(card: StoryState) -> str:
    """Return what is to be done for a story where it stands now, and takes long; empty for
    nothing.
    """
    state, facts = card.stand.state, card.stand.facts
    if state == "design" and "planned" not in facts:
        return "design"
    if (
        state == "test"
        and "checked" not in facts
        and (card.check is None or card.check.data.get("moved") != card.moved)
    ):
        return "check"
    delivered = card.delivery is not None and card.delivery.data.get("moved") == card.moved
    return "deliver" if state == "done" and "failed" not in facts and not delivered else ""


def _plan_name(card: StoryState) -> str:
    """Return the id of the plan of a story's stay in a state."""
    return f"plan-{digest(card.moved)[:16]}"


def _tenant(card: StoryState) -> str:
    return card.entered.tenant if card.entered else "local"


def _plan_id(card: StoryState) -> str:
    return str(card.plan.data.get("plan_id", "")) if card.plan else ""


def _story_text(story: Story) -> str:
    return "\n\n".join(part for part in (story.title, story.brief) if part) or f"Story {story.id}."


def _repair(card: StoryState, plan_id: str, limits: LimitSettings) -> AtomicTask:
    """Return the task of a story that was sent back, or does not go together with its base: on what
    there is of it, told why.
    """

    def repair_task(why: str, start: str) -> AtomicTask:
        return repair(
            card.story,
            plan_id,
            why,
            start,
            tenant=_tenant(card),
            chars=limits.task_chars,
            remarks=card.remarks,
        )

    entered = card.entered.data if card.entered else {}
    if (
        card.delivery is not None
        and card.delivery.data.get("status") == FAILED
        and not card.commits
    ):
        said = card.delivery.data
        return repair_task(str(said["why"]), str(said["start"]))
    checked = str(card.check.data.get("commit_sha") or "") if card.check else ""
    start = checked or next(iter(card.commits), "")
    comment = str(entered.get("comment") or "") or (
        str(card.check.data.get("why") or "") if card.check else ""
    )
    return repair_task(comment, start)


def _aim(task: AtomicTask) -> IntegrationTarget:
    return IntegrationTarget(
        task.repository or RepositoryRef(),
        task.case_id,
        task.plan_id,
        task.description,
        task.constraints,
    )
