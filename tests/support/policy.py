"""The contract of policy engines, and a server with OPA's data API on top of Regorus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from moothall.authorization.rules import Decide
from moothall.errors import PolicyUnavailable
from moothall.policy import PATH, Rego

POLICY = """package moothall.tools
import rego.v1
default decision := {"allow": false, "reason": "no rule allows it"}
decision := {"allow": true} if { input.operation == "read"; not startswith(object.get(input, ["arguments", "path"], ""), "secret") }
decision := {"allow": false, "reason": "secrets stay closed"} if startswith(object.get(input, ["arguments", "path"], ""), "secret")
decision := {"allow": false, "reason": sprintf("%s asks first", [input.principal]), "park": true} if input.operation == "outside"
"""  # noqa: E501 - a line of embedded text
UNDEFINED = """package moothall.tools
import rego.v1
decision := {"allow": true} if input.tool == "files.read"
decision := {"allow": true} if not input.tool
"""

READ: Mapping[str, Any] = {
    "tenant": "local",
    "principal": "ann",
    "role": "dev",
    "persona": "",
    "tool": "files.read",
    "category": "files",
    "operation": "read",
    "version": "1.0.0",
    "tags": ["look"],
    "requirements": {"os_access": False, "network_access": False, "file_system": "read"},
    "arguments": {"path": "src/a.py", "lines": 3, "start": 1},
}

Opened = Callable[[Path], Any]
"""A function that opens an engine over a folder of *.rego, as an async context manager."""


async def decides_by_its_input(opened: Opened, folder: Path) -> None:
    """The same input has the same decision on every engine."""
    (folder / "tools.rego").write_text(POLICY, encoding="utf-8")
    async with opened(folder) as engine:
        for document, decision in (
            (READ, {"allow": True}),
            (
                {**READ, "arguments": {"path": "secret/key"}},
                {"allow": False, "reason": "secrets stay closed"},
            ),
            ({**READ, "operation": "write"}, {"allow": False, "reason": "no rule allows it"}),
            (
                {**READ, "operation": "outside"},
                {"allow": False, "reason": "ann asks first", "park": True},
            ),
            ({}, {"allow": False, "reason": "no rule allows it"}),
        ):
            assert await engine.decide(document) == decision, document


async def reports_a_missing_decision(opened: Opened, folder: Path) -> None:
    """An undefined decision is reported as none."""
    (folder / "tools.rego").write_text(UNDEFINED, encoding="utf-8")
    async with opened(folder) as engine:
        assert await engine.decide(READ) == {"allow": True}
        try:
            await engine.decide({**READ, "tool": "files.write"})
        except PolicyUnavailable:
            return
    raise AssertionError("an undefined decision was accepted")


async def answers_many_at_once(opened: Opened, folder: Path) -> None:
    """Concurrent answers are not mixed up."""
    (folder / "tools.rego").write_text(POLICY, encoding="utf-8")
    async with opened(folder) as engine:
        documents = [
            {**READ, "arguments": {"path": ("secret" if number % 3 else "src") + f"/{number}"}}
            for number in range(60)
        ]
        answers = await asyncio.gather(*(_ask(engine.decide, document) for document in documents))
    assert [answer["allow"] for answer in answers] == [number % 3 == 0 for number in range(60)]


async def _ask(decide: Decide, document: Mapping[str, Any]) -> Mapping[str, Any]:
    return await decide(document)


CONTRACT = (decides_by_its_input, reports_a_missing_decision, answers_many_at_once)


@dataclass(slots=True)
class Api:
    """A data API that can be made to fail: `answer` replaces it if set. `requests` counts."""

    url: str = ""
    requests: int = 0
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None


@asynccontextmanager
async def data_api(folder: Path) -> AsyncIterator[Api]:
    """Serve the policies of a folder on loopback like OPA."""
    rego, api = Rego(folder), Api()

    async def decide(request: web.Request) -> web.StreamResponse:
        api.requests += 1
        if api.answer is not None:
            return await api.answer(request)
        try:
            decision = await rego.decide((await request.json())["input"])
        except PolicyUnavailable:
            return web.json_response({})  # like OPA for an undefined decision
        return web.json_response({"result": decision})

    app = web.Application()
    app.router.add_post(f"/{PATH}", decide)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        api.url = f"http://{host}:{port}"
        yield api
    finally:
        await runner.cleanup()
        rego.close()
