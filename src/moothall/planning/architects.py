"""Tasks by a deliberation of architects: what they are asked, and what is read from their answer. It is text of a stranger: bounded, and
taken only where it is whole: acyclic, every role known, every criterion covered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.domain.ids import ROLES, digest, read_role
from moothall.domain.plan import AtomicTask, Story
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.planning.derive import WRITING

_SHAPE = (
    'Reply with one JSON document alone: {"tasks": [{"id": "a", "role": "dev", "description": "what is to be done, and where", '
    '"criteria": [1], "after": []}]}. `role` is one of %s. `criteria` are numbers of the criteria above that the task fulfils; each is '
    "fulfilled by at least one. `after` are ids of tasks whose work it builds on; what is independent is done side by side. As few tasks "
    "as do it, at most %d: one is often enough."
)
_DEEPEST = 60_000  # characters of an answer that are read


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(min_length=1, max_length=64)
    role: str
    description: str = Field(min_length=1)
    criteria: tuple[int, ...] = ()
    after: tuple[str, ...] = ()


class _Answer(BaseModel):
    tasks: tuple[_Task, ...] = Field(min_length=1)


def design_task(plan_id: str) -> str:
    """Return the id of the deliberation that derives the tasks of a plan."""
    return f"design-{plan_id.removeprefix('plan-')}"


def question(story: Story, task_id: str, plan_id: str, *, seats: int, most: int, comment: str = "") -> DeliberationRequest:
    """Return what architects are asked: to divide a story into at most `most` tasks. `comment`: what was said when it came to them."""
    criteria = "\n".join(f"{number}. {line}" for number, line in enumerate(story.ac, 1)) or "(none)"
    said = f"Said when it came to you: {comment}" if comment else ""
    told = "\n\n".join(part for part in (story.title, story.brief, f"Criteria:\n{criteria}", said) if part)
    return DeliberationRequest(
        description=f"Divide this story into tasks.\n\n{told}\n\n{_SHAPE % (', '.join(ROLES), most)}",
        role="architect",
        task_id=task_id,
        num_agents=seats,
        about_text=True,
        story_id=story.id,
        plan_id=plan_id,
        origin="plan",
    )


def read_tasks(said: str, story: Story, plan_id: str, *, tenant: str, most: int, chars: int) -> tuple[AtomicTask, ...]:
    """Return the tasks of an answer, each after those it builds on. Raises `InvalidRequest` that says what is wrong with it."""
    try:
        answer = _Answer.model_validate(_document(said))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"the answer is no list of tasks: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    by_id = {task.id: task for task in answer.tasks}
    if len(by_id) != len(answer.tasks):
        raise InvalidRequest("two tasks have one id")
    if len(by_id) > most:
        raise InvalidRequest(f"there are {len(by_id)} tasks; at most {most}")
    covered = {number for task in answer.tasks for number in task.criteria}
    if missing := set(range(1, len(story.ac) + 1)) - covered:
        raise InvalidRequest(f"no task fulfils criterion {min(missing)}")
    if covered - set(range(1, len(story.ac) + 1)):
        raise InvalidRequest("a task names a criterion that there is not")
    made: list[AtomicTask] = []
    for place, name in enumerate(_order(by_id), 1):
        task = by_id[name]
        role = read_role(task.role)
        wanted = tuple(story.ac[number - 1] for number in dict.fromkeys(task.criteria))
        made.append(
            AtomicTask(
                task_id=_task_id(tenant, story, plan_id, name),
                role=role,
                description=_told(story, task, wanted)[:chars],
                dependencies=tuple(_task_id(tenant, story, plan_id, other) for other in dict.fromkeys(task.after)),
                constraints=Constraints(requirements=wanted),
                case_id=story.id,
                plan_id=plan_id,
                priority=place,
                repository=None if role in WRITING else story.repository,
            )
        )
    return tuple(made)


def _document(said: str) -> Any:
    """Return the JSON object in a text, which may stand between other words."""
    start, end = said.find("{"), said.rfind("}")
    try:
        return json.loads(said[start : end + 1][:_DEEPEST])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the answer has no JSON document") from error


def _order(by_id: Mapping[str, _Task]) -> Sequence[str]:
    if unknown := {other for task in by_id.values() for other in task.after} - set(by_id):
        raise InvalidRequest(f"a task builds on {min(unknown)[:64]!r}, which there is not")
    try:
        return tuple(TopologicalSorter({name: dict.fromkeys(task.after) for name, task in by_id.items()}).static_order())
    except CycleError as error:
        raise InvalidRequest("the tasks wait for each other in a circle") from error


def _task_id(tenant: str, story: Story, plan_id: str, name: str) -> str:
    return f"task-{digest(tenant, story.id, plan_id, 'architects', name)[:16]}"


def _told(story: Story, task: _Task, wanted: Sequence[str]) -> str:
    done = "".join(f"\n- {line}" for line in wanted)
    about = "\n\n".join(part for part in (story.title, story.brief) if part)
    return "\n\n".join(
        part
        for part in (task.description, f"It is part of this story:\n{about}", f"It is done when:{done}" if wanted else "")
        if part
    )
