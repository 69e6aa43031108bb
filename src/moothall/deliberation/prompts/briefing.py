"""Briefings: what the graph knows of a story and a task, packed into a budget of tokens. Seats'
prompts and callers get the same.

The same content gives the same bytes and the same version. What a role may be told in a phase is
said by `stories/scopes.yaml`, and the graph is asked for no more than that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from moothall.authorization.rules import Rules
from moothall.config import LimitSettings
from moothall.deliberation.prompts.context_budget import ContextLine, fill, lay_out, lines_of
from moothall.deliberation.prompts.prompts import ROLES
from moothall.deliberation.prompts.text import fence, most_tokens
from moothall.domain.briefing import Briefing, BriefingRequest
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, read_role
from moothall.domain.secrets import scrub
from moothall.errors import InvalidRequest
from moothall.ports import CountTokens
from moothall.stories.scopes import scopes
from moothall.tools.catalogue import list_tools

_EVENTS, _MOST_EVENTS = 20, 200
_CONTEXT, _HISTORY = "what is known", "what happened"

Ask = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
"""Answers a question of the graph, by its name and parameters: `CypherGraph.ask`."""


async def estimate(text: str) -> int:
    """Count the tokens of a text where nobody can say how many they are."""
    return most_tokens(text)


class Briefings:
    """What is known, from the graph. No text has more than `limits.context_tokens` tokens, as
    `count` counts them, and none a secret that `clean` knows.
    """

    def __init__(
        self,
        ask: Ask,
        limits: LimitSettings,
        rules: Rules | None = None,
        *,
        count: CountTokens = estimate,
        clean: Callable[[str], str] = scrub,
    ) -> None:
        self._rules = rules or Rules()
        self._ask = ask
        self._budget = limits.context_tokens
        self._count = count
        self._clean = clean

    async def brief(self, asked: BriefingRequest, who: Principal) -> Briefing:
        """Return what is known; what is not known is left out. Raises `InvalidRequest`,
        `GraphUnavailable`.
        """
        role, wanted = _check(asked, self._budget)
        lines = await self._lines(asked, role, wanted, who)
        tools = f"Tools: {', '.join(self._names_offered(role, who.tenant))}" if role else ""
        budget = asked.budget or self._budget
        for head in (
            (_system(role, asked.phase), tools),
            (_system(role, asked.phase), ""),
            ("", ""),
        ):
            lay = partial(_lay_out, head, self._clean)
            if found := await fill(lines, partial(_text, lay), self._count, budget):
                whole = lay(found[0])
                return replace(whole, tokens=found[1], version=digest(whole.text), scopes=wanted)
        raise AssertionError  # an empty text has no tokens

    async def tell(self, asked: BriefingRequest, who: Principal, room: int) -> str:
        """Return what the seats of a council are told, in at most `room` tokens: what is known,
        without fence, role and tools.
        """
        role, wanted = _check(asked, self._budget)
        lines = await self._lines(asked, role, wanted, who)
        found = (
            await fill(lines, lambda chosen: self._clean(lay_out(chosen)), self._count, room)
            if room > 0
            else None
        )
        return self._clean(lay_out(found[0])) if found else ""

    async def _lines(
        self, asked: BriefingRequest, role: str, wanted: Sequence[str], who: Principal
    ) -> list[ContextLine]:
        about = {
            "story_id": asked.story_id,
            "task_id": asked.task_id,
            "role": role,
            "phase": asked.phase.strip() or scopes().phase,
            "tenant": who.tenant,
        }
        row: Mapping[str, Any] = {}
        if told := [scope for scope in wanted if scope != "timeline"]:
            row = next(
                iter(
                    await self._ask(
                        "context", only=",".join(told), repository=asked.repository, **about
                    )
                ),
                {},
            )
        similar: Sequence[Mapping[str, Any]] = ()
        if "similar" in wanted and (
            repository := asked.repository or str(row.get("repository") or "")
        ):
            besides = asked.story_id or str(row.get("of_story") or "")
            similar = await self._ask(
                "similar", repository=repository, **(about | {"story_id": besides})
            )
        events: Sequence[Mapping[str, Any]] = ()
        if "timeline" in wanted:
            where = {"task_id": ""} if asked.story_id else {}
            events = await self._ask("timeline", limit=asked.events or _EVENTS, **(about | where))
        return lines_of(row, similar, events, asked.description)

    def _names_offered(self, role: str, tenant: str) -> list[str]:
        grant = self._rules.grants.of(role)
        return [
            spec.name
            for spec in list_tools(
                grant, without=self._rules.without(tenant), catalogue=self._rules.catalogue
            )
        ]


def _text(lay: Callable[[Sequence[ContextLine]], Briefing], lines: Sequence[ContextLine]) -> str:
    return lay(lines).text


def _lay_out(
    head: tuple[str, str], clean: Callable[[str], str], lines: Sequence[ContextLine]
) -> Briefing:
    """Lay out a text, from what most calls share to what the fewest do."""
    system, tools = head
    told = clean(lay_out([line for line in lines if line.scope != "timeline"]))
    happened = clean(lay_out([line for line in lines if line.scope == "timeline"]))
    context = fence(_CONTEXT, told) if told else ""
    history = fence(_HISTORY, happened) if happened else ""
    text = "\n\n".join(part for part in (system, tools, context, history) if part)
    return Briefing(system, context, tools, history, text, 0, "", told)


def _check(asked: BriefingRequest, most: int) -> tuple[str, tuple[str, ...]]:
    """Return the role, empty for none, and the scopes that are wanted and allowed."""
    if not asked.task_id and not asked.story_id:
        raise InvalidRequest("what should be told of? give task_id, story_id or case_id")
    for value, name in ((asked.task_id, "task_id"), (asked.story_id, "story_id")):
        if value:
            check_id(value, name)
    role = read_role(asked.role) if asked.role.strip() else ""
    allowed = scopes().allowed_scopes(role, asked.phase)
    if not 0 <= asked.events <= _MOST_EVENTS:
        raise InvalidRequest(
            f"max_events is {asked.events}; allowed are 0 (the default, {_EVENTS}) to "
            f"{_MOST_EVENTS}"
        )
    if not 0 <= asked.budget <= most:
        raise InvalidRequest(
            f"token_budget is {asked.budget}; allowed are 0 (the default) to {most} "
            "(limits.context_tokens)"
        )
    named = scopes().check(asked.scopes)
    flags = {"summaries": asked.summaries, "decisions": asked.decisions, "timeline": asked.timeline}
    parts = [name for name, on in flags.items() if on]
    chosen = (
        {"story", "brief", *parts}
        if parts
        else {scope for scope in allowed if named or scope != "timeline"}
    )
    return role, tuple(
        scope for scope in allowed if scope in chosen and (not named or scope in named)
    )


def _system(role: str, phase: str) -> str:
    said = ROLES[role] if role else ""
    at = f"The work is in the phase: {phase.strip().lower()}." if phase.strip() else ""
    return "\n".join(part for part in (said, at) if part)
