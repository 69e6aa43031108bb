"""Fixtures of the page's tests: a browser, a repository, and a command whose model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from command import Command, answer_turns_with
from moothall.testing.model import scripted_model
from world import browser, by_words, make_command, make_repository


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest_asyncio.fixture(loop_scope="session")
async def command(tmp_path: Path, repo: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(by_words)) as server:
        command = make_command(tmp_path, server.base_url)
        added = await command("repo", "add", str(repo), "--id", "project")
        assert added.code == 0, added.err
        yield command
