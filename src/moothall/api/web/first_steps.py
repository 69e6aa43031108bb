"""The first steps of a new user: shown until a story is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.stories.lifecycle import lifecycle
from moothall.stories.story_state import StoryState


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A step, and the page on which it is done. `status` is done, current or open."""

    title: str
    text: str
    link: str
    status: str


_STEPS = (
    ("Write a story", "Say what you want, and the criteria that show it is done."),
    ("Accept the design", "Councils divide the story into tasks. Read them, and accept."),
    ("Decide on the evidence", "Other councils build and check them. Accept, or send back."),
)
_DECIDED_IN = ("design", "test")
"""The states in which the second and the third step are taken."""


def first_steps(cards: Sequence[StoryState]) -> Sequence[FirstStep]:
    """Return the first steps with their status. Return none once a story is done."""
    order = lifecycle().order
    if any(card.position.state in lifecycle().end for card in cards):
        return ()
    on_board = [card for card in cards if card.position.state in lifecycle().columns]
    furthest = max((order.index(card.position.state) for card in on_board), default=-1)
    taken = 1 + (furthest > order.index(_DECIDED_IN[0])) if on_board else 0
    waiting = {card.position.state: card.story.id for card in on_board}
    latest = max(on_board, key=lambda card: card.seq).story.id if on_board else ""
    links = ["/stories/new", *(f"/stories/{waiting.get(state, latest)}" for state in _DECIDED_IN)]
    return [
        FirstStep(
            title,
            text,
            links[place],
            "done" if place < taken else "current" if place == taken else "open",
        )
        for place, (title, text) in enumerate(_STEPS)
    ]
