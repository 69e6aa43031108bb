"""The page of a story: its state and the next action first, then its result and the evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.board import is_working, may_merge, moves, next_step
from moothall.api.web.charts import draw
from moothall.api.web.councils import REFRESH_SECONDS
from moothall.api.web.first_steps import first_steps
from moothall.api.web.rendering import page
from moothall.api.web.sessions import Session
from moothall.api.web.story_form import may_edit
from moothall.api.web.story_result import read_councils, story_result
from moothall.domain.event import EventType
from moothall.domain.ids import new_task_id
from moothall.stories.coach import score
from moothall.stories.lifecycle import lifecycle
from moothall.stories.planner import may_change, may_retry
from moothall.stories.story_state import StoryState
from moothall.stories.task_history import rounds, task_ids

Moves = Sequence[tuple[str, str, str]]


async def story_page(dependencies: ApiDependencies, story_id: str, session: Session) -> Response:
    """Return the page of a story."""
    who = session.who
    card = await dependencies.board.card(story_id, who)
    made_moves, events, account, cards = await asyncio.gather(
        dependencies.board.moves(card.story.id, who),
        dependencies.board.history(card.story.id, who),
        dependencies.story_budgets.of(card.story.id, who.tenant, card.story.budget),
        dependencies.board.cards(who),
    )
    views = await dependencies.tasks.find_tasks(task_ids(events), who)
    story_rounds = rounds(events, views, card.position.state)
    councils = await read_councils(dependencies, card, story_rounds, who)
    possible_moves = moves(card, who)
    can_retry = may_retry(card, who)
    context: dict[str, Any] = {
        "card": card,
        "states": lifecycle().columns,
        "history": made_moves,
        "rounds": story_rounds[::-1],
        "chart": draw(story_rounds[-1].steps) if story_rounds else None,
        "budget": account.lines(),
        "spent": account.spent,
        "moves": possible_moves,
        "primary": "" if can_retry else _primary_event(card, possible_moves),
        "next_step": next_step(card, who),
        "may_change": may_change(card, who),
        "may_edit": may_edit(card, session),
        "can_retry": can_retry,
        "can_merge": may_merge(card, who),
        "delivery": card.delivery.data if card.delivery else {},
        "comments": [event for event in events if event.type is EventType.STORY_COMMENTED],
        "key": new_task_id(),
        "score": score(card.draft),
        "refresh": REFRESH_SECONDS if is_working(card) else 0,
        "seq": card.seq,
        "story_id": card.story.id,
        "first_steps": first_steps(cards),
    }

    # In a thread, because the diffs of its answers may be large.
    result = await asyncio.to_thread(story_result, card, councils, story_rounds, made_moves)
    return page("story.html", session=session, result=result, **context)


def _primary_event(card: StoryState, possible_moves: Moves) -> str:
    """Return the move that takes a story on, '' if the user cannot make it now."""
    transition = lifecycle().next_transition(card.position.state)
    open_events = {event for event, _, reason in possible_moves if not reason}
    return transition.event if transition and transition.event in open_events else ""
