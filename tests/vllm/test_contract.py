"""The client's contracts on real vLLM servers: the same cases as on the stubs, the scripted server
and the embedded one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import pytest_asyncio

from command import Command
from moothall.llm.client import OpenAIModel
from moothall.testing.server_contract import ChatModelContract, Expected, ServerContract

pytestmark = pytest.mark.asyncio(loop_scope="session")


class TestVllm(ChatModelContract):
    """The contract on vLLM."""


class TestJson(ServerContract):
    """Without a parser for tool calls. The random weights show the record, schemas, usage and
    refusals; they follow no instruction.
    """

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected("json", 16_384, follows=False)


class TestNativeTools(ServerContract):
    """With --enable-auto-tool-choice and the parser that fits the model."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def model(self, coder: OpenAIModel) -> OpenAIModel:
        return coder

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected("tools", 16_384)


class TestBlocks(ServerContract):
    """With a parser for reasoning: vLLM then enforces a schema only after the reasoning, and this
    model does not reason unprompted.
    """

    @pytest_asyncio.fixture(loop_scope="session")
    async def model(self, thinker: OpenAIModel) -> OpenAIModel:
        return thinker

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected("blocks", 4096, obeys=False, reasoning="reasoning")


async def test_doctor_reports_the_capabilities_of_each_server(
    coder: OpenAIModel, thinker: OpenAIModel, tmp_path: Path
) -> None:
    assert coder.url != thinker.url
    servers = {name: os.environ[name] for name in ("MOOTHALL_LLM__BASE_URL", "MOOTHALL_MODELS")}
    result = await Command(tmp_path / "data", extra=servers)("doctor", "--json")
    parts = {finding["part"]: finding["detail"] for finding in json.loads(result.out)}
    assert (
        "replies as json; window of 16,384 tokens (the server's list of models)" in parts["model"]
    )
    assert (
        "native tool calls; window of 16,384 tokens (the server's list of models)"
        in parts["model coder"]
    )
    assert (
        "replies as blocks; window of 4,096 tokens (the server's list of models)"
        in parts["model thinker"]
    )
    assert "native tool calls: no; JSON schema: ours" in parts["model server"]
    assert "native tool calls: yes" in parts["model coder server"]
    assert "JSON schema: ours" in parts["model coder server"]
    assert "native tool calls: no; JSON schema: ignored" in parts["model thinker server"]
    assert all(
        "usage: reported" in parts[f"{name} server"]
        for name in ("model", "model coder", "model thinker")
    )
