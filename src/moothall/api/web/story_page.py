"""Stories on the page. A story's status for a user, its possible moves and its next step; the first
steps of a new user; the page of a story, with its result and the evidence; and its plan.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.protobuf import http_status_of
from moothall.api.web.charts import draw
from moothall.api.web.rendering import REFRESH_SECONDS, page, redirect
from moothall.api.web.results import read_councils, story_result
from moothall.api.web.sessions import Session, Sessions, read_session_form, require_session
from moothall.api.web.story_form import may_edit
from moothall.domain.event import EventType
from moothall.domain.ids import ROLES, Principal, new_task_id
from moothall.domain.text import contains_words
from moothall.errors import ConcurrentUpdate, InvalidRequest, MoothallError, Permanent
from moothall.stories.coach import score
from moothall.stories.lifecycle import Blocked, decide, lifecycle
from moothall.stories.planner import changeable, may_change, may_retry
from moothall.stories.plans import (
    Outline,
    design_task,
    plan_id_after,
    read_outline,
    to_outlines,
)
from moothall.stories.story_state import COMPLETED, FAILED, MERGE_ROLES, PASSED, StoryState
from moothall.stories.task_history import rounds, task_ids

# What the page says about a story: its status for a user, the possible moves and the next step.


def matches(card: StoryState, query: str) -> bool:
    """Return whether a story contains every word of a query."""
    return contains_words(f"{card.story.title} {card.story.brief} {card.story.id}", query)


def needs_user(card: StoryState, principal: Principal) -> bool:
    """Return whether a story cannot continue without this user."""
    return status_of(card, principal)[0] in {"needs", "lost"} and any(
        not reason for _, _, reason in moves(card, principal)
    )


def count_needed(cards: Iterable[StoryState], principal: Principal) -> int:
    """Return how many stories on the board cannot continue without this user."""
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
        own_moves = [event for event, _, reason in moves(card, principal) if not reason]
        return ("needs", "needs you") if own_moves else ("open", "waits for others")
    if (card.entered.data.get("event") if card.entered else "") == "stop":
        return "open", "stopped"
    return "open", ""


def _failure(card: StoryState) -> str:
    """Return what failed in a story's build or test, '' for nothing."""
    end_event, check = card.ended, card.check
    if card.position.state == "build":
        has_failed = end_event is not None and end_event.data.get("status") != COMPLETED
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
        return "nothing: the story has ended"
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
    taken_count = 1 + (furthest > order.index(_DECIDED_IN[0])) if on_board else 0
    waiting = {card.position.state: card.story.id for card in on_board}
    latest = max(on_board, key=lambda card: card.seq).story.id if on_board else ""
    links = ["/stories/new", *(f"/stories/{waiting.get(state, latest)}" for state in _DECIDED_IN)]
    return [
        FirstStep(
            title,
            text,
            links[place],
            "done" if place < taken_count else "current" if place == taken_count else "open",
        )
        for place, (title, text) in enumerate(_STEPS)
    ]


# The page of a story: its state and the next action first, then its result and the evidence.


Moves = Sequence[tuple[str, str, str]]


def story_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the page and of the moves of a story."""

    async def story(request: Request, session: Session) -> Response:
        return await story_page(dependencies, request.path_params["id"], session)

    async def comment(request: Request, session: Session) -> Response:
        fields, story_id = await read_session_form(request, session), request.path_params["id"]
        await dependencies.stories.board.comment(
            story_id, fields.get("comment", ""), session.principal, key=fields.get("key", "")
        )
        return redirect(f"/stories/{story_id}")

    async def retry(request: Request, session: Session) -> Response:
        await read_session_form(request, session)
        card = await dependencies.stories.plans.retry(request.path_params["id"], session.principal)
        return redirect(f"/stories/{card.story.id}")

    async def merge(request: Request, session: Session) -> Response:
        fields = await read_session_form(request, session)
        seq = fields.get("seq", "")
        card = await dependencies.stories.board.request_merge(
            request.path_params["id"],
            session.principal,
            seen_seq=int(seq) if seq.isascii() and seq.isdecimal() else 0,
        )
        return redirect(f"/stories/{card.story.id}")

    async def move(request: Request, session: Session) -> Response:
        fields = await read_session_form(request, session)
        story_id = request.path_params["id"]
        await dependencies.stories.board.move(
            story_id,
            fields.get("event", ""),
            session.principal,
            comment=fields.get("comment", "").strip(),
        )
        return redirect("/" if fields.get("back") == "board" else f"/stories/{story_id}")

    return [
        Route("/stories/{id}", require_session(story, sessions)),
        Route("/stories/{id}/retry", require_session(retry, sessions), methods=["POST"]),
        Route("/stories/{id}/merge", require_session(merge, sessions), methods=["POST"]),
        Route("/stories/{id}/move", require_session(move, sessions), methods=["POST"]),
        Route("/stories/{id}/comment", require_session(comment, sessions), methods=["POST"]),
    ]


async def story_page(dependencies: ApiDependencies, story_id: str, session: Session) -> Response:
    """Return the page of a story."""
    principal = session.principal
    card = await dependencies.stories.board.card(story_id, principal)
    made_moves, events, account, cards = await asyncio.gather(
        dependencies.stories.board.moves(card.story.id, principal),
        dependencies.stories.board.history(card.story.id, principal),
        dependencies.stories.budgets.of(card.story.id, principal.tenant, card.story.budget),
        dependencies.stories.board.cards(principal),
    )
    design = design_task(plan_id_after(card.moved))
    views = await dependencies.records.tasks.find_tasks((design, *task_ids(events)), principal)
    story_rounds = rounds(events, views, card.position.state)
    councils = await read_councils(dependencies, card, story_rounds, principal)
    possible_moves = moves(card, principal)
    can_retry = may_retry(card, principal)
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
        "next_step": next_step(card, principal),
        "designing": views.get(design) if is_working(card) else None,
        "may_change": may_change(card, principal),
        "may_edit": may_edit(card, session),
        "can_retry": can_retry,
        "can_merge": may_merge(card, principal),
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


# The plan of a story. A product owner edits its tasks before it is built: the form has a section
# for each task, and an empty one for a new task.


_MAX_FORM_FIELDS = 1_000
_EMPTY_SECTION = {"role": "dev", "description": "", "criteria": "", "after": ""}

Sections = Sequence[Mapping[str, Any]]


def plan_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the form to edit a plan."""

    async def plan(request: Request, session: Session) -> Response:
        story_id = request.path_params["id"]
        card = await dependencies.stories.board.card(story_id, session.principal)
        if request.method == "GET":
            editable_plan = changeable(card)
            return _plan_page(
                session,
                card,
                editable_plan.plan_id,
                [_section(outline) for outline in to_outlines(editable_plan.tasks, card.story)],
            )
        fields = await read_session_form(request, session, _MAX_FORM_FIELDS)
        sections, plan_id = _read_sections(fields), fields.get("plan_id", "")
        try:
            await dependencies.stories.plans.change(
                story_id, plan_id, _outlines(sections), session.principal
            )
        except (InvalidRequest, ConcurrentUpdate) as error:
            return _plan_page(session, card, plan_id, sections, error)
        return redirect(
            f"/stories/{story_id}/plan" if fields.get("do") == "more" else f"/stories/{story_id}"
        )

    return [Route("/stories/{id}/plan", require_session(plan, sessions), methods=["GET", "POST"])]


def _plan_page(
    session: Session,
    card: StoryState,
    plan_id: str,
    sections: Sections,
    error: MoothallError | None = None,
) -> Response:
    all_sections = [
        *sections,
        {
            **_EMPTY_SECTION,
            "id": str(max((int(section["id"]) for section in sections), default=0) + 1),
        },
    ]
    context = {
        "card": card,
        "plan_id": plan_id,
        "sections": all_sections,
        "roles": ROLES,
        "error": error.message if error else "",
        "may_edit": may_change(card, session.principal),
    }
    return page("plan.html", http_status_of(error) if error else 200, session=session, **context)


def _section(outline: Outline) -> Mapping[str, Any]:
    number_lists = {
        "criteria": ", ".join(map(str, outline.criteria)),
        "after": ", ".join(outline.after),
    }
    return {
        "id": outline.id,
        "role": outline.role,
        "description": outline.description,
        **number_lists,
    }


def _read_sections(fields: Mapping[str, str]) -> Sections:
    """Return the sections of a form that have a description and are not to be removed, in order."""
    numbers = sorted(
        {
            int(match[1])
            for name in fields
            if (match := re.fullmatch(r"description-(\d{1,4})", name, re.ASCII))
        }
    )
    sections = [
        {"id": str(number)}
        | {name: fields.get(f"{name}-{number}", "").strip() for name in _EMPTY_SECTION}
        for number in numbers
    ]
    return [
        section
        for section in sections
        if section["description"] and not fields.get(f"remove-{section['id']}")
    ]


def _outlines(sections: Sections) -> list[Outline]:
    return [
        read_outline(
            {
                **section,
                "criteria": _numbers(section, "criteria"),
                "after": _numbers(section, "after"),
            }
        )
        for section in sections
    ]


def _numbers(section: Mapping[str, Any], name: str) -> list[str]:
    """Return the numbers of a field, as text. Raises `InvalidRequest`."""
    entries = [entry for entry in re.split(r"[,;\s]+", section[name]) if entry]
    for entry in entries:
        if not re.fullmatch(r"\d{1,4}", entry, re.ASCII):
            field_name = "criteria" if name == "criteria" else "the tasks that it builds on"
            raise InvalidRequest(
                f"task {section['id']} must list {field_name} as numbers separated by commas, "
                f"not {entry[:40]!r}"
            )
    return [str(int(entry)) for entry in entries]
