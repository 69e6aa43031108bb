"""What the coach writes: a rewrite of a story, shown as a diff, or a first version of a new one.

Nothing is stored until the user accepts it. The URL names the task of the coach's council, whose
reply is in the log, so that a restart of the server or the end of a session loses nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.story_form import fields_of, find_rewrite, may_edit
from moothall.domain.ids import TaskId, check_task_id, new_task_id
from moothall.errors import Refused
from moothall.stories.coach import StoryDraft, score

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_WORDS = 2_000
"""Longer texts are compared as a whole: the time grows with the square of the words."""

Piece = tuple[str, str]
"""A kind (same, removed or added) and a text."""


@dataclass(frozen=True, slots=True)
class ChangedText:
    """A part of a story before and after, as pieces."""

    label: str
    pieces: tuple[Piece, ...]

    @property
    def has_changed(self) -> bool:
        """Whether it differs."""
        return any(kind != "same" for kind, _ in self.pieces)


def rewrite_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes that ask the coach for a story, and show its rewrite."""

    async def ask(request: Request, session: Session) -> Response:
        form = await read_session_form(request, session)
        card = await dependencies.board.card(request.path_params["id"], session.who)
        if not may_edit(card, session):
            raise Refused(
                "only product owners can rewrite a story, and only in backlog or draft; nothing "
                "was changed"
            )
        task_id = _task_id(form)
        await dependencies.author.refine(card.draft, session.who, task_id)
        place = urlencode({"task": task_id, "seq": card.seq})
        return redirect(f"/stories/{card.story.id}/rewrite?{place}")

    async def show(request: Request, session: Session) -> Response:
        card = await dependencies.board.card(request.path_params["id"], session.who)
        written = await find_rewrite(dependencies.author, card, request, session)
        if written is None:
            return redirect(f"/stories/{card.story.id}")
        parts = await asyncio.to_thread(compare_drafts, card.draft, written.draft)
        return page(
            "rewrite.html",
            session=session,
            card=card,
            written=written,
            before=score(card.draft),
            parts=parts,
            fields=fields_of(card, written.draft),
            place=request.url.query,
        )

    async def suggest(request: Request, session: Session) -> Response:
        form = await read_session_form(request, session)
        task_id, goal = _task_id(form), form.get("goal", "")
        await dependencies.author.suggest(goal, session.who, task_id)
        return redirect(f"/stories/new?{urlencode({'task': task_id, 'goal': goal})}")

    return [
        Route("/stories/suggest", require_session(suggest, sessions), methods=["POST"]),
        Route("/stories/{id}/rewrite", require_session(ask, sessions), methods=["POST"]),
        Route("/stories/{id}/rewrite", require_session(show, sessions)),
    ]


def _task_id(form: Mapping[str, str]) -> TaskId:
    """Return the task id that a form proposes, so that sending it again asks the coach once."""
    return check_task_id(form["key"]) if form.get("key") else new_task_id()


def compare_drafts(before: StoryDraft, after: StoryDraft) -> tuple[ChangedText, ...]:
    """Return the parts of two drafts, word by word. A criterion that was moved is removed and
    added.
    """
    return (
        ChangedText("Title", compare_words(before.title, after.title)),
        ChangedText("Brief", compare_words(before.description, after.description)),
        *(
            ChangedText(f"Criterion {number}", pieces)
            for number, pieces in enumerate(_compare_criteria(before.ac, after.ac), 1)
        ),
    )


def compare_words(before: str, after: str) -> tuple[Piece, ...]:
    """Return two texts as one, with what was removed and added."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if len(old) > _MAX_WORDS or len(new) > _MAX_WORDS:
        old, new = [before], [after]
    pieces: list[Piece] = []
    for kind, old_start, old_end, new_start, new_end in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        removed, added = "".join(old[old_start:old_end]), "".join(new[new_start:new_end])
        if kind == "equal":
            pieces.append(("same", removed))
        else:
            pieces += [piece for piece in (("removed", removed), ("added", added)) if piece[1]]
    return tuple(pieces)


def _compare_criteria(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[Piece, ...]]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for _, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        old, new = before[old_start:old_end], after[new_start:new_end]
        for index in range(max(len(old), len(new))):
            yield compare_words("".join(old[index : index + 1]), "".join(new[index : index + 1]))
