"""The client's contract on the scripted server. The same cases run on the small local model in
tests/e2e.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moothall.llm.client import OpenAIModel
from moothall.testing.model import Fault
from moothall.testing.server_contract import ChatModelContract, talking


async def answer_call(body: dict[str, Any], _headers: Any) -> str | Fault:
    if body["max_tokens"] == 4:
        return Fault("length", text="one, two")
    if body["max_tokens"] == 4000:
        await asyncio.sleep(60)
    return '{"finish": "done"}' if "response_format" in body else "Hello."


@pytest.fixture
async def model() -> AsyncIterator[OpenAIModel]:
    async with talking(answer_call) as (client, _):
        yield client


class TestScripted(ChatModelContract):
    """On the scripted server."""
