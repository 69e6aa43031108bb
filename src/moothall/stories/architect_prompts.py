"""Tasks by a deliberation of architects: what they are asked, and what is read from their answer.
It is text of a stranger: bounded, and taken only where it is whole: acyclic, every role known,
every criterion covered.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.ids import ROLES
from moothall.domain.plan import AtomicTask, Story
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.stories.plan_document import Outline, tasks_of

_SHAPE = (
    'Reply with one JSON document alone: {"tasks": [{"id": "a", "role": "dev", "description": '
    '"what is to be done, and where", '
    '"criteria": [1], "after": []}]}. `role` is one of %s. `criteria` are numbers of the criteria '
    "above that the task fulfils; each is "
    "fulfilled by at least one. `after` are ids of tasks whose work it builds on; what is "
    "independent is done side by side. As few tasks "
    "as do it, at most %d: one is often enough."
)
_DEEPEST = 60_000  # characters of an answer that are read


class _Answer(BaseModel):
    tasks: tuple[Outline, ...] = Field(min_length=1)


def design_task(plan_id: str) -> str:
    """Return the id of the deliberation that derives the tasks of a plan."""
    return f"design-{plan_id.removeprefix('plan-')}"


def question(
    story: Story, task_id: str, plan_id: str, *, seats: int, most: int, comment: str = ""
) -> DeliberationRequest:
    """Return what architects are asked: to divide a story into at most `most` tasks. `comment`:
    what was said when it came to them.
    """
    criteria = "\n".join(f"{number}. {line}" for number, line in enumerate(story.ac, 1)) or "(none)"
    said = f"Said when it came to you: {comment}" if comment else ""
    told = "\n\n".join(
        part for part in (story.title, story.brief, f"Criteria:\n{criteria}", said) if part
    )
    return DeliberationRequest(
        description=f"Divide this story into tasks.\n\n{told}\n\n"
        f"{_SHAPE % (', '.join(ROLES), most)}",
        role="architect",
        task_id=task_id,
        num_agents=seats,
        about_text=True,
        document="plan",
        story_id=story.id,
        plan_id=plan_id,
        origin="plan",
    )


def read_tasks(
    said: str, story: Story, plan_id: str, *, tenant: str, most: int, chars: int
) -> tuple[AtomicTask, ...]:
    """Return the tasks of an answer, each after those it builds on. Raises `InvalidRequest` that
    says what is wrong with it.
    """
    try:
        answer = _Answer.model_validate(_document(said))
    except ValidationError as error:
        raise InvalidRequest(f"the answer is no list of tasks: {wrong(error)}") from error
    return tasks_of(answer.tasks, story, plan_id, tenant=tenant, most=most, chars=chars)


def _document(said: str) -> Any:
    """Return the JSON object in a text, which may stand between other words."""
    start, end = said.find("{"), said.rfind("}")
    try:
        return json.loads(said[start : end + 1][:_DEEPEST])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the answer has no JSON document") from error
