from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Budget, Ledger, Usage
from moothall.errors import BudgetExceeded


def test_what_is_held_counts_until_it_is_settled_or_released() -> None:
    ledger = Ledger(Budget(tokens=100))
    ledger.reserve("a", Usage(prompt_tokens=60))
    with pytest.raises(BudgetExceeded, match="100 tokens"):
        ledger.reserve("b", Usage(prompt_tokens=60))
    ledger.release("a")
    ledger.reserve("b", Usage(prompt_tokens=60))
    ledger.settle("b", Usage(prompt_tokens=10, completion_tokens=5))
    assert ledger.spent.tokens == 15
    assert ledger.remaining.tokens == 85


def test_a_repeated_key_counts_once() -> None:
    ledger = Ledger(Budget(calls=1))
    ledger.reserve("a", Usage(calls=1))
    ledger.reserve("a", Usage(calls=1))


def test_an_exhausted_limit_does_not_read_as_none() -> None:
    ledger = Ledger(Budget(tokens=10))
    ledger.settle("a", Usage(prompt_tokens=10))
    assert ledger.remaining.tokens == -1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())))
def test_reservations_never_go_over_the_limit(steps: list[tuple[int, bool]]) -> None:
    ledger = Ledger(Budget(tokens=100))
    for number, (tokens, settles) in enumerate(steps):
        try:
            ledger.reserve(str(number), Usage(prompt_tokens=tokens))
        except BudgetExceeded:
            continue
        if settles:
            ledger.settle(str(number), Usage(prompt_tokens=tokens))
    assert ledger.spent.tokens <= 100
