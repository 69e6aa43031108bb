"""Plan documents: tasks as people and architects write them, with criteria and dependencies by
number or id. They become tasks only if they are valid: acyclic, bounded, every role known, every
criterion covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.dependency_order import DependencyOrder
from moothall.domain.ids import derived_task_id, read_role
from moothall.domain.plan import AtomicTask, Story
from moothall.domain.task import Constraints
from moothall.errors import InvalidRequest
from moothall.stories.derive import WRITING

_QUOTED_CHARS = 80


class Outline(BaseModel):
    """A task: an id of its own, a description, the numbers (from 1) of the criteria that it
    fulfils, and the ids of the tasks that it builds on.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(min_length=1, max_length=64)
    role: str
    description: str = Field(min_length=1)
    criteria: tuple[int, ...] = ()
    after: tuple[str, ...] = ()


class _Document(BaseModel):
    plan_id: str
    tasks: tuple[Outline, ...]


def read_outline(document: object) -> Outline:
    """Return a task from a document. Raises `InvalidRequest`."""
    try:
        return Outline.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(f"this is not a task: {wrong(error)}") from None


def read_outlines(text: str) -> tuple[str, tuple[Outline, ...]]:
    """Return the id of the plan that was changed, and its new tasks, from a JSON document. Raises
    `InvalidRequest`.
    """
    try:
        document = _Document.model_validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(
            f"this is not a list of tasks: {wrong(error, 'the document')}"
        ) from None
    return document.plan_id, document.tasks


def create_tasks(
    outlines: Sequence[Outline],
    story: Story,
    plan_id: str,
    *,
    tenant: str,
    max_tasks: int,
    chars: int,
) -> tuple[AtomicTask, ...]:
    """Return the tasks, each after those it builds on. A description is cut to `chars`. Raises
    `InvalidRequest` naming what is wrong with them.
    """
    outlines_by_id = {outline.id: outline for outline in outlines}
    if len(outlines_by_id) != len(outlines):
        raise InvalidRequest("two tasks have the same id")
    if len(outlines_by_id) > max_tasks:
        raise InvalidRequest(f"there are {len(outlines_by_id)} tasks; at most {max_tasks}")
    for outline in outlines:
        if unknown := [number for number in outline.criteria if not 0 < number <= len(story.ac)]:
            raise InvalidRequest(
                f"task {outline.id} names criterion {unknown[0]}, which does not exist"
            )
    covered = {number for outline in outlines for number in outline.criteria}
    if missing := set(range(1, len(story.ac) + 1)) - covered:
        first = min(missing)
        raise InvalidRequest(
            f"no task fulfils criterion {first}: {story.ac[first - 1][:_QUOTED_CHARS]}"
        )
    tasks: list[AtomicTask] = []
    for priority, name in enumerate(_sort_by_dependencies(outlines_by_id), 1):
        outline = outlines_by_id[name]
        role = read_role(outline.role)
        requirements = tuple(story.ac[number - 1] for number in dict.fromkeys(outline.criteria))
        tasks.append(
            AtomicTask(
                task_id=derived_task_id(tenant, story.id, plan_id, "architects", name),
                role=role,
                description="\n\n".join((outline.description, *_story_parts(story, requirements)))[
                    :chars
                ],
                dependencies=tuple(
                    derived_task_id(tenant, story.id, plan_id, "architects", dependency)
                    for dependency in dict.fromkeys(outline.after)
                ),
                constraints=Constraints(requirements=requirements),
                case_id=story.id,
                plan_id=plan_id,
                priority=priority,
                repository=None if role in WRITING else story.repository,
            )
        )
    return tuple(tasks)


def to_outlines(tasks: Sequence[AtomicTask], story: Story) -> tuple[Outline, ...]:
    """Return tasks in a form that can be edited: their ids are their numbers from 1, and
    descriptions do not repeat the story.
    """
    numbers = {task.task_id: str(number) for number, task in enumerate(tasks, 1)}
    return tuple(
        Outline(
            id=numbers[task.task_id],
            role=task.role,
            description=_task_text(task, story),
            criteria=tuple(
                number
                for number, line in enumerate(story.ac, 1)
                if line in task.constraints.requirements
            ),
            after=tuple(numbers[name] for name in task.dependencies if name in numbers),
        )
        for task in tasks
    )


def _task_text(task: AtomicTask, story: Story) -> str:
    """Return the description of a task without the story and its criteria, which follow it however
    it was derived.
    """
    story_text, criteria = _story_text(story), _criteria_text(task.constraints.requirements)
    for parts in (
        _story_parts(story, task.constraints.requirements),
        tuple(part for part in (story_text, criteria) if part),
    ):
        tail = "".join(f"\n\n{part}" for part in parts)
        if tail and task.description.endswith(tail) and len(task.description) > len(tail):
            return task.description.removesuffix(tail)
    return task.description


def _story_parts(story: Story, requirements: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        part
        for part in (
            f"It is part of this story:\n{_story_text(story)}",
            _criteria_text(requirements),
        )
        if part
    )


def _story_text(story: Story) -> str:
    return "\n\n".join(part for part in (story.title, story.brief) if part)


def _criteria_text(requirements: Sequence[str]) -> str:
    return (
        "It is done when:" + "".join(f"\n- {line}" for line in requirements) if requirements else ""
    )


def _sort_by_dependencies(by_id: Mapping[str, Outline]) -> Sequence[str]:
    needs = {name: task.after for name, task in by_id.items()}
    return tuple(DependencyOrder(needs, label="task", verb="builds on"))
