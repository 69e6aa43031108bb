"""The tools of `moothall mcp`, as a client lists them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mcp_types import CallToolRequestParams

from moothall.cli.mcp_server import TasksExtension, _server
from moothall.config import Settings

_NO_TASKS: Any = SimpleNamespace(
    session=SimpleNamespace(client_capabilities=None), protocol_version="2025-06-18"
)
"""The context of a call by a client without the extension for tasks."""


async def test_the_tools_are_described_without_the_indentation_of_the_source() -> None:
    tools = await _server(Settings()).list_tools()
    assert {tool.name for tool in tools} == {"deliberate", "ask", "result", "why", "context"}
    descriptions = [tool.description or "" for tool in tools]
    assert all(descriptions)
    assert not any("\n " in text or text != text.strip() for text in descriptions)


async def test_an_unknown_argument_of_a_tool_is_an_error() -> None:
    extension = TasksExtension(lambda _: {}, {"deliberate": ["task", "repository"]})
    called: list[Any] = []

    async def call_next(ctx: Any) -> None:
        called.append(ctx)

    async def call(name: str, **arguments: str) -> Any:
        params = CallToolRequestParams(name=name, arguments=arguments)
        return await extension.intercept_tool_call(params, _NO_TASKS, call_next)

    refused = await call("deliberate", task="Fix it", repo=".")
    assert (refused.is_error, called) == (True, [])
    assert refused.content[0].text == (
        "deliberate has no argument 'repo'; there are task, repository"
    )
    await call("deliberate", task="Fix it", repository=".")
    await call("unknown", task="Fix it")
    assert called == [_NO_TASKS, _NO_TASKS]
