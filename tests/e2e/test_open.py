"""The web page opened by a command: on a server started for it, on a running server, and with the
demo's story.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from command import Command, answer_turns_with, by_task
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def _run_open(command: Command, opened: Path, *args: str) -> AsyncIterator[str]:
    """Run a command that serves until the context ends; yield the URL that its browser received."""
    server = await command.start(*args, stdout=asyncio.subprocess.DEVNULL)
    assert server.stderr is not None
    stderr = asyncio.ensure_future(server.stderr.read())
    try:
        async with asyncio.timeout(240):
            while not opened.exists() or not opened.read_text().endswith("\n"):
                assert server.returncode is None, (await stderr).decode()
                await asyncio.sleep(0.1)
        yield opened.read_text().split()[-1]
    finally:
        if server.returncode is None:
            server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(90):
            await server.wait()
            await stderr


async def _follow(link: str) -> tuple[str, str]:
    """Return the final address of a browser that follows a link, and the text of the page."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as browser, browser.get(link) as answer:
        assert answer.status == 200
        return answer.url.path, await answer.text()


async def test_the_page_is_opened_by_a_new_server_and_by_a_running_one(
    tmp_path: Path,
) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    async with scripted_model(answer_turns_with(by_task)) as model:
        extra = {
            "BROWSER": f"{browser} %s",
            "MOOTHALL_RAY__MODE": "process",
            "MOOTHALL_LOG__LEVEL": "error",
            "MOOTHALL_WEB__PORT": "0",
        }
        command = Command(
            tmp_path / "data",
            model.base_url,
            extra | {"MOOTHALL_GRPC__PORT": "0", "MOOTHALL_METRICS__ENABLED": "false"},
        )
        async with _run_open(command, opened, "open") as link:
            assert (await _follow(link))[0] == "/"
            second_link = await command("open", "--no-browser")
            assert second_link.code == 0, second_link.err
            assert (await _follow(second_link.out.strip()))[0] == "/"
            demo = await command("demo", "--page")
            assert demo.code == 0, demo.err
            story = demo.out.strip().partition("&story=")[2]
            path, text = await _follow(opened.read_text().split()[-1])
            assert path == f"/stories/{story}"
            assert "Greet the world from src/utils.py" in text
            story_link = await command("open", "--no-browser", story)
            assert (await _follow(story_link.out.strip()))[0] == path
            assert len(opened.read_text().split()) == 2, "no browser was requested the last time"
    refused = await command("open", "not an id")
    assert refused.code == 2
    assert "is not an id" in refused.err
