"""The board: columns of cards, what needs the user, and filters in the URL."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import ServerSentEvents
from moothall.api.web.councils import follow_board
from moothall.api.web.forms import contains_words, read_query, require_session
from moothall.api.web.rendering import page, part
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.identity import Principal
from moothall.errors import Permanent
from moothall.stories.lifecycle import Blocked, decide, lifecycle
from moothall.stories.story_state import COMPLETED, FAILED, PASSED, StoryState, group_by_state

_MAX_SHOWN_CARDS = 30
"""Cards of a column that are visible, the most recently changed; the others need a click."""
_MAX_CACHED_BOARDS = 16
"""Rendered boards in the cache: a tenant's board is rendered once for all users with the same
roles and filter.
"""


@dataclass(frozen=True, slots=True)
class _Filter:
    """What the URL narrows the board to. `show` is needs-you, archived, or empty for all."""

    show: str = ""
    query: str = ""
    repository: str = ""

    @classmethod
    def of(cls, request: Request) -> _Filter:
        """Read the filter of a URL."""
        return cls(*(read_query(request, name) for name in ("show", "q", "repository")))

    def matches(self, card: StoryState, who: Principal) -> bool:
        """Return whether to show a card."""
        story = card.story
        is_archived = card.position.state in lifecycle().off_board
        if is_archived != (self.show == "archived"):
            return False
        if self.show == "needs-you" and not needs_user(card, who):
            return False
        if self.repository and story.repository_name != self.repository:
            return False
        return contains_words(f"{story.title} {story.brief} {story.id}", self.query)


def board_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the board and its changes."""
    rendered_boards: LRUCache[Hashable, Markup] = LRUCache(_MAX_CACHED_BOARDS)

    async def board(request: Request, session: Session) -> Response:
        cards, shown = await dependencies.board.cards(session.who), _Filter.of(request)
        key = session.who.all_roles, shown, tuple((card.story.id, card.seq) for card in cards)
        if (
            rendered := rendered_boards.get(key)
        ) is None:  # rendered once, however many reload after a change
            rendered = rendered_boards[key] = _render(cards, shown, session.who)
        return page("board.html", session=session, board=rendered, shown=shown)

    async def changes(_request: Request, session: Session) -> Response:
        """Notify of changes on the board, as server-sent events."""
        return ServerSentEvents(follow_board(dependencies, session.who))

    return [
        Route("/", require_session(board, sessions)),
        Route("/changes", require_session(changes, sessions)),
    ]


def _render(cards: Sequence[StoryState], shown: _Filter, who: Principal) -> Markup:
    matching = [card for card in cards if shown.matches(card, who)]
    columns = group_by_state(sorted(matching, key=lambda card: -card.seq))
    table = lifecycle()
    states = table.off_board if shown.show == "archived" else table.columns
    on_board = [card for card in cards if card.position.state in table.columns]
    return part(
        "cards.html",
        columns=[(state, columns[state]) for state in states],
        shown=shown,
        needed=sum(1 for card in on_board if needs_user(card, who)),
        total=len(on_board),
        archived=len(cards) - len(on_board),
        repositories=sorted({card.story.repository_name for card in on_board} - {""}),
        who=who,
        next_step=next_step,
        moves=moves,
        status_of=status_of,
        max_cards=_MAX_SHOWN_CARDS,
    )


def needs_user(card: StoryState, who: Principal) -> bool:
    """Return whether a story cannot go on without this user."""
    return status_of(card, who)[0] in {"needs", "lost"} and any(
        not reason for _, _, reason in moves(card, who)
    )


def status_of(card: StoryState, who: Principal) -> tuple[str, str]:
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
        mine = [event for event, _, reason in moves(card, who) if not reason]
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
    status = str(card.delivery.data.get("status")) if card.delivery else ""
    if status == FAILED:
        return "lost", "not merged"
    return "won", status if status in {"merged", "pushed"} else "done"


def moves(card: StoryState, who: Principal) -> list[tuple[str, str, str]]:
    """Return the moves that a user may make: the event, the new state, and why it is blocked (empty
    if it is not).
    """
    possible = []
    for transition in lifecycle().transitions:
        if transition.source != card.position.state or not set(transition.by) & who.all_roles:
            continue
        try:
            decide(card.position, transition.event, who.all_roles)
        except Blocked as blocked:
            possible.append((transition.event, transition.target, blocked.message))
        else:
            possible.append((transition.event, transition.target, ""))
    return possible


def next_step(card: StoryState, who: Principal) -> str:
    """Return the next step of a story and who can take it, in words."""
    transitions = [
        transition
        for transition in lifecycle().transitions_from(card.position.state)
        if transition.target not in lifecycle().off_board
    ]
    if not transitions or card.position.state in lifecycle().end:
        return "none: the story has ended"
    next_transition = max(
        transitions, key=lambda transition: lifecycle().order.index(transition.target)
    )
    try:
        decide(card.position, next_transition.event, next_transition.by)
    except Permanent as missing:
        return missing.message
    actor = "you" if set(next_transition.by) & who.all_roles else " or ".join(next_transition.by)
    return f"{next_transition.event.replace('_', ' ')} ({actor})"


def is_working(card: StoryState) -> bool:
    """Return whether the server is currently working on a story."""
    state, facts = card.position.state, card.position.facts
    if state == "test":
        return card.check is None or card.check.data.get("moved") != card.moved
    return (state == "design" and "planned" not in facts) or (
        state == "build" and card.ended is None
    )
