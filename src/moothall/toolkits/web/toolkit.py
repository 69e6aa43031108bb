"""`http.*` and `web.*`: tools that access the network."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from yarl import URL

from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import CallFailed
from moothall.ports import Workspace
from moothall.toolkits.results import Output, call_workspace_tool, run_within
from moothall.toolkits.web.exchange import HttpCaller, HttpResponse, read_page
from moothall.toolkits.web.family import HttpSettings

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

    async def _output(self, call: ToolCall, workspace: Workspace) -> Output:
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

    async def _download(self, call: ToolCall, workspace: Workspace) -> Output:
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

    async def _upload(self, call: ToolCall, workspace: Workspace) -> Output:
        args = call.arguments
        loaded = await call_workspace_tool(workspace, call, "files.load", {"path": args["path"]})
        try:
            body = base64.b64decode(str(loaded["content"]), validate=True)
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

    async def _search_web(self, query: str, engines: list[str]) -> Output:
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


def _response_output(response: HttpResponse) -> Output:
    readable = _is_text(response)
    return {
        "status": response.status,
        "url": response.url,
        "headers": dict(response.headers),
        "body": _decode(response) if readable else "",
        "bytes": len(response.body),
        "truncated": response.cut,
        **(
            {}
            if readable or not response.body
            else {"binary": f"{response.content_type}; http.download stores it as a file"}
        ),
    }


def _page(response: HttpResponse) -> Output:
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
        "truncated": response.cut,
    }
