"""`http.*` and `web.*`: the tools that reach the network."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from yarl import URL

from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import CallFailed
from moothall.ports import Workspace
from moothall.toolkits.answering import Output, answer_within, in_workspace
from moothall.toolkits.web.exchange import HttpCaller, HttpResponse
from moothall.toolkits.web.family import HttpSettings
from moothall.toolkits.web.page import read_page

_METHODS = {
    f"http.{name}": name.upper() for name in ("get", "head", "post", "put", "patch", "delete")
}
_TEXTS = (
    "text/",
    "application/json",
    "application/xml",
    "application/xhtml+xml",
    "application/javascript",
    "application/yaml",
)
_FOUND, _FOUND_CHARS = 20, 500


class WebTools:
    """The toolkit of the categories `http` and `web`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._exchange = HttpCaller(settings)
        # The operator's own server: called wherever it is.
        self._search = HttpCaller(
            settings.model_copy(
                update={"allow": (_host(settings.search_url),), "only_allowed": True}
            )
        )

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Run a tool until its deadline or `http.seconds`. What fails is a status, not an error."""
        del tenant  # nothing is kept between calls
        return await answer_within(call, self._settings.seconds, self._output(call, workspace))

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
        answer = await self._exchange.call(
            _METHODS[call.tool],
            str(args["url"]),
            headers=args["headers"],
            body=str(args.get("body", "")).encode(errors="replace"),
            most=self._settings.response_bytes,
            cutting=True,
        )
        return _output_of(answer)

    async def _get(self, url: str) -> HttpResponse:
        return await self._exchange.call(
            "GET", url, headers={}, body=b"", most=self._settings.response_bytes, cutting=True
        )

    async def _download(self, call: ToolCall, workspace: Workspace) -> Output:
        args = call.arguments
        answer = await self._exchange.call(
            "GET", str(args["url"]), headers={}, body=b"", most=self._settings.download_bytes
        )
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's successes
            raise CallFailed(
                f"{answer.url} answered with status {answer.status}; nothing was stored"
            )
        content = base64.b64encode(answer.body).decode()
        await in_workspace(
            workspace, call, "files.store", {"path": args["path"], "content": content}
        )
        return {
            "status": answer.status,
            "url": answer.url,
            "path": args["path"],
            "bytes": len(answer.body),
        }

    async def _upload(self, call: ToolCall, workspace: Workspace) -> Output:
        args = call.arguments
        loaded = await in_workspace(workspace, call, "files.load", {"path": args["path"]})
        try:
            body = base64.b64decode(str(loaded["content"]), validate=True)
        except ValueError as error:
            raise CallFailed("the workspace gave what is no file") from error
        if len(body) > self._settings.download_bytes:
            limit = self._settings.download_bytes
            raise CallFailed(
                f"{args['path']} has {len(body)} bytes; at most {limit} are sent "
                "(http.download_bytes)"
            )
        answer = await self._exchange.call(
            "PUT",
            str(args["url"]),
            headers=args["headers"],
            body=body,
            most=self._settings.response_bytes,
            cutting=True,
        )
        return {
            "status": answer.status,
            "url": answer.url,
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
        asked = (
            URL(root)
            / "search"
            % {"q": query, "format": "json", **({"engines": ",".join(engines)} if engines else {})}
        )
        answer = await self._search.call(
            "GET", str(asked), headers={}, body=b"", most=self._settings.response_bytes
        )
        try:
            listed = json.loads(answer.body)["results"]
            results = [
                {
                    "title": _text(one, "title"),
                    "url": _text(one, "url"),
                    "text": _text(one, "content"),
                }
                for one in listed
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CallFailed(
                f"the search server answered with status {answer.status} and no list of results"
            ) from error
        return {"results": results[:_FOUND]}


def _host(root: str | None) -> str:
    url = URL(root or "http://search.invalid")
    return f"{url.host}:{url.port}"


def _text(one: Mapping[str, object], name: str) -> str:
    return str(one.get(name) or "")[:_FOUND_CHARS]


def _decode(answer: HttpResponse) -> str:
    try:
        return answer.body.decode(answer.charset, errors="replace")
    except LookupError:  # a charset that nobody knows
        return answer.body.decode(errors="replace")


def _is_text(answer: HttpResponse) -> bool:
    kind = answer.content_type
    return kind.startswith(_TEXTS) or kind.endswith(("+json", "+xml"))


def _output_of(answer: HttpResponse) -> Output:
    readable = _is_text(answer)
    return {
        "status": answer.status,
        "url": answer.url,
        "headers": dict(answer.headers),
        "body": _decode(answer) if readable else "",
        "bytes": len(answer.body),
        "truncated": answer.cut,
        **(
            {}
            if readable or not answer.body
            else {"binary": f"{answer.content_type}; http.download stores it as a file"}
        ),
    }


def _page(answer: HttpResponse) -> Output:
    if not _is_text(answer):
        raise CallFailed(
            f"{answer.url} is {answer.content_type}, not a page; http.download stores it as a file"
        )
    html = "html" in answer.content_type
    page = read_page(_decode(answer), URL(answer.url)) if html else None
    return {
        "status": answer.status,
        "url": answer.url,
        "title": page.title if page else "",
        "text": page.text if page else _decode(answer),
        "links": list(page.links) if page else [],
        "truncated": answer.cut,
    }
