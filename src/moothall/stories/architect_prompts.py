"""Tasks from a deliberation of architects: the request, and the tasks in the answer.

The answer is untrusted text. It is bounded, and accepted only if it is valid: acyclic, every role
known, every criterion covered.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.ids import ROLES, TaskId
from moothall.domain.plan import AtomicTask, Story
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.stories.plan_document import Outline, create_tasks

_ANSWER_FORMAT = (
    'Reply with one JSON document alone: {"tasks": [{"id": "a", "role": "dev", "description": '
    '"what is to be done, and where", '
    '"criteria": [1], "after": []}]}. `role` is one of %s. `criteria` are numbers of the criteria '
    "above that the task fulfils; each is "
    "fulfilled by at least one. `after` are ids of tasks whose work it builds on; what is "
    "independent is done side by side. As few tasks "
    "as do it, at most %d: one is often enough."
)
_MAX_ANSWER_CHARS = 60_000


class _Answer(BaseModel):
    tasks: tuple[Outline, ...] = Field(min_length=1)


def design_task(plan_id: str) -> TaskId:
    """Return the id of the deliberation that derives the tasks of a plan."""
    return TaskId(f"design-{plan_id.removeprefix('plan-')}")


def design_request(
    story: Story, task_id: TaskId, plan_id: str, *, seats: int, max_tasks: int, comment: str = ""
) -> DeliberationRequest:
    """Return the request to architects to divide a story into at most `max_tasks` tasks. `comment`
    is the comment with which the story moved to design.
    """
    criteria = "\n".join(f"{number}. {line}" for number, line in enumerate(story.ac, 1)) or "(none)"
    comment_text = f"Said when it came to you: {comment}" if comment else ""
    story_text = "\n\n".join(
        part for part in (story.title, story.brief, f"Criteria:\n{criteria}", comment_text) if part
    )
    return DeliberationRequest(
        description=f"Divide this story into tasks.\n\n{story_text}\n\n"
        f"{_ANSWER_FORMAT % (', '.join(ROLES), max_tasks)}",
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
    answer_text: str, story: Story, plan_id: str, *, tenant: str, max_tasks: int, chars: int
) -> tuple[AtomicTask, ...]:
    """Return the tasks of an answer, each after those it builds on. Raises `InvalidRequest` naming
    what is wrong with it.
    """
    try:
        answer = _Answer.model_validate(_document(answer_text))
    except ValidationError as error:
        raise InvalidRequest(f"the answer is not a list of tasks: {wrong(error)}") from error
    return create_tasks(
        answer.tasks, story, plan_id, tenant=tenant, max_tasks=max_tasks, chars=chars
    )


def _document(text: str) -> Any:
    """Return the JSON object in a text, which may have other text around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1][:_MAX_ANSWER_CHARS])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the answer has no JSON document") from error
