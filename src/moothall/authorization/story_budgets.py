"""Budgets of stories, for all processes on one bus: a book a story in a bucket, changed by
compare-and-set.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from moothall.config import LimitSettings
from moothall.domain.budget import Amount, Budget, BudgetAccount, Ledger, Usage
from moothall.domain.codec import dump, load
from moothall.errors import AlreadyExists
from moothall.ports import Bucket

BUCKET = "budgets"
_AHEAD = 4
"""Calls like the one that is made, for which a deliberation draws: so that it asks the bus at every
fourth or so.
"""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.002, 0.1


class StoryBudgets:
    """The books, in the bucket BUCKET. The limits fill the zeros of a story's own budget."""

    def __init__(self, bucket: Bucket, limits: LimitSettings) -> None:
        self._bucket = bucket
        self._default = Budget(
            tokens=limits.story_tokens, calls=limits.story_calls, cost_usd=limits.story_cost_usd
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def of(self, story_id: str, tenant: str, budget: Budget) -> BudgetAccount:
        """Return the book of a story as it is now."""
        document = await self._bucket.get(f"{tenant}.{story_id}")
        return replace(
            load(BudgetAccount, document) if document else BudgetAccount(),
            limit=self._limit(budget),
        )

    def reservation(
        self, story_id: str, tenant: str, task_id: str, budget: Budget
    ) -> BudgetReservation:
        """Return what a deliberation draws on."""
        return BudgetReservation(self, f"{tenant}.{story_id}", task_id, self._limit(budget))

    def _limit(self, budget: Budget) -> Amount:
        whole = budget.or_default(self._default)
        return Amount(whole.tokens, whole.calls, whole.cost_usd)

    async def change(
        self, key: str, change: Callable[[BudgetAccount], BudgetAccount]
    ) -> BudgetAccount:
        """Change a book and return it. Of those who do it at once each has a turn. Raises what
        `change` raises, `BusUnavailable`.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with (
            lock
        ):  # in this process one after the other; with others, whoever was slower reads again
            longest = _FIRST_SECONDS
            while True:
                document, revision = await self._bucket.get_with_revision(key)
                after = change(load(BudgetAccount, document) if document else BudgetAccount())
                try:
                    await self._bucket.replace(key, dump(after), revision)
                except AlreadyExists:
                    await asyncio.sleep(longest * random.random())  # noqa: S311 - spreads writers
                    longest = min(longest * 2, _LONGEST_SECONDS)
                else:
                    return after


class BudgetReservation:
    """A deliberation's part of its story's budget. All amounts are in all, so that whoever takes
    the work up again goes on with the same
    part: what was spent before a crash counts once.
    """

    def __init__(self, accounts: StoryBudgets, key: str, task_id: str, limit: Amount) -> None:
        self._accounts = accounts
        self._key = key
        self._task_id = task_id
        self._limit = limit
        self._granted = Amount()
        self._drawing = asyncio.Lock()

    async def cover(self, ledger: Ledger, estimate: Usage) -> None:
        """See that the story's budget has room for what a ledger has spent and holds, `estimate` of
        the next call within it. Raises `BudgetExceeded`, `BusUnavailable`.
        """
        if Amount.of(ledger.committed).within(self._granted):
            return
        async with self._drawing:
            needed = Amount.of(ledger.committed)
            if needed.within(self._granted):
                return
            one = Amount.of(estimate)
            more = Amount(one.tokens * _AHEAD, one.calls * _AHEAD, one.cost_usd * _AHEAD)
            spent = Amount.of(ledger.spent)
            book = await self._accounts.change(
                self._key,
                lambda book: replace(book, limit=self._limit).draw(
                    self._task_id, needed, spent, more
                ),
            )
            self._granted = book.draws[self._task_id].granted

    async def close(self, spent: Usage) -> None:
        """Give back what was not spent. Raises `BusUnavailable`."""
        async with self._drawing:
            await self._accounts.change(
                self._key,
                lambda book: replace(book, limit=self._limit).close(
                    self._task_id, Amount.of(spent)
                ),
            )
            self._granted = Amount.of(spent)
