"""What the catalogue says of the tools that reach the network. They act beyond the workspace: no role has them by default."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from moothall.tools.arguments import Arguments, Path, Text, matching
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Example, Rate, Requirements, ToolSpec

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_MOST_HEADERS = 30
_ENGINE = matching(r"[A-Za-z0-9 _.-]+", "the name of a search engine such as wikipedia")
_OURS = frozenset(
    [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "accept-encoding",
        "proxy-authorization",
        "proxy-connection",
        "keep-alive",
    ]
)


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    if len(headers) > _MOST_HEADERS:
        raise ValueError(f"{len(headers)} headers; at most {_MOST_HEADERS} may be set")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(f"{name[:60]!r} is no header that may be set")
        if not value.isprintable():
            raise ValueError(f"the value of header {name!r} has a line end or a control character")
    return headers


Url = Annotated[str, Field(min_length=8, max_length=2000)]
Headers = Annotated[dict[str, Annotated[str, Field(max_length=2000)]], AfterValidator(_check_headers)]


class Fetch(Arguments):
    """`url` is http:// or https://."""

    url: Url
    headers: Headers = Field(default_factory=dict)


class Send(Fetch):
    """`body` is sent as it is, in UTF-8; say in a header what it is."""

    body: Text = ""


class Download(Arguments):
    """`path` is where the answer goes."""

    url: Url
    path: Path


class Upload(Download):
    """`path` is the file that is the body of a PUT."""

    headers: Headers = Field(default_factory=dict)


class WebFetch(Arguments):
    """A page to be read."""

    url: Url


class WebSearch(Arguments):
    """`engines` are those that the search server knows, such as "wikipedia"; none: its usual ones."""

    query: Annotated[str, Field(min_length=1, max_length=500)]
    engines: Annotated[list[Annotated[str, Field(max_length=40), _ENGINE]], Field(max_length=10)] = Field(default_factory=list)


class HttpAnswer(Output):
    """`status` is the server's; `body` is text, empty for what is none; `url` is where the last redirect led."""

    status: int
    url: str
    headers: dict[str, str]
    body: str
    bytes: int
    truncated: bool


class Transferred(Output):
    """A file that came or went."""

    status: int
    url: str
    path: str
    bytes: int


class PageText(Output):
    """What a reader sees of a page."""

    status: int
    url: str
    title: str
    text: str
    links: list[str]
    truncated: bool


class Found(Output):
    """Each with title, url and text."""

    results: list[dict[str, str]]


_REACHES = Requirements(network_access=True)
_STORES = Requirements(network_access=True, file_system="write")
_LOADS = Requirements(network_access=True, file_system="read")
_URL = "https://api.example.org/rates"
_ANSWERED = {
    "status": 200,
    "url": _URL,
    "headers": {"content-type": "application/json"},
    "body": "{}",
    "bytes": 2,
    "truncated": False,
}


def _http(method: str, summary: str, model: type[Arguments], *, reads: bool) -> ToolSpec:
    arguments = {"url": _URL} if reads else {"url": _URL, "headers": {"Content-Type": "application/json"}, "body": "{}"}
    return ToolSpec(
        name=f"http.{method}",
        summary=summary,
        arguments=model,
        output=HttpAnswer,
        danger=Danger.OUTSIDE,
        caps=Caps(60),
        requirements=_REACHES,
        tags=("network", "look" if reads else "change"),
        examples=(Example(summary, arguments, _ANSWERED),),
        profiles=("network",),
        cost=Cost.LOW,
    )


SPECS: Final = (
    _http("get", "call a URL and return the answer", Fetch, reads=True),
    _http("head", "ask for a URL's headers", Fetch, reads=True),
    _http("post", "send a body to a URL", Send, reads=False),
    _http("put", "put a body at a URL", Send, reads=False),
    _http("patch", "change what is at a URL", Send, reads=False),
    _http("delete", "delete what is at a URL", Send, reads=False),
    ToolSpec(
        name="http.download",
        summary="store what a URL answers as a file",
        arguments=Download,
        output=Transferred,
        danger=Danger.OUTSIDE,
        caps=Caps(120),
        requirements=_STORES,
        tags=("network", "files"),
        examples=(
            Example(
                "fetch a table",
                {"url": "https://example.org/a.csv", "path": "data/a.csv"},
                {"status": 200, "url": "https://example.org/a.csv", "path": "data/a.csv", "bytes": 1204},
            ),
        ),
        profiles=("network",),
        paths=("path",),
        writes=("path",),
        cost=Cost.LOW,
    ),
    ToolSpec(
        name="http.upload",
        summary="put a file at a URL",
        arguments=Upload,
        output=Transferred,
        danger=Danger.OUTSIDE,
        caps=Caps(120),
        requirements=_LOADS,
        tags=("network", "files"),
        examples=(
            Example(
                "hand over a report",
                {"url": "https://example.org/report.txt", "path": "report.txt"},
                {"status": 201, "url": "https://example.org/report.txt", "path": "report.txt", "bytes": 80},
            ),
        ),
        profiles=("network",),
        paths=("path",),
        cost=Cost.LOW,
    ),
    ToolSpec(
        name="web.fetch",
        summary="read a web page as text, with its links",
        arguments=WebFetch,
        output=PageText,
        danger=Danger.OUTSIDE,
        caps=Caps(60),
        requirements=_REACHES,
        tags=("network", "look"),
        examples=(
            Example(
                "read the documentation",
                {"url": "https://example.org/"},
                {
                    "status": 200,
                    "url": "https://example.org/",
                    "title": "Example Domain",
                    "text": "# Example Domain",
                    "links": [],
                    "truncated": False,
                },
            ),
        ),
        profiles=("network",),
        cost=Cost.LOW,
        cache_seconds=300.0,
        own_rate=Rate(30, 600),
    ),
    ToolSpec(
        name="web.search",
        summary="search the web through the operator's search server",
        arguments=WebSearch,
        output=Found,
        danger=Danger.OUTSIDE,
        caps=Caps(60),
        requirements=_REACHES,
        tags=("network", "look"),
        examples=(
            Example(
                "look something up",
                {"query": "python zoneinfo fold"},
                {"results": [{"title": "zoneinfo", "url": "https://docs.example.org/zoneinfo", "text": "IANA time zones"}]},
            ),
        ),
        profiles=("network",),
        cost=Cost.LOW,
        cache_seconds=600.0,
        own_rate=Rate(30, 600),
    ),
)
