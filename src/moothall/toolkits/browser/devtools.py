"""Chromium's DevTools protocol over a socket: one command at a time, without background tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from moothall.errors import CallFailed

Message = dict[str, Any]


class BrowserGone(CallFailed):
    """The browser ended, or sent an invalid message."""


class DevTools:
    """A session with one page. Events are passed to `on_event` during commands. Dialogs are
    dismissed.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[str, Message], None],
    ) -> None:
        self._reader, self._writer, self._on_event = reader, writer, on_event
        self._last_id = 0
        self._session = ""

    async def attach(self) -> None:
        """Attach to the open page of the browser."""
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
        """Send a command and return its result. Raises `CallFailed` with the browser's reason, and
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
        """Send a command without waiting for its answer, and return its number."""
        self._last_id += 1
        message: Message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        return self._last_id

    async def wait_until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Process events until `reached` returns true. Return False if that takes longer than
        `seconds`.
        """
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
            raise BrowserGone("the browser sent a message over the size limit") from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise BrowserGone("the browser ended: it ran out of memory, or crashed") from error
        if (method := message.get("method")) is not None:
            params = message.get("params", {})
            # A dialog blocks the page, so it is answered at once.
            if method == "Page.javascriptDialogOpening":
                self.send(
                    "Page.handleJavaScriptDialog", accept=params.get("type") == "beforeunload"
                )
            self._on_event(method, params)
        return message
