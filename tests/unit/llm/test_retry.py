"""Delays before the next attempt."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.llm.server_errors import MAX_DELAY, delay_before, is_retried, read_retry_after

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@given(st.integers(1, 1000), st.text(), st.floats(0.001, 60))
def test_delays_are_deterministic_and_bounded(attempt: int, call_id: str, first: float) -> None:
    delay = delay_before(attempt, call_id, first)
    assert delay == delay_before(attempt, call_id, first)
    assert 0 < delay <= MAX_DELAY
    assert delay >= min(MAX_DELAY, first) / 2


@given(st.text(), st.integers(1, 5))
def test_delays_grow(call_id: str, attempt: int) -> None:
    assert delay_before(attempt + 2, call_id, 0.5) > delay_before(attempt, call_id, 0.5)


def test_calls_that_fail_together_are_not_repeated_together() -> None:
    assert len({delay_before(1, f"t/agent-dev-{n:03d}/propose/0.1", 0.5) for n in range(50)}) == 50


def test_the_delay_is_at_least_retry_after() -> None:
    assert delay_before(1, "x", 0.5, retry_after=40.0) == 40.0
    assert delay_before(1, "x", 0.5, retry_after=0.0) >= 0.25


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Tue, 01 Jan 2030 12:00:09 GMT", 9.0),
        ("Tue, 01 Jan 2030 11:00:00 GMT", 0.0),
        ("Tue, 01 Jan 2030 12:00:09 -0000", 9.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        (None, None),
    ],
)
def test_retry_after_is_read(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, NOW) == seconds


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_temporary_statuses_are_retried(status: int) -> None:
    assert is_retried(status)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 422, 501, 505])
def test_permanent_statuses_are_not_retried(status: int) -> None:
    assert not is_retried(status)
