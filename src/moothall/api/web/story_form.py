"""The form to write a new story, and to edit one in backlog or draft; the coach scores it. What
the coach writes: a rewrite of a story, shown as a diff, or a first version of a new one.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import SequenceMatcher
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import SEQ_DIGITS
from moothall.api.web.operations import known_repositories
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions, read_session_form, require_session
from moothall.domain.budget import NO_BUDGET, Budget
from moothall.domain.ids import TaskId, check_task_id, is_id, new_task_id
from moothall.errors import (
    ConcurrentUpdate,
    InvalidRequest,
    MoothallError,
    NotFound,
    Refused,
    RepositoryError,
)
from moothall.orchestrator.story_writer import StoryWriter, WrittenStory
from moothall.repositories.sources import is_url
from moothall.stories.board import EDITOR_ROLES
from moothall.stories.coach import StoryDraft, check, score
from moothall.stories.lifecycle import DEFAULT_RIGOR, lifecycle
from moothall.stories.story_state import EDITABLE_STATES, StoryState

# The form to write a new story, and to edit one in backlog or draft; the coach scores it.


Fields = Mapping[str, str]


def story_form_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the form."""
    forms = _StoryForms(dependencies)
    return [
        Route("/stories/new", require_session(forms.new, sessions), methods=["GET", "POST"]),
        Route("/stories/{id}/edit", require_session(forms.edit, sessions), methods=["GET", "POST"]),
    ]


def may_edit(card: StoryState, session: Session) -> bool:
    """Return True if a user may edit a story now."""
    return card.position.state in EDITABLE_STATES and bool(
        set(EDITOR_ROLES) & session.principal.roles
    )


class _StoryForms:
    """The handlers of the form. `do` is the pressed button: score, or save."""

    def __init__(self, dependencies: ApiDependencies) -> None:
        self._dependencies = dependencies

    async def new(self, request: Request, session: Session) -> Response:
        """Write a new story."""
        if request.method == "GET":
            return self._page(session, await self._suggested(request, session))
        fields = await read_session_form(request, session)
        try:
            draft = check(_draft(fields))
            if fields.get("do") == "save":
                repository = await self._repository(fields, session)
                card = await self._dependencies.stories.board.create(
                    draft,
                    session.principal,
                    key=new_task_id(),
                    repository=repository,
                    rigor=fields.get("rigor", ""),
                    budget=_budget(fields),
                )
                return redirect(f"/stories/{card.story.id}")
        except (InvalidRequest, NotFound, RepositoryError) as error:
            return self._page(session, fields, error=error)
        return self._page(session, fields, problem=await self._repository_problem(fields, session))

    async def edit(self, request: Request, session: Session) -> Response:
        """Edit a story."""
        card = await self._dependencies.stories.board.card(
            request.path_params["id"], session.principal
        )
        if request.method == "GET":
            written = await find_rewrite(self._dependencies.stories.author, card, request, session)
            return self._page(session, fields_of(card, written.draft if written else None), card)
        fields = await read_session_form(request, session)
        try:
            draft = check(_draft(fields))
            if fields.get("do") == "save":
                repository = await self._repository(fields, session)
                await self._dependencies.stories.board.update(
                    card.story.id,
                    draft,
                    session.principal,
                    repository=repository,
                    rigor=fields.get("rigor", ""),
                    budget=_budget(fields, card.story.budget),
                    seen_seq=_seq(fields),
                )
                return redirect(f"/stories/{card.story.id}")
        except (ConcurrentUpdate, InvalidRequest, NotFound, RepositoryError) as error:
            return self._page(session, fields, card, error)
        problem = await self._repository_problem(fields, session)
        return self._page(session, fields, card, problem=problem)

    async def _suggested(self, request: Request, session: Session) -> Fields:
        """Return the values of a new form: empty, or what the coach suggested for the goal that the
        URL names.
        """
        goal, task_id = (request.query_params.get(name, "") for name in ("goal", "task"))
        if not goal or not is_id(task_id):
            return {"rigor": DEFAULT_RIGOR}
        author = self._dependencies.stories.author
        written = await author.recall_suggestion(goal, TaskId(task_id), session.principal)
        return {"rigor": DEFAULT_RIGOR, "goal": goal, **_draft_fields(written.draft)}

    async def _repository(self, fields: Fields, session: Session) -> str:
        """Return the repository of a form. Raises if a council could not work on it."""
        repository = fields.get("repository", "").strip()
        await self._dependencies.stories.plans.check_repository(repository, session.principal)
        return repository

    async def _repository_problem(self, fields: Fields, session: Session) -> str:
        """Return why a council could not work on a form's repository, which is being typed; '' if
        it could. Known repositories and URLs are not fetched for that: a URL is checked when the
        story is saved.
        """
        name = fields.get("repository", "").strip()
        if is_url(name) or name in known_repositories(self._dependencies, session.principal):
            return ""
        try:
            await self._repository(fields, session)
        except (InvalidRequest, NotFound, RepositoryError) as error:
            return error.message
        return ""

    def _page(
        self,
        session: Session,
        fields: Fields,
        card: StoryState | None = None,
        error: MoothallError | None = None,
        *,
        problem: str = "",
    ) -> Response:
        repositories = known_repositories(self._dependencies, session.principal)
        if card is None and len(repositories) == 1 and "repository" not in fields:
            fields = {**fields, "repository": repositories[0]}
        is_late = isinstance(error, ConcurrentUpdate)
        return page(
            "story_form.html",
            409 if is_late else 400 if error else 200,
            session=session,
            card=card,
            fields=fields,
            score=_score(fields),
            error=error.message if error else "",
            is_late=is_late,
            problem=problem,
            levels=lifecycle().ready,
            repositories=repositories,
        )


def _draft(fields: Fields) -> StoryDraft:
    criteria = tuple(
        line.strip() for line in fields.get("criteria", "").splitlines() if line.strip()
    )
    return StoryDraft(fields.get("title", ""), fields.get("brief", ""), criteria)


def _score(fields: Fields) -> object:
    """Return the coach's score of a form, None for an empty or an invalid one."""
    try:
        return score(check(_draft(fields))) if fields.get("title") else None
    except InvalidRequest:
        return None


async def find_rewrite(
    author: StoryWriter, card: StoryState, request: Request, session: Session
) -> WrittenStory | None:
    """Return the rewrite that the URL names. Return None if it names none, if the story changed
    since, or if the user may not edit it.
    """
    task_id, seq = (request.query_params.get(name, "") for name in ("task", "seq"))
    if not is_id(task_id) or seq != str(card.seq) or not may_edit(card, session):
        return None
    return await author.recall_rewrite(card.draft, TaskId(task_id), session.principal)


def _draft_fields(draft: StoryDraft) -> Fields:
    return {"title": draft.title, "brief": draft.description, "criteria": "\n".join(draft.ac)}


def fields_of(card: StoryState, draft: StoryDraft | None = None) -> Fields:
    """Return the values of the form for a story, with the text of `draft` in place of its own."""
    story = card.story
    return {
        **_draft_fields(draft or card.draft),
        "repository": story.repository_name,
        "rigor": card.position.rigor,
        "tokens": str(story.budget.tokens or ""),
        "cost": f"{Decimal(repr(story.budget.cost_usd)):f}" if story.budget.cost_usd else "",
        "seq": str(card.seq),
    }


def _budget(fields: Fields, current: Budget = NO_BUDGET) -> Budget:
    """Return the budget of a form, with the other limits of the current one. Raises
    `InvalidRequest`.
    """
    tokens, cost = fields.get("tokens", "").strip(), fields.get("cost", "").strip()
    try:
        budget = replace(current, tokens=int(tokens or 0), cost_usd=float(cost or 0))
    except ValueError:
        budget = Budget(tokens=-1)
    if budget.tokens < 0 or not 0 <= budget.cost_usd < math.inf or budget.tokens >= 2**63:
        raise InvalidRequest(
            "a budget is a whole number of tokens and an amount of US dollars, from 0; empty: the "
            f"server's default. These are {tokens[:40]!r} and {cost[:40]!r}"
        )
    return budget


def _seq(fields: Fields) -> int | None:
    seq = fields.get("seq", "")
    return int(seq) if seq.isascii() and seq.isdecimal() and len(seq) <= SEQ_DIGITS else None


# What the coach writes: a rewrite of a story, shown as a diff, or a first version of a new one.
#
# Nothing is stored until the user accepts it. The URL names the task of the coach's council, whose
# reply is in the log, so that a restart of the server or the end of a session loses nothing.


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

    async def request_rewrite(request: Request, session: Session) -> Response:
        form = await read_session_form(request, session)
        card = await dependencies.stories.board.card(request.path_params["id"], session.principal)
        if not may_edit(card, session):
            raise Refused(
                "only product owners can rewrite a story, and only in backlog or draft; nothing "
                "was changed"
            )
        task_id = _task_id(form)
        await dependencies.stories.author.refine(card.draft, session.principal, task_id)
        place = urlencode({"task": task_id, "seq": card.seq})
        return redirect(f"/stories/{card.story.id}/rewrite?{place}")

    async def show(request: Request, session: Session) -> Response:
        card = await dependencies.stories.board.card(request.path_params["id"], session.principal)
        written = await find_rewrite(dependencies.stories.author, card, request, session)
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
        await dependencies.stories.author.suggest(goal, session.principal, task_id)
        return redirect(f"/stories/new?{urlencode({'task': task_id, 'goal': goal})}")

    return [
        Route("/stories/suggest", require_session(suggest, sessions), methods=["POST"]),
        Route(
            "/stories/{id}/rewrite", require_session(request_rewrite, sessions), methods=["POST"]
        ),
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
