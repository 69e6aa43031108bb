"""Budgets of stories and deliberations, and their usage. Budgets are reserved before they are
spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from moothall.errors import BudgetExceeded, InvalidRequest


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits. Zero means the configured default; if that is zero too, there is no limit."""

    tokens: int = 0
    seconds: int = 0
    calls: int = 0
    cost_usd: float = 0.0

    def or_default(self, default: Budget) -> Budget:
        """Replace zeros by the values of `default`."""
        return Budget(
            tokens=self.tokens or default.tokens,
            seconds=self.seconds or default.seconds,
            calls=self.calls or default.calls,
            cost_usd=self.cost_usd or default.cost_usd,
        )


NO_BUDGET = Budget()
"""A budget without own limits."""


def check_budget(budget: Budget) -> Budget:
    """Return a budget from outside. Raises `InvalidRequest` for negative or infinite numbers."""
    if not (
        min(budget.tokens, budget.seconds, budget.calls) >= 0 and 0 <= budget.cost_usd < math.inf
    ):
        raise InvalidRequest(
            f"a budget must have numbers from 0 (the default); this one is {budget}"
        )
    return budget


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of model calls, the number of calls, and US dollars. Cached tokens are part of the
    prompt tokens, reasoning tokens of the completion tokens.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cost_usd: float = 0.0
    reasoning_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.calls + other.calls,
            self.cost_usd + other.cost_usd,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(slots=True)
class Ledger:
    """The ledger of a budget. Call `reserve` before an action, and `settle` or `release` after it.

    It is not locked: a ledger belongs to one event loop, and no method awaits.
    """

    budget: Budget
    spent: Usage = field(default_factory=Usage)
    _reservations: dict[str, Usage] = field(default_factory=dict)

    def reserve(self, key: str, estimate: Usage) -> None:
        """Reserve `estimate` under `key`; a repeated key counts once. Raises `BudgetExceeded`."""
        if key in self._reservations:
            return
        total = self.committed + estimate
        limits = self.budget
        for name, used, limit in (
            ("tokens", total.tokens, limits.tokens),
            ("calls", total.calls, limits.calls),
            ("cost_usd", total.cost_usd, limits.cost_usd),
        ):
            if limit and used > limit:
                raise BudgetExceeded(
                    f"budget of {limit} {name} would be overspent: {used} with this call"
                )
        self._reservations[key] = estimate

    @property
    def committed(self) -> Usage:
        """Spent and reserved usage."""
        total = self.spent
        for reservation in self._reservations.values():
            total += reservation
        return total

    def settle(self, key: str, actual: Usage) -> None:
        """Replace the reservation of `key` by the actual usage."""
        self._reservations.pop(key, None)
        self.spent += actual

    def release(self, key: str) -> None:
        """Release the reservation of `key`: nothing was spent."""
        self._reservations.pop(key, None)

    @property
    def used_up(self) -> bool:
        """Whether no further call is possible."""
        limits, spent = self.budget, self.spent
        return (0 < limits.tokens <= spent.tokens) or (0 < limits.calls <= spent.calls)

    @property
    def remaining(self) -> Budget:
        """The rest of the budget. Zero means no limit, so an exhausted limit is -1."""

        def remainder(limit: float, used: float) -> float:
            return 0 if not limit else (limit - used if limit > used else -1)

        return replace(
            self.budget,
            tokens=int(remainder(self.budget.tokens, self.spent.tokens)),
            calls=int(remainder(self.budget.calls, self.spent.calls)),
            cost_usd=remainder(self.budget.cost_usd, self.spent.cost_usd),
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """Counted usage of a story: tokens of model calls, calls, US dollars."""

    tokens: int = 0
    calls: int = 0
    cost_usd: float = 0.0

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """Return the amount of a usage."""
        return cls(usage.tokens, usage.calls, usage.cost_usd)

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.tokens + other.tokens, self.calls + other.calls, self.cost_usd + other.cost_usd
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.tokens - other.tokens, self.calls - other.calls, self.cost_usd - other.cost_usd
        )

    def fits_within(self, limit: Amount) -> bool:
        """Return whether no part exceeds the other's."""
        return (
            self.tokens <= limit.tokens
            and self.calls <= limit.calls
            and self.cost_usd <= limit.cost_usd
        )


@dataclass(frozen=True, slots=True)
class BudgetDraw:
    """A deliberation's share of its story's budget: `granted` in all, of which `spent` is used."""

    granted: Amount = Amount()
    spent: Amount = Amount()


_SLACK = 8
"""A deliberation gets at most this fraction (1/8) of the free budget beyond its need, so that the
rest of a budget is granted call by call.
"""


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """The account of a story's budget. The grants never exceed the limit; a zero means no limit.
    All entries are absolute, so that writing them again changes nothing.
    """

    limit: Amount = Amount()
    draws: Mapping[str, BudgetDraw] = field(default_factory=dict)

    @property
    def spent(self) -> Amount:
        """The usage reported so far."""
        return _sum_amounts(draw.spent for draw in self.draws.values())

    @property
    def reserved(self) -> Amount:
        """What deliberations have been granted beyond their usage."""
        return _sum_amounts(draw.granted for draw in self.draws.values()) - self.spent

    @property
    def left(self) -> Amount:
        """The free budget, at least zero; zero also for parts without a limit."""
        free = self.limit - _sum_amounts(draw.granted for draw in self.draws.values())
        return Amount(
            max(free.tokens, 0) if self.limit.tokens else 0,
            max(free.calls, 0) if self.limit.calls else 0,
            max(free.cost_usd, 0.0) if self.limit.cost_usd else 0.0,
        )

    def lines(self) -> list[str]:
        """Return a line of text for each part that has a limit or was used."""
        parts = (
            (
                "tokens",
                ",d",
                self.limit.tokens,
                self.spent.tokens,
                self.reserved.tokens,
                self.left.tokens,
            ),
            (
                "calls",
                ",d",
                self.limit.calls,
                self.spent.calls,
                self.reserved.calls,
                self.left.calls,
            ),
            (
                "US dollars",
                ",.2f",
                self.limit.cost_usd,
                self.spent.cost_usd,
                self.reserved.cost_usd,
                self.left.cost_usd,
            ),
        )
        return [
            f"{name}: {format(spent, form)} spent, {format(reserved, form)} reserved"
            + (f", {format(remaining, form)} of {format(limit, form)} left" if limit else "")
            for name, form, limit, spent, reserved, remaining in parts
            if limit or spent or reserved
        ]

    def draw(self, key: str, needed: Amount, spent: Amount, extra: Amount) -> BudgetAccount:
        """Return the account in which `key` has been granted what it needs, and up to `extra` if
        there is plenty. Raises `BudgetExceeded`.
        """
        other_grants = _sum_amounts(
            draw.granted for name, draw in self.draws.items() if name != key
        )

        def grant_amount(
            name: str, limit: float, granted_to_others: float, required: float, desired_extra: float
        ) -> float:
            if limit and granted_to_others + required > limit:
                raise BudgetExceeded(
                    f"the story's budget of {limit} {name} would be overspent: "
                    f"{granted_to_others} are spent or reserved by others, {required} needed here"
                )
            return required + (
                min(desired_extra, (limit - granted_to_others - required) / _SLACK)
                if limit
                else desired_extra
            )

        limit = self.limit
        grant = Amount(
            int(
                grant_amount(
                    "tokens", limit.tokens, other_grants.tokens, needed.tokens, extra.tokens
                )
            ),
            int(grant_amount("calls", limit.calls, other_grants.calls, needed.calls, extra.calls)),
            grant_amount(
                "cost_usd", limit.cost_usd, other_grants.cost_usd, needed.cost_usd, extra.cost_usd
            ),
        )
        return replace(self, draws={**self.draws, key: BudgetDraw(grant, spent)})

    def close(self, key: str, spent: Amount) -> BudgetAccount:
        """Return the account in which `key` has spent this amount and reserves nothing more."""
        return replace(self, draws={**self.draws, key: BudgetDraw(spent, spent)})

    def fold_closed(self, max_closed: int) -> BudgetAccount:
        """Return the account with all but the last `max_closed` closed entries summed up in one."""
        closed_keys = [
            key for key, draw in self.draws.items() if key and draw.granted == draw.spent
        ]
        if len(closed_keys) <= max_closed:
            return self
        folded = {*closed_keys[: len(closed_keys) - max_closed], ""} & self.draws.keys()
        total = _sum_amounts(self.draws[key].spent for key in folded)
        kept_draws = {key: draw for key, draw in self.draws.items() if key not in folded}
        return replace(self, draws={"": BudgetDraw(total, total), **kept_draws})


def _sum_amounts(amounts: Iterable[Amount]) -> Amount:
    total = Amount()
    for amount in amounts:
        total += amount
    return total
