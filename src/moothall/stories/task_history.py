"""What became of a story's tasks, round by round: of each how it stands, why, and what somebody may
do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moothall.domain.event import Event, EventType
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.status import TaskView
from moothall.stories.architect_prompts import design_task
from moothall.stories.executor import NO_WINNER, SKIPPED

WON = "won"
_WORDS: Mapping[str, str] = {
    DeliberationStatus.COMPLETED: WON,
    NO_WINNER: "no winner",
    SKIPPED: "skipped",
    DeliberationStatus.FAILED: "failed",
    DeliberationStatus.TIMEOUT: "out of time",
    DeliberationStatus.CANCELLED: "cancelled",
    DeliberationStatus.PENDING: "queued",
    DeliberationStatus.IN_PROGRESS: "at work",
}
_WAITS = "waits"
_PEOPLE = "people"
_LOST = frozenset({"no winner", "failed", "out of time", "cancelled", "skipped"})
_NEXT = {
    "build": (
        "read its evidence, then reject the build and say what is to be different: the story goes "
        "back to design, and its tasks are derived anew"
    ),
}


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A task of a story. `number` is its place from 1, `after` are the numbers of those that it
    builds on. `stand` is won, no winner, failed, out of time, cancelled or skipped at its end, and
    waits, queued or at work before; `why` says more of it, `next` what somebody may do. `begun`: a
    council has it, or had.
    """

    number: int
    task_id: str
    role: str
    description: str
    after: tuple[int, ...] = ()
    stand: str = _WAITS
    why: str = ""
    next: str = ""
    begun: bool = False

    @property
    def lost(self) -> bool:
        """Whether it ended, and came to nothing."""
        return self.stand in _LOST


@dataclass(frozen=True, slots=True)
class Round:
    """The tasks of one plan, in order. `by` is architects, roles, repair or people, `why` says why
    not architects where those were asked; `design` is the task of the architects who divided the
    story, or empty; `actor` is who changed what they made.
    """

    plan_id: str
    by: str
    why: str
    design: str
    steps: tuple[RoundTask, ...]
    actor: str


def task_ids(history: Iterable[Event]) -> tuple[str, ...]:
    """Return the ids of all tasks that a story had."""
    return tuple(str(task["task_id"]) for event in history for task in _tasks(event))


def rounds(
    history: Sequence[Event], views: Mapping[str, TaskView], state: str
) -> tuple[Round, ...]:
    """Return the rounds of a story that is in a state, the first first. `views` is what is known of
    its tasks, by id.
    """
    ends = {
        event.data.get("derivation_id"): event.data
        for event in history
        if event.type is EventType.PLAN_FINISHED
    }
    found: list[Round] = []
    for event in history:
        if event.type is EventType.PLAN_DERIVED:
            if (
                found and event.data.get("by") == _PEOPLE
            ):  # they stand in the place of those that were changed, which nobody began
                found.pop()
            found.append(_round(event, ends.get(event.id, {}), views))
    if found:
        found[-1] = _say_next(found[-1], state)
    return tuple(found)


def _round(derived: Event, end: Mapping[str, Any], views: Mapping[str, TaskView]) -> Round:
    tasks = _tasks(derived)
    said, why = (
        found if isinstance(found := end.get(name), Mapping) else {} for name in ("tasks", "why")
    )
    numbers = {str(task["task_id"]): number for number, task in enumerate(tasks, 1)}
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
        )
        steps.append(_stand(step, str(said.get(task_id, "")), str(why.get(task_id, "")), view))
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


def _stand(step: RoundTask, said: str, wrong: str, view: TaskView | None) -> RoundTask:
    """Return a task with how it stands: as the plan's end says, else as its council does. `wrong`:
    what the plan's end says of an error.
    """
    if said == SKIPPED:
        return replace(
            step,
            stand=_WORDS[SKIPPED],
            why="what it builds on has no winner, or does not go together",
        )
    if view is None:
        return (
            replace(step, stand=_WORDS.get(said, said.lower()), why=wrong, begun=True)
            if said
            else step
        )
    status = said or (
        NO_WINNER
        if view.status is DeliberationStatus.COMPLETED and not view.winner_id
        else view.status.value
    )
    stand, why = _WORDS.get(status, status.lower()), view.error
    if stand == WON:
        why = f"{view.winner_id}, {view.level}"
    elif not view.status.ended:
        why = f"{view.progress} %"
    return replace(step, stand=stand, why=why, begun=True)


def _say_next(last: Round, state: str) -> Round:
    """Return the round that counts, with what somebody may do now about each task."""
    steps = []
    for step in last.steps:
        said = ""
        if step.stand == _WAITS:
            said = (
                "begins when the design is accepted"
                if state == "design"
                else "begins when those before it have a winner"
            )
        elif step.lost:
            said = _NEXT.get(state, "")
        steps.append(replace(step, next=said))
    return replace(last, steps=tuple(steps))


def _tasks(event: Event) -> list[Mapping[str, Any]]:
    """Return the tasks that an event derives; none for any other, or where it is malformed."""
    tasks = event.data.get("tasks") if event.type is EventType.PLAN_DERIVED else None
    return (
        [task for task in tasks if isinstance(task, Mapping) and task.get("task_id")]
        if isinstance(tasks, list | tuple)
        else []
    )
