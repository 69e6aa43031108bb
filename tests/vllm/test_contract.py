"""The client's contract on a real vLLM server: the same cases as on the scripted server and the small local model."""

from __future__ import annotations

import pytest

from moothall.testing.chat_contract import ChatModelContract

pytestmark = pytest.mark.asyncio(loop_scope="session")


class TestVllm(ChatModelContract):
    """On vLLM."""
