"""The life cycle of a story: the transition table and its conditions, which nothing bypasses."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moothall.errors import InvalidRequest, Permanent, Refused
from moothall.stories.lifecycle import Blocked, Lifecycle, Need, StoryPosition, decide, lifecycle

EVENTS = sorted({item.event for item in lifecycle().transitions})
ROLES = ["po", "qa", "architect", "operator", "system", "dev"]
FACTS = [need for need in get_args(Need) if need != "ready"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("event"),
            st.sampled_from([*EVENTS, "planning", ""]),
            st.sets(st.sampled_from(ROLES)),
        ),
        st.tuples(st.just("fact"), st.sampled_from(FACTS), st.just(frozenset())),
        st.tuples(st.just("points"), st.integers(0, 100), st.just(frozenset())),
    ),
    max_size=40,
)
WAY = [
    ("refine", "po", None),
    ("submit", "po", None),
    ("accept_design", "architect", "planned"),
    ("build", "system", "built"),
    ("accept_test", "qa", "checked"),
    ("accept", "po", None),
]


def test_a_story_goes_from_backlog_to_done() -> None:
    position, states = StoryPosition(lifecycle().start, points=100), []
    for event, role, fact in WAY:
        if fact:
            with pytest.raises(Blocked):
                decide(position, event, [role])
            position = position.record(fact)  # type: ignore[arg-type]
        position = decide(position, event, [role])
        states.append(position.state)
    assert states == ["draft", "design", "build", "test", "docs", "done"]
    with pytest.raises(InvalidRequest, match="the story has ended"):
        decide(position, "accept", ["po"])
    with pytest.raises(Refused):
        decide(position.record("failed"), "reopen", ["po"])
    with pytest.raises(Blocked, match="still merges with the base"):
        decide(position, "reopen", ["system"])
    assert decide(position.record("failed"), "reopen", ["system"]).state == "build"


@pytest.mark.parametrize(("rigor", "points"), [("L0", 50), ("L1", 75), ("L2", 85), ("L3", 90)])
def test_a_draft_needs_the_points_of_its_rigor_level(rigor: str, points: int) -> None:
    assert decide(StoryPosition("draft", rigor, points), "submit", ["po"]).state == "design"
    with pytest.raises(Blocked, match=f"gives it {points - 1} points, and {rigor} needs {points}"):
        decide(StoryPosition("draft", rigor, points - 1), "submit", ["po"])


@pytest.mark.parametrize(
    ("state", "event", "roles", "error", "message"),
    [
        (
            "draft",
            "accept",
            ["po"],
            InvalidRequest,
            "is not possible for a story in draft; possible are shelve, submit",
        ),
        ("backlog", "refine", ["qa", "operator"], Refused, "needs one of the roles po"),
        (
            "build",
            "build",
            ["po", "qa", "architect", "operator"],
            Refused,
            "needs one of the roles system",
        ),
        ("test", "accept_test", ["qa"], Blocked, "not checked as a whole"),
    ],
)
def test_a_refused_transition_names_what_is_missing(
    state: str, event: str, roles: list[str], error: type[Permanent], message: str
) -> None:
    with pytest.raises(error, match=message):
        decide(StoryPosition(state, points=100), event, roles)


def test_evidence_is_valid_only_in_its_state() -> None:
    position = decide(
        StoryPosition("design", points=100).record("planned"), "accept_design", ["architect"]
    )
    position = decide(position.record("built"), "build", ["system"])
    position = decide(position.record("checked"), "reject_test", ["qa"])
    with pytest.raises(Blocked, match="not all done"):
        decide(position, "build", ["system"])


@given(STEPS)
def test_no_sequence_reaches_an_undefined_state_or_skips_required_evidence(
    steps: list[tuple[str, object, set[str]]],
) -> None:
    table, position = lifecycle(), StoryPosition(lifecycle().start)
    since: set[object] = set()  # facts recorded since the state was entered
    for kind, value, roles in steps:
        if kind == "fact":
            position = position.record(value)  # type: ignore[arg-type]
            since.add(value)
        elif kind == "points":
            position = StoryPosition(
                position.state, position.rigor, int(str(value)), position.facts
            )
        else:
            position_before = position
            try:
                position = decide(position, str(value), roles)
            except Permanent:
                assert position == position_before
                continue
            (line,) = [
                item
                for item in table.transitions
                if (item.source, item.event) == (position_before.state, value)
            ]
            assert set(line.by) & roles
            assert {need for need in line.needs if need != "ready"} <= since
            assert (
                "ready" not in line.needs
                or position_before.points >= table.ready[position_before.rigor]
            )
            since = set()
        assert position.state in table.order


@pytest.mark.parametrize(
    "changed",
    [
        {"end": ["done", "gone"]},
        {"start": "nowhere"},
        {"roles": {"L0": ["dev"]}},
        {"transitions": [{"event": "a", "from": "backlog", "to": "lost", "by": ["po"]}]},
        {"transitions": [{"event": "a", "from": "backlog", "to": "done", "by": ["boss"]}]},
        {"transitions": [{"event": "a", "from": "backlog", "to": "done", "by": ["po"]}] * 2},
    ],
)
def test_an_invalid_table_is_refused(changed: dict[str, object]) -> None:
    valid_table = {
        "start": "backlog",
        "end": ["done"],
        "ready": {},
        "roles": {},
        "transitions": [{"event": "a", "from": "backlog", "to": "done", "by": ["po"]}],
    }
    Lifecycle.model_validate(valid_table)
    with pytest.raises(ValidationError):
        Lifecycle.model_validate(valid_table | changed)


def test_people_can_advance_a_story_or_send_it_back() -> None:
    ways = {
        state: [
            line and line.event
            for line in (
                lifecycle().next_transition(state),
                lifecycle().next_transition(state, back=True),
            )
        ]
        for state in lifecycle().order
    }
    assert ways == {
        "backlog": ["refine", None],
        "draft": ["submit", "shelve"],
        "design": ["accept_design", "reject_design"],
        "build": [None, "reject_build"],
        "test": ["accept_test", "reject_test"],
        "docs": ["accept", "reject"],
        "done": [None, None],
        "archived": [None, None],
    }
