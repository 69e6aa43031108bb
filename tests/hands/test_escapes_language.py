from __future__ import annotations

import pytest

from castle import Castle, walled  # noqa: F401 - a fixture
from corpus.attempt import Attempt
from corpus.language import ATTEMPTS

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_it_is_contained(walled: Castle, attempt: Attempt) -> None:
    await walled.make_attempt(attempt)
