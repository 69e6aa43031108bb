"""An agent's progress and resource usage: measured, never falling, and stopped at the agent's own
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.event_writer import ProgressEstimate, check_bounds, sum_usage
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.task import AgentRef
from moothall.domain.tool import Bounds, ToolResult, ToolStatus, ToolUsage
from moothall.errors import LimitExceeded
from support.story import SEATS, deliberation

D = replace(deliberation(), agent=AgentRef("greeting", "sample"))
USED = {"prompt_tokens": 10, "completion_tokens": 5, "calls": 1, "cost_usd": 0.5}


def turn(seat: str) -> tuple[EventType, Mapping[str, Any]]:
    data = {
        "seat": seat,
        "operations": [{}],
        "usage": USED,
        "tools": {"cpu_ms": 7, "max_rss_bytes": 9},
    }
    return EventType.SEAT_TURN, {**data, "checks": {"tests": "passed", "lint": "failed"}}


KINDS = [
    EventType.SEAT_STARTED,
    EventType.SEAT_PROPOSED,
    EventType.SEAT_REVISED,
    EventType.SEAT_FINISHED,
]
FACTS = st.one_of(
    st.sampled_from(SEATS).map(turn),
    st.tuples(st.sampled_from(KINDS), st.sampled_from(SEATS).map(lambda seat: {"seat": seat})),
)


@given(st.lists(FACTS), st.lists(FACTS))
def test_progress_never_falls_even_after_a_restart(
    facts_before: list[Any], facts_after: list[Any]
) -> None:
    first = ProgressEstimate(D)
    fractions = [data["progress"] for fact in facts_before if (data := first.update(*fact))]
    restarted = ProgressEstimate(D, max(fractions, default=0.0))
    fractions += [data["progress"] for fact in facts_after if (data := restarted.update(*fact))]
    assert fractions == sorted(fractions)
    assert all(0 <= progress <= 1 for progress in fractions)


def test_progress_shows_the_measured_share_and_ends_at_one() -> None:
    advance = ProgressEstimate(D)
    advance.update(*turn(SEATS[0]))
    payload = advance.update(*turn(SEATS[1]))
    assert payload is not None
    assert (payload["agent"], payload["workstream"], payload["current_task"], payload["seat"]) == (
        "greeting",
        "sample",
        "at work",
        SEATS[1],
    )
    expected = {
        "turns": 2,
        "tool_calls": 2,
        "tokens": 30,
        "cost_usd": 1.0,
        "checks": 2,
        "checks_passed": 1,
    }
    assert payload["metrics"] == {**expected, "cpu_ms": 14, "max_rss_bytes": 9}
    for seat in SEATS:
        payload = advance.update(EventType.SEAT_FINISHED, {"seat": seat})
    assert payload is not None
    assert payload["progress"] == 1.0


def test_a_council_without_an_agent_reports_nothing() -> None:
    assert ProgressEstimate(deliberation()).update(*turn(SEATS[0])) is None


def errored_run(status: str) -> CheckRun:
    return CheckRun("tests", Verdict.ERRORED, status=status, usage=ToolUsage(5, 300))


@pytest.mark.parametrize(
    ("status", "bounds", "message"),
    [
        ("memory", Bounds(memory_bytes=512_000_000), r"max_memory, 512 MB"),
        ("cpu", Bounds(cpu_share=0.75), r"max_cpu, 75% of a processor"),
    ],
)
def test_an_agent_that_exceeds_its_own_limit_is_stopped_and_the_limit_named(
    status: str, bounds: Bounds, message: str
) -> None:
    call = ToolResult("r", "code.python", ToolStatus(status), usage=ToolUsage(4, 200))
    with pytest.raises(LimitExceeded, match=rf"code.python hit the agent's own limit \({message}"):
        check_bounds(bounds, [call], {})
    with pytest.raises(LimitExceeded, match="tests hit"):
        check_bounds(bounds, [], {"tests": errored_run(status)})
    # A limit for all is reported to the model, which may act differently.
    check_bounds(Bounds(), [call], {"tests": errored_run(status)})
    check_bounds(bounds, [replace(call, status=ToolStatus.TIMEOUT)], {})
    assert sum_usage([call], {"tests": errored_run(status)}) == ToolUsage(9, 300)
