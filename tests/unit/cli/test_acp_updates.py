"""What an editor is shown: malformed events, refused answers and foreign text included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from acp.helpers import (
    embedded_blob_resource,
    embedded_text_resource,
    resource_block,
    resource_link_block,
    text_block,
)
from acp.schema import AgentPlanUpdate, AgentThoughtChunk, ToolCallStart

from moothall.cli.acp_updates import TaskReport, describe_outcome, read_prompt
from moothall.client import DeliberationStatus, EventType, EvidenceLevel, Outcome, Result, Update
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.errors import InvalidRequest


def event(kind: EventType, data: Mapping[str, Any], agent: str = "", seq: int = 7) -> Update:
    return Update(seq, kind, data, step="a sentence\x1b[2J", agent=agent)


def candidate(level: EvidenceLevel, **fields: Any) -> Result:
    return Result(
        1,
        "agent-dev-001",
        "dev",
        1.0,
        ("[x](y) <b>\nok",),
        passed_gates=True,
        proven=False,
        evidence_level=level,
        **fields,
    )


def test_a_prompt_is_text_with_paths_and_embedded_files() -> None:
    blocks: list[Any] = [
        text_block("Fix "),
        resource_link_block("a b.py", "file:///repo/a%20b.py"),
        text_block(" as in"),
        resource_block(embedded_text_resource("https://example.org/x", "x = 1")),
    ]
    assert read_prompt(blocks) == "Fix /repo/a b.py as in\nhttps://example.org/x:\nx = 1"
    with pytest.raises(InvalidRequest, match="cannot have resource content: send text"):
        read_prompt([resource_block(embedded_blob_resource("file:///a.png", "aGk="))])


def test_the_plan_shows_the_progress_of_the_seats() -> None:
    report = TaskReport()
    statuses = []
    for update in (
        event(EventType.DELIBERATION_REQUESTED, {"seats": ["a", "b"], "base_sha": "c0ffee"}),
        event(EventType.DELIBERATION_STARTED, {}),
        event(EventType.SEAT_STARTED, {}, "a"),
        event(EventType.SEAT_PROPOSED, {}, "a"),
        event(EventType.SEAT_FINISHED, {}, "a"),
        event(EventType.SEAT_FAILED, {}, "b"),
        event(EventType.DELIBERATION_DECIDED, {}),
    ):
        (plan, *_) = report.read_update(update)
        assert isinstance(plan, AgentPlanUpdate)
        statuses.append("".join(entry.status[0] for entry in plan.entries))
    assert report.base == "c0ffee"
    assert statuses == ["ippp", "cppp", "cipp", "cipi", "ccpi", "ccci", "cccc"]


def test_a_turn_is_shown_as_a_thought_and_its_tool_calls() -> None:
    operations = [{"tool": "tests.pytest", "status": "success"}, {"tool": "mcp.x"}, "nonsense"]
    thought, run, other_call, unknown = TaskReport().read_update(
        event(EventType.SEAT_TURN, {"thought": "Look\x07", "operations": operations}, "a")
    )
    assert isinstance(thought, AgentThoughtChunk)
    assert thought.content.type == "text"
    assert thought.content.text == "a: Look\N{REPLACEMENT CHARACTER}\n"
    calls = [call for call in (run, other_call, unknown) if isinstance(call, ToolCallStart)]
    assert [(call.title, call.kind, call.status) for call in calls] == [
        ("a: tests.pytest", "execute", "completed"),
        ("a: mcp.x", "other", "failed"),
        ("a: ", "other", "failed"),
    ]
    assert len({call.tool_call_id for call in calls}) == 3


def test_the_kind_of_a_tool_follows_from_the_catalogue() -> None:
    tools = ["files.read", "files.search", "files.edit", "git.log", "git.commit", "code.shell"]
    kinds = ["read", "search", "edit", "read", "execute", "execute"]
    operations = [{"tool": tool} for tool in tools]
    updates = TaskReport().read_update(event(EventType.SEAT_TURN, {"operations": operations}, "a"))
    assert [call.kind for call in updates if isinstance(call, ToolCallStart)] == kinds


@pytest.mark.parametrize(
    "data", [{}, {"seats": 3}, {"operations": 5, "thought": 9}, {"evidence": "passed"}]
)
@pytest.mark.parametrize("kind", list(EventType))
def test_an_event_with_invalid_fields_is_no_error(kind: EventType, data: Mapping[str, Any]) -> None:
    for update in TaskReport().read_update(event(kind, data)):
        assert "\x1b" not in str(update)


def test_an_outcome_names_the_level_of_its_winner() -> None:
    outcome = Outcome(
        "t-1",
        DeliberationStatus.COMPLETED,
        winner_id="agent-dev-001",
        results=(candidate(EvidenceLevel.UNPROVEN, diff="d"),) * 2,
        branch="moothall/t-1",
        undecided=True,
    )
    lines = describe_outcome(outcome).splitlines()
    assert lines[0] == (
        "**agent-dev-001 wins, unproven** (no test that failed before passes now). No test or "
        "review puts it first. Branch `moothall/t-1`."
    )
    assert lines[2] == r"- \[x\](y) \<b\> ok"
    assert lines[-1] == "Other answers: 1. agent-dev-001, unproven. `moothall show t-1`"


def test_an_outcome_without_a_winner_gives_the_reason() -> None:
    failed = SeatOutcome("a", SeatStatus.FAILED, "NO_CHANGES", "nothing changed")
    outcome = Outcome(
        "t-1", DeliberationStatus.FAILED, seats=(failed,), error_message="every seat failed"
    )
    assert describe_outcome(outcome) == (
        "**No winner**: every seat failed\n- a failed: nothing changed"
    )
    assert describe_outcome(Outcome("t-1", DeliberationStatus.TIMEOUT)) == "**No winner**: timeout"


def test_a_text_answer_and_an_already_done_task_are_described() -> None:
    result = candidate(EvidenceLevel.REPRODUCED, content="It **is**\x1b.")
    outcome = Outcome(
        "t-1",
        DeliberationStatus.COMPLETED,
        winner_id="a",
        results=(result,),
        final_state="answered",
    )
    assert describe_outcome(outcome) == "It **is**\N{REPLACEMENT CHARACTER}."
    finished = Outcome(
        "t-1",
        DeliberationStatus.COMPLETED,
        winner_id="a",
        results=(result,),
        final_state="already_done",
    )
    assert describe_outcome(finished).startswith(
        "**The task is already done.** Nothing was changed."
    )
