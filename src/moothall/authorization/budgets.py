"""Quotas of tenants and budgets of stories, shared by all processes on one bus."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol
from weakref import WeakValueDictionary

from cachetools import TTLCache

from moothall.authorization.approvals import refuse_unless_operator
from moothall.config import LimitSettings
from moothall.config.limits import Quota, QuotaSettings
from moothall.domain.budget import Amount, Budget, BudgetAccount, Ledger, Usage
from moothall.domain.codec import dump, load
from moothall.domain.event import Data
from moothall.domain.ids import Principal, TaskKey, check_id
from moothall.errors import AlreadyExists, BudgetExceeded, InvalidRequest, QuotaExceeded
from moothall.ports import Bucket
from moothall.telemetry import get_logger, metrics

# Budgets of stories, shared by all processes on one bus: one account per story in a bucket, changed
# by compare-and-set.


BUCKET = "budgets"
_CALLS_AHEAD = 4
"""A deliberation reserves budget for this many calls at once, to save requests to the bus."""
_STORY_CALLS = 10_000
"""The model calls of all deliberations of a story without a budget of its own."""
_MAX_CLOSED = 500
"""The number of closed deliberations that an account lists; older ones are summed up."""
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.002, 0.1


class StoryBudgets:
    """The accounts in the bucket BUCKET. `limits` fill the zeros of a story's own budget."""

    def __init__(self, bucket: Bucket, limits: LimitSettings) -> None:
        self._bucket = bucket
        self._default = Budget(
            tokens=limits.story_tokens, calls=_STORY_CALLS, cost_usd=limits.story_cost_usd
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
        effective = budget.or_default(self._default)
        return Amount(effective.tokens, effective.calls, effective.cost_usd)

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
        if Amount.of(ledger.committed).fits_within(self._granted):
            return
        async with self._drawing:
            committed = Amount.of(ledger.committed)
            if committed.fits_within(self._granted):
                return
            call_cost = Amount.of(estimate)
            advance = Amount(
                call_cost.tokens * _CALLS_AHEAD,
                call_cost.calls * _CALLS_AHEAD,
                call_cost.cost_usd * _CALLS_AHEAD,
            )
            spent = Amount.of(ledger.spent)
            try:
                account = await self._accounts.change(
                    self._key,
                    lambda account: replace(account, limit=self._limit).draw(
                        self._task_key, committed, spent, advance
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


# Quotas of tenants, shared by all processes on one bus: an account for each day, and a document of
# the deliberations that have not ended, both changed by compare-and-set.
#
# A deliberation draws on the account of the day on which it was submitted. The use of a month is
# the sum of its days.
#
# Operators change the quotas of a tenant while the server runs. A document of the tenant has the
# values that differ from the settings, and who set them when.


log = get_logger(__name__)

IsOpen = Callable[[TaskKey], Awaitable[bool]]
_OPEN_RETRY_SECONDS = 10.0
_MIN_TOKENS, _MIN_COST_USD = 1, 1e-9
"""Limits under which no call fits; 0 would mean no limit."""
_MAX_TENANTS, _CACHE_SECONDS = 1000, 5.0
"""For how long a process uses the quotas that it has read."""
_MAX_CHANGES = 50


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The use of one quota. `used` includes reservations."""

    what: str
    period: str
    limit: float
    used: float
    resets: datetime

    def sentence(self, tenant: str) -> str:
        """Return the error message of a quota that is used up."""
        form = ",.2f" if self.what == "US dollars" else ",d"
        return (
            f"the quota of tenant {tenant} is used up: {format(self.used, form)} of "
            f"{format(self.limit, form)} {self.what} per {self.period} are spent or reserved; it "
            f"resets at {self.resets:%Y-%m-%d %H:%M} UTC"
        )


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A change of a tenant's quotas: who made it, when (RFC 3339), and the values that differed
    from the settings after it.
    """

    actor: str
    time: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TenantQuotas:
    """The quotas of a tenant. `values` are those that differ from the settings. `changes` are the
    last ones, newest first.
    """

    quota: Quota
    values: Mapping[str, float]
    changes: Sequence[QuotaChange] = ()


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
        self._cache: TTLCache[str, Quota] = TTLCache(_MAX_TENANTS, _CACHE_SECONDS)

    def of_settings(self, tenant: str) -> Quota:
        """Return the quotas of a tenant in the settings."""
        return self._settings.of(tenant)

    async def read(self, tenant: str) -> TenantQuotas:
        """Return the current quotas of a tenant. Raises `InvalidRequest`, `BusUnavailable`."""
        check_id(tenant, "tenant")
        return self._read_document(tenant, await self._bucket.get(_quotas_key(tenant)))

    async def change(
        self, tenant: str, values: Mapping[str, float], principal: Principal
    ) -> TenantQuotas:
        """Replace the values of a tenant that differ from the settings; 0 is no limit. Values that
        are left out are those of the settings. Other processes follow within `_CACHE_SECONDS`.

        Raises `Refused` unless `principal` is an operator, `InvalidRequest`, and `BusUnavailable`.
        """
        refuse_unless_operator(principal)
        check_id(tenant, "tenant")
        load(Quota, values)
        now = self._clock().isoformat(timespec="seconds")
        change = QuotaChange(principal.name, now, dict(values))

        def record(document: Data | None) -> Data:
            earlier = self._read_document(tenant, document).changes
            changes = [asdict(item) for item in (change, *earlier)][:_MAX_CHANGES]
            return {"values": change.values, "changes": changes}

        document = await compare_and_set(self._bucket, _quotas_key(tenant), record)
        changed = self._read_document(tenant, document)
        self._cache[tenant] = changed.quota
        log.info("quotas were changed", tenant=tenant, actor=principal.name, values=dict(values))
        return changed

    async def _of(self, tenant: str) -> Quota:
        """Return the quota of a tenant, which may be some seconds old."""
        if (quota := self._cache.get(tenant)) is None:
            quota = self._cache[tenant] = (await self.read(tenant)).quota
        return quota

    def _read_document(self, tenant: str, document: Data | None) -> TenantQuotas:
        """Return the quotas in a tenant's document. The settings apply if it is malformed."""
        settings = self._settings.of(tenant)
        if document is None:
            return TenantQuotas(settings, {})
        try:
            stored = load(_Document, document)
            own_quota = load(Quota, stored.values)
        except InvalidRequest as error:
            log.warning(
                "the quotas of a tenant are unreadable", tenant=tenant, reason=error.message
            )
            return TenantQuotas(settings, {})
        values = {name: getattr(own_quota, name) for name in own_quota.model_fields_set}
        return TenantQuotas(settings.model_copy(update=values), values, stored.changes)

    async def admit(self, tenant: str, task_key: TaskKey, is_open: IsOpen) -> None:
        """Admit a new deliberation; repeating it changes nothing. `is_open` returns whether a
        deliberation is recorded and has not ended. Raises `QuotaExceeded`, `BusUnavailable`.
        """
        quota = await self._of(tenant)
        if _limits_spending(quota):
            now = self._clock()
            day, earlier = await self._read_uses(tenant, now, quota)
            for use in _list_uses(quota, day, earlier, now):
                if use.used >= use.limit:
                    seconds = (use.resets - now).total_seconds()
                    raise QuotaExceeded(use.sentence(tenant), max(seconds, 1.0))
        if quota.deliberations:
            await self._admit_concurrent(tenant, task_key, quota.deliberations, is_open)

    async def list_uses(self, tenant: str) -> Sequence[QuotaUse]:
        """Return the current use of each quota of a tenant that limits spending."""
        quota, now = await self._of(tenant), self._clock()
        day, earlier = await self._read_uses(tenant, now, quota)
        return _list_uses(quota, day, earlier, now)

    async def _admit_concurrent(
        self, tenant: str, task_key: TaskKey, limit: int, is_open: IsOpen
    ) -> None:
        ended: set[str] = set()

        def add(document: Data | None) -> Data:
            earlier_tasks = document.get("tasks") if document else None
            tasks = [task for task in earlier_tasks or () if task not in ended and task != task_key]
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
                    "concurrent deliberations wait or run; try again when one of them ends",
                    _OPEN_RETRY_SECONDS,
                ) from None

    async def reservation(
        self, tenant: str, task_key: TaskKey, submitted: datetime
    ) -> QuotaReservation | None:
        """Return the reservation of a deliberation; None if no quota limits the spending of its
        tenant.
        """
        quota = await self._of(tenant)
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

    async def _read_uses(
        self, tenant: str, moment: datetime, quota: Quota
    ) -> tuple[Amount, Amount]:
        """Return the use of a day, and of the earlier days of its month if the quota is monthly."""
        is_monthly = quota.tokens_per_month or quota.cost_usd_per_month
        earlier_days = list(_earlier_days(moment)) if is_monthly else []
        today, *earlier = await asyncio.gather(
            *(self.read_use(_account_key(tenant, day)) for day in (moment, *earlier_days))
        )
        return today, sum(earlier, start=Amount())


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """A deliberation's share of the quotas of its tenant.

    `key` is the account of the day on which it was `submitted`, `day` its share of that account,
    and `earlier` the use of the earlier days of the month.
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


@dataclass(frozen=True, slots=True)
class _Document:
    values: Mapping[str, float]
    changes: tuple[QuotaChange, ...] = ()


class _FullError(Exception):
    """A tenant has as many deliberations as its quota allows."""

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


def _list_uses(quota: Quota, day: Amount, earlier: Amount, moment: datetime) -> list[QuotaUse]:
    """Return the use of each quota that is set."""
    month = day + earlier
    midnight = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = midnight + timedelta(days=1)
    next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    uses = (
        QuotaUse("tokens", "day", quota.tokens_per_day, day.tokens, tomorrow),
        QuotaUse("tokens", "month", quota.tokens_per_month, month.tokens, next_month),
        QuotaUse("US dollars", "day", quota.cost_usd_per_day, day.cost_usd, tomorrow),
        QuotaUse("US dollars", "month", quota.cost_usd_per_month, month.cost_usd, next_month),
    )
    return [use for use in uses if use.limit]


def _limit_of_day(quota: Quota, earlier: Amount) -> Amount:
    """Return the limit of a day, given the use of the earlier days of its month."""
    tokens, cost_usd = [quota.tokens_per_day], [quota.cost_usd_per_day]
    if quota.tokens_per_month:
        tokens.append(max(quota.tokens_per_month - earlier.tokens, _MIN_TOKENS))
    if quota.cost_usd_per_month:
        cost_usd.append(max(quota.cost_usd_per_month - earlier.cost_usd, _MIN_COST_USD))
    return Amount(
        tokens=min(filter(None, tokens), default=0),
        cost_usd=min(filter(None, cost_usd), default=0.0),
    )


def _earlier_days(moment: datetime) -> Iterator[datetime]:
    utc = moment.astimezone(UTC)
    for day in range(1, utc.day):
        yield utc.replace(day=day)


def _quotas_key(tenant: str) -> str:
    return f"{tenant}.quota.values"


def _account_key(tenant: str, moment: datetime) -> str:
    return f"{tenant}.quota.{moment.astimezone(UTC):%Y-%m-%d}"
