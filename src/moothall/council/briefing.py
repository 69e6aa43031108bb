"""Briefings: what the graph knows of a story and a task, cut to a budget and fenced.

The same content gives the same bytes and the same version. Texts of stories, reviews and answers were written
by others: each part is fenced, so that it cannot pass for an instruction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from moothall.config import Limits
from moothall.council.prompts import ROLES
from moothall.council.text import CHARS_PER_TOKEN, clip, fence, tokens
from moothall.domain.briefing import PHASES, SCOPES, Briefing, BriefingRequest
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, digest, read_role
from moothall.errors import InvalidRequest
from moothall.guard.rules import Rules
from moothall.tools.catalogue import offered

_EVENTS, _MOST_EVENTS = 20, 200
_EARLIER = 10
_LINE = 400
_WHOLE_STORY = 0.4  # of the budget; the rest is for what came of earlier work, and at last for what happened


Ask = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
"""Answers a question of the graph, by its name and parameters: `CypherGraph.ask`."""


class Briefings:
    """What is known, from the graph. A text never has more than about `limits.context_tokens`."""

    def __init__(self, ask: Ask, limits: Limits, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._ask = ask
        self._budget = limits.context_tokens

    async def brief(self, asked: BriefingRequest, who: Principal) -> Briefing:
        """Return what is known; what is not known is left out. Raises `InvalidRequest`, `GraphUnavailable`."""
        role, wanted = _checked(asked)
        system = _system(role, asked.phase)
        tools = f"Tools: {', '.join(self._offered(role, who.tenant))}" if role else ""
        room = max(0, self._budget - tokens(f"{system}\n\n{tools}\n\n"))
        told = await self._story(asked.story_id, who, int(room * _WHOLE_STORY)) if "story" in wanted else ""
        room -= _taken(told)
        earlier = await self._earlier(asked, who, wanted, room)
        room -= _taken(earlier)
        history = await self._timeline(asked, who, room) if "timeline" in wanted else ""
        context = "\n\n".join(part for part in (told, earlier) if part)
        text = "\n\n".join(part for part in (system, context, tools, history) if part)
        return Briefing(system, context, tools, history, text, tokens(text), digest(text))

    def _offered(self, role: str, tenant: str) -> list[str]:
        grant = self._rules.grants.of(role)
        return [spec.name for spec in offered(grant, without=self._rules.without(tenant), catalogue=self._rules.catalogue)]

    async def _story(self, story_id: str, who: Principal, room: int) -> str:
        if not story_id:
            return ""
        rows = await self._ask("story", story_id=story_id, tenant=who.tenant)
        if not rows:
            return ""
        story = _mapping(rows[0].get("story"))
        lines = [_line(story.get("headline")), str(story.get("brief") or "").strip()]
        lines += [f"- {_line(item)}" for item in _list(story.get("criteria"))]
        lines += [f"State: {_line(story['state'])}"] if story.get("state") else []
        return _fenced("the story", lines, room)

    async def _earlier(self, asked: BriefingRequest, who: Principal, wanted: Sequence[str], room: int) -> str:
        """What came of earlier work, latest first, as much as there is room for."""
        if not {"summaries", "decisions"} & set(wanted):
            return ""
        rows = await self._ask("task_context", task_id=asked.task_id, story_id=asked.story_id, limit=_EARLIER, tenant=who.tenant)
        lines: list[str] = []
        for row in rows:
            entry = list(_entry(row, wanted))
            if tokens("\n".join([*lines, *entry])) > room - _FENCE_TOKENS:
                break
            lines += entry
        return _fenced("earlier work, latest first", lines, room)

    async def _timeline(self, asked: BriefingRequest, who: Principal, room: int) -> str:
        about = {"story_id": asked.story_id} if asked.story_id else {"task_id": asked.task_id}
        rows = await self._ask("timeline", limit=asked.events or _EVENTS, tenant=who.tenant, **about)
        lines: list[str] = []
        for row in reversed(rows):  # the latest must not be what is cut
            line = f"{row.get('time')} {row.get('kind')} {row.get('task_id') or ''} {_line(row.get('text'))}".strip()
            if tokens("\n".join([line, *lines])) > room - _FENCE_TOKENS:
                break
            lines.insert(0, line)
        return _fenced("what happened, oldest first", lines, room)


_FENCE_TOKENS = 30


def _checked(asked: BriefingRequest) -> tuple[str, tuple[str, ...]]:
    """Return the role, empty for none, and the scopes that are wanted."""
    if not asked.task_id and not asked.story_id:
        raise InvalidRequest("what should be told of? give task_id, story_id or case_id")
    for value, name in ((asked.task_id, "task_id"), (asked.story_id, "story_id")):
        if value:
            check_id(value, name)
    role = read_role(asked.role) if asked.role.strip() else ""
    if asked.phase.strip().lower() not in {"", *PHASES}:
        raise InvalidRequest(f"unknown phase {asked.phase[:40]!r}; the phases are {', '.join(PHASES)}")
    if not 0 <= asked.events <= _MOST_EVENTS:
        raise InvalidRequest(f"max_events is {asked.events}; allowed are 0 (the default, {_EVENTS}) to {_MOST_EVENTS}")
    strange = [scope[:40] for scope in asked.scopes if scope.strip().lower() not in SCOPES]
    if strange:
        raise InvalidRequest(f"unknown scope {', '.join(strange)}; the scopes are {', '.join(SCOPES)}")
    flags = {"summaries": asked.summaries, "decisions": asked.decisions, "timeline": asked.timeline}
    chosen = {"story", *(name for name, on in flags.items() if on)} if any(flags.values()) else set(SCOPES) - {"timeline"}
    allowed = {scope.strip().lower() for scope in asked.scopes}
    if allowed and not any(flags.values()):
        chosen = set(SCOPES)
    return role, tuple(scope for scope in SCOPES if scope in chosen and (not allowed or scope in allowed))


def _system(role: str, phase: str) -> str:
    said = ROLES[role] if role else ""
    at = f"The work is in the phase: {phase.strip().lower()}." if phase.strip() else ""
    return "\n".join(part for part in (said, at) if part)


def _entry(row: Mapping[str, Any], wanted: Sequence[str]) -> Iterable[str]:
    """The lines of one earlier deliberation."""
    winner = _mapping(row.get("winner"))
    if "summaries" in wanted:
        end = f"{row.get('status')}, {row.get('final_state')}{', proven' if row.get('proven') else ''}"
        yield f"{row.get('task_id')} ({row.get('role')}): {_line(row.get('description'))} → {_line(end)}"
        if winner:
            yield f"  answer: {_line(winner.get('summary'))}"
            paths = [_line(path) for path in _list(winner.get("paths"))[:20]]
            if paths:
                yield f"  changed: {', '.join(paths)}"
        for review in _list(row.get("reviews"))[:3]:
            yield f"  review: {_line(_mapping(review).get('comment'))}"
    if "decisions" in wanted:
        for item in _list(row.get("decisions")):
            decision = _mapping(item)
            said = f"{decision.get('decision')} by {decision.get('approver')}: {decision.get('comment') or ''}"
            yield f"  decision on {row.get('task_id')}: {_line(said)}"
        if winner and winner.get("reasons"):
            yield f"  why on {row.get('task_id')}: {_line('; '.join(map(str, _list(winner['reasons']))))}"


def _fenced(label: str, lines: Sequence[str], room: int) -> str:
    text = "\n".join(line for line in lines if line)
    space = int((room - _FENCE_TOKENS) * CHARS_PER_TOKEN) - 60  # 60: what `clip` says of what it left out
    return fence(label, clip(text, space)) if text and space > 0 else ""


def _taken(text: str) -> int:
    return tokens(text) if text else 0


def _line(value: object) -> str:
    return clip(" ".join(str(value if value is not None else "").split()), _LINE)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
