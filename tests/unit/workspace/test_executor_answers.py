"""Answers of an executor are parsed defensively, because hostile code may have taken it over."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moothall.domain import codec
from moothall.domain.tool import ToolCall
from moothall.errors import WorkspaceFailed
from moothall.events.codec import dump_json
from moothall.workspace import executor_connection
from moothall.workspace.executor_connection import format_line
from moothall.workspace.runner import code_run, full_run

CALL = ToolCall("r1", "tests.pytest", {}, datetime.now(UTC))
HUGE = 10**400
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, -HUGE, math.inf, math.nan])
    | st.floats()
    | st.text()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "duration_ms",
    "usage",
    "exit_code",
    "cases",
    "details",
    "durations",
    "findings",
    "output",
    "error",
    "verdict",
    "end",
    "value",
)
USED = VALUES | st.dictionaries(st.sampled_from(["cpu_ms", "max_rss_bytes"]), LEAVES)
BY_CASE = VALUES | st.dictionaries(st.text(max_size=3), LEAVES, max_size=2)
OUTPUT_TEXT = dict.fromkeys(FIELDS, VALUES) | {
    "duration_ms": LEAVES,
    "usage": USED,
    "exit_code": LEAVES,
    "details": BY_CASE,
    "durations": BY_CASE,
}
ANSWERS = st.fixed_dictionaries({}, optional=OUTPUT_TEXT).map(
    lambda fields: {"status": "success", **fields}
)
READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "tool": lambda answer: executor_connection.parse_result(CALL, answer),
    "tests": lambda answer: executor_connection.parse_result(
        CALL, {**answer, "output": executor_connection.parse_tests_output(answer)}
    ),
    "check": lambda answer: executor_connection.parse_check_run("tests", answer),
    "block": lambda answer: code_run(answer, 1000),
    "full": lambda answer: full_run(answer, 1000),
    "log": lambda answer: format_line("run", {"argv": ("pytest",)}, answer),
}


@pytest.mark.parametrize("reader", READERS)
@given(ANSWERS)
@example({"status": "success", "exit_code": "1\nforged line", "duration_ms": "x" * 10_000})
def test_any_answer_is_a_result_or_a_protocol_error(reader: str, answer: dict[str, Any]) -> None:
    read_as(reader, answer)


@pytest.mark.parametrize("reader", READERS)
def test_deeply_nested_results_do_not_end_the_host(reader: str) -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    fields = {
        "output": {"deep": deep},
        "details": {"one": deep},
        "value": deep,
        "error": deep,
        "end": {"value": deep},
    }
    read_as(reader, {"status": "success", **fields})


def read_as(reader: str, answer: dict[str, Any]) -> None:
    try:
        read = READERS[reader](answer)
    except WorkspaceFailed:
        return
    if isinstance(read, str):
        assert read.count("\n") == 1
        assert len(read) < 2000
    else:
        dump_json(codec.dump(read))


@pytest.mark.parametrize(
    ("contended_ms", "cpu_ms", "contended"),
    [(900, 300, True), (100, 300, False), (900, 990 * (os.cpu_count() or 1), False), (0, 0, False)],
)
def test_a_check_that_waited_for_cores_is_contended(
    contended_ms: int, cpu_ms: int, *, contended: bool
) -> None:
    answer = {
        "status": "success",
        "verdict": "passed",
        "duration_ms": 1000,
        "contended_ms": contended_ms,
    }
    assert (
        executor_connection.parse_check_run(
            "tests", {**answer, "usage": {"cpu_ms": cpu_ms}}
        ).contended
        is contended
    )
