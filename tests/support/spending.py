"""Deliberations that spend a story's budget as fast as they can: `python -m support.spending URL
PROCESS COUNT TOKENS`.

Prints the used tokens and the number of refused calls. Each call reserves 100 tokens and uses 60 to
100.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from moothall.authorization.budgets import BUCKET, BudgetReservation, StoryBudgets
from moothall.config import BusSettings, LimitSettings
from moothall.domain.budget import Budget, Ledger, Usage
from moothall.domain.ids import TaskKey
from moothall.errors import BudgetExceeded
from moothall.events.nats.jetstream import open_bus

STORY, TENANT = "story-1", "local"
_CALLS = 4


async def spend(
    reservation: BudgetReservation, ledger: Ledger, call: str, dice: random.Random
) -> bool:
    """Make a call if the budget allows it."""
    ledger.reserve(call, Usage(prompt_tokens=100, calls=1))
    try:
        await reservation.cover(ledger, Usage(prompt_tokens=100, calls=1))
    except BudgetExceeded:
        ledger.release(call)
        return False
    await asyncio.sleep(dice.random() / 100)
    ledger.settle(call, Usage(prompt_tokens=dice.randint(60, 100), calls=1))
    return True


async def deliberate(accounts: StoryBudgets, name: str, tokens: int) -> tuple[int, int]:
    """Make concurrent calls; return the tokens that they used, and the number of refused ones."""
    ledger, dice = Ledger(Budget()), random.Random(name)  # noqa: S311 - how much is used is no secret
    reservation = accounts.reservation(STORY, TENANT, TaskKey(name), Budget(tokens=tokens))
    reserved = await asyncio.gather(
        *(spend(reservation, ledger, f"{name}/{number}", dice) for number in range(_CALLS))
    )
    await reservation.close(ledger.spent)
    return ledger.spent.tokens, reserved.count(False)


async def main(url: str, process: str, count: int, tokens: int) -> None:
    """Run them all at once."""
    async with open_bus(BusSettings(), url) as bus:
        accounts = StoryBudgets(bus.bucket(BUCKET), LimitSettings())
        spent = await asyncio.gather(
            *(deliberate(accounts, f"task-{process}-{number}", tokens) for number in range(count))
        )
    sys.stdout.write(
        json.dumps(
            {
                "used": sum(used for used, _ in spent),
                "refused": sum(refused for _, refused in spent),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
