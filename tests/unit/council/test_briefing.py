from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.config import Limits
from moothall.council.briefing import Briefings
from moothall.council.text import tokens
from moothall.domain.briefing import SCOPES, BriefingRequest
from moothall.domain.identity import LOCAL, Principal
from moothall.errors import InvalidRequest
from support.graph import MemoryGraph

ASKED = BriefingRequest(task_id="task-1", story_id="story-1", role="DEV", phase="propose")
STORY = {"story": {"headline": "Greet", "brief": "Say hello", "criteria": ["polite"], "state": "planning"}}
EARLIER = {
    "task_id": "task-0",
    "role": "architect",
    "description": "Design it",
    "status": "COMPLETED",
    "final_state": "answered",
    "proven": False,
    "winner": {"summary": "Use a function", "paths": ["src/a.py"], "reasons": ["best reviews"]},
    "reviews": [{"comment": "clear"}],
    "decisions": [{"decision": "approved", "approver": "po", "comment": "go"}],
}
HAPPENED = {"time": "2026-01-01T00:00:00Z", "kind": "deliberation.decided", "task_id": "task-0", "text": "answered"}


def known() -> MemoryGraph:
    graph = MemoryGraph()
    graph.tell("story", STORY)
    graph.tell("task_context", EARLIER)
    graph.tell("timeline", HAPPENED)
    return graph


async def test_what_the_graph_knows_is_told_and_fenced() -> None:
    made = await Briefings(known().ask, Limits()).brief(replace(ASKED, timeline=True, summaries=True, decisions=True), LOCAL)
    assert made.system.startswith("You are a developer")
    assert "phase: propose" in made.system
    for said in ("--- the story [", "Greet", "- polite", "answer: Use a function", "review: clear", "approved by po: go"):
        assert said in made.context
    assert "deliberation.decided task-0 answered" in made.history
    assert "files.read" in made.tools
    assert made.text == f"{made.system}\n\n{made.context}\n\n{made.tools}\n\n{made.history}"
    assert made.tokens == tokens(made.text)


async def test_the_same_content_has_the_same_version() -> None:
    first, again = known(), known()
    one = await Briefings(first.ask, Limits()).brief(ASKED, LOCAL)
    assert await Briefings(again.ask, Limits()).brief(ASKED, LOCAL) == one
    again.tell("task_context", {**EARLIER, "status": "FAILED"})
    assert (await Briefings(again.ask, Limits()).brief(ASKED, LOCAL)).version != one.version


@pytest.mark.parametrize("scope", SCOPES)
async def test_scopes_narrow(scope: str) -> None:
    marks = {"story": "Greet", "summaries": "Use a function", "decisions": "approved by po", "timeline": "deliberation.decided"}
    made = await Briefings(known().ask, Limits()).brief(replace(ASKED, scopes=(scope.upper(),)), LOCAL)
    assert [name for name, mark in marks.items() if mark in made.text] == [scope]
    off = await Briefings(known().ask, Limits()).brief(
        replace(ASKED, summaries=True, scopes=("decisions",)), LOCAL
    )  # not asked for, or out of scope
    assert off.context == off.history == ""


async def test_no_part_named_means_all_but_the_timeline() -> None:
    made = await Briefings(known().ask, Limits()).brief(ASKED, LOCAL)
    assert "Greet" in made.context
    assert "approved" in made.context
    assert made.history == ""


async def test_what_is_not_known_is_left_out_and_tenants_are_apart() -> None:
    for graph, who in ((MemoryGraph(), LOCAL), (known(), Principal("eve", "elsewhere"))):
        made = await Briefings(graph.ask, Limits()).brief(ASKED, who)
        assert made.context == made.history == ""
        assert {parameters["tenant"] for _, parameters in graph.asked} == {who.tenant}


@given(
    st.integers(100, 600),
    st.lists(st.text(max_size=300), max_size=12),
    st.lists(st.text(max_size=60), max_size=20),
)
async def test_it_stays_within_its_budget(budget: int, texts: list[str], lines: list[str]) -> None:
    graph = MemoryGraph()
    graph.tell("story", {"story": {"headline": "h", "brief": "".join(texts), "criteria": lines}})
    graph.tell("task_context", *({**EARLIER, "description": text, "winner": {"summary": text}} for text in texts))
    graph.tell("timeline", *({**HAPPENED, "text": line} for line in lines))
    made = await Briefings(graph.ask, Limits(context_tokens=budget)).brief(
        replace(ASKED, role="", timeline=True, summaries=True), LOCAL
    )
    assert made.tokens <= budget


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (BriefingRequest(), "give task_id, story_id or case_id"),
        (replace(ASKED, task_id="A b"), "task_id 'A b' is not an id"),
        (replace(ASKED, role="wizard"), "unknown role"),
        (replace(ASKED, phase="guess"), "unknown phase 'guess'; the phases are plan, propose"),
        (replace(ASKED, scopes=("secrets",)), "unknown scope secrets; the scopes are story"),
        (replace(ASKED, events=-1), "max_events is -1"),
        (replace(ASKED, events=10_000), "max_events is 10000"),
    ],
)
async def test_what_cannot_be_told_is_named(asked: BriefingRequest, wanted: str) -> None:
    with pytest.raises(InvalidRequest, match=wanted):
        await Briefings(known().ask, Limits()).brief(asked, LOCAL)


@pytest.mark.parametrize("row", [{}, {"story": 7}, {"winner": "x", "reviews": "y", "decisions": [3]}])
async def test_odd_rows_break_nothing(row: dict[str, Any]) -> None:
    graph = MemoryGraph()
    for question in ("story", "task_context", "timeline"):
        graph.tell(question, row)
    await Briefings(graph.ask, Limits()).brief(replace(ASKED, timeline=True), LOCAL)
