"""What the page says about a story: its status for a user, the possible moves and the next step.
The first steps of a new user: shown until a story is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moothall.domain.identity import Principal
from moothall.domain.text import contains_words
from moothall.errors import Permanent
from moothall.stories.lifecycle import Blocked, decide, lifecycle
from moothall.stories.story_state import COMPLETED, FAILED, MERGE_ROLES, PASSED, StoryState

# What the page says about a story: its status for a user, the possible moves and the next step.


def matches(card: StoryState, query: str) -> bool:
    """Return whether a story contains every word of a query."""
    return contains_words(f"{card.story.title} {card.story.brief} {card.story.id}", query)


def needs_user(card: StoryState, principal: Principal) -> bool:
    """Return whether a story cannot go on without this user."""
    return status_of(card, principal)[0] in {"needs", "lost"} and any(
        not reason for _, _, reason in moves(card, principal)
    )


def count_needed(cards: Iterable[StoryState], principal: Principal) -> int:
    """Return how many stories on the board cannot go on without this user."""
    columns = lifecycle().columns
    return sum(card.position.state in columns and needs_user(card, principal) for card in cards)


def status_of(card: StoryState, principal: Principal) -> tuple[str, str]:
    """Return the status of a story for a user: a tone (running, needs, won, lost, open) and a few
    words.
    """
    state = card.position.state
    if state == "done":
        return _delivered(card)
    if is_working(card):
        return "running", "running"
    if state in {"build", "test"} and (failure := _failure(card)):
        return "lost", failure
    if state in {"design", "test", "docs"}:
        mine = [event for event, _, reason in moves(card, principal) if not reason]
        return ("needs", "needs you") if mine else ("open", "waits for others")
    if (card.entered.data.get("event") if card.entered else "") == "stop":
        return "open", "stopped"
    return "open", ""


def _failure(card: StoryState) -> str:
    """Return what failed in a story's build or test, '' for nothing."""
    end, check = card.ended, card.check
    if card.position.state == "build":
        has_failed = end is not None and end.data.get("status") != COMPLETED
        return "build failed" if has_failed else ""
    return "check failed" if check is not None and check.data.get("status") != PASSED else ""


def _delivered(card: StoryState) -> tuple[str, str]:
    if card.merge_request is not None:
        return "running", "merging"
    status = str(card.delivery.data.get("status")) if card.delivery else ""
    if status == FAILED:
        return "lost", "not merged"
    return "won", status if status in {"merged", "pushed"} else "done"


def moves(card: StoryState, principal: Principal) -> list[tuple[str, str, str]]:
    """Return the moves that a user may make: the event, the new state, and why it is blocked (empty
    if it is not).
    """
    possible = []
    for transition in lifecycle().transitions:
        if transition.source != card.position.state or not set(transition.by) & principal.all_roles:
            continue
        try:
            decide(card.position, transition.event, principal.all_roles)
        except Blocked as blocked:
            possible.append((transition.event, transition.target, blocked.message))
        else:
            possible.append((transition.event, transition.target, ""))
    return possible


def may_merge(card: StoryState, principal: Principal) -> bool:
    """Return whether a user can have a story merged now."""
    is_open = card.is_unmerged and card.merge_request is None
    return is_open and bool(set(MERGE_ROLES) & principal.all_roles)


def next_step(card: StoryState, principal: Principal) -> str:
    """Return the next step of a story and who can take it, or what the server is doing, in
    words.
    """
    if waiting := _server_step(card):
        return waiting
    transitions = [
        transition
        for transition in lifecycle().transitions_from(card.position.state)
        if transition.target not in lifecycle().off_board
    ]
    if not transitions or card.position.state in lifecycle().end:
        if card.is_unmerged:
            return "merge the result" + ("" if may_merge(card, principal) else " (po or operator)")
        return "none: the story has ended"
    next_transition = max(
        transitions, key=lambda transition: lifecycle().order.index(transition.target)
    )
    try:
        decide(card.position, next_transition.event, next_transition.by)
    except Permanent as missing:
        return _advice(card, missing.message)
    actor = (
        "you" if set(next_transition.by) & principal.all_roles else " or ".join(next_transition.by)
    )
    return f"{next_transition.event.replace('_', ' ')} ({actor})"


def _advice(card: StoryState, missing: str) -> str:
    """Return what people can do about a story that lacks something for its next move."""
    return {
        "draft": f"edit the story: {missing}",
        "build": "retry the failed tasks, or reject the build",
        "test": "reject the test; a council then repairs what failed",
    }.get(card.position.state, missing)


def _server_step(card: StoryState) -> str:
    """Return what the server is doing for a story and what follows, '' if it waits for a person."""
    state = card.position.state
    if not is_working(card):
        return ""
    return {
        "design": "the tasks are derived; then the design can be accepted",
        "build": "the councils finish; then the result is checked as a whole",
        "test": "the result is checked as a whole; then the test can be accepted",
        "done": "the result is merged",
    }[state]


def is_working(card: StoryState) -> bool:
    """Return whether the server is currently working on a story."""
    state, facts = card.position.state, card.position.facts
    if state == "done":
        return card.merge_request is not None
    if state == "test":
        return card.check is None or card.check.data.get("moved") != card.moved
    return (state == "design" and "planned" not in facts) or (
        state == "build" and card.ended is None
    )


# The first steps of a new user: shown until a story is done.


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
