"""A client of an MCP server with the official SDK. Errors are translated, and the server's texts
are cleaned.
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
_REASON_CHARS = 600

Link = Callable[[LinkEnd], AbstractAsyncContextManager[Streams]]


@asynccontextmanager
async def connect(
    name: str, link: Link, seconds: float, link_end: LinkEnd
) -> AsyncIterator[Client]:
    """Connect to a server. `seconds` is the time limit of each answer. Raises what
    `translated_errors` raises.
    """
    with translated_errors(name, link_end):
        async with Client(link(link_end), read_timeout_seconds=seconds, cache=None) as client:
            yield client


@contextmanager
def translated_errors(name: str, link_end: LinkEnd) -> Iterator[None]:
    """Translate any exception of the SDK into `CallFailed` with the reason. Our own errors are
    raised unchanged.
    """
    try:
        yield
    except MoothallError:
        raise
    except Exception as error:
        raise _as_error(name, link_end.end_reason, tuple(_innermost_errors(error))) from error


def _innermost_errors(error: Exception) -> Iterator[Exception]:
    """Yield the innermost exceptions of an exception or a group."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _innermost_errors(inner)
    else:
        yield error


def _as_error(name: str, reason: str, errors: Sequence[Exception]) -> MoothallError:
    """Translate exceptions of the MCP SDK or its transport into an error."""
    for error in errors:
        if isinstance(error, MoothallError):
            return error
    answer = next(
        (f"it answered: {error.args[1]}" for error in errors if isinstance(error, MCPError)), ""
    )
    description = (
        reason or answer or f"its answer does not follow the protocol ({type(errors[0]).__name__})"
    )
    return CallFailed(f"the MCP server {name}: {one_line(description, _REASON_CHARS)}")


async def list_tools(client: Client) -> tuple[OfferedTool, ...]:
    """Return all tools that a server offers. Raises `CallFailed` if the list does not end."""
    tools: list[OfferedTool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [
            OfferedTool(
                encodable(tool.name),
                encodable(tool.description or tool.title or ""),
                tool.input_schema,
            )
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise CallFailed(f"the list of its tools has more than {_PAGES} pages")


async def call_tool(client: Client, tool: str, arguments: Mapping[str, Any]) -> Output:
    """Call a tool and return its output. Raises `CallFailed` if the tool reports a failure.

    The SDK's own method is not used, because it validates answers by patterns of the server, whose
    matching may take forever.
    """
    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
    result = await client.session.send_request(request, CallToolResult)
    texts, skipped_types = [], []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            skipped_types.append(block.type)
    text = remove_invisible("\n".join(texts)[:_TEXT_CHARS])
    if result.is_error:
        raise CallFailed(text or "it failed without a message")
    return {"text": text, "data": _clean(result.structured_content), "left_out": skipped_types[:20]}


def remove_invisible(text: str) -> str:
    """Return a text without invisible characters, such as those that change its direction. Line
    breaks are kept.
    """
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )


def _clean(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, str):
        return remove_invisible(value)
    if isinstance(value, Mapping):
        return {remove_invisible(str(key)): _clean(item, depth + 1) for key, item in value.items()}
    return [_clean(item, depth + 1) for item in value] if isinstance(value, list) else value
