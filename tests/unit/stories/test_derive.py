from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.ids import ROLES, TaskId
from moothall.domain.plan import AtomicTask, Story, Strategy
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.stories.plans import check_plan, derive, sort_roles

PLAIN = Strategy()
STORY = Story(
    "story-1",
    "Greet",
    "Say hello",
    ("says hello", "says goodbye", "is polite"),
    RepositoryRef(id="repo"),
)


def derive_tasks(
    roles: list[str], strategy: Strategy = PLAIN, story: Story = STORY, tenant: str = "local"
) -> tuple[AtomicTask, ...]:
    return derive(story, "plan-1", roles, strategy, tenant=tenant, max_tasks=64, chars=20_000)


roles = st.lists(st.sampled_from([*ROLES, "DEV", " Qa "]), max_size=8)
counts = st.integers(0, 4)


@given(
    roles,
    st.booleans(),
    counts,
    st.randoms(),
    st.lists(st.text(min_size=1, max_size=5), max_size=6),
)
def test_derived_tasks_are_acyclic_ordered_and_deterministic(
    requested_roles: list[str],
    parallel: bool,  # noqa: FBT001 - drawn
    per_role: int,
    random: object,
    ac: list[str],
) -> None:
    sorted_roles = sort_roles(requested_roles, ())
    order = list(sorted_roles)
    random.shuffle(order)  # type: ignore[attr-defined]
    strategy = Strategy(parallel, tuple(order), per_role)
    story = Story("story-1", "t", "b", tuple(ac))
    tasks = derive_tasks(requested_roles, strategy, story)
    check_plan(tasks, 64)
    assert tasks == derive_tasks(requested_roles, strategy, story)
    assert [task.priority for task in tasks] == list(range(1, len(tasks) + 1))
    by_id = {task.task_id: task for task in tasks}
    assert list(dict.fromkeys(task.role for task in tasks)) == order
    for task in tasks:
        for name in task.dependencies:
            earlier = by_id[name]
            assert earlier.priority < task.priority
            assert order.index(earlier.role) <= order.index(task.role)
            assert not (parallel and earlier.role == task.role)
        if task.role != order[0]:
            assert task.dependencies
    for role in order:
        mine = [task for task in tasks if task.role == role]
        assert [line for task in mine for line in task.constraints.requirements] == ac
        assert len(mine) == max(1, min(per_role or 1, len(ac)))


def test_the_built_in_order_puts_design_before_code_before_tests() -> None:
    assert [task.role for task in derive_tasks(["QA", "DEV", "ARCHITECT"])] == [
        "architect",
        "dev",
        "qa",
    ]
    assert [task.role for task in derive_tasks([])] == ["architect", "dev", "qa"]


def test_tasks_are_sequential_or_parallel() -> None:
    first_task, second_task, third_task, test = derive_tasks(["dev", "qa"], Strategy(per_role=3))[
        :4
    ]
    assert [first_task.dependencies, second_task.dependencies, third_task.dependencies] == [
        (),
        (first_task.task_id,),
        (second_task.task_id,),
    ]
    assert test.dependencies == (third_task.task_id,)
    a, b, c, d = derive_tasks(["dev", "qa"], Strategy(parallel=True, per_role=3))[:4]
    assert a.dependencies == b.dependencies == c.dependencies == ()
    assert d.dependencies == (a.task_id, b.task_id, c.task_id)


def test_text_tasks_get_no_repository_and_code_tasks_do() -> None:
    design, code = derive_tasks(["architect", "dev"])
    assert design.repository is None
    assert code.repository == RepositoryRef(id="repo")
    assert "Greet" in code.description
    assert "- is polite" in code.description


def test_tasks_of_two_tenants_have_different_ids() -> None:
    mine, hers = derive_tasks(["dev"]), derive_tasks(["dev"], tenant="elsewhere")
    assert {task.task_id for task in mine}.isdisjoint(task.task_id for task in hers)


@pytest.mark.parametrize(
    ("requested_roles", "strategy", "message"),
    [
        (["wizard"], Strategy(), "unknown role 'wizard'; the roles are dev, qa"),
        (["dev", "qa"], Strategy(order=("dev", "qa", "dev")), "has a cycle: dev → qa → dev"),
        (["dev"], Strategy(order=("qa",)), "names qa, which is not among the roles dev"),
        (["dev"], Strategy(order=("nobody",)), "unknown role"),
        (["dev"], Strategy(per_role=-1), "max_tasks_per_role is -1"),
    ],
)
def test_errors_of_a_derivation_are_named(
    requested_roles: list[str], strategy: Strategy, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        derive_tasks(requested_roles, strategy)


def test_the_number_of_tasks_in_a_plan_is_limited() -> None:
    with pytest.raises(InvalidRequest, match=r"more than \d tasks"):
        derive(
            STORY,
            "plan-1",
            ["dev", "qa"],
            Strategy(per_role=3),
            tenant="local",
            max_tasks=5,
            chars=100,
        )


A, B = TaskId("a"), TaskId("b")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (
            [AtomicTask(A, "dev", "x", (B,)), AtomicTask(B, "dev", "x", (A,))],
            "depends on b, which is not an earlier",
        ),
        ([AtomicTask(A, "dev", "x", (A,))], "depends on a"),
        ([AtomicTask(A, "dev", "x"), AtomicTask(A, "qa", "x")], "twice"),
        ([AtomicTask(TaskId("A/../b"), "dev", "x")], "is not an id"),
        ([AtomicTask(A, "wizard", "x")], "unknown role"),
    ],
)
def test_a_plan_from_the_bus_is_validated(tasks: list[AtomicTask], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_plan(tasks, 64)
