"""`browser.run`: its catalogue entry, and the toolkit that opens a page in a browser of its own,
which can only open allowed destinations. The tool acts beyond the workspace, so no role has it by
default.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from yarl import URL

from moothall.config import SandboxSettings
from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.network.destinations import Destinations
from moothall.ports import Workspace
from moothall.toolkits.browser import BrowserSettings
from moothall.toolkits.browser.chromium import (
    BrowserGone,
    DevTools,
    Message,
    RunningBrowser,
    chromium,
)
from moothall.toolkits.calls import ToolOutput, call_workspace_tool, run_within
from moothall.toolkits.web import HttpSettings
from moothall.tools.schemas import Arguments, Output, Path, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

# The catalogue entry.


_PNG = must_match(r".*\.png", "a path that ends with .png")
_NEEDS: Final = {
    "open": ("url",),
    "click": ("selector",),
    "type": ("selector", "text"),
    "wait": ("selector",),
    "text": (),
    "screenshot": (),
}
_MAY: Final = {"text": ("selector",)}


class PageAction(Arguments):
    """One action. `selector` is a CSS selector; the first matching element is used."""

    do: Literal["open", "click", "type", "wait", "text", "screenshot"]
    selector: Annotated[str, Field(max_length=500)] = ""
    text: Annotated[str, Field(max_length=5000)] = ""
    url: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        required_fields = _NEEDS[self.do]
        for name in ("selector", "text", "url"):
            is_set = bool(getattr(self, name))
            if name in required_fields and not is_set:
                raise ValueError(f"{self.do} needs {' and '.join(required_fields)}")
            if is_set and name not in (*required_fields, *_MAY.get(self.do, ())):
                raise ValueError(f"{self.do} does not accept {name}")
        return self


class BrowserRun(Arguments):
    """Open `url`, then perform the actions in order: open(url), click(selector), type(selector,
    text; a trailing newline presses Enter), wait(selector), text(selector?) and, once, screenshot,
    which is stored at `path`.
    """

    url: Annotated[str, Field(min_length=8, max_length=2000)]
    actions: Annotated[list[PageAction], Field(max_length=50)] = Field(default_factory=list)
    path: Annotated[Path, _PNG] = "screenshot.png"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(action.do == "screenshot" for action in self.actions) > 1:
            raise ValueError("at most one screenshot may be taken in a call")
        return self


class Browsed(Output):
    """The final location, the result of each action, and the hosts that the page was refused."""

    url: str
    title: str
    results: list[dict[str, object]]
    refused: list[str]


SPECS: Final = (
    ToolSpec(
        name="browser.run",
        summary="open a page in a browser and click, type, read and take a screenshot",
        arguments=BrowserRun,
        output=Browsed,
        danger=Danger.OUTSIDE,
        caps=Caps(120),
        requirements=Requirements(network_access=True, file_system="write"),
        tags=("network", "browser", "files"),
        examples=(
            Example(
                "log in and look",
                {
                    "url": "https://example.org/login",
                    "actions": [
                        {"do": "type", "selector": "#name", "text": "ada\n"},
                        {"do": "wait", "selector": "h1"},
                        {"do": "text", "selector": "h1"},
                    ],
                },
                {
                    "url": "https://example.org/home",
                    "title": "Home",
                    "results": [
                        {"do": "type"},
                        {"do": "wait"},
                        {"do": "text", "text": "Hello Ada", "truncated": False},
                    ],
                    "refused": [],
                },
            ),
        ),
        profiles=("network",),
        paths=("path",),
        writes=("path",),
        cost=Cost.HIGH,
    ),
)


# The toolkit.


_POLL_SECONDS, _SETTLE_SECONDS = 0.1, 0.15
_SCRIPT_MS = 5000
_MAX_REFUSED = 20
_MAX_ACTIONS = 20
_TEXT_CHARS = 20_000
_SCREENSHOT_BYTES = 5_000_000
_BROWSERS = 2  # of one process; more calls wait
_CALL_SECONDS = 60.0
_ACTION_SECONDS = 15.0
_TRANSFER_BYTES = 30_000_000
_WIDTH, _HEIGHT = 1280, 800

# Each is called with a selector, in an isolated world that the page's scripts cannot access.
_FIND_CENTER: Final = """selector => {
  const found = document.querySelector(selector);
  if (!found) return null;
  found.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  const box = found.getBoundingClientRect();
  return box.width && box.height ? [box.x + box.width / 2, box.y + box.height / 2] : null;
}"""
_FOCUS: Final = """selector => {
  const found = document.querySelector(selector);
  if (!found) return null;
  found.scrollIntoView({block: "center", behavior: "instant"});
  found.focus();
  if (found.select) found.select();
  return document.activeElement === found;
}"""
_EXISTS: Final = "selector => document.querySelector(selector) ? true : null"
_TEXT: Final = """selector => {
  const found = document.querySelector(selector);
  return found ? String(found.innerText ?? found.textContent ?? "").slice(0, %d) : null;
}"""


class BrowserTools:
    """The toolkit of the category `browser`. `call` is a `ports.Toolkit`.

    call_seconds: the limit of one call with all its actions. action_seconds: that of one action,
    and of the page that it loads. transfer_bytes: what one call may load and send.
    """

    def __init__(
        self,
        settings: BrowserSettings,
        http: HttpSettings,
        sandbox: SandboxSettings,
        *,
        call_seconds: float = _CALL_SECONDS,
        action_seconds: float = _ACTION_SECONDS,
        transfer_bytes: int = _TRANSFER_BYTES,
    ) -> None:
        self._call_seconds = call_seconds
        self._action_seconds, self._transfer_bytes = action_seconds, transfer_bytes
        self._settings, self._sandbox = settings, sandbox
        self._destinations = Destinations.read(http.allow, only=http.only_allowed)
        self._slots = asyncio.Semaphore(_BROWSERS)

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Run a tool until the call's deadline or for 60 seconds. A failure is a status, not an
        exception.
        """
        del tenant  # there is no state between calls
        return await run_within(call, self._call_seconds, self._output(call, workspace))

    async def _output(self, call: ToolCall, workspace: Workspace) -> ToolOutput:
        actions: Sequence[Mapping[str, str]] = call.arguments["actions"]
        if len(actions) > _MAX_ACTIONS:
            raise InvalidRequest(
                f"there are {len(actions)} actions; a call may have at most {_MAX_ACTIONS}"
            )
        self._destinations.check(str(call.arguments["url"]))
        events = _PageEvents()
        async with (
            self._slots,
            chromium(
                self._settings, self._sandbox, self._destinations, self._transfer_bytes, events
            ) as running,
        ):
            page = _Page(running, events, self._transfer_bytes, self._destinations)
            await page.prepare()
            results: list[ToolOutput] = []
            for number, action in enumerate(
                [{"do": "open", "url": call.arguments["url"]}, *actions]
            ):
                try:
                    async with asyncio.timeout(self._action_seconds):
                        result = await page.act(action)
                except TimeoutError as error:
                    limit = f"{self._action_seconds:g} seconds"
                    raise CallFailed(
                        f"{_describe(number, action)}: not done within {limit}"
                    ) from error
                except (CallFailed, InvalidRequest, Refused) as error:
                    raise type(error)(f"{_describe(number, action)}: {error.message}") from error
                results.append({"do": action["do"], **result})
            output = {
                **await page.location(),
                "results": results[1:],
                "refused": page.refused_hosts(),
            }
            picture = page.picture
        if picture:
            await call_workspace_tool(
                workspace, call, "files.store", {"path": call.arguments["path"], "content": picture}
            )
            output["path"] = call.arguments["path"]
        return output


def _describe(number: int, action: Mapping[str, str]) -> str:
    description = " ".join(
        action[name][:100] for name in ("do", "selector", "url") if action.get(name)
    )
    return f"action {number} ({description})" if number else description


@dataclass(slots=True)
class _PageEvents:
    """The state of the page by the events of the browser."""

    frame: str = ""
    loading: bool = False
    crashed: bool = False

    def __call__(self, method: str, params: Message) -> None:
        match method:
            case "Page.frameStartedLoading" if params.get("frameId") == self.frame:
                self.loading = True
            case "Page.frameStoppedLoading" if params.get("frameId") == self.frame:
                self.loading = False
            case "Inspector.targetCrashed":
                self.crashed = True


class _Page:
    def __init__(
        self,
        running: RunningBrowser,
        events: _PageEvents,
        transfer_bytes: int,
        destinations: Destinations,
    ) -> None:
        self._tools: DevTools = running.tools
        self._proxy = running.proxy
        self._events = events
        self._transfer_bytes = transfer_bytes
        self._destinations = destinations
        self.picture = ""

    async def prepare(self) -> None:
        """Subscribe to events, and forbid downloads."""
        for method in ("Page.enable", "Inspector.enable"):
            await self._tools.call(method)
        self._events.frame = (await self._tools.call("Page.getFrameTree"))["frameTree"]["frame"][
            "id"
        ]
        await self._tools.call("Page.setDownloadBehavior", behavior="deny")
        await self._tools.call(
            "Emulation.setDeviceMetricsOverride",
            width=_WIDTH,
            height=_HEIGHT,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def act(self, action: Mapping[str, str]) -> ToolOutput:
        """Perform an action. Raises `CallFailed`, `InvalidRequest`, `Refused`."""
        selector = action.get("selector", "")
        match action["do"]:
            case "open":
                await self._open(action["url"])
            case "click":
                await self._click(selector)
            case "type":
                await self._type(selector, action["text"])
            case "wait":
                await self._evaluate_on(_EXISTS, selector)
            case "text":
                return await self._text(selector or "body")
            case "screenshot":
                return await self._screenshot()
        return {}

    async def location(self) -> ToolOutput:
        """Return the URL of the page, and its title."""
        info = (await self._tools.call("Target.getTargetInfo"))["targetInfo"]
        return {"url": str(info.get("url", ""))[:2000], "title": str(info.get("title", ""))[:300]}

    def refused_hosts(self) -> list[str]:
        """Return the hosts that were refused, each with its reason."""
        return [f"{host}:{port}: {reason}" for (host, port), reason in self._proxy.refused.items()][
            :_MAX_REFUSED
        ]

    async def _open(self, text: str) -> None:
        url = self._destinations.check(text)
        reply = await self._tools.call("Page.navigate", url=str(url))
        await self._settle()
        if reason := self._proxy.refused.get((url.host or "", url.port or 0)):
            raise Refused(reason)
        await self._check_allowed()
        if reason := reply.get("errorText"):
            raise CallFailed(f"{url.host} cannot be opened: {reason}")

    async def _click(self, selector: str) -> None:
        x, y = await self._evaluate_on(_FIND_CENTER, selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            await self._tools.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)
        await self._settle()
        await self._check_allowed()

    async def _type(self, selector: str, text: str) -> None:
        if not await self._evaluate_on(_FOCUS, selector):
            raise CallFailed("the element does not accept text")
        await self._tools.call("Input.insertText", text=text.rstrip("\n"))
        if text.endswith("\n"):
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
            await self._tools.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
            await self._tools.call("Input.dispatchKeyEvent", type="keyUp", **key)
        await self._settle()
        await self._check_allowed()

    async def _text(self, selector: str) -> ToolOutput:
        max_chars = _TEXT_CHARS
        text = str(await self._evaluate_on(_TEXT % (max_chars + 1), selector))
        return {"text": text[:max_chars], "truncated": len(text) > max_chars}

    async def _screenshot(self) -> ToolOutput:
        picture = str((await self._tools.call("Page.captureScreenshot", format="png"))["data"])
        size = len(base64.b64decode(picture))
        if size > _SCREENSHOT_BYTES:
            raise CallFailed(
                f"the screenshot has {size} bytes; at most {_SCREENSHOT_BYTES} are stored"
            )
        self.picture = picture
        return {"bytes": size}

    async def _settle(self) -> None:
        """Wait until nothing loads. Loading starts as soon as an action starts it."""
        await self._pause(_SETTLE_SECONDS)
        while self._events.loading:
            await self._pause(_POLL_SECONDS)
        # A page that crashes stops loading a moment before its crash is reported.
        await self._pause(_SETTLE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        await self._tools.wait_until(lambda: self._events.crashed, seconds)
        if self._events.crashed:
            raise BrowserGone("the page crashed: it ran out of memory, or broke the browser")

    async def _check_allowed(self) -> None:
        """Raise `Refused` if the page has led to a destination that tools may not open."""
        if self._proxy.bytes_left < 0:
            raise CallFailed(f"the page loaded more than {self._transfer_bytes} bytes")
        text = (await self.location())["url"]
        try:
            url = URL(text)
            reason = self._proxy.refused.get((url.host or "", url.port or 0))
        except ValueError:
            return
        if reason:
            raise Refused(reason)
        if url.scheme not in {"http", "https", "about", "data", "blob", "chrome-error"}:
            raise Refused(f"pages with the scheme {url.scheme[:20]!r} may not be opened")

    async def _evaluate_on(self, script: str, selector: str) -> Any:
        """Return the result of a script for the first matching element, once there is one."""
        while True:
            world = await self._tools.call(
                "Page.createIsolatedWorld", frameId=self._events.frame, worldName="moothall"
            )
            reply = await self._tools.call(
                "Runtime.evaluate",
                expression=f"({script})({json.dumps(selector)})",
                contextId=world["executionContextId"],
                returnByValue=True,
                timeout=_SCRIPT_MS,
            )
            if "exceptionDetails" in reply:
                description = str(
                    reply["exceptionDetails"].get("exception", {}).get("description", "")
                )
                if "SyntaxError" in description or "selector" in description:
                    raise InvalidRequest(f"{selector[:100]!r} is not a CSS selector")
            elif (value := reply["result"].get("value")) is not None:
                return value
            await self._pause(_POLL_SECONDS)
