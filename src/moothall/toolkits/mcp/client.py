"""The official SDK's client of a server: what goes wrong is told in our errors, and what it says is
cleaned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

from moothall.domain.text import encodable, one_line
from moothall.errors import CallFailed, MoothallError
from moothall.toolkits.answering import Output
from moothall.toolkits.mcp.links import LinkEnd, Streams
from moothall.toolkits.mcp.spec import OfferedTool

_PAGES = 20
_TEXT_CHARS = 200_000
_DEPTH = 20
_WHY_CHARS = 600

Link = Callable[[LinkEnd], AbstractAsyncContextManager[Streams]]


@asynccontextmanager
async def connect(name: str, link: Link, seconds: float, ended: LinkEnd) -> AsyncIterator[Client]:
    """Connect to a server, which has so many seconds for each answer. Raises what `telling`
    does.
    """
    with telling(name, ended):
        async with Client(link(ended), read_timeout_seconds=seconds, cache=None) as client:
            yield client


@contextmanager
def telling(name: str, ended: LinkEnd) -> Iterator[None]:
    """Raise `CallFailed` with what a server did, whatever the SDK makes of it; our own errors as
    they are.
    """
    try:
        yield
    except MoothallError:
        raise
    except Exception as error:
        raise _as_error(name, ended.why, tuple(_leaves(error))) from error


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yield what a group of exceptions is made of, the innermost."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _as_error(name: str, why: str, errors: Sequence[Exception]) -> MoothallError:
    """Return what is said of whatever the SDK, and what it stands on, make of what a server
    does.
    """
    for error in errors:
        if isinstance(error, MoothallError):
            return error
    answered = next(
        (f"it answered: {error.args[1]}" for error in errors if isinstance(error, MCPError)), ""
    )
    said = (
        why
        or answered
        or f"it answered what is no answer of the protocol ({type(errors[0]).__name__})"
    )
    return CallFailed(f"the MCP server {name}: {one_line(said, _WHY_CHARS)}")


async def offers_of(client: Client) -> tuple[OfferedTool, ...]:
    """Return all that a server offers, as it tells it. Raises `CallFailed` where it tells no end of
    it.
    """
    found: list[OfferedTool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += [
            OfferedTool(
                encodable(tool.name),
                encodable(tool.description or tool.title or ""),
                tool.input_schema,
            )
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)
    raise CallFailed(f"the list of its tools has more than {_PAGES} pages")


async def run(client: Client, tool: str, arguments: Mapping[str, Any]) -> Output:
    """Call a tool and return what it said. Raises `CallFailed` where it says that it failed.

    Not by the SDK's own call: that checks the answer by whatever patterns the server names, for as
    long as these may take.
    """
    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
    result = await client.session.send_request(request, CallToolResult)
    texts, left_out = [], []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            left_out.append(block.type)
    text = visible("\n".join(texts)[:_TEXT_CHARS])
    if result.is_error:
        raise CallFailed(text or "it failed, and said nothing of it")
    return {"text": text, "data": _visible(result.structured_content), "left_out": left_out[:20]}


def visible(text: str) -> str:
    """Return a text without what is not seen, such as signs that turn its direction; its lines
    stay.
    """
    return "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")


def _visible(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): _visible(one, depth + 1) for key, one in value.items()}
    return [_visible(one, depth + 1) for one in value] if isinstance(value, list) else value
