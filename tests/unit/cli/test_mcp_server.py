"""The tools of `moothall mcp`, as a client lists them."""

from __future__ import annotations

from moothall.cli.mcp_server import _server
from moothall.config import Settings


async def test_the_tools_are_described_without_the_indentation_of_the_source() -> None:
    tools = await _server(Settings()).list_tools()
    assert {tool.name for tool in tools} == {"deliberate", "ask", "result", "why", "context"}
    descriptions = [tool.description or "" for tool in tools]
    assert all(descriptions)
    assert not any("\n " in text or text != text.strip() for text in descriptions)
