"""The first steps: the completed ones follow from the stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moothall.api.web.story_page import first_steps
from moothall.domain.plan import Story
from moothall.stories.lifecycle import StoryPosition
from moothall.stories.story_state import StoryState


def card(name: str, state: str, seq: int = 1) -> StoryState:
    return StoryState(Story(name, "A title"), StoryPosition(state), seq, created=True)


@pytest.mark.parametrize(
    ("states", "statuses"),
    [
        ((), ["current", "open", "open"]),
        (("archived",), ["current", "open", "open"]),
        (("backlog",), ["done", "current", "open"]),
        (("design", "backlog"), ["done", "current", "open"]),
        (("build", "draft"), ["done", "done", "current"]),
        (("test",), ["done", "done", "current"]),
    ],
)
def test_steps_are_completed_in_order(states: tuple[str, ...], statuses: list[str]) -> None:
    cards = [card(f"story-{number}", state, number) for number, state in enumerate(states)]
    assert [step.status for step in first_steps(cards)] == statuses


def test_a_step_links_to_the_story_that_needs_it() -> None:
    cards = [card("story-a", "design", 1), card("story-b", "backlog", 2)]
    assert [step.link for step in first_steps(cards)][:2] == ["/stories/new", "/stories/story-a"]
    cards.append(card("story-c", "test", 3))
    assert first_steps(cards)[2].link == "/stories/story-c"
    assert first_steps([card("story-b", "draft")])[1].link == "/stories/story-b"


def test_no_steps_are_shown_once_a_story_was_done() -> None:
    finished = card("story-a", "done")
    assert first_steps([finished]) == ()
    assert first_steps([replace(finished, seq=2), card("story-b", "backlog")]) == ()
