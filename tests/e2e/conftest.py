"""One shared server for most end-to-end tests: starting one costs more than the tests
themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from command import Command, answer_turns_with, by_task
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import ScriptedModel, scripted_model
from support.parts import pytest_addoption, pytest_collection_modifyitems

__all__ = ["pytest_addoption", "pytest_collection_modifyitems"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def model() -> AsyncIterator[ScriptedModel]:
    async with scripted_model(answer_turns_with(by_task)) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def command(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Command]:
    """A command attached to a `serve` process that runs for the whole session."""
    command = Command(tmp_path_factory.mktemp("server"), model.base_url)
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(120):
        while line := (await server.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("serving gRPC on"):
                break
        else:
            pytest.fail("serve ended: " + "".join(lines))
    drain = asyncio.ensure_future(server.stderr.read())
    command.served_at = line.split()[3].rstrip(";")
    command.server_pid = server.pid
    yield command
    server.terminate()
    async with asyncio.timeout(60):
        await server.wait()
        tail = (await drain).decode()
    assert server.returncode == 130, tail


@pytest_asyncio.fixture(loop_scope="session")
async def repo(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    await make_sample_repository(path)
    return path
