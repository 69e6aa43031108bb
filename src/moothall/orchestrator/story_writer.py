"""Writing a story better: by the model where there is one, by rules otherwise, whichever scores
higher.

The model writes as a council of one seat, so that its words are recorded, budgeted and cancelled as
any other's. What it wrote is text of a stranger: read line by line, bounded, and taken only where
the coach scores it higher than what the rules make of the story.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from moothall.deliberation.prompts.text import fence
from moothall.domain.codec import list_of, text_of
from moothall.domain.identity import Principal
from moothall.domain.ids import new_task_id
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.errors import InvalidRequest, MoothallError
from moothall.ports import Deliberations
from moothall.stories.coach import (
    TITLE,
    WANT,
    WHO,
    WHY,
    Score,
    StoryDraft,
    check,
    is_gherkin,
    score,
)

MODEL, RULES = "model", "rules"
_OPEN = "Given <a state>, when <something happens>, then <what can be seen>"
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
_SHAPE = (
    'Reply with one JSON document alone: {"title": "what is possible afterwards, at most 80 '
    'characters", '
    '"description": "As a …, I want …, so that …", "criteria": ["Given …, when …, then …", "Given '
    '…, when …, then …"]}. '
    "Each criterion names what is seen, a value or a number. Keep what the author wrote; invent "
    "no new wishes."
)


@dataclass(frozen=True, slots=True)
class WrittenStory:
    """A story, who wrote it (model or rules), and its score."""

    draft: StoryDraft
    by: str
    score: Score


class StoryWriter:
    """Refines stories and suggests first drafts; stores none. `model`: whether one is there to be
    asked.
    """

    def __init__(self, deliberations: Deliberations, seconds: float, *, model: bool) -> None:
        self._deliberations = deliberations
        self._model = model
        self._seconds = seconds

    async def refine(self, draft: StoryDraft, who: Principal) -> WrittenStory:
        """Return the story as it scores highest: as it is, by the rules or by the model. Raises
        `InvalidRequest`.
        """
        draft = check(draft)
        told = "\n".join(
            (
                f"Title: {draft.title}",
                f"Description: {draft.description}",
                "Criteria:",
                *(f"- {line}" for line in draft.ac),
            )
        )
        asked = f"Improve this story of a product owner.\n\n{fence('the story', told)}\n\n{_SHAPE}"
        return await self._best(refine(draft), asked, who)

    async def suggest(self, goal: str, who: Principal) -> WrittenStory:
        """Return a first draft. Raises `InvalidRequest` for a goal that says nothing."""
        goal = " ".join(goal.split())
        if not goal:
            raise InvalidRequest("the goal is empty: say what should be possible, and what for")
        asked = (
            f"Write a story of a product owner for this goal.\n\n{fence('the goal', goal)}\n\n"
            f"{_SHAPE}"
        )
        return await self._best(suggest(goal), asked, who)

    async def _best(self, ruled: StoryDraft, asked: str, who: Principal) -> WrittenStory:
        best = WrittenStory(ruled, RULES, score(ruled))
        said = await self._ask(asked, who) if self._model else ""
        with suppress(InvalidRequest):  # too long, which is as good as none
            draft = check(read(said))
            found = WrittenStory(draft, MODEL, score(draft))
            return max(
                best, found, key=lambda item: item.score.total
            )  # the rules where both score alike: they invent nothing
        return best

    async def _ask(self, description: str, who: Principal) -> str:
        """Return what a council of one wrote, empty where it could not."""
        request = DeliberationRequest(
            description=description,
            role="po",
            task_id=new_task_id(),
            protocol="single",
            num_agents=1,
            about_text=True,
            document="coach",
            origin="coach",
            constraints=Constraints(timeout_seconds=max(1, round(self._seconds))),
        )
        try:
            await self._deliberations.submit(request, who)
            outcome = await self._deliberations.wait(request.task_id, who)
        except asyncio.CancelledError:
            with suppress(MoothallError):
                await asyncio.shield(
                    self._deliberations.cancel(request.task_id, "its caller went away", who)
                )
            raise
        except MoothallError:
            return ""
        return next(
            (result.content for result in outcome.results if result.seat == outcome.winner_id), ""
        )


def refine(draft: StoryDraft) -> StoryDraft:
    """Return the story as rules can better it; they add no wish that its author does not have."""
    title = _shorten(draft.title.rstrip(" .!"))
    description = draft.description
    if title != draft.title.rstrip(" .!"):
        description = f"{draft.title}\n\n{description}".strip()
    if title and not (WHO.search(description) or WANT.search(description)):
        description = f"As a <who>, I want this: {title}.\n\n{description}".strip()
    ac = tuple(dict.fromkeys(_as_gherkin(line) for line in draft.ac)) or (_OPEN,)
    better = StoryDraft(title[:1].upper() + title[1:], description, ac)
    return (
        better
        if score(better).total >= score(draft).total
        else replace(draft, ac=draft.ac or (_OPEN,))
    )


def suggest(goal: str) -> StoryDraft:
    """Return a first draft by rules: what the goal says, and holes where it says nothing."""
    wish, reason = goal.rstrip(" .!"), "<why>"
    if (why := WHY.search(goal)) is not None:
        wish, reason = goal[: why.start()].rstrip(" ,;"), goal[why.end() :].strip(" .!")
    title = _shorten(
        re.sub(
            r"^(?:as (?:an?|the) [\w ]+?,? )?I (?:want|need|would like)(?: to)? ",
            "",
            wish,
            flags=re.IGNORECASE,
        )
    )
    who = WHO.search(wish)
    said = wish if who and WANT.search(wish) else f"As a <who>, I want this: {wish}"
    return StoryDraft(
        title[:1].upper() + title[1:],
        f"{said}, so that {reason}.",
        (_OPEN, _OPEN.replace("something happens", "it goes wrong")),
    )


def read(said: str) -> StoryDraft:
    """Read a story from a reply: a JSON document, or lines with Title, Description and Criteria."""
    try:
        document = json.loads(said[said.find("{") : said.rfind("}") + 1], strict=False)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        title, description = (
            " ".join(text_of(document.get(name)).split()) for name in ("title", "description")
        )
        criteria = (" ".join(text_of(line).split()) for line in list_of(document.get("criteria")))
        return StoryDraft(title, description, tuple(line for line in criteria if line))
    fields: dict[str, list[str]] = {"title": [], "description": [], "criteria": []}
    into = ""
    for line in said.splitlines():
        if (found := _FIELD.match(line)) is not None:
            into = found[1].lower().removeprefix("acceptance ")
            line = found[2]  # noqa: PLW2901 - the rest of the line
        if into and line.strip(" *`#"):
            fields[into].append(line.strip(" *`#"))
    return StoryDraft(
        " ".join(fields["title"]), "\n".join(fields["description"]), tuple(fields["criteria"])
    )


def _as_gherkin(criterion: str) -> str:
    """Return a criterion with a condition as given, when, then; any other as it is."""
    if is_gherkin(criterion):
        return criterion
    found = _CONDITION_FIRST.match(criterion) or _CONDITION.match(criterion)
    if found is None:
        return criterion
    given, _, when = found["when"].rpartition(" and ")
    state = (
        re.sub(r"^given\s+(?:that\s+)?", "", given, flags=re.IGNORECASE)
        or "nothing else is changed"
    )
    then = re.sub(r"^then\s+", "", found["then"], flags=re.IGNORECASE)
    return f"Given {state}, when {when}, then {then[:1].lower()}{then[1:]}"


def _shorten(text: str) -> str:
    """Return as many whole words as a title holds."""
    words: Sequence[str] = text.split()
    while len(words) > 1 and len(" ".join(words)) > TITLE:
        words = words[:-1]
    return " ".join(words)[:TITLE]
