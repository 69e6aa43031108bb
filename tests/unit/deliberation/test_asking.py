"""Questions: one seat that may answer without a change. Everywhere else an answer without a change
is no success.
"""

from __future__ import annotations

from typing import Any

import pytest

from moothall.collector.decide import decide
from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump
from moothall.domain.council import PROTOCOLS
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.outcome import Outcome
from moothall.domain.task import Deliberation
from moothall.testing.model import step_of
from support.council import ONE, act, append, finish, of, outcomes

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

ANSWER = "It returns a greeting for a name."
LOOK = act(("files.read", {"path": "src/utils.py"}))


def script(*turns: str) -> Any:
    def answer(_body: Any, headers: Any) -> str:
        turn = int(step_of(headers).split(".")[1])
        return turns[min(turn, len(turns)) - 1]

    return answer


def outcome_of(d: Deliberation, events: list[Event]) -> Outcome:
    state: DeliberationState | None = fold(
        None, new_event(EventType.DELIBERATION_REQUESTED, d.task_id, dump(d))
    )
    for event in events:
        if event.data.get("task_id") == d.task_id and event.type is not EventType.TOOL_FINISHED:
            state = fold(state, event)
    assert state is not None
    return decide(state)


async def test_a_question_ends_with_an_answer_and_no_branch(council: Any) -> None:
    async with council(script(LOOK, finish(ANSWER))) as app:
        d = app.deliberation("ask", 1, description="What does greet do?")
        events = await app.run(d)
    assert outcomes(events) == {ONE: "proposed"}
    assert of(events, EventType.CHECK_FINISHED) == []  # nothing to check
    outcome = outcome_of(d, events)
    assert (outcome.status, outcome.final_state, outcome.winner_id, outcome.proven) == (
        "COMPLETED",
        "answered",
        ONE,
        False,
    )
    (result,) = outcome.results
    assert (result.content, result.diff, result.rank) == (ANSWER, "", 1)
    assert [item.tool for item in result.operations] == ["files.read"]
    assert (
        "change nothing: look at what you need, then finish with the whole answer"
        in app.server.requests[0].prompt
    )
    assert [name.partition("-")[0] for name in app.workspaces.opened] == [
        "base",
        "survey",
        "task",
    ]


async def test_a_question_may_be_answered_without_tool_calls(council: Any) -> None:
    async with council(script(finish(ANSWER))) as app:
        d = app.deliberation("ask", 1)
        assert outcome_of(d, await app.run(d)).results[0].content == ANSWER


async def test_a_change_is_judged_as_usual(council: Any) -> None:
    async with council(script(append())) as app:
        d = app.deliberation("ask", 1)
        outcome = outcome_of(d, await app.run(d))
    assert (outcome.final_state, outcome.proven) == ("committed", True)
    assert "+def hello_world" in outcome.results[0].diff


async def test_a_change_that_breaks_the_tests_is_not_an_answer(council: Any) -> None:
    broken = act(
        ("files.write", {"path": "src/utils.py", "content": "def greet(name):\n    return 'no'\n"})
    )
    async with council(script(broken, finish("All is well."))) as app:
        d = app.deliberation("ask", 1)
        outcome = outcome_of(d, await app.run(d))
    assert (outcome.final_state, outcome.winner_id) == ("no_winner", "")


async def test_reading_until_the_turns_run_out_is_not_an_answer(council: Any) -> None:
    async with council(script(LOOK)) as app:
        d = app.deliberation("ask", 1, max_turns=3)
        events = await app.run(d)
    assert outcomes(events) == {ONE: "failed OUT_OF_TURNS"}
    assert outcome_of(d, events).winner_id == ""


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "ask"])
async def test_finishing_without_a_change_fails_under_other_protocols(
    council: Any, protocol: str
) -> None:
    async with council(script(finish(ANSWER))) as app:
        d = app.deliberation(protocol, 1, rounds=0)
        events = await app.run(d)
    assert set(outcomes(events).values()) == {"failed NO_CHANGES"}
    assert outcome_of(d, events).winner_id == ""


@pytest.mark.parametrize(
    ("protocol", "wins"), [("ask", True), ("single", False), ("tests_then_verify", False)]
)
async def test_an_empty_proposal_wins_only_as_an_answer(
    council: Any, protocol: str, *, wins: bool
) -> None:
    """The collector checks the protocol itself, whatever a host reports."""
    async with council(script(finish(ANSWER))) as app:
        requesting = app.deliberation("ask", 1)
        events = await app.run(requesting)
        outcome = outcome_of(app.deliberation(protocol, 1), events)
    assert bool(outcome.winner_id) is wins
    assert outcome.final_state == ("answered" if wins else "no_winner")
