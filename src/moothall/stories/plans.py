"""Requests for the tasks of a plan. Deriving tasks from a story: by roles, in order, acyclic.
Plan documents: tasks as people and architects write them, with criteria and dependencies by
number or id. Tasks from a deliberation of architects: the request, and the tasks in the
answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moothall.config import LimitSettings
from moothall.domain.codec import describe_errors
from moothall.domain.ids import ROLES, TaskId, check_id, derived_task_id, digest, read_role
from moothall.domain.outcome import Outcome
from moothall.domain.plan import AtomicTask, DependencyOrder, LineComment, Story, Strategy
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest

# Requests for the tasks of a plan.


def task_request(
    task: AtomicTask,
    limits: LimitSettings,
    commits: Sequence[str] = (),
    outcomes: Sequence[Outcome] = (),
) -> DeliberationRequest:
    """Return the request for a task.

    `commits` are the commits with the work of earlier tasks, `outcomes` their outcomes. The council
    starts from the first commit, and its context has the answers of earlier text tasks.
    """
    repository = task.repository
    if repository is not None and commits:
        repository = RepositoryRef(id=repository.id, url=repository.url, ref=commits[0])
    texts = [task.context] if task.context else []
    texts += [
        f"{outcome.role}: {outcome.results[0].content}"
        for outcome in outcomes
        if outcome.results and not outcome.commit_sha
    ]
    # Prompts count three characters a token, and a longer context is refused.
    chars_per_text = limits.context_tokens * 3 // max(1, len(texts))
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
        context="\n\n".join(text[: chars_per_text - 10] for text in texts),
    )


# Deriving tasks from a story: by roles, in order, acyclic. The same input gives the same tasks with
# the same ids.


ORDER = ("po", "architect", "data", "dev", "devops", "qa")
"""The default order of roles."""
DEFAULT_ROLES = ("architect", "dev", "qa")
MAX_PLAN_TASKS = 64
WRITING = frozenset({"architect", "po"})
"""Roles whose tasks produce text: their answers are context for later tasks."""

_ROLE_INSTRUCTIONS = {
    "po": "Say in checkable words what the user needs of this story.",
    "architect": "Design this story: structure, interfaces, what it costs and what is left out.",
    "data": "Do the data work of this story: shapes, migrations, edge cases.",
    "dev": "Implement this story: working code, the smallest change that does it.",
    "devops": "Make this story run: configuration, deployment, observability.",
    "qa": "Test this story: tests that fail where it is not done.",
}


def derive(
    story: Story,
    plan_id: str,
    roles: Sequence[str],
    strategy: Strategy,
    *,
    tenant: str,
    max_tasks: int,
    chars: int,
) -> tuple[AtomicTask, ...]:
    """Return the tasks in the order in which they are done: a task depends on earlier ones only.

    `max_tasks` limits their number, `chars` the length of a description. Raises `InvalidRequest`
    for an unknown role, a cycle in the order of roles, and too many tasks.
    """
    check_id(story.id, "case_id")
    check_id(plan_id, "plan_id")
    if strategy.per_role < 0:
        raise InvalidRequest(
            f"max_tasks_per_role is {strategy.per_role}; allowed are whole numbers from 0 (one)"
        )
    tasks: list[AtomicTask] = []
    predecessors: tuple[TaskId, ...] = ()
    for role in sort_roles(roles, strategy.order):
        criteria_groups = _group_criteria(story.ac, strategy.per_role or 1)
        if len(tasks) + len(criteria_groups) > max_tasks:
            raise InvalidRequest(
                f"the plan has more than {max_tasks} tasks; lower max_tasks_per_role"
            )
        role_task_ids: list[TaskId] = []
        for number, criteria in enumerate(criteria_groups, 1):
            task = AtomicTask(
                task_id=derived_task_id(tenant, story.id, plan_id, role, str(number)),
                role=role,
                description=_task_description(story, role, criteria, chars),
                dependencies=predecessors
                if strategy.parallel or not role_task_ids
                else (role_task_ids[-1],),
                constraints=Constraints(requirements=criteria),
                case_id=story.id,
                plan_id=plan_id,
                priority=len(tasks) + 1,
                repository=None if role in WRITING else story.repository,
            )
            tasks.append(task)
            role_task_ids.append(task.task_id)
        predecessors = tuple(role_task_ids) if strategy.parallel else (role_task_ids[-1],)
    return tuple(tasks)


def repair_task(
    story: Story,
    plan_id: str,
    comment: str,
    start: str,
    *,
    tenant: str,
    chars: int,
    remarks: Sequence[LineComment] = (),
) -> AtomicTask:
    """Return the task of a story that was sent back with a comment and remarks on lines. It starts
    from the commit `start` if there is one.

    The task is what people wrote. The lines themselves, which a model wrote, are its context.
    """
    repository = story.repository
    rejection = f"What was built for this story was sent back{': ' if comment else '.'}{comment}"
    if remarks:
        remark_list = "".join(
            f"\n{number}. {_describe_place(item)}: {item.comment}"
            for number, item in enumerate(remarks, 1)
        )
        rejection += f"\n\nThis was said of lines of it, which are shown below:{remark_list}"
    rejection = rejection[: chars // 2]
    return AtomicTask(
        task_id=derived_task_id(tenant, story.id, plan_id, "repair"),
        role="dev",
        description=_task_description(story, "dev", story.ac, chars - len(rejection) - 2).rstrip()
        + f"\n\n{rejection}",
        constraints=Constraints(requirements=story.ac),
        case_id=story.id,
        plan_id=plan_id,
        repository=replace(repository, ref=start or repository.ref) if repository else None,
        context="\n".join(
            f"{number}. {_describe_place(item)}:\n{item.quoted}"
            for number, item in enumerate(remarks, 1)
        ),
    )


def _describe_place(remark: LineComment) -> str:
    """Return the place of a remark. A file's name is quoted, since it may contain anything."""
    return f"{json.dumps(remark.path)}, line {remark.line}"


def sort_roles(roles: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the roles in order. Raises `InvalidRequest` if the order names a role twice or one
    that is not among them.
    """
    all_roles = tuple(dict.fromkeys(read_role(role) for role in roles)) or DEFAULT_ROLES
    ordered = tuple(read_role(role) for role in order)
    for index, role in enumerate(ordered):
        if role in ordered[:index]:
            circle = " → ".join(ordered[ordered.index(role) : index + 1])
            raise InvalidRequest(f"dependency_order has a cycle: {circle}; name each role once")
        if role not in all_roles:
            raise InvalidRequest(
                f"dependency_order names {role}, which is not among the roles "
                f"{', '.join(all_roles)}"
            )
    return (*ordered, *(role for role in ORDER if role in all_roles and role not in ordered))


def check_plan(tasks: Iterable[AtomicTask], max_tasks: int) -> None:
    """Raise `InvalidRequest` unless there are at most `max_tasks` tasks, each with its own id and
    depending on earlier tasks only.
    """
    task_ids: set[TaskId] = set()
    for task in tasks:
        check_id(task.task_id, "task_id")
        read_role(task.role)
        if task.task_id in task_ids:
            raise InvalidRequest(f"task {task.task_id} is in the plan twice")
        missing = [name[:80] for name in task.dependencies if name not in task_ids]
        if missing:
            raise InvalidRequest(
                f"task {task.task_id} depends on {', '.join(missing)}, which is not an earlier "
                "task of the plan"
            )
        task_ids.add(task.task_id)
        if len(task_ids) > max_tasks:
            raise InvalidRequest(f"the plan has more than {max_tasks} tasks")


def _group_criteria(criteria: Sequence[str], max_groups: int) -> list[tuple[str, ...]]:
    """Divide the criteria into at most `max_groups` groups of nearly equal size. Without criteria,
    return one empty group.
    """
    count = max(1, min(max_groups, len(criteria)))
    size, remainder = divmod(len(criteria), count)
    groups, start = [], 0
    for number in range(count):
        end = start + size + (number < remainder)
        groups.append(tuple(criteria[start:end]))
        start = end
    return groups


def _task_description(story: Story, role: str, criteria: Sequence[str], chars: int) -> str:
    story_text = (
        "\n\n".join(part for part in (story.title, story.brief) if part) or f"Story {story.id}."
    )
    criteria_list = "".join(f"\n- {line}" for line in criteria)
    parts = (
        f"{_ROLE_INSTRUCTIONS[role]}\n\n{story_text}",
        f"It is done when:{criteria_list}" if criteria_list else "",
    )
    return "\n\n".join(part for part in parts if part)[:chars]


# Plan documents: tasks as people and architects write them, with criteria and dependencies by
# number or id. They become tasks only if they are valid: acyclic, bounded, every role known, every
# criterion covered.


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
        raise InvalidRequest(f"this is not a task: {describe_errors(error)}") from None


def read_outlines(text: str) -> tuple[str, tuple[Outline, ...]]:
    """Return the id of the plan that was changed, and its new tasks, from a JSON document. Raises
    `InvalidRequest`.
    """
    try:
        document = _Document.model_validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(
            f"this is not a list of tasks: {describe_errors(error, 'the document')}"
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


# Tasks from a deliberation of architects: the request, and the tasks in the answer.
#
# The answer is untrusted text. It is bounded, and accepted only if it is valid: acyclic, every role
# known, every criterion covered.


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


def plan_id_after(move_id: str) -> str:
    """Return the id of the plan of a story's stay in the state that a move entered."""
    return f"plan-{digest(move_id)[:16]}"


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
        answer = _Answer.model_validate(_parse_document(answer_text))
    except ValidationError as error:
        raise InvalidRequest(
            f"the answer is not a list of tasks: {describe_errors(error)}"
        ) from error
    return create_tasks(
        answer.tasks, story, plan_id, tenant=tenant, max_tasks=max_tasks, chars=chars
    )


def _parse_document(text: str) -> Any:
    """Return the JSON object in a text, which may have other text around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1][:_MAX_ANSWER_CHARS])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the answer has no JSON document") from error
