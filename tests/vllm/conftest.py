"""The real servers that scripts/test-vllm started and named in MOOTHALL_LLM__BASE_URL and
MOOTHALL_MODELS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from moothall.config import LlmSettings
from moothall.llm.client import OpenAIModel, open_model
from moothall.settings import load_settings

_MEASURED = pytest.StashKey[list[str]]()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a line to the summary at the end."""
    return request.config.stash.setdefault(_MEASURED, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_MEASURED, None):
        terminalreporter.section("measured on vLLM")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def llm() -> LlmSettings:
    """The settings, as any process of ours reads them."""
    return load_settings().llm


@pytest.fixture(scope="session")
def url(llm: LlmSettings) -> str:
    if llm.base_url is None:
        pytest.fail(
            "these tests need a vLLM server: run scripts/test-vllm, or set MOOTHALL_LLM__BASE_URL "
            "to one"
        )
    return llm.base_url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def model(llm: LlmSettings, url: str) -> AsyncIterator[OpenAIModel]:
    async with open_model(llm, url) as client:
        assert await client.server_metrics() is not None, (
            f"{url} does not report that it is a vLLM server"
        )
        yield client


async def _open(name: str) -> AsyncIterator[OpenAIModel]:
    """Open the client of a model in MOOTHALL_MODELS."""
    models = load_settings().models
    if name not in models:
        pytest.skip(
            f"MOOTHALL_MODELS has no model {name!r}; scripts/test-vllm starts it if no "
            "server is set"
        )
    base_url = models[name].base_url
    assert base_url
    async with open_model(LlmSettings(base_url=base_url), base_url) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def coder() -> AsyncIterator[OpenAIModel]:
    async for client in _open("coder"):
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def thinker() -> AsyncIterator[OpenAIModel]:
    async for client in _open("thinker"):
        yield client
