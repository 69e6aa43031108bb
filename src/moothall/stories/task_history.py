"""The history of a story's tasks, in rounds: the status of each task, the reason, and the possible
next action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moothall.domain.event import Event, EventType
from moothall.domain.ids import TaskId
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.status import TaskView
from moothall.stories.executor import NO_WINNER, SKIPPED
from moothall.stories.plans import design_task

WON = "won"
_STATUS_LABELS: Mapping[str, str] = {
    DeliberationStatus.COMPLETED: WON,
    NO_WINNER: "no winner",
    SKIPPED: "skipped",
    DeliberationStatus.FAILED: "failed",
    DeliberationStatus.TIMEOUT: "out of time",
    DeliberationStatus.CANCELLED: "cancelled",
    DeliberationStatus.PENDING: "queued",
    DeliberationStatus.IN_PROGRESS: "at work",
}
_WAITING = "waits"
_PEOPLE = "people"
_LOST_LABELS = frozenset({"no winner", "failed", "out of time", "cancelled", "skipped"})
_NEXT_BY_STATE = {
    "build": (
        "read its evidence, then retry it (Retry on the page, `moothall story retry`) once all "
        "tasks have ended, or reject the build and describe the needed changes: the story goes "
        "back to design, and its tasks are derived again"
    ),
}


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A task of a story.

    `number` is its place from 1, `after` are the numbers of the tasks that it builds on. `status`
    is waits, queued, at work or paused, and at the end won, no winner, failed, out of time,
    cancelled or skipped. `why` gives details, `next` the possible next action. `begun` is true once
    a council has started it. `criteria` are the criteria of the story that it covers, as text.
    `level` is the winner's level of evidence in words.
    """

    number: int
    task_id: TaskId
    role: str
    description: str
    after: tuple[int, ...] = ()
    status: str = _WAITING
    why: str = ""
    next: str = ""
    begun: bool = False
    criteria: tuple[str, ...] = ()
    level: str = ""

    @property
    def lost(self) -> bool:
        """True if the task ended without a result."""
        return self.status in _LOST_LABELS


@dataclass(frozen=True, slots=True)
class Round:
    """The tasks of one plan, in order.

    `by` is architects, roles, repair or people; `why` says why architects that were asked did not
    derive it. `design` is the task of the architects who divided the story, or empty. `actor` is
    who changed their tasks.
    """

    plan_id: str
    by: str
    why: str
    design: str
    steps: tuple[RoundTask, ...]
    actor: str


def task_ids(history: Iterable[Event]) -> tuple[TaskId, ...]:
    """Return the ids of all tasks that a story had."""
    return tuple(
        TaskId(str(task["task_id"])) for event in history for task in _derived_tasks(event)
    )


def rounds(
    history: Sequence[Event], views: Mapping[TaskId, TaskView], state: str
) -> tuple[Round, ...]:
    """Return the rounds of a story in this state, oldest first. `views` maps task ids to the status
    of the tasks.
    """
    finished_plans = {
        event.data.get("derivation_id"): event.data
        for event in history
        if event.type is EventType.PLAN_FINISHED
    }
    rounds_so_far: list[Round] = []
    for event in history:
        if event.type is EventType.PLAN_DERIVED:
            if (
                rounds_so_far and event.data.get("by") == _PEOPLE
            ):  # edited tasks replace those of the plan before, which nobody began
                rounds_so_far.pop()
            rounds_so_far.append(_create_round(event, finished_plans.get(event.id, {}), views))
    if rounds_so_far:
        rounds_so_far[-1] = _with_next_actions(rounds_so_far[-1], state)
    return tuple(rounds_so_far)


def _create_round(
    derived: Event, finished_plan: Mapping[str, Any], views: Mapping[TaskId, TaskView]
) -> Round:
    tasks = _derived_tasks(derived)
    statuses, errors = (
        value if isinstance(value := finished_plan.get(name), Mapping) else {}
        for name in ("tasks", "why")
    )
    numbers = {TaskId(str(task["task_id"])): number for number, task in enumerate(tasks, 1)}
    steps = []
    for task_id, number in numbers.items():
        task, view = tasks[number - 1], views.get(task_id)
        after = task.get("dependencies")
        step = RoundTask(
            number=number,
            task_id=task_id,
            role=str(task.get("role", "")),
            description=str(task.get("description", "")),
            after=tuple(numbers[name] for name in after if name in numbers)
            if isinstance(after, list | tuple)
            else (),
            criteria=_covered_criteria(task),
        )
        steps.append(
            _with_status(step, str(statuses.get(task_id, "")), str(errors.get(task_id, "")), view)
        )
    by = str(derived.data.get("by") or "")
    design = (
        design_task(str(derived.data.get("plan_id")))
        if by == "architects" or derived.data.get("why")
        else ""
    )
    return Round(
        plan_id=str(derived.data.get("plan_id", "")),
        by=by,
        why=str(derived.data.get("why") or ""),
        design=str(derived.data.get("design") or design),
        steps=tuple(steps),
        actor=str(derived.data.get("actor") or "") if by == _PEOPLE else "",
    )


def _covered_criteria(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the criteria that a task of an event covers."""
    constraints = task.get("constraints")
    requirements = constraints.get("requirements") if isinstance(constraints, Mapping) else None
    return tuple(map(str, requirements)) if isinstance(requirements, list | tuple) else ()


def _with_status(step: RoundTask, end_status: str, error: str, view: TaskView | None) -> RoundTask:
    """Return a task with its status, from the end of its plan or else from its council. `error` is
    the error that the end of the plan records.
    """
    if end_status == SKIPPED:
        return replace(
            step,
            status=_STATUS_LABELS[SKIPPED],
            why="the tasks that it builds on have no winner, or cannot be merged",
        )
    if view is None:
        return (
            replace(
                step,
                status=_STATUS_LABELS.get(end_status, end_status.lower()),
                why=error,
                begun=True,
            )
            if end_status
            else step
        )
    status = end_status or (
        NO_WINNER
        if view.status is DeliberationStatus.COMPLETED and not view.winner_id
        else view.status.value
    )
    label = _STATUS_LABELS.get(status, status.lower())
    reason = view.error.removeprefix("Cancelled: ") if label == "cancelled" else view.error
    if label == WON:
        reason = f"{view.winner_id}, {view.level}"
    elif not view.status.ended:
        label, reason = "paused" if view.paused else label, f"{view.progress} %"
    level = view.level if label == WON else ""
    return replace(step, status=label, why=reason, begun=True, level=level)


def _with_next_actions(last: Round, state: str) -> Round:
    """Return the current round with the possible next action of each task."""
    steps = []
    for step in last.steps:
        next_action = ""
        if step.status == _WAITING:
            next_action = (
                "begins when the design is accepted"
                if state == "design"
                else "begins when those before it have a winner"
                if step.after
                else "begins at once"
            )
        elif step.lost:
            next_action = _NEXT_BY_STATE.get(state, "")
        steps.append(replace(step, next=next_action))
    return replace(last, steps=tuple(steps))


def _derived_tasks(event: Event) -> list[Mapping[str, Any]]:
    """Return the tasks that an event derives. Return an empty list for other and for malformed
    events.
    """
    tasks = event.data.get("tasks") if event.type is EventType.PLAN_DERIVED else None
    return (
        [task for task in tasks if isinstance(task, Mapping) and task.get("task_id")]
        if isinstance(tasks, list | tuple)
        else []
    )
