"""The circuit breaker of tools, queries and remote agents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.agents.admission import query_breaker
from moothall.concurrency import CircuitBreaker, CircuitOpenError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def call(breaker: CircuitBreaker, *, failed: bool | None) -> bool:
    """Return whether a call was let through."""
    try:
        permitted = breaker.enter()
    except CircuitOpenError:
        return False
    permitted.end(failed=failed)
    return True


def test_the_circuit_opens_at_half_failures_of_twenty_and_closes_after_one_success() -> None:
    clock = Clock()
    breaker = query_breaker(20, 30, clock)
    assert all(call(breaker, failed=True) for _ in range(19)), "nineteen do not decide"
    clock.now += 31
    assert all(call(breaker, failed=number % 2 == 1) for number in range(20)), (
        "the nineteen are too old, and only the last one is the tenth failure"
    )
    assert not call(breaker, failed=False)
    clock.now += 31
    probe = breaker.enter()
    assert not call(breaker, failed=False), "one tries, the others wait"
    probe.end(failed=True)
    assert not call(breaker, failed=False), "it failed, so the circuit stays open"
    clock.now += 31
    assert call(breaker, failed=None), "a cancelled call decides nothing, and the next one tries"
    assert call(breaker, failed=False)
    assert all(call(breaker, failed=False) for _ in range(5))


def test_the_pause_doubles_up_to_its_limit_and_is_reset_by_a_success() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10, max_rest_seconds=25, clock=clock)
    assert call(breaker, failed=True)
    for rest in (10, 20, 25, 25):
        clock.now += rest - 1
        with pytest.raises(CircuitOpenError) as refused:
            breaker.enter()
        assert refused.value.seconds == 1
        clock.now += 1
        assert call(breaker, failed=True)
    clock.now += 25
    assert call(breaker, failed=False)
    assert call(breaker, failed=True)
    clock.now += 10
    assert call(breaker, failed=False)


def test_a_call_started_before_the_failures_does_not_decide_for_the_probe() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10, clock=clock)
    slow = breaker.enter()
    assert call(breaker, failed=True)
    clock.now += 10
    probe = breaker.enter()
    slow.end(failed=False)
    assert not call(breaker, failed=False), "the probe is still running"
    probe.end(failed=False)
    assert call(breaker, failed=False)


@given(st.lists(st.booleans()), st.integers(1, 6))
def test_the_circuit_opens_after_exactly_the_allowed_consecutive_failures(
    results: list[bool], max_failures: int
) -> None:
    breaker = CircuitBreaker(max_failures, 10, clock=Clock())
    failures = 0
    for failed in results:
        assert call(breaker, failed=failed) is (failures < max_failures)
        if failures < max_failures:
            failures = failures + 1 if failed else 0
