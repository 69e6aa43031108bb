from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Amount, Budget, BudgetAccount, Ledger, Usage, check_budget
from moothall.errors import BudgetExceeded, InvalidRequest


def test_a_reservation_counts_until_it_is_settled_or_released() -> None:
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


def test_an_exhausted_limit_is_not_read_as_no_limit() -> None:
    ledger = Ledger(Budget(tokens=10))
    ledger.settle("a", Usage(prompt_tokens=10))
    assert ledger.remaining.tokens == -1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())))
def test_reservations_never_exceed_the_limit(steps: list[tuple[int, bool]]) -> None:
    ledger = Ledger(Budget(tokens=100))
    for number, (tokens, settles) in enumerate(steps):
        try:
            ledger.reserve(str(number), Usage(prompt_tokens=tokens))
        except BudgetExceeded:
            continue
        if settles:
            ledger.settle(str(number), Usage(prompt_tokens=tokens))
    assert ledger.spent.tokens <= 100


_AMOUNTS = st.builds(
    Amount,
    st.integers(0, 60),
    st.integers(0, 5),
    st.integers(0, 8).map(lambda eighths: eighths / 8),
)
_STEPS = st.lists(st.tuples(st.sampled_from("abc"), _AMOUNTS, _AMOUNTS, st.booleans()), max_size=30)


@given(_AMOUNTS.filter(lambda limit: min(limit.tokens, limit.calls, limit.cost_usd) > 0), _STEPS)
def test_a_story_budget_never_grants_more_than_its_limit(
    limit: Amount, steps: list[tuple[str, Amount, Amount, bool]]
) -> None:
    book = BudgetAccount(limit)
    for key, needed, further, closes in steps:
        try:
            drawn = book.draw(key, needed, Amount(), further)
        except BudgetExceeded:
            other_grants = [draw.granted for name, draw in book.draws.items() if name != key]
            assert not sum(other_grants, needed).fits_within(limit), (
                "a call within the budget was refused"
            )
            continue
        assert needed.fits_within(drawn.draws[key].granted)
        assert drawn.draw(key, needed, Amount(), Amount()).draws[key].granted == needed
        book = drawn.close(key, needed) if closes else drawn
        assert (book.spent + book.reserved).fits_within(limit)
        assert book.spent + book.reserved + book.left == limit
    assert all(
        book.close(key, draw.spent).close(key, draw.spent) == book.close(key, draw.spent)
        for key, draw in book.draws.items()
    )


def test_amounts_without_a_limit_are_still_counted() -> None:
    book = BudgetAccount(Amount(tokens=100)).draw(
        "a", Amount(60, 2, 0.5), Amount(10, 1, 0.25), Amount(40, 1)
    )
    assert book.draws["a"].granted == Amount(65, 3, 0.5)
    assert book.left == Amount(35)
    assert book.lines() == [
        "tokens: 10 spent, 55 reserved, 35 of 100 left",
        "calls: 1 spent, 2 reserved",
        "US dollars: 0.25 spent, 0.25 reserved",
    ]
    with pytest.raises(
        BudgetExceeded,
        match="story's budget of 100 tokens would be overspent: 65 are spent or reserved by "
        "others, 36",
    ):
        book.draw("b", Amount(36), Amount(), Amount())


@pytest.mark.parametrize(
    "invalid_budget",
    [
        Budget(tokens=-1),
        Budget(cost_usd=float("inf")),
        Budget(cost_usd=float("nan")),
        Budget(calls=-1),
    ],
)
def test_a_budget_has_only_non_negative_numbers(invalid_budget: Budget) -> None:
    with pytest.raises(InvalidRequest, match="numbers from 0"):
        check_budget(invalid_budget)
