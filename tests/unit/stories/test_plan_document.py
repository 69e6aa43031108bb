"""Tasks in a plan document: a derived plan is unchanged when it is written and read; incomplete
ones are reported.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.plan import AtomicTask, Story, Strategy
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.stories.plans import (
    Outline,
    check_plan,
    create_tasks,
    derive,
    read_outlines,
    to_outlines,
)

STORY = Story(
    "story-1", "Export", "As a clerk, I want CSV.", ("is CSV", "is quick"), RepositoryRef(id="repo")
)
ONE = Outline(id="1", role="dev", description="Write CSV.\n\nIn two steps.", criteria=(1,))
TWO = Outline(id="2", role="qa", description="Test it.", criteria=(1, 2), after=("1",))


def make_tasks(
    *outlines: Outline, story: Story = STORY, max_tasks: int = 8
) -> tuple[AtomicTask, ...]:
    return create_tasks(
        outlines, story, "plan-1", tenant="local", max_tasks=max_tasks, chars=10_000
    )


@pytest.mark.parametrize(
    "story", [STORY, replace(STORY, ac=()), replace(STORY, title="", brief="")]
)
def test_tasks_round_trip_through_the_document(story: Story) -> None:
    outlines = tuple(
        outline.model_copy(update={"criteria": outline.criteria if story.ac else ()})
        for outline in (ONE, TWO)
    )
    assert to_outlines(make_tasks(*outlines, story=story), story) == outlines


def test_tasks_derived_by_roles_can_be_shown_and_edited_as_a_document() -> None:
    tasks = derive(
        STORY,
        "plan-0",
        ["dev", "qa"],
        Strategy(per_role=2),
        tenant="local",
        max_tasks=8,
        chars=10_000,
    )
    outlines = to_outlines(tasks, STORY)
    assert [(outline.role, outline.criteria, outline.after) for outline in outlines] == [
        ("dev", (1,), ()),
        ("dev", (2,), ("1",)),
        ("qa", (1,), ("2",)),
        ("qa", (2,), ("3",)),
    ]
    assert (
        outlines[0].description
        == "Implement this story: working code, the smallest change that does it."
    )
    assert "As a clerk" in make_tasks(*outlines)[0].description


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["dev", "qa", "po"]),
            st.text("ab\n", min_size=1),
            st.sets(st.integers(1, 2)),
        ),
        max_size=6,
    )
)
def test_any_document_round_trips_through_tasks(
    parts: list[tuple[str, str, set[int]]],
) -> None:
    outlines = [
        Outline(
            id=str(number),
            role=role,
            description=words,
            criteria=tuple(sorted(criteria)),
            after=(str(number - 1),) if number > 1 else (),
        )
        for number, (role, words, criteria) in enumerate([*parts, ("dev", "a", {1, 2})], 1)
    ]
    tasks = make_tasks(*outlines)
    check_plan(tasks, 8)
    assert list(to_outlines(tasks, STORY)) == outlines


@pytest.mark.parametrize(
    ("outlines", "message"),
    [
        ((ONE,), "no task fulfils criterion 2: is quick"),
        (
            (ONE, TWO.model_copy(update={"criteria": (2, 3)})),
            "task 2 names criterion 3, which does not exist",
        ),
        (
            (ONE, TWO.model_copy(update={"after": ("7",)})),
            "task 2 builds on '7', which does not exist",
        ),
        ((ONE.model_copy(update={"after": ("2",)}), TWO), "these tasks depend on each other: "),
        ((ONE, ONE, TWO), "two tasks have the same id"),
        ((ONE, TWO.model_copy(update={"role": "boss"})), "unknown role 'boss'; the roles are"),
    ],
)
def test_incomplete_data_is_reported(outlines: tuple[Outline, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_tasks(*outlines)
    with pytest.raises(InvalidRequest, match="there are 2 tasks; at most 1"):
        make_tasks(ONE, TWO, max_tasks=1)


@pytest.mark.parametrize(
    "document",
    ["", "[]", "{}", '{"plan_id": "p", "tasks": [{"id": ""}]}', '{"plan_id": 1, "tasks": []}'],
)
def test_an_invalid_list_of_tasks_is_refused(document: str) -> None:
    with pytest.raises(InvalidRequest, match="this is not a list of tasks: "):
        read_outlines(document)


def test_a_document_is_read_as_it_was_written() -> None:
    document: dict[str, Any] = {
        "version": 1,
        "plan_id": "plan-0",
        "tasks": [ONE.model_dump(), TWO.model_dump()],
    }
    assert read_outlines(json.dumps(document)) == ("plan-0", (ONE, TWO))
