"""The coach's rewrite of a story, shown as a diff. Nothing is stored until the user accepts it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.story_form import fields_of, may_edit
from moothall.errors import Refused
from moothall.orchestrator.story_writer import WrittenStory
from moothall.stories.coach import StoryDraft, score
from moothall.stories.story_state import StoryState

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_REWRITES = 64
"""Rewrites in memory; after a restart of the server, the coach is asked again."""
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
    """Return the routes that ask the coach for a rewrite, and show it."""
    rewrites: LRUCache[tuple[str, str, int], WrittenStory] = LRUCache(_MAX_REWRITES)

    async def ask(request: Request, session: Session) -> Response:
        await read_session_form(request, session)
        card = await dependencies.board.card(request.path_params["id"], session.who)
        if not may_edit(card, session):
            raise Refused(
                "only product owners can rewrite a story, and only in backlog or draft; nothing "
                "was changed"
            )
        rewrites[_key(card, session)] = await dependencies.author.refine(card.draft, session.who)
        return redirect(f"/stories/{card.story.id}/rewrite")

    async def show(request: Request, session: Session) -> Response:
        card = await dependencies.board.card(request.path_params["id"], session.who)
        written = rewrites.get(_key(card, session))
        if written is None or not may_edit(card, session):
            return redirect(f"/stories/{card.story.id}")
        parts = await asyncio.to_thread(compare_drafts, card.draft, written.draft)
        fields = dict(fields_of(card)) | {
            "title": written.draft.title,
            "brief": written.draft.description,
            "criteria": "\n".join(written.draft.ac),
        }
        return page(
            "rewrite.html",
            session=session,
            card=card,
            written=written,
            before=score(card.draft),
            parts=parts,
            fields=fields,
        )

    return [
        Route("/stories/{id}/rewrite", require_session(ask, sessions), methods=["POST"]),
        Route("/stories/{id}/rewrite", require_session(show, sessions)),
    ]


def _key(card: StoryState, session: Session) -> tuple[str, str, int]:
    """Return the key of a rewrite, which is for one version of the story."""
    return session.who.tenant, card.story.id, card.seq


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
