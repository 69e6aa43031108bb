"""The timeline of a deliberation, read from its events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.api.web.charts import draw_timeline
from moothall.collector.timeline import TimelineReader
from moothall.domain.event import EventType, Recorded, new_event

START = datetime(2026, 11, 28, tzinfo=UTC)


def read_timeline(*events: tuple[float, EventType, dict[str, Any]]) -> Any:
    reader = TimelineReader()
    for seq, (seconds, kind, data) in enumerate(events, 1):
        time = (START + timedelta(seconds=seconds)).isoformat()
        event = new_event(kind, "task-1", {"task_id": "task-1", **data}, time=time)
        reader.add(Recorded(seq, event))
    return reader.timeline()


def test_the_timeline_lists_calls_tools_and_checks_in_order() -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "cost_usd": 0.25}
    timeline = read_timeline(
        (0, EventType.DELIBERATION_REQUESTED, {}),
        (2, EventType.SEAT_STARTED, {"seat": "a"}),
        (
            7,
            EventType.MODEL_CALLED,
            {"seat": "a", "phase": "propose", "duration_ms": 4000, "usage": usage, "answer": "Hi"},
        ),
        (
            9,
            EventType.SEAT_TURN,
            {
                "seat": "a",
                "operations": [{"tool": "code.shell", "status": "success"}],
                "checks": {"tests": "failed"},
            },
        ),
        (10, EventType.SEAT_PROPOSED, {"seat": "a"}),
        (
            16,
            EventType.CHECK_FINISHED,
            {"seat": "a", "evidence": {"check": "tests", "verdict": "passed", "duration_ms": 3000}},
        ),
        (16, EventType.CHECK_FINISHED, {"seat": "a", "evidence": {"check": "lint"}}),
        (18, EventType.MODEL_CALLED, {"seat": "b", "phase": "critique", "duration_ms": 1000}),
        (19, EventType.SEAT_FAILED, {"seat": "b", "error": {"code": "MODEL_UNAVAILABLE"}}),
        (20, EventType.DELIBERATION_DECIDED, {}),
    )
    first, second = timeline.lanes
    assert [(block.kind, block.start, block.end) for block in first.blocks] == [
        ("model", 3, 7),
        ("tools", 7, 9),
        ("check", 13, 16),
    ]
    model, tools, check = first.blocks
    assert (model.tokens, model.cost_usd, model.text) == (1000, 0.25, "Hi")
    assert (tools.label, tools.text) == (
        "code.shell, tests",
        "code.shell: success\ntests: failed",
    )
    assert check.text == "tests: passed\nlint: "
    assert (first.outcome, second.outcome) == ("proposed", "failed: MODEL_UNAVAILABLE")
    assert (second.blocks[0].kind, second.blocks[0].start) == ("review", 17)
    assert timeline.seconds == 20


def test_an_unstarted_task_has_no_chart() -> None:
    assert draw_timeline(read_timeline((0, EventType.DELIBERATION_REQUESTED, {}))) is None


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.sampled_from(
                [EventType.MODEL_CALLED, EventType.SEAT_TURN, EventType.CHECK_FINISHED]
            ),
            st.dictionaries(
                st.sampled_from(
                    ["seat", "duration_ms", "usage", "operations", "evidence", "phase"]
                ),
                st.one_of(st.text(max_size=5), st.integers(-10, 10**9), st.lists(st.integers())),
            ),
        ),
        max_size=20,
    )
)
def test_every_block_is_inside_the_chart(events: list[Any]) -> None:
    chart = draw_timeline(read_timeline(*events))
    for row in chart.rows if chart else ():
        for bar in row.bars:
            assert bar.width > 0
            assert bar.x >= 0
            assert bar.x + bar.width <= 100.02
