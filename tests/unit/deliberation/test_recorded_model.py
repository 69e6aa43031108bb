"""Limits of model calls before they are made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from moothall.config import LlmSettings
from moothall.deliberation.external_seats import require_recordable
from moothall.deliberation.recorded_model import RecordedModel, Recording
from moothall.domain.budget import Budget, Ledger
from moothall.domain.chat import ChatRequest, FunctionTool, Message, ModelQuestion
from moothall.errors import BudgetExceeded, ContextOverflow


async def test_tools_count_for_the_budget_before_the_call() -> None:
    model = RecordedModel(
        cast("Any", None),
        ledger=Ledger(Budget(tokens=1_000)),
        events=cast("Any", None),
        recording=Recording(),
        settings=LlmSettings(),
    )
    request = ChatRequest(
        call_id="task/seat/propose/0.1",
        messages=(Message("user", "hi"),),
        max_tokens=10,
        deadline=datetime.now(UTC) + timedelta(minutes=1),
        tools=(FunctionTool("bash", "", {"enum": ["x" * 100] * 100}),),
    )
    with pytest.raises(BudgetExceeded):
        await model.request_reply(request)


@pytest.mark.parametrize("text", ["x" * 4_000_000, "\x01" * 700_000, "€" * 1_400_000])
def test_a_prompt_that_cannot_be_recorded_is_refused(text: str) -> None:
    require_recordable(ModelQuestion([Message("user", text[: len(text) // 2])]))
    with pytest.raises(ContextOverflow, match="at most 4000000 can be recorded"):
        require_recordable(ModelQuestion([Message("user", text)]))
