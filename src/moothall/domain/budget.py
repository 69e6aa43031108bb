"""What a deliberation may use, and what it has used. Reserved before it is spent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from moothall.errors import BudgetExceeded


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


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used: tokens of model calls, the calls themselves, money in US dollars."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cost_usd: float = 0.0

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
        held = estimate
        for other in self._held.values():
            held += other
        total = self.spent + held
        limits = self.budget
        for name, used, limit in (
            ("tokens", total.tokens, limits.tokens),
            ("calls", total.calls, limits.calls),
            ("cost_usd", total.cost_usd, limits.cost_usd),
        ):
            if limit and used > limit:
                raise BudgetExceeded(f"budget of {limit} {name} would be overspent: {used} with this call")
        self._held[key] = estimate

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

        def left(limit: float, used: float) -> float:
            return 0 if not limit else (limit - used if limit > used else -1)

        return replace(
            self.budget,
            tokens=int(left(self.budget.tokens, self.spent.tokens)),
            calls=int(left(self.budget.calls, self.spent.calls)),
            cost_usd=left(self.budget.cost_usd, self.spent.cost_usd),
        )
