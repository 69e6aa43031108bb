"""Deriving tasks from a story: by roles, in order, acyclic. The same input gives the same tasks
with the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from moothall.domain.ids import TaskId, check_id, derived_task_id, read_role
from moothall.domain.plan import AtomicTask, LineComment, Story, Strategy
from moothall.domain.task import Constraints
from moothall.errors import InvalidRequest

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
        criteria_groups = _groups(story.ac, strategy.per_role or 1)
        if len(tasks) + len(criteria_groups) > max_tasks:
            raise InvalidRequest(
                f"the plan has more than {max_tasks} tasks; lower max_tasks_per_role"
            )
        role_task_ids: list[TaskId] = []
        for number, criteria in enumerate(criteria_groups, 1):
            task = AtomicTask(
                task_id=derived_task_id(tenant, story.id, plan_id, role, str(number)),
                role=role,
                description=_description(story, role, criteria, chars),
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
            f"\n{number}. {_place(item)}: {item.comment}" for number, item in enumerate(remarks, 1)
        )
        rejection += f"\n\nThis was said of lines of it, which are shown below:{remark_list}"
    rejection = rejection[: chars // 2]
    return AtomicTask(
        task_id=derived_task_id(tenant, story.id, plan_id, "repair"),
        role="dev",
        description=_description(story, "dev", story.ac, chars - len(rejection) - 2).rstrip()
        + f"\n\n{rejection}",
        constraints=Constraints(requirements=story.ac),
        case_id=story.id,
        plan_id=plan_id,
        repository=replace(repository, ref=start or repository.ref) if repository else None,
        context="\n".join(
            f"{number}. {_place(item)}:\n{item.quoted}" for number, item in enumerate(remarks, 1)
        ),
    )


def _place(remark: LineComment) -> str:
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


def _groups(criteria: Sequence[str], max_groups: int) -> list[tuple[str, ...]]:
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


def _description(story: Story, role: str, criteria: Sequence[str], chars: int) -> str:
    story_text = (
        "\n\n".join(part for part in (story.title, story.brief) if part) or f"Story {story.id}."
    )
    criteria_list = "".join(f"\n- {line}" for line in criteria)
    parts = (
        f"{_ROLE_INSTRUCTIONS[role]}\n\n{story_text}",
        f"It is done when:{criteria_list}" if criteria_list else "",
    )
    return "\n\n".join(part for part in parts if part)[:chars]
