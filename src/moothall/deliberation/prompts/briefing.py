"""Briefings: the context of a story and a task from the graph, within a budget of tokens. Seats and
callers get the same.

The same content gives the same bytes and the same version. `stories/scopes.yaml` says what a role
may read in a phase, and the graph is asked for no more than that.

A briefing is a list of lines in a fixed order. The most valuable lines are kept if the budget is
too small. Every line was written by others: it begins with a dash and has no line break, so it
cannot look like a heading or end a fence.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moothall.authorization.rules import Rules
from moothall.config import LimitSettings
from moothall.deliberation.prompts.prompts import ROLES
from moothall.domain.codec import list_of, mapping_of
from moothall.domain.council import Briefing, BriefingRequest
from moothall.domain.ids import Principal, check_id, digest, read_role
from moothall.domain.text import clip, fence, most_tokens, scrub
from moothall.errors import InvalidRequest
from moothall.ports import CountTokens
from moothall.stories.notes import Scope, scopes
from moothall.tools.catalogue import list_tools

_MAX_LINE_CHARS, _MAX_BRIEF_CHARS = 400, 1600
"""Characters of a part of a line, and of a story's own text."""
_POSITION_FACTOR = 0.93
"""The value of a line relative to the line before it in the same part: later decisions matter more
than earlier ones.
"""
_MAX_SIMILAR = 5
_WORD = re.compile(r"[^\W\d_]{3,}")
_HEADINGS: Mapping[Scope, str] = {
    "story": "the story:",
    "brief": "what it asks for:",
    "decisions": "decisions, the last first:",
    "comments": "comments, the last first:",
    "summaries": "what came of its tasks, the last first:",
    "plan": "its plans, the last first:",
    "tasks": "its tasks:",
    "similar": "tasks like this one, elsewhere in the repository:",
    "milestones": "its moves, the last first:",
    "timeline": "what happened, the last first:",
}
_DEFAULT_EVENTS, _MAX_EVENTS = 20, 200
_CONTEXT_LABEL, _HISTORY_LABEL = "what is known", "what happened"
AskGraph = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
"""Answers a question of the graph, by its name and parameters: `CypherGraph.ask`."""


@dataclass(frozen=True, slots=True)
class ContextLine:
    """A line that a briefing may contain; the most valuable ones are kept."""

    scope: Scope
    text: str
    worth: float


def lines_of(
    row: Mapping[str, Any],
    similar: Sequence[Mapping[str, Any]],
    timeline: Sequence[Mapping[str, Any]],
    description: str,
) -> list[ContextLine]:
    """Return all lines in the order of the briefing.

    row: the answer to the question `context`.
    similar, timeline: the answers to these questions; the timeline has the oldest event first.
    description: the text of the task.
    """
    texts_by_scope: dict[Scope, Iterable[str]] = {
        "story": _story_lines(mapping_of(row.get("story"))),
        "brief": _brief_lines(mapping_of(row.get("brief"))),
        "decisions": map(_decision_line, _read_mappings(row.get("decisions"))),
        "comments": (
            f"{_one_line(item.get('actor'))}: {_one_line(item.get('comment'))}"
            for item in _read_mappings(row.get("comments"))
        ),
        "summaries": map(_summary_line, _read_mappings(row.get("summaries"))),
        "plan": (
            f"{_one_line(item.get('plan_id'))}: {_one_line(item.get('status')) or 'open'}"
            for item in _read_mappings(row.get("plan"))
        ),
        "tasks": map(_task_line, _read_mappings(row.get("tasks"))),
        "similar": map(
            _similar_task_line, find_similar(description or str(row.get("about") or ""), similar)
        ),
        "milestones": map(_move_line, _read_mappings(row.get("milestones"))),
        "timeline": map(_event_line, reversed(timeline)),
    }
    notes: dict[Scope, list[str]] = {}
    for item in _read_mappings(row.get("notes")):
        notes.setdefault(scopes().notes[str(item.get("kind"))], []).append(_note_line(item))
    worth = scopes().worth
    return [
        ContextLine(scope, text, worth[scope] * _POSITION_FACTOR**place)
        for scope in worth
        for place, text in enumerate(
            text for text in (*texts_by_scope[scope], *notes.get(scope, ())) if text
        )
    ]


def lay_out(lines: Sequence[ContextLine]) -> str:
    """Return the lines under their headings. Equal lines give equal bytes."""
    parts: dict[Scope, list[str]] = {}
    for line in lines:
        parts.setdefault(line.scope, []).append(f"- {line.text}")
    return "\n".join("\n".join([_HEADINGS[scope], *texts]) for scope, texts in parts.items())


async def select_lines(
    lines: Sequence[ContextLine],
    lay_out_lines: Callable[[Sequence[ContextLine]], str],
    count: CountTokens,
    budget: int,
) -> tuple[Sequence[ContextLine], int] | None:
    """Return the most valuable lines that fit into `budget` tokens, and their tokens; None if not
    even the text without lines fits. Tokens are counted by binary search.
    """
    ranked = sorted(range(len(lines)), key=lambda place: (-lines[place].worth, place))
    low, high, best = -1, len(lines), None
    middle = high  # usually all lines fit
    while low < high:
        selected_lines = [lines[place] for place in sorted(ranked[:middle])]
        tokens = await count(lay_out_lines(selected_lines))
        if tokens <= budget:
            low, best = middle, (selected_lines, tokens)
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return best


def find_similar(about: str, candidates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most five candidates whose descriptions share rare words with a text, the best
    first. Return the first ones if the text has no words. A word weighs more if fewer candidates
    have it.
    """
    words = _words_of(about)
    if not words:
        return list(candidates[:_MAX_SIMILAR])
    described = [_words_of(str(item.get("description") or "")) for item in candidates]
    counts = Counter(word for description in described for word in description)
    scored = [
        (
            sum(math.log1p(len(described) / counts[word]) for word in description & words)
            / math.sqrt(len(description)),
            place,
        )
        for place, description in enumerate(described)
        if description & words
    ]
    return [
        candidates[place]
        for _, place in sorted(scored, key=lambda item: (-item[0], item[1]))[:_MAX_SIMILAR]
    ]


def _words_of(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _story_lines(story: Mapping[str, Any]) -> Iterator[str]:
    if story:
        state = _one_line(story.get("state")) or "new"
        yield f"{_one_line(story.get('headline'))} (state: {state})"


def _brief_lines(brief: Mapping[str, Any]) -> Iterator[str]:
    yield _one_line(brief.get("brief"), _MAX_BRIEF_CHARS)
    yield from (f"wanted: {_one_line(item)}" for item in list_of(brief.get("criteria")))


def _decision_line(item: Mapping[str, Any]) -> str:
    subjects = ", ".join(_one_line(name) for name in list_of(item.get("about")))
    comment = f": {_one_line(item['comment'])}" if item.get("comment") else ""
    return (
        f"{_one_line(item.get('decision'))} by "
        f"{_one_line(item.get('approver'))}{f', on {subjects}' if subjects else ''}{comment}"
    )


def _note_line(item: Mapping[str, Any]) -> str:
    task_suffix = f", on {_one_line(item['task'])}" if item.get("task") else ""
    reason = f" | because {_one_line(item['reason'])}" if item.get("reason") else ""
    source = (
        f"noted by {_one_line(item.get('actor'))} for {_one_line(item.get('role'))}{task_suffix}"
    )
    return (
        f"{source}: {_one_line(item.get('kind'))} {_one_line(item.get('entity'))}: "
        f"{_one_line(item.get('words'))}{reason}"
    )


def _summary_line(row: Mapping[str, Any]) -> str:
    winner = mapping_of(row.get("winner"))
    state = (
        f"{_one_line(row.get('status'))}, "
        f"{_one_line(row.get('final_state'))}{', proven' if row.get('proven') else ''}"
    )
    parts = [
        (
            f"{_one_line(row.get('task_id'))} ({_one_line(row.get('role'))}), {state}: "
            f"{_one_line(row.get('description'))}"
        )
    ]
    parts += (
        [f"answer: {_one_line(winner.get('summary'))}{_changed_paths(winner)}"] if winner else []
    )
    parts += (
        [f"why: {_one_line('; '.join(map(str, list_of(winner['reasons']))))}"]
        if winner.get("reasons")
        else []
    )
    parts += [f"review: {_one_line(comment)}" for comment in list_of(row.get("reviews"))]
    parts += (
        [f"because {_one_line(row['error_message'])}"]
        if row.get("error_message") and not winner
        else []
    )
    return " | ".join(parts)


def _task_line(item: Mapping[str, Any]) -> str:
    final_states = [_one_line(state_text) for state_text in list_of(item.get("ends")) if state_text]
    dependencies = ", ".join(_one_line(name) for name in list_of(item.get("after")))
    state = (
        final_states[-1] if final_states else f"after {dependencies}" if dependencies else "open"
    )
    return (
        f"{_one_line(item.get('task_id'))} ({_one_line(item.get('role'))}), {state}: "
        f"{_one_line(item.get('description'))}"
    )


def _similar_task_line(item: Mapping[str, Any]) -> str:
    answer = f" | answer: {_one_line(item['summary'])}" if item.get("summary") else ""
    return (
        f"{_one_line(item.get('task_id'))} ({_one_line(item.get('role'))}): "
        f"{_one_line(item.get('description'))}{answer}{_changed_paths(item)}"
    )


def _changed_paths(winner: Mapping[str, Any]) -> str:
    paths = [_one_line(path) for path in list_of(winner.get("paths"))[:20]]
    return f" | changed: {', '.join(paths)}" if paths else ""


def _move_line(item: Mapping[str, Any]) -> str:
    return (
        f"{_one_line(item.get('from_state'))} to {_one_line(item.get('to_state'))}, by "
        f"{_one_line(item.get('actor'))} ({_one_line(item.get('event'))})"
    )


def _event_line(row: Mapping[str, Any]) -> str:
    return " ".join(
        _one_line(row.get(name)) for name in ("time", "kind", "task_id", "text") if row.get(name)
    )


def _one_line(value: object, max_chars: int = _MAX_LINE_CHARS) -> str:
    return " ".join(
        clip(" ".join(str(value if value is not None else "").split()), max_chars).split()
    )


def _read_mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in list_of(value) if isinstance(item, Mapping)]


async def estimate(text: str) -> int:
    """Estimate the tokens of a text, for models without a known tokenizer."""
    return most_tokens(text)


class Briefings:
    """Briefings from the graph. None has more than `limits.context_tokens` tokens by `count`, or a
    secret that `clean` knows.
    """

    def __init__(
        self,
        ask_graph: AskGraph,
        limits: LimitSettings,
        rules: Rules | None = None,
        *,
        count: CountTokens = estimate,
        clean: Callable[[str], str] = scrub,
    ) -> None:
        self._rules = rules or Rules()
        self._ask_graph = ask_graph
        self._budget = limits.context_tokens
        self._count = count
        self._clean = clean

    async def brief(self, request: BriefingRequest, principal: Principal) -> Briefing:
        """Return the briefing. Raises `InvalidRequest`, `GraphUnavailable`."""
        role, scopes_wanted = _check_request(request, self._budget)
        lines = await self._find_lines(request, role, scopes_wanted, principal)
        tools = f"Tools: {', '.join(self._names_offered(role, principal.tenant))}" if role else ""
        budget = request.budget or self._budget
        for head in (
            (_system_text(role, request.phase), tools),
            (_system_text(role, request.phase), ""),
            ("", ""),
        ):
            lay = partial(_lay_out, head, self._clean)
            if selection := await select_lines(
                lines, partial(_laid_out_text, lay), self._count, budget
            ):
                briefing = lay(selection[0])
                return replace(
                    briefing,
                    tokens=selection[1],
                    version=digest(briefing.text),
                    scopes=scopes_wanted,
                )
        raise AssertionError  # an empty text has no tokens

    async def brief_seats(self, request: BriefingRequest, principal: Principal, budget: int) -> str:
        """Return the context for the seats of a council in at most `budget` tokens, without fence,
        role and tools.
        """
        role, scopes_wanted = _check_request(request, self._budget)
        lines = await self._find_lines(request, role, scopes_wanted, principal)
        selection = (
            await select_lines(
                lines, lambda chosen: self._clean(lay_out(chosen)), self._count, budget
            )
            if budget > 0
            else None
        )
        return self._clean(lay_out(selection[0])) if selection else ""

    async def _find_lines(
        self,
        request: BriefingRequest,
        role: str,
        scopes_wanted: Sequence[str],
        principal: Principal,
    ) -> list[ContextLine]:
        subject = {
            "story_id": request.story_id,
            "task_id": request.task_id,
            "role": role,
            "phase": request.phase.strip() or scopes().phase,
            "tenant": principal.tenant,
        }
        row: Mapping[str, Any] = {}
        if static_scopes := [scope for scope in scopes_wanted if scope != "timeline"]:
            row = next(
                iter(
                    await self._ask_graph(
                        "context",
                        only=",".join(static_scopes),
                        repository=request.repository,
                        **subject,
                    )
                ),
                {},
            )
        similar: Sequence[Mapping[str, Any]] = ()
        if "similar" in scopes_wanted and (
            repository := request.repository or str(row.get("repository") or "")
        ):
            excluded_story = request.story_id or str(row.get("of_story") or "")
            similar = await self._ask_graph(
                "similar", repository=repository, **(subject | {"story_id": excluded_story})
            )
        events: Sequence[Mapping[str, Any]] = ()
        if "timeline" in scopes_wanted:
            overrides = {"task_id": ""} if request.story_id else {}
            events = await self._ask_graph(
                "timeline", limit=request.events or _DEFAULT_EVENTS, **(subject | overrides)
            )
        return lines_of(row, similar, events, request.description)

    def _names_offered(self, role: str, tenant: str) -> list[str]:
        grant = self._rules.grants.of(role)
        return [
            spec.name
            for spec in list_tools(
                grant, excluded=self._rules.hidden_tools(tenant), catalogue=self._rules.catalogue
            )
        ]


def _laid_out_text(
    lay: Callable[[Sequence[ContextLine]], Briefing], lines: Sequence[ContextLine]
) -> str:
    return lay(lines).text


def _lay_out(
    head: tuple[str, str], clean: Callable[[str], str], lines: Sequence[ContextLine]
) -> Briefing:
    """Lay out a briefing. The parts that most calls share come first, for prompt caches."""
    system, tools = head
    static_text = clean(lay_out([line for line in lines if line.scope != "timeline"]))
    timeline = clean(lay_out([line for line in lines if line.scope == "timeline"]))
    context = fence(_CONTEXT_LABEL, static_text) if static_text else ""
    history = fence(_HISTORY_LABEL, timeline) if timeline else ""
    text = "\n\n".join(part for part in (system, tools, context, history) if part)
    return Briefing(system, context, tools, history, text, 0, "", static_text)


def _check_request(request: BriefingRequest, max_budget: int) -> tuple[str, tuple[str, ...]]:
    """Return the role, or '', and the scopes that are wanted and allowed."""
    if not request.task_id and not request.story_id:
        raise InvalidRequest("the briefing has no subject: give task_id, story_id or case_id")
    for value, name in ((request.task_id, "task_id"), (request.story_id, "story_id")):
        if value:
            check_id(value, name)
    role = read_role(request.role) if request.role.strip() else ""
    allowed = scopes().allowed_scopes(role, request.phase)
    if not 0 <= request.events <= _MAX_EVENTS:
        raise InvalidRequest(
            f"max_events is {request.events}; allowed are 0 (the default, {_DEFAULT_EVENTS}) to "
            f"{_MAX_EVENTS}"
        )
    if not 0 <= request.budget <= max_budget:
        raise InvalidRequest(
            f"token_budget is {request.budget}; allowed are 0 (the default) to {max_budget} "
            "(limits.context_tokens)"
        )
    requested_scopes = scopes().check(request.scopes)
    flags = {
        "summaries": request.summaries,
        "decisions": request.decisions,
        "timeline": request.timeline,
    }
    parts = [name for name, on in flags.items() if on]
    selected_scopes = (
        {"story", "brief", *parts}
        if parts
        else {scope for scope in allowed if requested_scopes or scope != "timeline"}
    )
    return role, tuple(
        scope
        for scope in allowed
        if scope in selected_scopes and (not requested_scopes or scope in requested_scopes)
    )


def _system_text(role: str, phase: str) -> str:
    description = ROLES[role] if role else ""
    phase_text = f"The work is in the phase: {phase.strip().lower()}." if phase.strip() else ""
    return "\n".join(part for part in (description, phase_text) if part)
