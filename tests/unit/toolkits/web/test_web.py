"""`http.*` and `web.*` against real servers on loopback, which only a test's operator allows."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.toolkits.web import HttpSettings
from moothall.toolkits.web.spec import SPECS
from moothall.toolkits.web.toolkit import WebTools
from support.folder import Folder
from support.tool_gateway import in_seconds


class Site:
    """A server whose paths select its answers, and that records its requests."""

    def __init__(self) -> None:
        self.port = 0
        self.requested: list[tuple[str, str, dict[str, str], bytes]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:  # noqa: C901, PLR0911 - a table of paths
        """Answer."""
        self.requested.append(
            (request.method, request.path, dict(request.headers), await request.read())
        )
        name, _, rest = request.path.strip("/").partition("/")
        match name:
            case "to":
                return web.Response(
                    status=int(request.query.get("code", "302")),
                    headers={"Location": request.query["where"]},
                )
            case "loop":
                return web.Response(status=302, headers={"Location": "/loop"})
            case "page":
                return web.Response(
                    text="<title>T</title><p>Hello <a href='/x'>x</a>", content_type="text/html"
                )
            case "bomb":
                packed = gzip.compress(b"\0" * 50_000_000)
                return web.Response(
                    body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"}
                )
            case "endless":
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                await response.prepare(request)
                try:
                    while True:
                        await response.write(b"x" * 65_536)
                except ConnectionError:
                    return response
            case "slow":
                await asyncio.sleep(30)
            case "bytes":
                return web.Response(body=bytes(range(256)), content_type="application/octet-stream")
            case "odd":
                return web.Response(
                    body=b"x", headers={"Content-Encoding": "br", "Content-Type": "text/plain"}
                )
            case "search":
                results = [
                    {"title": "t", "url": "https://example.org", "content": request.query["q"]}
                ]
                return web.Response(
                    text=json.dumps({"results": results}), content_type="application/json"
                )
        return web.Response(status=int(rest or 200), text=f"{request.method} {request.path}")

    @property
    def url(self) -> str:
        """The root URL."""
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    """Serve a site."""
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        tcp = web.TCPSite(runner, "127.0.0.1", 0)
        await tcp.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site that the operator allows."""
    async with serving() as web_site:
        yield web_site


_ARGUMENTS = {spec.name: spec.arguments for spec in SPECS}


async def act(
    tool: str,
    settings: HttpSettings,
    folder: Path | None = None,
    seconds: float = 20,
    own_seconds: float = 30,
    **arguments: Any,
) -> ToolResult:
    """Run a tool as the gateway does: arguments checked, defaults filled in."""
    checked = _ARGUMENTS[tool].model_validate(arguments).model_dump()
    call = ToolCall("request-1", tool, checked, in_seconds(seconds))
    return await WebTools(settings, own_seconds).call(call, Folder(folder or Path("/")), "local")


def allowing(site: Site, **options: Any) -> HttpSettings:
    """Settings of an operator who allows the site."""
    return HttpSettings(allow=(f"127.0.0.1:{site.port}",), **options)


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "head"])
async def test_every_method_reaches_the_server(site: Site, method: str) -> None:
    """Headers and body are sent as given, and every status is returned."""
    body: dict[str, Any] = {} if method in {"get", "head"} else {"body": "né"}
    result = await act(
        f"http.{method}", allowing(site), url=f"{site.url}/x/404", headers={"X-Mine": "1"}, **body
    )
    assert result.status is ToolStatus.SUCCESS
    assert result.output["status"] == 404
    assert result.output["body"] == ("" if method == "head" else f"{method.upper()} /x/404")
    request = site.requested[0]
    assert (request[0], request[2]["X-Mine"], request[3]) == (
        method.upper(),
        "1",
        "né".encode() if body else b"",
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",  # noqa: S104 - it means this machine
        "[::1]",
    ],
)
async def test_no_spelling_of_a_local_address_is_reachable(site: Site, host: str) -> None:
    """The resolved address counts."""
    result = await act("http.get", HttpSettings(), url=f"http://{host}:{site.port}/secret")
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
    assert not site.requested


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{other}/",
        "http://localhost:{other}/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "http://me:secret@127.0.0.1:{other}/",
    ],
)
@pytest.mark.parametrize("tool", ["http.get", "web.fetch"])
async def test_no_redirect_reaches_an_internal_address(
    site: Site, location: str, tool: str
) -> None:
    """Every hop is checked like the first."""
    async with serving() as other_site:
        target = location.format(other=other_site.port)
        result = await act(tool, allowing(site), url=f"{site.url}/to?where={target}")
        assert result.status is ToolStatus.BLOCKED
        assert not other_site.requested


async def test_redirects_are_followed_and_bounded(site: Site) -> None:
    """A 303 becomes a GET, and a loop of redirects ends."""
    result = await act(
        "http.post", allowing(site), url=f"{site.url}/to?code=303&where=/there", body="x"
    )
    assert result.output["body"] == "GET /there"
    result = await act("http.get", allowing(site), url=f"{site.url}/loop")
    assert result.status is ToolStatus.ERROR
    assert "redirects more than 5 times" in result.error
    assert len([request for request in site.requested if request[1] == "/loop"]) == 6


async def test_credentials_are_not_sent_to_another_host_after_a_redirect(site: Site) -> None:
    """Credentials are sent only to the original host."""
    async with serving() as other_site:
        settings = HttpSettings(allow=(f"127.0.0.1:{site.port}", f"127.0.0.1:{other_site.port}"))
        headers = {"Authorization": "Bearer mine", "X-Kept": "1"}
        result = await act(
            "http.get", settings, url=f"{site.url}/to?where={other_site.url}/there", headers=headers
        )
        assert result.output["status"] == 200
        assert "Authorization" not in other_site.requested[0][2]
        assert other_site.requested[0][2]["X-Kept"] == "1"


async def test_a_name_that_changes_its_address_reaches_nothing_forbidden(site: Site) -> None:
    """The address is checked when the socket is opened, so it is the one that is connected to."""
    from moothall.network.destinations import Destinations, Unreachable

    for about in socket.getaddrinfo("localhost", site.port, type=socket.SOCK_STREAM):
        with pytest.raises(Unreachable):
            Destinations().open_socket(about)


@pytest.mark.parametrize("path", ["bomb", "endless"])
async def test_endless_answers_are_truncated(site: Site, path: str) -> None:
    """The limit also applies to decompressed bodies."""
    result = await act("http.get", allowing(site), url=f"{site.url}/{path}")
    assert result.status is ToolStatus.SUCCESS
    assert result.output["truncated"]
    assert len(result.output["body"]) == 1_000_000


@pytest.mark.parametrize("path", ["bomb", "endless"])
async def test_oversized_downloads_are_refused(site: Site, path: str, tmp_path: Path) -> None:
    """A truncated file is not kept."""
    result = await act(
        "http.download",
        allowing(site),
        tmp_path,
        url=f"{site.url}/{path}",
        path="a/b",
    )
    assert result.status is ToolStatus.ERROR
    assert "more than 5000000 bytes" in result.error
    assert not list(tmp_path.iterdir())


async def test_a_file_is_downloaded_and_uploaded_unchanged(site: Site, tmp_path: Path) -> None:
    """The file is identical byte for byte."""
    result = await act(
        "http.download", allowing(site), tmp_path, url=f"{site.url}/bytes", path="a/b.bin"
    )
    assert result.output["bytes"] == 256
    assert (tmp_path / "a/b.bin").read_bytes() == bytes(range(256))
    result = await act(
        "http.upload", allowing(site), tmp_path, url=f"{site.url}/up", path="a/b.bin"
    )
    assert result.output["status"] == 200
    assert site.requested[-1][3] == bytes(range(256))


@pytest.mark.parametrize("path", ["../out", "/etc/out", ".git/hooks/pre-commit", "a/../../out"])
async def test_a_download_stays_in_the_workspace(site: Site, tmp_path: Path, path: str) -> None:
    """No path leads outside."""
    inside = tmp_path / "inside"
    inside.mkdir()
    result = await act("http.download", allowing(site), inside, url=f"{site.url}/bytes", path=path)
    assert result.status is not ToolStatus.SUCCESS
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_a_failed_download_stores_nothing(site: Site, tmp_path: Path) -> None:
    """An error page is not saved as the file."""
    result = await act("http.download", allowing(site), tmp_path, url=f"{site.url}/x/500", path="a")
    assert "status 500" in result.error
    assert not list(tmp_path.iterdir())


async def test_a_page_is_fetched_as_text_with_links(site: Site) -> None:
    """The page is returned as text with its links."""
    result = await act("web.fetch", allowing(site), url=f"{site.url}/page")
    assert (result.output["title"], result.output["text"]) == ("T", "Hello x")
    assert result.output["links"] == [f"{site.url}/x"]
    result = await act("web.fetch", allowing(site), url=f"{site.url}/bytes")
    assert "not a page" in result.error


async def test_requests_have_a_time_limit(site: Site) -> None:
    """Both the deadline of the call and the setting apply."""
    result = await act("http.get", allowing(site), seconds=0.3, url=f"{site.url}/slow")
    assert result.status is ToolStatus.TIMEOUT
    result = await act("http.get", allowing(site), own_seconds=0.3, url=f"{site.url}/slow")
    assert result.status is ToolStatus.TIMEOUT


async def test_an_unreachable_server_or_an_unknown_encoding_is_an_error(site: Site) -> None:
    """A closed port, and an encoding that was not requested."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        closed = reserved.getsockname()[1]
    result = await act(
        "http.get", HttpSettings(allow=("127.0.0.0/8",)), url=f"http://127.0.0.1:{closed}/"
    )
    assert result.status is ToolStatus.ERROR
    assert "cannot be reached" in result.error
    result = await act("http.get", allowing(site), url=f"{site.url}/odd")
    assert "content encoding 'br'" in result.error


async def test_only_allowed_hosts_are_reached_if_configured(site: Site) -> None:
    """An operator may forbid all other hosts."""
    settings = HttpSettings(allow=(f"127.0.0.1:{site.port}",), only_allowed=True)
    assert (await act("http.get", settings, url=f"{site.url}/x")).status is ToolStatus.SUCCESS
    result = await act("http.get", settings, url="https://example.org/")
    assert result.status is ToolStatus.BLOCKED
    assert "http.allow" in result.error


async def test_the_configured_search_server_is_used(site: Site) -> None:
    """The search server may be anywhere; without one, the error says how to configure it."""
    result = await act(
        "web.search",
        HttpSettings(search_url=site.url),
        query="zoneinfo & more",
        engines=["wikipedia"],
    )
    assert result.output["results"] == [
        {"title": "t", "url": "https://example.org", "text": "zoneinfo & more"}
    ]
    result = await act("web.search", HttpSettings(), query="x")
    assert "MOOTHALL_HTTP__SEARCH_URL" in result.error


@pytest.mark.parametrize(
    "headers",
    [{"Host": "x"}, {"A\r\nB": "x"}, {"X": "a\r\nB: c"}, {"content-length": "5"}, {"": "x"}],
)
async def test_headers_cannot_smuggle_a_request(site: Site, headers: dict[str, str]) -> None:
    """Line ends, and headers that affect the framing of the request, are refused before anything is
    sent.
    """
    with pytest.raises(ValueError, match="header"):
        await act("http.get", allowing(site), url=f"{site.url}/x", headers=headers)
    assert not site.requested
