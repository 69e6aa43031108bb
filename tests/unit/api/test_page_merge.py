"""Texts for different users about a story whose merge policy left it on a branch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moothall.api.web.story_page import is_working, may_merge, next_step, status_of
from moothall.domain.event import EventType
from moothall.domain.ids import Principal
from moothall.domain.plan import Story
from moothall.stories.lifecycle import StoryPosition
from moothall.stories.story_state import StoryState
from moothall.telemetry.tracing import write

_DELIVERY = {"story_id": "story-1", "status": "left", "branch": "b", "commit_sha": "c", "moved": ""}
LEFT = StoryState(
    Story("story-1", "Export"),
    StoryPosition("done"),
    created=True,
    delivery=write(EventType.STORY_DELIVERED, "story-1", _DELIVERY),
)


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (Principal("pat", "local", roles=frozenset({"po"})), True),
        (Principal("olive", "local", operator=True), True),
        (Principal("quinn", "local", roles=frozenset({"qa", "architect"})), False),
    ],
    ids=["product owner", "operator", "tester"],
)
def test_the_merge_button_is_shown_to_users_who_may_merge(
    principal: Principal,
    allowed: bool,  # noqa: FBT001 - a table's column
) -> None:
    assert may_merge(LEFT, principal) is allowed
    assert next_step(LEFT, principal) == (
        "merge the result" if allowed else "merge the result (po or operator)"
    )
    with_request = replace(
        LEFT, merge_request=write(EventType.STORY_MERGE_REQUESTED, "story-1", {})
    )
    assert not may_merge(with_request, principal), "it is requested already"
    assert is_working(with_request)
    assert status_of(with_request, principal) == ("running", "merging")
    assert next_step(with_request, principal) == "the result is merged"
