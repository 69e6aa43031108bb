"""`http.*` and `web.*`: tools that access the network. Each HTTP exchange is checked at each
redirect, and limited in time, size and redirects. Web pages are returned as text.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

from yarl import URL

from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import CallFailed, InvalidRequest, Permanent, Refused
from moothall.network.destinations import Destinations, Unreachable
from moothall.ports import Workspace
from moothall.toolkits.calls import ToolOutput, call_workspace_tool, run_within
from moothall.toolkits.web import HttpSettings

if TYPE_CHECKING:  # 8 MB, imported by the first call
    import aiohttp

# The tools.


_RESPONSE_BYTES = 1_000_000
"""The size of a response after decompression; a longer one is truncated."""
_CALL_SECONDS = 30.0
"""The maximum duration of one call, redirects included."""
_FILE_BYTES = 5_000_000
"""The size of a file from or for a workspace; more is refused."""
_METHODS = {
    f"http.{name}": name.upper() for name in ("get", "head", "post", "put", "patch", "delete")
}
_TEXT_TYPES = (
    "text/",
    "application/json",
    "application/xml",
    "application/xhtml+xml",
    "application/javascript",
    "application/yaml",
)
_MAX_RESULTS, _RESULT_CHARS = 20, 500


class WebTools:
    """The toolkit of the categories `http` and `web`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: HttpSettings, seconds: float = _CALL_SECONDS) -> None:
        self._settings, self._seconds = settings, seconds
        self._exchange = HttpCaller(settings)
        # The operator's own server may be called at any address.
        self._search = HttpCaller(
            settings.model_copy(
                update={"allow": (_host(settings.search_url),), "only_allowed": True}
            )
        )

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Run a tool until its deadline or for 30 seconds. A failure is a status, not an
        exception.
        """
        del tenant  # there is no state between calls
        return await run_within(call, self._seconds, self._output(call, workspace))

    async def _output(self, call: ToolCall, workspace: Workspace) -> ToolOutput:
        args = call.arguments
        match call.tool:
            case "http.download":
                return await self._download(call, workspace)
            case "http.upload":
                return await self._upload(call, workspace)
            case "web.fetch":
                return _page(await self._get(str(args["url"])))
            case "web.search":
                return await self._search_web(str(args["query"]), list(args["engines"]))
        response = await self._exchange.call(
            _METHODS[call.tool],
            str(args["url"]),
            headers=args["headers"],
            body=str(args.get("body", "")).encode(errors="replace"),
            max_bytes=_RESPONSE_BYTES,
            truncate=True,
        )
        return _response_output(response)

    async def _get(self, url: str) -> HttpResponse:
        return await self._exchange.call(
            "GET", url, headers={}, body=b"", max_bytes=_RESPONSE_BYTES, truncate=True
        )

    async def _download(self, call: ToolCall, workspace: Workspace) -> ToolOutput:
        args = call.arguments
        response = await self._exchange.call(
            "GET", str(args["url"]), headers={}, body=b"", max_bytes=_FILE_BYTES
        )
        if not 200 <= response.status < 300:  # noqa: PLR2004 - HTTP's successes
            raise CallFailed(
                f"{response.url} answered with status {response.status}; nothing was stored"
            )
        content = base64.b64encode(response.body).decode()
        await call_workspace_tool(
            workspace, call, "files.store", {"path": args["path"], "content": content}
        )
        return {
            "status": response.status,
            "url": response.url,
            "path": args["path"],
            "bytes": len(response.body),
        }

    async def _upload(self, call: ToolCall, workspace: Workspace) -> ToolOutput:
        args = call.arguments
        result = await call_workspace_tool(workspace, call, "files.load", {"path": args["path"]})
        try:
            body = base64.b64decode(str(result["content"]), validate=True)
        except ValueError as error:
            raise CallFailed("the workspace did not return a file") from error
        if len(body) > _FILE_BYTES:
            raise CallFailed(
                f"{args['path']} has {len(body)} bytes; at most {_FILE_BYTES} may be sent"
            )
        response = await self._exchange.call(
            "PUT",
            str(args["url"]),
            headers=args["headers"],
            body=body,
            max_bytes=_RESPONSE_BYTES,
            truncate=True,
        )
        return {
            "status": response.status,
            "url": response.url,
            "path": args["path"],
            "bytes": len(body),
        }

    async def _search_web(self, query: str, engines: list[str]) -> ToolOutput:
        root = self._settings.search_url
        if not root:
            raise CallFailed(
                "no search server is configured (MOOTHALL_HTTP__SEARCH_URL: the root of a SearXNG "
                "server)"
            )
        url = (
            URL(root)
            / "search"
            % {"q": query, "format": "json", **({"engines": ",".join(engines)} if engines else {})}
        )
        response = await self._search.call(
            "GET", str(url), headers={}, body=b"", max_bytes=_RESPONSE_BYTES
        )
        try:
            listed = json.loads(response.body)["results"]
            results = [
                {
                    "title": _text(result, "title"),
                    "url": _text(result, "url"),
                    "text": _text(result, "content"),
                }
                for result in listed
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CallFailed(
                f"the search server answered with status {response.status} and no list of results"
            ) from error
        return {"results": results[:_MAX_RESULTS]}


def _host(root: str | None) -> str:
    url = URL(root or "http://search.invalid")
    return f"{url.host}:{url.port}"


def _text(result: Mapping[str, object], name: str) -> str:
    return str(result.get(name) or "")[:_RESULT_CHARS]


def _decode(response: HttpResponse) -> str:
    try:
        return response.body.decode(response.charset, errors="replace")
    except LookupError:  # an unknown charset
        return response.body.decode(errors="replace")


def _is_text(response: HttpResponse) -> bool:
    kind = response.content_type
    return kind.startswith(_TEXT_TYPES) or kind.endswith(("+json", "+xml"))


def _response_output(response: HttpResponse) -> ToolOutput:
    readable = _is_text(response)
    return {
        "status": response.status,
        "url": response.url,
        "headers": dict(response.headers),
        "body": _decode(response) if readable else "",
        "bytes": len(response.body),
        "truncated": response.is_truncated,
        **(
            {}
            if readable or not response.body
            else {"binary": f"{response.content_type}; http.download stores it as a file"}
        ),
    }


def _page(response: HttpResponse) -> ToolOutput:
    if not _is_text(response):
        raise CallFailed(
            f"{response.url} is {response.content_type}, not a page; http.download stores it as a "
            "file"
        )
    html = "html" in response.content_type
    page = read_page(_decode(response), URL(response.url)) if html else None
    return {
        "status": response.status,
        "url": response.url,
        "title": page.title if page else "",
        "text": page.text if page else _decode(response),
        "links": list(page.links) if page else [],
        "truncated": response.is_truncated,
    }


# A web page as text: its visible text, its title and its links.


_INVISIBLE_ELEMENTS = frozenset(
    {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}
)
_BLOCK_ELEMENTS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "td",
        "th",
        "tr",
        "ul",
    ]
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MAX_LINKS = 100


@dataclass(frozen=True, slots=True)
class Page:
    """A page as text. `links` are absolute, unique and in order."""

    title: str
    text: str
    links: tuple[str, ...]


@dataclass(slots=True)
class _Content:
    parts: list[str] = field(default_factory=list)
    title: list[str] = field(default_factory=list)
    links: dict[str, None] = field(default_factory=dict)


class _Reader(HTMLParser):
    """A parser of any page: open elements are closed at the end."""

    def __init__(self, base: URL) -> None:
        super().__init__(convert_charrefs=True)
        self.content = _Content()
        self._base = base
        self._invisible: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = self._in_title or tag == "title"
        if tag in _INVISIBLE_ELEMENTS:
            self._invisible.append(tag)
        elif tag == "body":
            self._invisible.clear()
        elif tag in _BLOCK_ELEMENTS:
            self.content.parts.append("\n" + _HEADINGS.get(tag, "- " if tag == "li" else ""))
        elif tag == "a" and len(self.content.links) < MAX_LINKS:
            self._link(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in self._invisible:
            del self._invisible[self._invisible.index(tag) :]
        elif tag in _BLOCK_ELEMENTS:
            self.content.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.content.title.append(data)
        elif not self._invisible:
            self.content.parts.append(data)

    def _link(self, href: str) -> None:
        try:
            target = self._base.join(URL(href)).with_fragment(None)
        except (ValueError, UnicodeError):
            return
        if target.scheme in {"http", "https"}:
            self.content.links[str(target)] = None


def read_page(html: str, url: URL) -> Page:
    """Parse a page. Invalid markup gives odd text, never an error."""
    reader = _Reader(url)
    try:
        reader.feed(html)
        reader.close()
    except (AssertionError, RecursionError):  # limits of the parser; keep what was read until then
        reader.content.parts.append("\n[the rest of the page cannot be read]")
    lines = (" ".join(line.split()) for line in "".join(reader.content.parts).split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return Page(
        " ".join("".join(reader.content.title).split())[:300], text, tuple(reader.content.links)
    )


# An HTTP exchange of a tool: checked at each redirect, and limited in time, size and redirects.


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHANGE_TO_GET = frozenset({301, 302, 303})
_UNCHANGED_METHODS = frozenset({"GET", "HEAD"})
_MAX_REDIRECTS = 5
_CHUNK = 65_536
_SHOWN_HEADERS = frozenset(
    {
        "content-type",
        "content-length",
        "content-language",
        "date",
        "etag",
        "last-modified",
        "location",
        "retry-after",
        "allow",
    }
)
_CREDENTIAL_HEADERS = frozenset({"authorization", "cookie", "x-api-key"})
_ENCODINGS: Final[Mapping[str, int]] = {
    "gzip": zlib.MAX_WBITS | 16,
    "x-gzip": zlib.MAX_WBITS | 16,
    "deflate": zlib.MAX_WBITS,
}


class AnswerTooLarge(Permanent):
    """An answer exceeded the size limit."""

    code = "TOO_LARGE"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. `url` is the target of the last redirect; `cut` says that `body` is truncated."""

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str
    charset: str
    body: bytes
    is_truncated: bool = False


class HttpCaller:
    """A caller without cookies, proxy and persistent connections, so that the calls of tenants do
    not affect each other.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._destinations = Destinations.read(settings.allow, only=settings.only_allowed)

    async def call(
        self,
        method: str,
        text: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        max_bytes: int,
        truncate: bool = False,
    ) -> HttpResponse:
        """Send a request, follow redirects, and return the response.

        A body of more than `max_bytes` is truncated if `truncate` is true; otherwise
        `AnswerTooLarge` is raised. Raises `InvalidRequest` for an invalid URL, `Refused` for a
        destination that tools may not call, and `CallFailed`.
        """
        url = self._destinations.check(text)
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._send_request(method, url, headers, body) as response:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    return await self._read(response, method, max_bytes, truncate=truncate)
                previous, url = url, self._next(url, response)
                if response.status in _CHANGE_TO_GET and method not in _UNCHANGED_METHODS:
                    method, body = "GET", b""
            if previous.origin() != url.origin():
                headers = {
                    name: value
                    for name, value in headers.items()
                    if name.lower() not in _CREDENTIAL_HEADERS
                }
        raise CallFailed(f"{text[:200]} redirects more than {_MAX_REDIRECTS} times")

    def _next(self, url: URL, response: aiohttp.ClientResponse) -> URL:
        try:
            target = url.join(URL(response.headers["Location"]))
        except (ValueError, UnicodeError) as error:
            raise CallFailed(f"{url} redirects to an invalid URL") from error
        if url.scheme == "https" and target.scheme == "http":
            raise Refused(f"{url} redirects from https to http, which is not followed")
        try:
            return self._destinations.check(str(target))
        except (InvalidRequest, Refused) as error:
            raise Refused(f"{url} redirects to {str(target)[:200]}: {error.message}") from error

    @asynccontextmanager
    async def _send_request(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        refused: list[Unreachable] = []

        def open_socket(address: tuple[Any, ...]) -> socket.socket:
            try:
                return self._destinations.open_socket(address)
            except Unreachable as error:
                refused.append(error)
                raise

        socket_factory = None if self._destinations.is_named(url) else open_socket
        connector = aiohttp.TCPConnector(
            socket_factory=socket_factory, force_close=True, use_dns_cache=False
        )
        try:
            async with (
                _session(connector) as session,
                session.request(
                    method, url, headers=dict(headers), data=body or None, allow_redirects=False
                ) as response,
            ):
                yield response
        except aiohttp.ClientConnectorError as error:
            if refused:
                raise Refused(f"{url.host}: {refused[0]}") from error
            raise CallFailed(
                f"{url.host} cannot be reached: {error.os_error.strerror or error.os_error}"
            ) from error
        except aiohttp.InvalidURL as error:
            raise InvalidRequest(
                f"{str(url)[:200]!r} is not a URL that can be called: {error.description}"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise CallFailed(f"{url.host}: {type(error).__name__}: {str(error)[:300]}") from error

    async def _read(
        self, response: aiohttp.ClientResponse, method: str, max_bytes: int, *, truncate: bool
    ) -> HttpResponse:
        headers = {
            name.lower(): value[:500]
            for name, value in response.headers.items()
            if name.lower() in _SHOWN_HEADERS
        }
        body, truncated = bytearray(), False
        if method != "HEAD":
            async for piece in _unpack(response):
                body += piece
                if len(body) > max_bytes:
                    if not truncate:
                        raise AnswerTooLarge(
                            f"{response.url.host} answered with more than {max_bytes} bytes; the "
                            "call was ended"
                        )
                    truncated = True
                    del body[max_bytes:]
                    break
        return HttpResponse(
            response.status,
            str(response.url),
            headers,
            response.content_type,
            response.charset or "utf-8",
            bytes(body),
            truncated,
        )


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": "moothall", "Accept-Encoding": "gzip"},
        trust_env=False,
        max_line_size=16_384,
        max_field_size=16_384,
    )


async def _unpack(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body in pieces of limited size, even if a few compressed bytes expand to many."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for piece in response.content.iter_chunked(_CHUNK):
            yield piece
        return
    if encoding not in _ENCODINGS:
        raise CallFailed(
            f"{response.url.host} answered in the content encoding {encoding[:40]!r}, which was "
            "not requested"
        )
    decompressor = zlib.decompressobj(_ENCODINGS[encoding])
    try:
        async for piece in response.content.iter_chunked(_CHUNK):
            compressed = piece
            while compressed:
                yield decompressor.decompress(compressed, _CHUNK)
                compressed = decompressor.unconsumed_tail
    except zlib.error as error:
        raise CallFailed(f"{response.url.host} answered with broken {encoding}") from error
