"""What a story and a deliberation may use, and what they have used. Reserved before it is spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from moothall.errors import BudgetExceeded, InvalidRequest


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits; zero means the configured default, and where that is zero too, no limit."""

    tokens: int = 0
    seconds: int = 0
    calls: int = 0
    cost_usd: float = 0.0

    def or_default(self, default: Budget) -> Budget:
        """Fill the zeros from `default`."""
        return Budget(
            tokens=self.tokens or default.tokens,
            seconds=self.seconds or default.seconds,
            calls=self.calls or default.calls,
            cost_usd=self.cost_usd or default.cost_usd,
        )


NO_BUDGET = Budget()
"""One of which nothing is said."""


def check_budget(budget: Budget) -> Budget:
    """Return a budget that came from outside. Raises `InvalidRequest` where it isn't made of
    numbers from 0 up.
    """
    if not (
        min(budget.tokens, budget.seconds, budget.calls) >= 0 and 0 <= budget.cost_usd < math.inf
    ):
        raise InvalidRequest(
            f"a budget is made of numbers from 0 (the default) up; this one is {budget}"
        )
    return budget


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used: tokens of model calls, the calls themselves, money in US dollars. Cached
    tokens are among those of the prompt, reasoning tokens among those of the completion.
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
    """The one book of a budget. `reserve` before the act, `settle` or `release` after it.

    Not locked: a ledger belongs to one event loop, and no method awaits.
    """

    budget: Budget
    spent: Usage = field(default_factory=Usage)
    _held: dict[str, Usage] = field(default_factory=dict)

    def reserve(self, key: str, estimate: Usage) -> None:
        """Hold `estimate` under `key`; a repeated key counts once."""
        if key in self._held:
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
        self._held[key] = estimate

    @property
    def committed(self) -> Usage:
        """What is spent, and what is held."""
        total = self.spent
        for held in self._held.values():
            total += held
        return total

    def settle(self, key: str, actual: Usage) -> None:
        """Replace what `key` holds by what was really used."""
        self._held.pop(key, None)
        self.spent += actual

    def release(self, key: str) -> None:
        """Give back what `key` holds: nothing was spent."""
        self._held.pop(key, None)

    @property
    def used_up(self) -> bool:
        """Whether no further call could be paid."""
        left = self.remaining
        return left.tokens < 0 or left.calls < 0

    @property
    def remaining(self) -> Budget:
        """What is left; zero still means no limit, so an exhausted limit reads as -1."""

        def rest(limit: float, used: float) -> float:
            return 0 if not limit else (limit - used if limit > used else -1)

        return replace(
            self.budget,
            tokens=int(rest(self.budget.tokens, self.spent.tokens)),
            calls=int(rest(self.budget.calls, self.spent.calls)),
            cost_usd=rest(self.budget.cost_usd, self.spent.cost_usd),
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """What is counted of a story: tokens of model calls, the calls, US dollars."""

    tokens: int = 0
    calls: int = 0
    cost_usd: float = 0.0

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """Return what a usage comes to."""
        return cls(usage.tokens, usage.calls, usage.cost_usd)

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.tokens + other.tokens, self.calls + other.calls, self.cost_usd + other.cost_usd
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.tokens - other.tokens, self.calls - other.calls, self.cost_usd - other.cost_usd
        )

    def within(self, other: Amount) -> bool:
        """Whether no part is more than the other's."""
        return (
            self.tokens <= other.tokens
            and self.calls <= other.calls
            and self.cost_usd <= other.cost_usd
        )


@dataclass(frozen=True, slots=True)
class BudgetDraw:
    """A deliberation's part of its story's budget: `granted` in all, of which `spent` is gone."""

    granted: Amount = Amount()
    spent: Amount = Amount()


_SLACK = 8
"""Of what nobody has, a deliberation takes an eighth at most beyond what it needs: so the last of a
budget goes call by call.
"""


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """The book of a story's budget. What is granted is never more than the limit, of which a zero
    is none. All that is written in it is absolute, so that doing it again changes nothing.
    """

    limit: Amount = Amount()
    draws: Mapping[str, BudgetDraw] = field(default_factory=dict)

    @property
    def spent(self) -> Amount:
        """What is gone, as far as it was told."""
        return _sum(draw.spent for draw in self.draws.values())

    @property
    def reserved(self) -> Amount:
        """What deliberations hold beyond what they have spent."""
        return _sum(draw.granted for draw in self.draws.values()) - self.spent

    @property
    def left(self) -> Amount:
        """What nobody has, never less than zero; of what has no limit, zero."""
        free = self.limit - _sum(draw.granted for draw in self.draws.values())
        return Amount(
            max(free.tokens, 0) if self.limit.tokens else 0,
            max(free.calls, 0) if self.limit.calls else 0,
            max(free.cost_usd, 0.0) if self.limit.cost_usd else 0.0,
        )

    def lines(self) -> list[str]:
        """Return how it stands in words, a line for each part that has a limit or was used."""
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
            + (f", {format(left, form)} of {format(limit, form)} left" if limit else "")
            for name, form, limit, spent, reserved, left in parts
            if limit or spent or reserved
        ]

    def draw(self, key: str, needed: Amount, spent: Amount, more: Amount) -> BudgetAccount:
        """Return the book where `key` has what it needs in all, and some `more` where there is
        plenty. Raises `BudgetExceeded`.
        """
        others = _sum(draw.granted for name, draw in self.draws.items() if name != key)

        def grant_amount(
            name: str, limit: float, taken: float, wanted: float, beyond: float
        ) -> float:
            if limit and taken + wanted > limit:
                raise BudgetExceeded(
                    f"the story's budget of {limit} {name} would be overspent: {taken} are spent "
                    f"or reserved by others, {wanted} needed here"
                )
            return wanted + (min(beyond, (limit - taken - wanted) / _SLACK) if limit else beyond)

        limit = self.limit
        grant = Amount(
            int(grant_amount("tokens", limit.tokens, others.tokens, needed.tokens, more.tokens)),
            int(grant_amount("calls", limit.calls, others.calls, needed.calls, more.calls)),
            grant_amount(
                "cost_usd", limit.cost_usd, others.cost_usd, needed.cost_usd, more.cost_usd
            ),
        )
        return replace(self, draws={**self.draws, key: BudgetDraw(grant, spent)})

    def close(self, key: str, spent: Amount) -> BudgetAccount:
        """Return the book where `key` has spent so much, and holds nothing more."""
        return replace(self, draws={**self.draws, key: BudgetDraw(spent, spent)})


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = Amount()
    for amount in amounts:
        total += amount
    return total
