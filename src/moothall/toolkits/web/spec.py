"""The catalogue entries of the network tools. They act beyond the workspace, so no role has them by
default.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from moothall.tools.schemas import Arguments, Output, Path, Text, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Rate, Requirements, ToolSpec

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_MAX_HEADERS = 30
_ENGINE = must_match(r"[A-Za-z0-9 _.-]+", "the name of a search engine such as wikipedia")
_RESERVED_HEADERS = frozenset(
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
    if len(headers) > _MAX_HEADERS:
        raise ValueError(f"{len(headers)} headers; at most {_MAX_HEADERS} may be set")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {name[:60]!r} may not be set")
        if not value.isprintable():
            raise ValueError(f"the value of header {name!r} has a line end or a control character")
    return headers


Url = Annotated[str, Field(min_length=8, max_length=2000)]
Headers = Annotated[
    dict[str, Annotated[str, Field(max_length=2000)]], AfterValidator(_check_headers)
]


class Fetch(Arguments):
    """`url` is http:// or https://."""

    url: Url
    headers: Headers = Field(default_factory=dict)


class Send(Fetch):
    """`body` is sent unchanged, in UTF-8; set a header for its content type."""

    body: Text = ""


class Download(Arguments):
    """`path` is the file for the response."""

    url: Url
    path: Path


class Upload(Download):
    """`path` is the file that is the body of a PUT."""

    headers: Headers = Field(default_factory=dict)


class WebFetch(Arguments):
    """A page to be read."""

    url: Url


class WebSearch(Arguments):
    """`engines` are engines of the search server, such as "wikipedia"; empty: its default ones."""

    query: Annotated[str, Field(min_length=1, max_length=500)]
    engines: Annotated[
        list[Annotated[str, Field(max_length=40), _ENGINE]], Field(max_length=10)
    ] = Field(default_factory=list)


class HttpAnswer(Output):
    """A response. `body` is empty if it is not text; `url` is the target of the last redirect."""

    status: int
    url: str
    headers: dict[str, str]
    body: str
    bytes: int
    truncated: bool


class TransferredFile(Output):
    """A file that was downloaded or uploaded."""

    status: int
    url: str
    path: str
    bytes: int


class PageText(Output):
    """The visible text of a page."""

    status: int
    url: str
    title: str
    text: str
    links: list[str]
    truncated: bool


class SearchResults(Output):
    """Search results, each with title, url and text."""

    results: list[dict[str, str]]


_READ_RATE = Rate(30, 600)
_URL = "https://api.example.org/rates"
_ANSWERED = {
    "status": 200,
    "url": _URL,
    "headers": {"content-type": "application/json"},
    "body": "{}",
    "bytes": 2,
    "truncated": False,
}


def _network(
    name: str,
    summary: str,
    model: type[Arguments],
    output: type[Output],
    example: Example,
    *,
    file: Literal["none", "read", "write"] = "none",
    tags: tuple[str, ...] = ("network", "look"),
    seconds: float = 60,
    cache_seconds: float = 0.0,
    rate: Rate | None = None,
) -> ToolSpec:
    """`file`: the access to the file named by the argument `path`, if there is one."""
    return ToolSpec(
        name=name,
        summary=summary,
        arguments=model,
        output=output,
        danger=Danger.OUTSIDE,
        caps=Caps(seconds),
        requirements=Requirements(network_access=True, file_system=file),
        tags=tags,
        examples=(example,),
        profiles=("network",),
        paths=() if file == "none" else ("path",),
        writes=("path",) if file == "write" else (),
        cost=Cost.LOW,
        cache_seconds=cache_seconds,
        own_rate=rate,
    )


def _http(method: str, summary: str, model: type[Arguments], *, reads: bool) -> ToolSpec:
    arguments = (
        {"url": _URL}
        if reads
        else {"url": _URL, "headers": {"Content-Type": "application/json"}, "body": "{}"}
    )
    tags = ("network", "look" if reads else "change")
    return _network(
        f"http.{method}",
        summary,
        model,
        HttpAnswer,
        Example(summary, arguments, _ANSWERED),
        tags=tags,
    )


def _transfer(
    name: str,
    summary: str,
    model: type[Arguments],
    file: Literal["read", "write"],
    example: Example,
) -> ToolSpec:
    return _network(
        f"http.{name}",
        summary,
        model,
        TransferredFile,
        example,
        file=file,
        tags=("network", "files"),
        seconds=120,
    )


SPECS: Final = (
    _http("get", "call a URL and return the answer", Fetch, reads=True),
    _http("head", "ask for a URL's headers", Fetch, reads=True),
    _http("post", "send a body to a URL", Send, reads=False),
    _http("put", "put a body at a URL", Send, reads=False),
    _http("patch", "change what is at a URL", Send, reads=False),
    _http("delete", "delete what is at a URL", Send, reads=False),
    _transfer(
        "download",
        "store what a URL answers as a file",
        Download,
        "write",
        Example(
            "fetch a table",
            {"url": "https://example.org/a.csv", "path": "data/a.csv"},
            {
                "status": 200,
                "url": "https://example.org/a.csv",
                "path": "data/a.csv",
                "bytes": 1204,
            },
        ),
    ),
    _transfer(
        "upload",
        "put a file at a URL",
        Upload,
        "read",
        Example(
            "hand over a report",
            {"url": "https://example.org/report.txt", "path": "report.txt"},
            {
                "status": 201,
                "url": "https://example.org/report.txt",
                "path": "report.txt",
                "bytes": 80,
            },
        ),
    ),
    _network(
        "web.fetch",
        "read a web page as text, with its links",
        WebFetch,
        PageText,
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
        cache_seconds=300.0,
        rate=_READ_RATE,
    ),
    _network(
        "web.search",
        "search the web through the operator's search server",
        WebSearch,
        SearchResults,
        Example(
            "look something up",
            {"query": "python zoneinfo fold"},
            {
                "results": [
                    {
                        "title": "zoneinfo",
                        "url": "https://docs.example.org/zoneinfo",
                        "text": "IANA time zones",
                    }
                ]
            },
        ),
        cache_seconds=600.0,
        rate=_READ_RATE,
    ),
)
