"""Tasks parsed from an answer of the architects: any answer gives a plan or an error with a
reason.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.ids import TaskId
from moothall.domain.plan import AtomicTask, Story
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.stories.plans import check_plan, design_request, read_tasks

STORY = Story(
    "story-1", "Export", "As a clerk, I want CSV.", ("is CSV", "is quick"), RepositoryRef(id="repo")
)
GOOD = {
    "tasks": [
        {
            "id": "t",
            "role": "qa",
            "description": "test it",
            "criteria": [1, 2],
            "after": ["a", "b"],
        },
        {"id": "a", "role": "DEV", "description": "write CSV", "criteria": [1]},
        {"id": "b", "role": "dev", "description": "be quick", "criteria": [2], "more": "words"},
        {"id": "d", "role": "architect", "description": "decide", "after": []},
    ]
}


def read_answer(answer: str, max_tasks: int = 8) -> tuple[AtomicTask, ...]:
    return read_tasks(answer, STORY, "plan-1", tenant="local", max_tasks=max_tasks, chars=1000)


def test_tasks_of_a_plan_are_ordered_by_their_dependencies() -> None:
    tasks = read_answer(f"Sure, here it is:\n```json\n{json.dumps(GOOD)}\n```\nGood luck!")
    by_role = {task.description.partition("\n")[0]: task for task in tasks}
    check_plan(tasks, 8)
    assert set(by_role["test it"].dependencies) == {
        by_role["write CSV"].task_id,
        by_role["be quick"].task_id,
    }
    assert by_role["write CSV"].constraints.requirements == ("is CSV",)
    assert by_role["write CSV"].repository == RepositoryRef(id="repo")
    assert by_role["decide"].repository is None
    assert "As a clerk" in by_role["be quick"].description
    assert read_answer(json.dumps(GOOD)) == tasks


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("I would rather not.", "no JSON document"),
        ("{" * 50_000 + "}", "no JSON document"),
        ('{"tasks": []}', "not a list of tasks: tasks"),
        (
            '{"tasks": [{"id": "a", "role": "dev", "description": "x", "criteria": [1]}]}',
            "no task fulfils criterion 2",
        ),
        (
            '{"tasks": [{"id": "a", "role": "dev", "description": "x", "criteria": [1, 2, 3]}]}',
            "which does not exist",
        ),
        (
            '{"tasks": [{"id": "a", "role": "wizard", "description": "x", "criteria": [1, 2]}]}',
            "unknown role",
        ),
        (
            (
                '{"tasks": [{"id": "a", "role": "dev", "description": "x", "criteria": [1, 2], '
                '"after": ["b"]}]}'
            ),
            "builds on 'b'",
        ),
        (
            (
                '{"tasks": [{"id": "a", "role": "dev", "description": "x", "criteria": [1, 2], '
                '"after": ["a"]}]}'
            ),
            "these tasks depend on each other",
        ),
    ],
)
def test_errors_in_an_answer_are_reported(answer: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_answer(answer)


def test_duplicate_ids_and_too_many_tasks_are_refused() -> None:
    duplicates = {"tasks": [GOOD["tasks"][1], GOOD["tasks"][1]]}
    with pytest.raises(InvalidRequest, match="the same id"):
        read_answer(json.dumps(duplicates))
    with pytest.raises(InvalidRequest, match="at most 3"):
        read_answer(json.dumps(GOOD), max_tasks=3)


IDS = st.sampled_from(["a", "b", "c", "d", ""])
TASK = st.fixed_dictionaries(
    {
        "id": IDS,
        "role": st.sampled_from(["dev", "qa", "po", "boss"]),
        "description": st.text(max_size=5),
    },
    optional={
        "criteria": st.lists(st.integers(-1, 3), max_size=3),
        "after": st.lists(IDS, max_size=3),
        "extra": st.text(max_size=3),
    },
)
ANY = st.one_of(
    st.fixed_dictionaries({"tasks": st.lists(TASK, max_size=5)}),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.dictionaries(st.just("tasks"), inner) | st.lists(inner),
    ),
)


@given(ANY)
def test_every_answer_is_a_complete_plan_or_an_error(answer: Any) -> None:
    try:
        tasks = read_answer(json.dumps(answer))
    except InvalidRequest:
        return
    check_plan(tasks, 8)
    assert {line for task in tasks for line in task.constraints.requirements} == set(STORY.ac)


def test_the_request_to_the_architects_numbers_the_criteria() -> None:
    request = design_request(STORY, TaskId("design-1"), "plan-1", seats=3, max_tasks=8)
    assert "1. is CSV\n2. is quick" in request.description
    assert (request.role, request.num_agents, request.about_text, request.story_id) == (
        "architect",
        3,
        True,
        "story-1",
    )
