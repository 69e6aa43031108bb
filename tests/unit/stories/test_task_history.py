from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from moothall.domain.event import Event, EventType
from moothall.domain.ids import TaskId
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.status import TaskView
from moothall.stories.task_history import RoundTask, rounds, task_ids
from moothall.telemetry.tracing import write

TASKS = [
    {"task_id": "a", "role": "dev", "description": "first"},
    {"task_id": "b", "role": "dev", "description": "second"},
    {"task_id": "c", "role": "qa", "description": "both", "dependencies": ["a", "b"]},
]


def plan_derived(tasks: Any = TASKS, plan: str = "plan-1", **fields: Any) -> Event:
    return write(
        EventType.PLAN_DERIVED,
        "s",
        {"story_id": "s", "plan_id": plan, "tasks": tasks, "by": "roles", **fields},
        ordinal=plan,
    )


def plan_finished(plan: Event, reasons: Mapping[str, str] | None = None, **statuses: str) -> Event:
    return write(
        EventType.PLAN_FINISHED,
        "s",
        {"story_id": "s", "derivation_id": plan.id, "tasks": statuses, "why": reasons or {}},
    )


def steps(
    *history: Event, views: Mapping[TaskId, TaskView] | None = None, state: str = "build"
) -> list[RoundTask]:
    return list(rounds(history, views or {}, state)[-1].steps)


def test_a_task_without_a_council_waits_for_its_dependencies_or_the_design() -> None:
    task_steps = steps(plan_derived())
    assert [(step.number, step.status, step.after, step.begun) for step in task_steps] == [
        (1, "waits", (), False),
        (2, "waits", (), False),
        (3, "waits", (1, 2), False),
    ]
    assert task_steps[0].next == "begins at once"
    assert task_steps[2].next == "begins when those before it have a winner"
    assert steps(plan_derived(), state="design")[0].next == "begins when the design is accepted"


def test_a_running_task_has_the_status_of_its_council() -> None:
    views = {
        TaskId("a"): TaskView(
            TaskId("a"), DeliberationStatus.COMPLETED, winner_id="agent-dev-002", proven=True
        ),
        TaskId("b"): TaskView(TaskId("b"), DeliberationStatus.IN_PROGRESS, progress=45),
        TaskId("c"): TaskView(
            TaskId("c"), DeliberationStatus.IN_PROGRESS, progress=14, paused=True
        ),
    }
    task_steps = steps(plan_derived(), views=views)
    assert [(step.status, step.why, step.begun) for step in task_steps] == [
        ("won", "agent-dev-002, proven", True),
        ("at work", "45 %", True),
        ("paused", "14 %", True),
    ]
    del views[TaskId("c")]
    last = steps(plan_derived(), views=views)[-1]
    assert (last.status, last.why, last.begun) == ("waits", "", False)


def test_a_task_that_could_not_be_submitted_has_a_reason() -> None:
    plan = plan_derived()
    first, second, _ = steps(
        plan,
        plan_finished(
            plan, {"a": "the repository is gone"}, a="FAILED", b="COMPLETED", c="SKIPPED"
        ),
    )
    assert (first.status, first.why) == ("failed", "the repository is gone")
    assert second.why == ""


def test_a_task_that_ended_without_a_winner_has_a_reason_and_a_next_step() -> None:
    plan = plan_derived()
    views = {
        TaskId("a"): TaskView(
            TaskId("a"), DeliberationStatus.COMPLETED, error="no candidate passed the gates"
        )
    }
    first, second, third = steps(
        plan, plan_finished(plan, a="NO_WINNER", b="TIMEOUT", c="SKIPPED"), views=views
    )
    assert (first.status, first.why, first.lost) == (
        "no winner",
        "no candidate passed the gates",
        True,
    )
    assert "reject the build" in first.next
    assert (second.status, second.begun) == ("out of time", True)
    assert (third.status, third.begun) == ("skipped", False)
    assert "no winner" in third.why
    assert not steps(plan, plan_finished(plan, a="NO_WINNER"), state="done")[0].next


def test_only_the_last_round_has_next_steps() -> None:
    plan, repair_plan = (
        plan_derived(),
        plan_derived([{"task_id": "r", "role": "dev"}], "plan-2", by="repair"),
    )
    history = (plan, plan_finished(plan, a="NO_WINNER"), repair_plan)
    first_round, last = rounds(history, {}, "build")
    assert not any(step.next for step in first_round.steps)
    assert (last.by, last.steps[0].status) == ("repair", "waits")
    assert task_ids(history) == ("a", "b", "c", "r")


def test_the_architects_deliberation_that_derived_the_tasks_is_named() -> None:
    assert rounds([plan_derived()], {}, "build")[0].design == ""
    assert rounds([plan_derived(by="architects")], {}, "build")[0].design == "design-1"
    assert rounds([plan_derived(why="no answer")], {}, "build")[0].design == "design-1"


@pytest.mark.parametrize("tasks", [None, "x", [1], [{}], {"a": 1}])
def test_a_malformed_plan_has_no_tasks(tasks: Any) -> None:
    assert steps(plan_derived(tasks)) == []


def test_a_cancelled_task_has_the_reason_once() -> None:
    error = "Cancelled: too dear"
    views = {TaskId("a"): TaskView(TaskId("a"), DeliberationStatus.CANCELLED, error=error)}
    step = steps(plan_derived(), views=views)[0]
    assert (step.status, step.why) == ("cancelled", "too dear")
