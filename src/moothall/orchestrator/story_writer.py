"""Improving stories: by the model if there is one, and by rules; the version with the higher score
wins.

The model writes as a council of one seat, so its calls are recorded, budgeted and cancelled like
any others. Its text is untrusted: read line by line, bounded, and used only if the coach scores it
higher than the result of the rules.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from moothall.domain.codec import list_of, text_of
from moothall.domain.ids import Principal, TaskId, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.domain.text import fence
from moothall.errors import InvalidRequest, MoothallError, NotFound
from moothall.ports import Deliberations
from moothall.stories.coach import (
    REASON_PHRASE,
    ROLE_PHRASE,
    TITLE,
    WISH_PHRASE,
    Score,
    StoryDraft,
    check,
    is_gherkin,
    score,
)

MODEL, RULES = "model", "rules"
_OPEN_CRITERION = "Given <a state>, when <something happens>, then <what can be seen>"
_FIELD = re.compile(
    r"^\W*(title|description|criteria|acceptance criteria)\W*?:\s*(.*)$", re.IGNORECASE
)
_CONDITION = re.compile(
    r"^(?P<then>.+?)[,;]?\s+(?:when|if|once|whenever)\s+(?P<when>.+?)[.;]?$", re.IGNORECASE
)
_CONDITION_FIRST = re.compile(
    r"^(?:when|if|once|whenever)\s+(?P<when>[^,]+),\s*(?:then\s+)?(?P<then>.+?)[.;]?$",
    re.IGNORECASE,
)
_FORMAT = (
    'Reply with one JSON document alone: {"title": "what is possible afterwards, at most 80 '
    'characters", '
    '"description": "As a …, I want …, so that …", "criteria": ["Given …, when …, then …", "Given '
    '…, when …, then …"]}. '
    "Each criterion names what is seen, a value or a number. Keep what the author wrote; invent "
    "no new wishes."
)


@dataclass(frozen=True, slots=True)
class WrittenStory:
    """A story, its author (model or rules), and its score."""

    draft: StoryDraft
    by: str
    score: Score


class StoryWriter:
    """Refines stories and suggests first drafts, without storing them. `model`: a model is
    available.
    """

    def __init__(self, deliberations: Deliberations, seconds: float, *, model: bool) -> None:
        self._deliberations = deliberations
        self._model = model
        self._seconds = seconds

    async def refine(
        self, draft: StoryDraft, principal: Principal, task_id: TaskId | None = None
    ) -> WrittenStory:
        """Return the best-scored version of a story: as it is, by the rules or by the model. With
        `task_id`, the council of the model gets this id. Raises `InvalidRequest`.
        """
        draft = check(draft)
        story_text = "\n".join(
            (
                f"Title: {draft.title}",
                f"Description: {draft.description}",
                "Criteria:",
                *(f"- {line}" for line in draft.ac),
            )
        )
        story = fence("the story", story_text)
        prompt = f"Improve this story of a product owner.\n\n{story}\n\n{_FORMAT}"
        reply = await self._ask_model(prompt, principal, task_id or new_task_id())
        return _choose_best(refine(draft), reply)

    async def suggest(
        self, goal: str, principal: Principal, task_id: TaskId | None = None
    ) -> WrittenStory:
        """Return a first draft. With `task_id`, the council of the model gets this id. Raises
        `InvalidRequest` for an empty goal.
        """
        goal = _check_goal(goal)
        prompt = (
            f"Write a story of a product owner for this goal.\n\n{fence('the goal', goal)}\n\n"
            f"{_FORMAT}"
        )
        reply = await self._ask_model(prompt, principal, task_id or new_task_id())
        return _choose_best(suggest(goal), reply)

    async def recall_rewrite(
        self, draft: StoryDraft, task_id: TaskId, principal: Principal
    ) -> WrittenStory:
        """Return what `refine` returned with this task id, from the log: nothing is asked again."""
        return _choose_best(refine(check(draft)), await self._read_reply(task_id, principal))

    async def recall_suggestion(
        self, goal: str, task_id: TaskId, principal: Principal
    ) -> WrittenStory:
        """Return what `suggest` returned with this task id, from the log: nothing is asked again.
        Raises `InvalidRequest` for an empty goal.
        """
        return _choose_best(suggest(_check_goal(goal)), await self._read_reply(task_id, principal))

    async def _read_reply(self, task_id: TaskId, principal: Principal) -> str:
        """Return the reply of a finished task; empty if the task is unknown or failed."""
        try:
            return _reply_of(await self._deliberations.result(task_id, principal))
        except NotFound:
            return ""

    async def _ask_model(self, description: str, principal: Principal, task_id: TaskId) -> str:
        """Ask one seat, and return its reply; empty without a model, or if the seat failed."""
        if not self._model:
            return ""
        request = DeliberationRequest(
            description=description,
            role="po",
            task_id=task_id,
            protocol="single",
            num_agents=1,
            about_text=True,
            document="coach",
            origin="coach",
            constraints=Constraints(timeout_seconds=max(1, round(self._seconds))),
        )
        try:
            await self._deliberations.submit(request, principal)
            outcome = await self._deliberations.wait(task_id, principal)
        except asyncio.CancelledError:
            with suppress(MoothallError):
                await asyncio.shield(
                    self._deliberations.cancel(task_id, "its caller went away", principal)
                )
            raise
        except MoothallError:
            return ""
        return _reply_of(outcome)


def _reply_of(outcome: Outcome) -> str:
    return next(
        (result.content for result in outcome.results if result.seat == outcome.winner_id), ""
    )


def _check_goal(goal: str) -> str:
    """Return a goal on one line. Raises `InvalidRequest` for an empty one."""
    goal = " ".join(goal.split())
    if not goal:
        raise InvalidRequest("the goal is empty: describe what should be possible, and why")
    return goal


def _choose_best(by_rules: StoryDraft, reply: str) -> WrittenStory:
    best = WrittenStory(by_rules, RULES, score(by_rules))
    with suppress(InvalidRequest):  # a story that is too long is not used
        draft = check(read_story(reply))
        model_story = WrittenStory(draft, MODEL, score(draft))
        # With equal scores the first, by rules, wins: rules invent nothing.
        return max(best, model_story, key=lambda item: item.score.total)
    return best


def refine(draft: StoryDraft) -> StoryDraft:
    """Return the story as improved by rules, which add no wishes of their own."""
    title = _shorten_title(draft.title.rstrip(" .!"))
    description = draft.description
    if title != draft.title.rstrip(" .!"):
        description = f"{draft.title}\n\n{description}".strip()
    if title and not (ROLE_PHRASE.search(description) or WISH_PHRASE.search(description)):
        description = f"As a <who>, I want this: {title}.\n\n{description}".strip()
    ac = tuple(dict.fromkeys(_as_gherkin(line) for line in draft.ac)) or (_OPEN_CRITERION,)
    refined = StoryDraft(title[:1].upper() + title[1:], description, ac)
    return (
        refined
        if score(refined).total >= score(draft).total
        else replace(draft, ac=draft.ac or (_OPEN_CRITERION,))
    )


def suggest(goal: str) -> StoryDraft:
    """Return a first draft by rules: the content of the goal, with placeholders for missing
    parts.
    """
    wish, reason = goal.rstrip(" .!"), "<why>"
    if (reason_match := REASON_PHRASE.search(goal)) is not None:
        wish, reason = (
            goal[: reason_match.start()].rstrip(" ,;"),
            goal[reason_match.end() :].strip(" .!"),
        )
    title = _shorten_title(
        re.sub(
            r"^(?:as (?:an?|the) [\w ]+?,? )?I (?:want|need|would like)(?: to)? ",
            "",
            wish,
            flags=re.IGNORECASE,
        )
    )
    role_match = ROLE_PHRASE.search(wish)
    sentence = (
        wish if role_match and WISH_PHRASE.search(wish) else f"As a <who>, I want this: {wish}"
    )
    return StoryDraft(
        title[:1].upper() + title[1:],
        f"{sentence}, so that {reason}.",
        (_OPEN_CRITERION, _OPEN_CRITERION.replace("something happens", "it goes wrong")),
    )


def read_story(reply: str) -> StoryDraft:
    """Read a story from a reply: a JSON document, or lines with Title, Description and Criteria."""
    try:
        document = json.loads(reply[reply.find("{") : reply.rfind("}") + 1], strict=False)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        title, description = (
            " ".join(text_of(document.get(name)).split()) for name in ("title", "description")
        )
        criteria = (" ".join(text_of(line).split()) for line in list_of(document.get("criteria")))
        return StoryDraft(title, description, tuple(line for line in criteria if line))
    fields: dict[str, list[str]] = {"title": [], "description": [], "criteria": []}
    field = ""
    for line in reply.splitlines():
        if (match := _FIELD.match(line)) is not None:
            field = match[1].lower().removeprefix("acceptance ")
            line = match[2]  # noqa: PLW2901 - the rest of the line
        if field and line.strip(" *`#"):
            fields[field].append(line.strip(" *`#"))
    return StoryDraft(
        " ".join(fields["title"]), "\n".join(fields["description"]), tuple(fields["criteria"])
    )


def _as_gherkin(criterion: str) -> str:
    """Return a criterion with a condition in the form given, when, then; others unchanged."""
    if is_gherkin(criterion):
        return criterion
    match = _CONDITION_FIRST.match(criterion) or _CONDITION.match(criterion)
    if match is None:
        return criterion
    condition, _, trigger = match["when"].rpartition(" and ")
    given_text = (
        re.sub(r"^given\s+(?:that\s+)?", "", condition, flags=re.IGNORECASE)
        or "nothing else is changed"
    )
    consequence = re.sub(r"^then\s+", "", match["then"], flags=re.IGNORECASE)
    return f"Given {given_text}, when {trigger}, then {consequence[:1].lower()}{consequence[1:]}"


def _shorten_title(text: str) -> str:
    """Return as many whole words as a title may have."""
    title_words: Sequence[str] = text.split()
    while len(title_words) > 1 and len(" ".join(title_words)) > TITLE:
        title_words = title_words[:-1]
    return " ".join(title_words)[:TITLE]
