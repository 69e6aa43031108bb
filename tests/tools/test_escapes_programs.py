from __future__ import annotations

import pytest

from canary_workspace import CanaryWorkspace, guarded_workspace  # noqa: F401 - a fixture
from corpus.attempt import Attempt
from corpus.programs import ATTEMPTS

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_an_escape_attempt_is_contained(
    guarded_workspace: CanaryWorkspace, attempt: Attempt
) -> None:
    await guarded_workspace.make_attempt(attempt)
