"""Chromium's own debugging protocol over a socket: one command at a time, no task beside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from moothall.errors import CallFailed

Message = dict[str, Any]


class BrowserGone(CallFailed):
    """The browser ended, or said what is no message."""


class DevTools:
    """A session with one page. Events are told to `hear` while an answer is waited for. Dialogs are
    dismissed.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hear: Callable[[str, Message], None],
    ) -> None:
        self._reader, self._writer, self._hear = reader, writer, hear
        self._last = 0
        self._session = ""

    async def attach(self) -> None:
        """Take hold of the page that the browser has open."""
        targets = (await self.call("Target.getTargets"))["targetInfos"]
        page = next((target for target in targets if target["type"] == "page"), None)
        target = (
            page["targetId"]
            if page
            else (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        )
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))[
            "sessionId"
        ]

    async def call(self, method: str, **params: Any) -> Message:
        """Return what a command answers. Raises `CallFailed` with the browser's reason,
        `BrowserGone`.
        """
        number = self.send(method, **params)
        while True:
            message = await self._next()
            if message.get("id") != number:
                continue
            if "error" in message:
                raise CallFailed(
                    f"the browser refused {method}: {str(message['error'].get('message'))[:300]}"
                )
            result: Message = message.get("result", {})
            return result

    def send(self, method: str, **params: Any) -> int:
        """Send a command whose answer nobody waits for; returns its number."""
        self._last += 1
        message: Message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        return self._last

    async def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Listen until it is `reached`; False where it was not within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    await self._next()
        except TimeoutError:
            return False
        return True

    async def _next(self) -> Message:
        try:
            message: Message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
        except asyncio.LimitOverrunError as error:
            raise BrowserGone("the browser answered with more than can be taken") from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise BrowserGone("the browser ended: it ran out of memory, or crashed") from error
        if (method := message.get("method")) is not None:
            told = message.get("params", {})
            if (
                method == "Page.javascriptDialogOpening"
            ):  # at once: what raised it does not go on before
                self.send("Page.handleJavaScriptDialog", accept=told.get("type") == "beforeunload")
            self._hear(method, told)
        return message
