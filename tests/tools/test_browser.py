"""`browser.run` with a real Chromium, on pages of our own: it does what is requested, and no page
leads where no tool may go.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from pydantic import ValidationError

from moothall.config import SandboxSettings
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.sandbox.bubblewrap import bubblewrap
from moothall.toolkits.browser import BrowserSettings
from moothall.toolkits.browser.chromium import find_chromium
from moothall.toolkits.browser.toolkit import BrowserRun, BrowserTools
from moothall.toolkits.web import HttpSettings
from support.folder import Folder
from support.processes import command_line
from support.tool_gateway import in_seconds

pytestmark = pytest.mark.e2e

FORM = """<!doctype html><title>Form</title>
<form action="/hello"><input id="name" name="name"><button id="go">go</button></form>
<button id="late" onclick="setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<p id=came>came</p>'), 300)">later</button>
<button id="ask" onclick="document.title = String(confirm('sure?'))">ask</button>
<div style="height: 3000px"></div><button id="far" onclick="document.title = 'reached'">far</button>"""

HOSTILE = """<!doctype html><title>hostile</title><body>
<img src="http://127.0.0.1:{other}/img"><img src="http://169.254.169.254/latest/meta-data/"><img src="file:///etc/passwd">
<script src="http://127.0.0.1:{other}/script"></script><link rel="stylesheet" href="http://[::1]:{other}/css">
<link rel="prefetch" href="http://127.0.0.1:{other}/prefetch"><link rel="preconnect" href="http://127.0.0.1:{other}">
<iframe id="frame" src="http://127.0.0.1:{other}/iframe"></iframe><iframe src="file:///etc/passwd"></iframe>
<object data="http://0.0.0.0:{other}/object"></object><embed src="http://127.1:{other}/embed">
<a id="leave" href="http://127.0.0.1:{other}/leave">leave</a><a id="file" href="file:///etc/passwd">file</a>
<a id="save" href="/download" download>save</a>
<ul id="out"></ul>
<script>
  const say = text => document.getElementById("out").insertAdjacentHTML("beforeend", "<li>" + text + "</li>");
  const url = "127.0.0.1:{other}";
  const tries = [];
  for (const one of ["http://" + url + "/fetch", "http://localhost:{other}/", "http://2130706433:{other}/", "http://0x7f.1:{other}/",
                     "http://[::ffff:127.0.0.1]:{other}/", "http://169.254.169.254/", "file:///etc/passwd", "/to?where=http://" + url + "/redirect",
                     "chrome://version", "http://{rebound}:{other}/"])
    tries.push(fetch(one).then(() => say("GOT " + one), () => say("nothing of " + one)));
  tries.push(new Promise(done => {{
    const ws = new WebSocket("ws://" + url + "/ws");
    ws.onopen = () => {{ say("GOT websocket"); done(); }};
    ws.onerror = () => {{ say("nothing of websocket"); done(); }};
  }}));
  tries.push(new Promise(done => {{
    const rtc = new RTCPeerConnection({{iceServers: [{{urls: "stun:" + url}}, {{urls: "turn:" + url + "?transport=tcp", username: "u", credential: "c"}}]}});
    rtc.createDataChannel("x");
    rtc.onicecandidate = event => {{ if (event.candidate && event.candidate.type !== "host") say("GOT candidate " + event.candidate.candidate); }};
    rtc.createOffer().then(offer => rtc.setLocalDescription(offer));
    setTimeout(done, 1500);
  }}));
  navigator.sendBeacon("http://" + url + "/beacon", "x");
  window.open("http://" + url + "/popup");
  Promise.all(tries).then(() => say("<b id=done>done</b>"));
</script>"""


PAGES = {
    "/form": FORM,
    "/spin": "<title>s</title><script>while (true) {}</script>",
    "/eats": (
        "<title>e</title><script>const all = []; while (true) try { all.push(new "
        "Uint8Array(1e7).fill(1)); } catch {}</script>"
    ),
    "/talks": """<title>t</title><p id=said></p><script>const ws = new WebSocket("ws://" + location.host + "/ws");
    ws.onmessage = event => document.getElementById("said").innerHTML = "<b>" + event.data + "</b>";</script>""",
    "/tricks": """<title>t</title><p>true words</p><script>document.querySelector = () => ({innerText: "false words"});
    Object.defineProperty(HTMLElement.prototype, "innerText", {get: () => "false words"});</script>""",
}


class Site:
    """A server that records requested paths."""

    def __init__(self) -> None:
        self.port = 0
        self.requested_paths: list[str] = []
        self.page = ""

    @property
    def url(self) -> str:
        """The root URL."""
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:  # noqa: PLR0911 - a table of paths
        """Answer a request."""
        self.requested_paths.append(request.path)
        if (
            page := PAGES.get(request.path) or (self.page if request.path == "/hostile" else "")
        ) != "":
            return web.Response(text=page, content_type="text/html")
        match request.path:
            case "/hello":
                return web.Response(
                    text=f"<title>Hello</title><h1>Hello {request.query['name']}</h1>",
                    content_type="text/html",
                )
            case "/to":
                return web.Response(status=302, headers={"Location": request.query["where"]})
            case "/ws":
                ws = web.WebSocketResponse()
                await ws.prepare(request)
                await ws.send_str("from the server")
                await ws.receive()
                return ws
            case "/slow":
                await asyncio.sleep(30)
            case "/big":
                return web.Response(body=b"x" * 3_000_000, content_type="text/plain")
            case "/download":
                return web.Response(
                    body=b"MZ" * 1000, headers={"Content-Disposition": "attachment; filename=x.exe"}
                )
        return web.Response(text="plain")


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[Site]:
    """Serve a site."""
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site that the operator allows."""
    if find_chromium(BrowserSettings()) is None:
        pytest.skip("no Chromium: `apt-get install chromium` brings it")
    bubblewrap()
    async with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    """Assert that no browser outlives its call."""
    yield
    remaining = [
        process
        for process in psutil.Process().children(recursive=True)
        if "chrom" in command_line(process)
    ]
    assert not remaining


async def browse(
    site: Site,
    path: str,
    *actions: dict[str, str],
    folder: Path = Path("/nonexistent"),
    **options: Any,
) -> ToolResult:
    """Run the tool as the gateway does."""
    allow = options.pop("allow", (f"127.0.0.1:{site.port}",))
    fields = options.pop("where", {})
    limits: dict[str, Any] = {"call_seconds": 100.0, "action_seconds": 40.0}
    limits |= {
        name: options.pop(name) for name in ("action_seconds", "transfer_bytes") if name in options
    }
    settings = BrowserSettings(**options)
    url = path if "://" in path else site.url + path
    arguments = BrowserRun.model_validate(
        {"url": url, "actions": list(actions), **fields}
    ).model_dump()
    call = ToolCall("request-1", "browser.run", arguments, in_seconds(120))
    tools = BrowserTools(settings, HttpSettings(allow=allow), SandboxSettings(), **limits)
    return await tools.call(call, Folder(folder), "local")


async def test_pages_are_opened_clicked_typed_into_awaited_read_and_captured(
    site: Site, tmp_path: Path
) -> None:
    result = await browse(
        site,
        "/form",
        {"do": "text", "selector": "#go"},
        {"do": "click", "selector": "#late"},
        {"do": "wait", "selector": "#came"},
        {"do": "type", "selector": "#name", "text": "Ada"},
        {"do": "click", "selector": "#go"},
        {"do": "text"},
        {"do": "screenshot"},
        {"do": "open", "url": f"{site.url}/form"},
        {"do": "type", "selector": "#name", "text": "Bob\n"},
        {"do": "text", "selector": "h1"},
        folder=tmp_path,
        where={"path": "shots/one.png"},
    )
    assert result.status is ToolStatus.SUCCESS, result.error
    texts = [step["text"] for step in result.output["results"] if step["do"] == "text"]
    assert texts == ["go", "Hello Ada", "Hello Bob"]
    assert (result.output["title"], result.output["url"]) == ("Hello", f"{site.url}/hello?name=Bob")
    snapshot = (tmp_path / "shots/one.png").read_bytes()
    assert (snapshot[:8], int.from_bytes(snapshot[16:20]), int.from_bytes(snapshot[20:24])) == (
        b"\x89PNG\r\n\x1a\n",
        1280,
        800,
    )
    assert result.output["refused"] == []


async def test_remote_dialogs_and_websockets(site: Site) -> None:
    result = await browse(
        site,
        "/form",
        {"do": "click", "selector": "#far"},
        {"do": "click", "selector": "#ask"},
        {"do": "text"},
    )
    assert (result.status, result.output.get("title")) == (ToolStatus.SUCCESS, "false"), (
        result.error
    )
    talked = await browse(site, "/talks", {"do": "text", "selector": "#said b"})
    assert talked.output["results"][0]["text"] == "from the server", talked.error


async def test_a_hostile_page_reaches_nothing_that_tools_may_not_reach(site: Site) -> None:
    async with serving() as other_site, serving("::1") as six:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", other_site.port))
            udp.setblocking(False)
            site.page = HOSTILE.format(other=other_site.port, rebound="localhost.localdomain")
            result = await browse(
                site,
                "/hostile",
                {"do": "wait", "selector": "#done"},
                {"do": "text", "selector": "#out"},
            )
            assert result.status is ToolStatus.SUCCESS, result.error
            text = result.output["results"][1]["text"]
            assert "GOT" not in text
            assert text.count("nothing of") == 11
            assert any(line.startswith("127.0.0.1:") for line in result.output["refused"])
            with pytest.raises(BlockingIOError):
                udp.recv(100)
        for leave in ("leave", "file"):
            result_of_file = await browse(
                site, "/hostile", {"do": "click", "selector": f"#{leave}"}, {"do": "text"}
            )
            assert "root:" not in str(result_of_file)
        saved = await browse(site, "/hostile", {"do": "click", "selector": "#save"})
        assert saved.status is ToolStatus.SUCCESS
        assert (other_site.requested_paths, six.requested_paths) == ([], [])


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("http://127.0.0.1:{other}/", ToolStatus.BLOCKED),
        ("http://localhost:{other}/", ToolStatus.BLOCKED),
        ("https://127.0.0.1:{other}/", ToolStatus.BLOCKED),
        ("https://localhost:{other}/", ToolStatus.BLOCKED),
        ("http://169.254.169.254/latest/", ToolStatus.BLOCKED),
        ("{site}/to?where=https://127.0.0.1:{other}/", ToolStatus.BLOCKED),
        ("{site}/to?where=http://127.0.0.1:{other}/", ToolStatus.BLOCKED),
        ("{site}/to?where=http://localhost:{other}/", ToolStatus.BLOCKED),
        ("{site}/to?where=file:///etc/passwd", ToolStatus.ERROR),
        ("http://user:word@127.0.0.1:{other}/", ToolStatus.BLOCKED),
        ("file:///etc/passwd", ToolStatus.INVALID),
        ("chrome://settings", ToolStatus.INVALID),
        ("view-source:http://127.0.0.1/", ToolStatus.INVALID),
        ("javascript:alert(1)", ToolStatus.INVALID),
        ("data:text/html,x", ToolStatus.INVALID),
    ],
)
async def test_forbidden_addresses_are_not_opened(site: Site, url: str, status: ToolStatus) -> None:
    async with serving() as other_site:
        target = url.format(other=other_site.port, site=site.url)
        result = await browse(site, "/form", {"do": "open", "url": target}, {"do": "text"})
        assert (result.status, "action 1 (open" in result.error) == (status, True), result
        assert other_site.requested_paths == []


async def test_browser_limits_are_enforced(site: Site, tmp_path: Path) -> None:
    slow = await browse(site, "/slow", action_seconds=12)
    assert (slow.status, "not done within 12 seconds" in slow.error) == (ToolStatus.ERROR, True), (
        slow
    )
    spin = await browse(site, "/spin", action_seconds=12)
    assert (spin.status, "not done within 12 seconds" in spin.error) == (ToolStatus.ERROR, True), (
        spin
    )
    missing = await browse(site, "/form", {"do": "click", "selector": "#none"}, action_seconds=12)
    assert (missing.status, "action 1 (click #none): not done" in missing.error) == (
        ToolStatus.ERROR,
        True,
    ), missing
    invalid_selector = await browse(site, "/form", {"do": "click", "selector": "##"})
    assert (invalid_selector.status, "is not a CSS selector" in invalid_selector.error) == (
        ToolStatus.INVALID,
        True,
    ), invalid_selector
    big = await browse(site, "/big", {"do": "text"}, transfer_bytes=100_000)
    assert (big.status, "more than 100000 bytes" in big.error) == (ToolStatus.ERROR, True), big
    cut = await browse(site, "/big", {"do": "text"})
    assert (len(cut.output["results"][0]["text"]), cut.output["results"][0]["truncated"]) == (
        20_000,
        True,
    ), cut.error
    too_many = await browse(site, "/form", *[{"do": "text"}] * 21)
    assert (too_many.status, "at most 20" in too_many.error) == (ToolStatus.INVALID, True)


async def test_a_page_that_exhausts_memory_affects_only_itself(site: Site) -> None:
    eats, reads = await asyncio.gather(
        browse(site, "/eats", action_seconds=25),
        browse(site, "/form", {"do": "text", "selector": "#go"}),
    )
    assert eats.status is ToolStatus.ERROR, eats
    assert reads.status is ToolStatus.SUCCESS, reads.error


async def test_redefined_browser_functions_do_not_falsify_the_text(site: Site) -> None:
    result = await browse(site, "/tricks", {"do": "text", "selector": "p"})
    assert result.output["results"][0]["text"] == "true words", result.error


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ({"do": "click"}, "click needs selector"),
        ({"do": "open", "url": "http://a.b", "text": "x"}, "open does not accept text"),
        ({"do": "jump"}, "Input should be"),
    ],
)
def test_invalid_actions_are_refused(action: dict[str, str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        BrowserRun.model_validate({"url": "http://a.b/", "actions": [action]})
