"""Quotas of tenants, on an in-memory bus."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moothall.authorization.budgets import BUCKET, Quotas, Reservation
from moothall.config.limits import Quota, QuotaSettings
from moothall.domain.budget import Amount, Budget, BudgetAccount, BudgetDraw, Ledger, Usage
from moothall.domain.ids import Principal, TaskKey
from moothall.errors import BudgetExceeded, InvalidRequest, QuotaExceeded, Refused
from moothall.testing.bus import MemoryBus

OPERATOR = Principal("olive", "local", operator=True)


class App:
    """Quotas on a bus, a clock, and the deliberations that run."""

    def __init__(self, **default: float) -> None:
        self.bus = MemoryBus()
        self.now = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
        self.running: set[str] = set()
        settings = QuotaSettings.model_validate(
            {"default": default, "tenants": {"team-big": {"tokens_per_day": 5000}}}
        )
        self.quotas = Quotas(self.bus.bucket(BUCKET), settings, lambda: self.now)

    async def is_open(self, task_key: TaskKey) -> bool:
        """Return whether a deliberation runs."""
        await asyncio.sleep(0)
        return task_key in self.running

    async def admit(self, task: str, tenant: str = "team-a") -> None:
        """Admit a deliberation, and let it run."""
        await self.quotas.admit(tenant, TaskKey(task), self.is_open)
        self.running.add(task)

    async def spend(self, task: str, tenant: str = "team-a", *, cost: float = 0.0) -> Reservation:
        """Spend a thousand tokens, and money, in one call."""
        reservation = await self.quotas.reservation(tenant, TaskKey(task), self.now)
        assert reservation is not None
        usage, ledger = Usage(prompt_tokens=1000, calls=1, cost_usd=cost), Ledger(Budget())
        ledger.reserve("call", usage)
        await reservation.cover(ledger, usage)
        ledger.settle("call", usage)
        await reservation.close(ledger.spent)
        return reservation


async def test_daily_quotas_reset_at_midnight_and_are_separate_per_tenant() -> None:
    app = App(tokens_per_day=2000)
    await app.admit("t-1")
    await app.spend("t-1")
    await app.admit("t-2")
    await app.spend("t-2")
    with pytest.raises(QuotaExceeded) as refused:
        await app.admit("t-3")
    assert refused.value.message == (
        "the quota of tenant team-a is used up: 2,000 of 2,000 tokens per day are spent or "
        "reserved; it resets at 2026-11-29 00:00 UTC"
    )
    assert refused.value.retry_after == 12 * 3600
    await app.admit("t-4", "team-b")
    app.now = datetime(2026, 11, 29, 0, 0, tzinfo=UTC)
    await app.admit("t-3")
    await app.spend("t-3")


async def test_monthly_quotas_sum_the_days() -> None:
    app = App(cost_usd_per_month=2.5)
    for day in (1, 15):
        app.now = datetime(2026, 12, day, 23, 59, tzinfo=UTC)
        await app.admit(f"t-{day}")
        await app.spend(f"t-{day}", cost=1.0)
    app.now = datetime(2026, 12, 31, tzinfo=UTC)
    await app.admit("t-31")  # half is left
    with pytest.raises(BudgetExceeded, match=r"2\.00 of 2\.50 US dollars per month .* 2027-01-01"):
        await app.spend("t-31", cost=1.0)
    await app.spend("t-32", cost=0.5)
    with pytest.raises(QuotaExceeded, match=r"2\.50 of 2\.50 US dollars per month"):
        await app.admit("t-33")
    app.now = datetime(2027, 1, 1, tzinfo=UTC)
    await app.admit("t-33")
    await app.spend("t-33", cost=1.0)


async def test_a_tenants_own_quota_overrides_single_default_values() -> None:
    app = App(tokens_per_day=1000, deliberations=1)
    for number in range(5):
        await app.spend(f"t-{number}", "team-big")
    with pytest.raises(QuotaExceeded, match="5,000 of 5,000"):
        await app.admit("t-6", "team-big")
    app.now = datetime(2026, 11, 30, tzinfo=UTC)
    await app.admit("t-6", "team-big")
    with pytest.raises(QuotaExceeded, match="1 of 1 concurrent deliberations"):
        await app.admit("t-7", "team-big")


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
async def test_concurrent_deliberations_never_exceed_the_quota(calls: list[int]) -> None:
    app = App(tokens_per_day=1000)
    spent = 0

    async def run(number: int, tokens: int) -> None:
        nonlocal spent
        quotas = Quotas(app.bus.bucket(BUCKET), QuotaSettings(default=Quota(tokens_per_day=1000)))
        reservation = await quotas.reservation("team-a", TaskKey(f"t-{number}"), app.now)
        assert reservation is not None
        ledger, usage = Ledger(Budget()), Usage(prompt_tokens=tokens)
        ledger.reserve("call", usage)
        try:
            await reservation.cover(ledger, usage)
        except BudgetExceeded:
            return
        spent += tokens
        assert spent <= 1000

    await asyncio.gather(*(run(number, tokens) for number, tokens in enumerate(calls)))
    assert spent or min(calls) > 1000


async def test_concurrent_deliberations_are_limited_and_an_end_frees_capacity() -> None:
    app = App(deliberations=3)
    results = await asyncio.gather(
        *(app.admit(f"t-{number}") for number in range(3)), return_exceptions=True
    )
    assert results == [None] * 3
    await app.admit("t-1")  # a repeated request
    with pytest.raises(QuotaExceeded) as refused:
        await app.admit("t-4")
    assert refused.value.message == (
        "the quota of tenant team-a is used up: 3 of 3 concurrent deliberations wait or run; try "
        "again when one of them ends"
    )
    app.running.remove("t-2")
    await app.admit("t-4")
    with pytest.raises(QuotaExceeded):
        await app.admit("t-5")


async def test_without_quotas_nothing_is_counted() -> None:
    app = App()
    await app.admit("t-1")
    assert await app.quotas.reservation("team-a", TaskKey("t-1"), app.now) is None
    assert await app.bus.bucket(BUCKET).entries() == {}


async def test_operators_change_quotas_and_other_processes_follow() -> None:
    app = App(tokens_per_day=1000, deliberations=9)
    await app.admit("t-1")
    await app.spend("t-1")
    with pytest.raises(QuotaExceeded):
        await app.admit("t-2")
    with pytest.raises(Refused, match="pat is not an operator"):
        await app.quotas.change("team-a", {"tokens_per_day": 0}, Principal("pat", "team-a"))
    changed = await app.quotas.change("team-a", {"tokens_per_day": 2000}, OPERATOR)
    assert changed.quota == Quota(tokens_per_day=2000, deliberations=9), (
        "the other quotas come from the settings"
    )
    await app.admit("t-2")
    other_process = Quotas(app.bus.bucket(BUCKET), QuotaSettings(), lambda: app.now)
    assert (await other_process.read("team-a")).quota == Quota(tokens_per_day=2000)
    assert [use.limit for use in await other_process.list_uses("team-a")] == [2000]
    assert (await app.quotas.read("team-b")).quota.tokens_per_day == 1000
    back = await app.quotas.change("team-a", {}, OPERATOR)
    assert back.quota == Quota(tokens_per_day=1000, deliberations=9)
    assert [(change.actor, change.time, change.values) for change in back.changes] == [
        ("olive", "2026-11-28T12:00:00+00:00", {}),
        ("olive", "2026-11-28T12:00:00+00:00", {"tokens_per_day": 2000}),
    ]


async def test_an_explicit_zero_removes_the_default_limit() -> None:
    app = App(tokens_per_day=1000)
    await app.quotas.change("team-a", {"tokens_per_day": 0}, OPERATOR)
    assert await app.quotas.list_uses("team-a") == []
    assert await app.quotas.reservation("team-a", TaskKey("t-1"), app.now) is None


@pytest.mark.parametrize(
    "values", [{"tokens_per_day": -1}, {"cost_usd_per_day": float("inf")}, {"tokens": 1}]
)
async def test_invalid_values_change_nothing(values: dict[str, float]) -> None:
    app = App(tokens_per_day=1000)
    with pytest.raises(InvalidRequest):
        await app.quotas.change("team-a", values, OPERATOR)
    assert (await app.quotas.read("team-a")).changes == ()


async def test_the_settings_apply_if_the_document_of_a_tenant_is_malformed() -> None:
    app = App(tokens_per_day=1000)
    await app.bus.bucket(BUCKET).put("team-a.quota.values", {"values": {"tokens_per_day": "many"}})
    assert (await app.quotas.read("team-a")).quota.tokens_per_day == 1000


def test_old_closed_draws_are_merged_and_open_ones_kept() -> None:
    account = BudgetAccount(draws={"open": BudgetDraw(Amount(tokens=9), Amount(tokens=1))})
    for number in range(10):
        account = account.close(f"t-{number}", Amount(tokens=2)).fold_closed(3)
    assert list(account.draws) == ["", "open", "t-7", "t-8", "t-9"]
    assert account.spent + account.reserved == Amount(tokens=29)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"default": {"tokens_per_day": -1}}, "greater than or equal to 0"),
        ({"default": {"cost_usd_per_day": float("inf")}}, "finite"),
        ({"tenants": {"Team A": {}}}, r"tenants\.Team A"),
        ({"tenants": {"team-a": {"tokens": 1}}}, "tokens"),
    ],
)
def test_invalid_settings_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        QuotaSettings.model_validate(values)
