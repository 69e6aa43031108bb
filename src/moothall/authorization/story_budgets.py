"""Budgets of stories, shared by all processes on one bus: one account per story in a bucket,
changed by compare-and-set.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakValueDictionary

from moothall.config import LimitSettings
from moothall.domain.budget import Amount, Budget, BudgetAccount, Ledger, Usage
from moothall.domain.codec import dump, load
from moothall.domain.event import Data
from moothall.domain.ids import TaskKey
from moothall.errors import AlreadyExists, BudgetExceeded
from moothall.ports import Bucket
from moothall.telemetry import metrics

BUCKET = "budgets"
_CALLS_AHEAD = 4
"""A deliberation reserves budget for this many calls at once, to save requests to the bus."""
_MAX_CLOSED = 500
"""The number of closed deliberations that an account lists; older ones are summed up."""
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.002, 0.1


class StoryBudgets:
    """The accounts in the bucket BUCKET. `limits` fill the zeros of a story's own budget."""

    def __init__(self, bucket: Bucket, limits: LimitSettings) -> None:
        self._bucket = bucket
        self._default = Budget(
            tokens=limits.story_tokens, calls=limits.story_calls, cost_usd=limits.story_cost_usd
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def of(self, story_id: str, tenant: str, budget: Budget) -> BudgetAccount:
        """Return the current account of a story."""
        document = await self._bucket.get(f"{tenant}.{story_id}")
        return replace(
            load(BudgetAccount, document) if document else BudgetAccount(),
            limit=self._limit(budget),
        )

    def reservation(
        self, story_id: str, tenant: str, task_key: TaskKey, budget: Budget
    ) -> BudgetReservation:
        """Return the reservation of a deliberation."""
        key = f"{tenant}.{story_id}"
        return BudgetReservation(self, key, task_key, self._limit(budget), "story")

    def _limit(self, budget: Budget) -> Amount:
        whole = budget.or_default(self._default)
        return Amount(whole.tokens, whole.calls, whole.cost_usd)

    async def change(
        self, key: str, change: Callable[[BudgetAccount], BudgetAccount]
    ) -> BudgetAccount:
        """Change an account and return it. Concurrent changes are applied one after the other.
        Raises what `change` raises, `BusUnavailable`.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:  # orders changes of this process; other processes may still conflict

            def change_document(document: Data | None) -> Data:
                return dump(change(load(BudgetAccount, document) if document else BudgetAccount()))

            return load(BudgetAccount, await compare_and_set(self._bucket, key, change_document))


async def compare_and_set(bucket: Bucket, key: str, change: Callable[[Data | None], Data]) -> Data:
    """Change a document and return it. `change` receives the current document, or None if it does
    not exist; it runs again after a conflict with another process. Its errors are passed on. Raises
    `BusUnavailable`.
    """
    delay = _FIRST_DELAY_SECONDS
    while True:
        document, revision = await bucket.get_with_revision(key)
        changed = change(document)
        try:
            await bucket.replace(key, changed, revision)
        except AlreadyExists:
            await asyncio.sleep(delay * random.random())  # noqa: S311 - spreads writers
            delay = min(delay * 2, _MAX_DELAY_SECONDS)
        else:
            return changed


class Reservation(Protocol):
    """A deliberation's share of a budget. Amounts are totals, so repeating a call changes
    nothing.
    """

    async def cover(self, ledger: Ledger, estimate: Usage) -> None:
        """Reserve what a ledger has spent and holds, including the `estimate` of the next call.
        Raises `BudgetExceeded`, `BusUnavailable`.
        """

    async def close(self, spent: Usage) -> None:
        """Release what was not spent. Raises `BusUnavailable`."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """A deliberation's shares of several budgets."""

    parts: Sequence[Reservation]

    async def cover(self, ledger: Ledger, estimate: Usage) -> None:
        """Reserve in each budget."""
        for part in self.parts:
            await part.cover(ledger, estimate)

    async def close(self, spent: Usage) -> None:
        """Release in each budget."""
        for part in self.parts:
            await part.close(spent)


class BudgetReservation:
    """A deliberation's share of an account. All amounts are totals, so a deliberation that is taken
    over continues with the same share, and what was spent before a crash counts once.
    """

    def __init__(
        self, accounts: StoryBudgets, key: str, task_key: TaskKey, limit: Amount, label: str
    ) -> None:
        """`label` is the kind of budget, for the metric of refusals."""
        self._accounts = accounts
        self._label = label
        self._key = key
        self._task_key = task_key
        self._limit = limit
        self._granted = Amount()
        self._drawing = asyncio.Lock()

    async def cover(self, ledger: Ledger, estimate: Usage) -> None:
        """Reserve what a ledger has spent and holds, including the `estimate` of the next call.
        Raises `BudgetExceeded`, `BusUnavailable`.
        """
        if Amount.of(ledger.committed).within(self._granted):
            return
        async with self._drawing:
            needed = Amount.of(ledger.committed)
            if needed.within(self._granted):
                return
            call_cost = Amount.of(estimate)
            more = Amount(
                call_cost.tokens * _CALLS_AHEAD,
                call_cost.calls * _CALLS_AHEAD,
                call_cost.cost_usd * _CALLS_AHEAD,
            )
            spent = Amount.of(ledger.spent)
            try:
                account = await self._accounts.change(
                    self._key,
                    lambda account: replace(account, limit=self._limit).draw(
                        self._task_key, needed, spent, more
                    ),
                )
            except BudgetExceeded:
                metrics.BUDGET_REFUSALS.add(self._label)
                raise
            self._granted = account.draws[self._task_key].granted

    async def close(self, spent: Usage) -> None:
        """Release what was not spent. Raises `BusUnavailable`."""
        async with self._drawing:
            await self._accounts.change(
                self._key,
                lambda account: (
                    replace(account, limit=self._limit)
                    .close(self._task_key, Amount.of(spent))
                    .fold_closed(_MAX_CLOSED)
                ),
            )
            self._granted = Amount.of(spent)
