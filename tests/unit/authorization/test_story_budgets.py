"""Story budgets, on an in-memory bus and on a real one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.budgets import BUCKET, BudgetReservation, StoryBudgets
from moothall.config import LimitSettings
from moothall.domain.budget import Amount, Budget, Ledger, Usage
from moothall.domain.ids import TaskKey
from moothall.errors import BudgetExceeded
from moothall.testing.bus import MemoryBus

_CALLS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 50), st.integers(0, 50), st.integers(0, 3)),
    max_size=40,
)


async def _book(accounts: StoryBudgets, tokens: int) -> tuple[int, int, int]:
    book = await accounts.of("story-1", "local", Budget(tokens=tokens))
    return book.spent.tokens, book.reserved.tokens, book.left.tokens


@given(st.integers(1, 400), _CALLS)
async def test_concurrent_processes_never_overspend(
    tokens: int, calls: list[tuple[int, int, int, int]]
) -> None:
    """Each deliberation runs in its own process, which knows the others only by the bucket."""
    bus = MemoryBus()
    apps = [StoryBudgets(bus.bucket(BUCKET), LimitSettings()) for _ in range(5)]
    reservations = [
        app.reservation("story-1", "local", TaskKey(f"task-{number}"), Budget(tokens=tokens))
        for number, app in enumerate(apps)
    ]
    ledgers = [Ledger(Budget()) for _ in reservations]
    reserved_by_name: dict[str, int] = {}

    async def call(name: str, process: int, estimate: int, usage: int, turns: int) -> None:
        ledger = ledgers[process]
        ledger.reserve(name, Usage(prompt_tokens=estimate))
        try:
            await reservations[process].cover(ledger, Usage(prompt_tokens=estimate))
        except BudgetExceeded:
            ledger.release(name)
            return
        reserved_by_name[name] = estimate
        assert sum(reserved_by_name.values()) <= tokens
        for _ in range(turns):
            await asyncio.sleep(0)
        reserved_by_name[name] = min(usage, estimate)
        ledger.settle(name, Usage(prompt_tokens=reserved_by_name[name]))

    await asyncio.gather(*(call(str(number), *arguments) for number, arguments in enumerate(calls)))
    assert sum(ledger.spent.tokens for ledger in ledgers) <= tokens
    for reservation, ledger in zip(reservations, ledgers, strict=True):
        await reservation.close(ledger.spent)
    spent, reserved, remaining = await _book(apps[0], tokens)
    assert (spent, reserved, remaining) == (
        sum(ledger.spent.tokens for ledger in ledgers),
        0,
        tokens - spent,
    )


async def _draw(reservation: BudgetReservation, ledger: Ledger, call: str, tokens: int) -> None:
    ledger.reserve(call, Usage(prompt_tokens=tokens, calls=1))
    await reservation.cover(ledger, Usage(prompt_tokens=tokens, calls=1))


async def test_exactly_as_many_calls_run_as_the_budget_allows() -> None:
    accounts = StoryBudgets(MemoryBus().bucket(BUCKET), LimitSettings())
    reservation, ledger = (
        accounts.reservation("story-1", "local", TaskKey("task-1"), Budget(tokens=500)),
        Ledger(Budget()),
    )

    async def call(name: str) -> bool:
        try:
            await _draw(reservation, ledger, name, 100)
        except BudgetExceeded:
            ledger.release(name)
            return False
        return True

    assert sum(await asyncio.gather(*(call(str(number)) for number in range(12)))) == 5


async def test_spending_before_a_crash_is_counted_once() -> None:
    bus = MemoryBus()
    budget = Budget(tokens=300)
    first, ledger = (
        StoryBudgets(bus.bucket(BUCKET), LimitSettings()).reservation(
            "story-1", "local", TaskKey("task-1"), budget
        ),
        Ledger(Budget()),
    )
    await _draw(first, ledger, "a", 100)
    replayed_ledger = Ledger(Budget())
    replayed_ledger.settle("a", Usage(prompt_tokens=80, calls=1))  # replayed
    accounts = StoryBudgets(bus.bucket(BUCKET), LimitSettings())
    second = accounts.reservation("story-1", "local", TaskKey("task-1"), budget)
    await _draw(second, replayed_ledger, "b", 100)
    spent, reserved, remaining = await _book(accounts, 300)
    assert spent == 80
    assert spent + reserved + remaining == 300
    replayed_ledger.settle("b", Usage(prompt_tokens=20, calls=1))
    for _ in range(2):
        await second.close(replayed_ledger.spent)
    assert await _book(accounts, 300) == (100, 0, 200)


async def test_a_story_without_a_budget_gets_the_default_and_each_tenant_its_own() -> None:
    accounts = StoryBudgets(MemoryBus().bucket(BUCKET), LimitSettings(story_tokens=50))
    reservation = accounts.reservation("story-1", "local", TaskKey("task-1"), Budget())
    with pytest.raises(BudgetExceeded, match="story's budget of 50 tokens"):
        await _draw(reservation, Ledger(Budget()), "a", 51)
    ledger = Ledger(Budget())
    await _draw(reservation, ledger, "a", 50)
    await _draw(
        accounts.reservation("story-1", "acme", TaskKey("task-1"), Budget()),
        Ledger(Budget()),
        "a",
        50,
    )
    book = await accounts.of("story-1", "acme", Budget(calls=9))
    assert (book.limit, book.reserved.tokens) == (Amount(50, 9), 50)


async def test_a_call_within_the_reserved_amount_needs_no_bus_access() -> None:
    bus = MemoryBus()
    bucket = bus.bucket(BUCKET)
    reservation, ledger = (
        StoryBudgets(bucket, LimitSettings()).reservation(
            "story-1", "local", TaskKey("task-1"), Budget(tokens=100_000)
        ),
        Ledger(Budget()),
    )
    await _draw(reservation, ledger, "0", 10)
    _, revision = await bucket.get_with_revision("local.story-1")
    for number in range(1, 5):
        await _draw(reservation, ledger, str(number), 10)
    assert (await bucket.get_with_revision("local.story-1"))[1] == revision
    await _draw(reservation, ledger, "5", 10)
    assert (await bucket.get_with_revision("local.story-1"))[1] == revision + 1
