"""Quotas of tenants, shared by all processes on one bus: an account for each day, and a document of
the deliberations that have not ended, both changed by compare-and-set.

A deliberation draws on the account of the day on which it was submitted. The use of a month is the
sum of its days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from moothall.authorization.story_budgets import BudgetReservation, StoryBudgets, compare_and_set
from moothall.config import LimitSettings
from moothall.config.quotas import Quota, QuotaSettings
from moothall.domain.budget import Amount, BudgetAccount, Ledger, Usage
from moothall.domain.codec import load
from moothall.domain.event import Data
from moothall.domain.ids import TaskKey
from moothall.errors import BudgetExceeded, QuotaExceeded
from moothall.ports import Bucket

IsOpen = Callable[[TaskKey], Awaitable[bool]]
_OPEN_RETRY_SECONDS = 10.0
_MAX_CLOSED = 500
"""Closed deliberations that a day's account lists; older ones are summed up."""
_SMALLEST = Amount(1, 0, 1e-9)
"""A limit under which no call fits: 0 would mean no limit."""


@dataclass(frozen=True, slots=True)
class _Use:
    """The use of one quota. `used` includes what deliberations have reserved."""

    what: str
    period: str
    limit: float
    used: float
    resets: datetime

    def sentence(self, tenant: str) -> str:
        form = ",.2f" if self.what == "US dollars" else ",d"
        return (
            f"the quota of tenant {tenant} is used up: {format(self.used, form)} of "
            f"{format(self.limit, form)} {self.what} per {self.period} are spent or reserved; it "
            f"resets at {self.resets:%Y-%m-%d %H:%M} UTC"
        )


class Quotas:
    """The quotas of all tenants. `bucket` is the one of `story_budgets`."""

    def __init__(
        self,
        bucket: Bucket,
        settings: QuotaSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._bucket = bucket
        self._settings = settings
        self._clock = clock
        self._accounts = StoryBudgets(bucket, LimitSettings())

    async def admit(self, tenant: str, task_key: TaskKey, is_open: IsOpen) -> None:
        """Admit a new deliberation; repeating it changes nothing. `is_open` returns whether a
        deliberation is recorded and has not ended. Raises `QuotaExceeded`, `BusUnavailable`.
        """
        quota = self._settings.of(tenant)
        if _limits_spending(quota):
            now = self._clock()
            day, earlier = await self._read_uses(tenant, now, quota)
            for use in _list_uses(quota, day, earlier, now):
                if use.used >= use.limit:
                    seconds = (use.resets - now).total_seconds()
                    raise QuotaExceeded(use.sentence(tenant), max(seconds, 1.0))
        if quota.deliberations:
            await self._admit_concurrent(tenant, task_key, quota.deliberations, is_open)

    async def _admit_concurrent(
        self, tenant: str, task_key: TaskKey, limit: int, is_open: IsOpen
    ) -> None:
        ended: set[str] = set()

        def add(document: Data | None) -> Data:
            listed = document.get("tasks") if document else None
            tasks = [task for task in listed or () if task not in ended and task != task_key]
            if len(tasks) >= limit:
                raise _FullError(tasks)
            return {"tasks": [*tasks, task_key]}

        key = f"{tenant}.quota.open"
        try:
            await compare_and_set(self._bucket, key, add)
        except _FullError as full:
            open_tasks = await asyncio.gather(*(is_open(TaskKey(task)) for task in full.tasks))
            ended = {
                task
                for task, is_running in zip(full.tasks, open_tasks, strict=True)
                if not is_running
            }
            try:
                await compare_and_set(self._bucket, key, add)
            except _FullError as still_full:
                raise QuotaExceeded(
                    f"the quota of tenant {tenant} is used up: {len(still_full.tasks)} of {limit} "
                    "concurrent deliberations wait or run; there is room for another one when one "
                    "of them ends",
                    _OPEN_RETRY_SECONDS,
                ) from None

    async def reservation(
        self, tenant: str, task_key: TaskKey, submitted: datetime
    ) -> QuotaReservation | None:
        """Return the reservation of a deliberation; None for a tenant without such quotas."""
        quota = self._settings.of(tenant)
        if not _limits_spending(quota):
            return None
        _, earlier = await self._read_uses(tenant, submitted, quota)
        key = _account_key(tenant, submitted)
        limit = _limit_of_day(quota, earlier)
        day = BudgetReservation(self._accounts, key, task_key, limit, "quota")
        return QuotaReservation(self, quota, tenant, key, submitted, earlier, day)

    async def read_use(self, key: str) -> Amount:
        """Return what is spent or reserved in the account of a day."""
        document = await self._bucket.get(key)
        account = load(BudgetAccount, document) if document else BudgetAccount()
        return account.spent + account.reserved

    async def compact(self, key: str) -> None:
        """Sum up the oldest closed deliberations of a day's account if it lists many."""
        await self._accounts.change(key, lambda account: account.fold_closed(_MAX_CLOSED))

    async def _read_uses(
        self, tenant: str, moment: datetime, quota: Quota
    ) -> tuple[Amount, Amount]:
        """Return the use of a day, and that of the earlier days of its month if a quota needs
        it.
        """
        is_monthly = quota.tokens_per_month or quota.cost_usd_per_month
        earlier_days = list(_earlier_days(moment)) if is_monthly else []
        today, *earlier = await asyncio.gather(
            *(self.read_use(_account_key(tenant, day)) for day in (moment, *earlier_days))
        )
        return today, sum(earlier, start=Amount())


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """A deliberation's share of the quotas of its tenant: `day` is its share of the account `key`
    of the day when it was `submitted`, `earlier` the use of the earlier days of the month.
    """

    quotas: Quotas
    quota: Quota
    tenant: str
    key: str
    submitted: datetime
    earlier: Amount
    day: BudgetReservation

    async def cover(self, ledger: Ledger, estimate: Usage) -> None:
        """Reserve what a ledger has spent and holds, including the `estimate` of the next call.
        Raises `BudgetExceeded`, `BusUnavailable`.
        """
        try:
            await self.day.cover(ledger, estimate)
        except BudgetExceeded as error:
            day = await self.quotas.read_use(self.key)
            uses = _list_uses(self.quota, day, self.earlier, self.submitted)
            fullest = max(uses, key=lambda use: use.used / use.limit)
            raise BudgetExceeded(
                f"{fullest.sentence(self.tenant)}; the next call does not fit"
            ) from error

    async def close(self, spent: Usage) -> None:
        """Release what was not spent. Raises `BusUnavailable`."""
        await self.day.close(spent)
        await self.quotas.compact(self.key)


class _FullError(Exception):
    """A tenant has too many deliberations."""

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = tasks


def _limits_spending(quota: Quota) -> bool:
    return any(
        (
            quota.tokens_per_day,
            quota.tokens_per_month,
            quota.cost_usd_per_day,
            quota.cost_usd_per_month,
        )
    )


def _list_uses(quota: Quota, day: Amount, earlier: Amount, moment: datetime) -> list[_Use]:
    """Return the use of each quota that a tenant has."""
    month = day + earlier
    midnight = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = midnight + timedelta(days=1)
    next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    uses = (
        _Use("tokens", "day", quota.tokens_per_day, day.tokens, tomorrow),
        _Use("tokens", "month", quota.tokens_per_month, month.tokens, next_month),
        _Use("US dollars", "day", quota.cost_usd_per_day, day.cost_usd, tomorrow),
        _Use("US dollars", "month", quota.cost_usd_per_month, month.cost_usd, next_month),
    )
    return [use for use in uses if use.limit]


def _limit_of_day(quota: Quota, earlier: Amount) -> Amount:
    """Return what one day may use at most, given the use of the earlier days of its month."""

    def smaller(per_day: float, per_month: float, used: float, smallest: float) -> float:
        limits = [per_day] if per_day else []
        limits += [max(per_month - used, smallest)] if per_month else []
        return min(limits, default=0)

    return replace(
        _SMALLEST,
        tokens=int(
            smaller(quota.tokens_per_day, quota.tokens_per_month, earlier.tokens, _SMALLEST.tokens)
        ),
        cost_usd=smaller(
            quota.cost_usd_per_day, quota.cost_usd_per_month, earlier.cost_usd, _SMALLEST.cost_usd
        ),
    )


def _earlier_days(moment: datetime) -> Iterator[datetime]:
    utc = moment.astimezone(UTC)
    for day in range(1, utc.day):
        yield utc.replace(day=day)


def _account_key(tenant: str, moment: datetime) -> str:
    return f"{tenant}.quota.{moment.astimezone(UTC):%Y-%m-%d}"
