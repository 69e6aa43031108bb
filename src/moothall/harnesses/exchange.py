"""The trusted side of a harness's connection: its protocol messages and its model requests, over
the lines of `ports.Workspace.converse`. All input is hostile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from moothall.domain.harness import AnswerModel
from moothall.domain.text import encodable
from moothall.errors import MoothallError
from moothall.harnesses import model_api

_FIRST_HOLD_SECONDS, _LONGEST_HOLD_SECONDS = 0.05, 1.0
_MAX_PARALLEL_REQUESTS = 16
_MAX_OUTPUT_CHARS = 4_000


class HarnessExchange:
    """Passes messages between a harness and its client. It is the client's transport, and the
    handler of the program's lines. Belongs to one event loop.

    silent: there is no client; lines are the program's output. failed: the error that ends the
    work. exit_reason: why the program ended by itself, '' as long as it has not.
    """

    def __init__(
        self, model: str, ask: AnswerModel, group: asyncio.TaskGroup, *, silent: bool = False
    ) -> None:
        self._model, self._ask, self._group, self._silent = model, ask, group, silent
        self._output = ""
        self._incoming: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outgoing: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._awaited_by_client: set[Any] = set()
        self._awaited_by_program: set[Any] = set()
        self._hold_seconds = _FIRST_HOLD_SECONDS
        self._closed = False
        self.failed: MoothallError | None = None
        self.exit_reason = ""

    @property
    def output(self) -> str:
        """The last part of the program's output."""
        return encodable(self._output.strip())

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        """Take what happened inside, and return what is to be sent there. See `converse`."""
        for line in lines:
            self._receive_event(line)
        if lines:
            self._hold_seconds = _FIRST_HOLD_SECONDS
        if self._speaks_next and not self._outgoing and not self._closed:
            # Nothing is known to happen inside, so wait here; but look again after a while.
            self._changed.clear()
            try:
                async with asyncio.timeout(self._hold_seconds):
                    await self._changed.wait()
            except TimeoutError:
                self._hold_seconds = min(2 * self._hold_seconds, _LONGEST_HOLD_SECONDS)
        if self._closed or self.failed is not None:
            return None
        outgoing, self._outgoing = self._outgoing, []
        again = [{"again": True}] if self._speaks_next else []
        return [json.dumps(item) for item in (*outgoing, *again)]

    @property
    def _speaks_next(self) -> bool:
        """Whether this side has something to answer or to ask."""
        asks = not self._silent and not self._awaited_by_client
        return bool(self._requests or self._awaited_by_program or asks)

    def _receive_event(self, line: str) -> None:
        event = _read_object(line)
        if "ended" in event:
            self.exit_reason = str(event["ended"])
            self.end()
        elif "request" in event:
            if len(self._requests) >= _MAX_PARALLEL_REQUESTS:
                self._reply(event["request"], model_api.HttpReply(429, "{}"))
                return
            task = self._group.create_task(self._answer(event), name="harness-model")
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
        elif self._silent:
            self._output = f"{self._output}{event.get('line')}\n"[-_MAX_OUTPUT_CHARS:]
        elif message := _read_object(str(event.get("line", ""))):  # others are no messages
            if "method" in message and "id" in message:
                self._awaited_by_program.add(repr(message["id"]))
            elif "id" in message:
                self._awaited_by_client.discard(repr(message["id"]))
            self._incoming.put_nowait(message)

    async def _answer(self, event: dict[str, Any]) -> None:
        try:
            reply = await model_api.answer(
                str(event.get("method")),
                str(event.get("path")),
                str(event.get("body")),
                self._model,
                self._ask,
            )
        except MoothallError as error:
            self.failed = self.failed or error
            self.end()
            return
        self._reply(event["request"], reply)

    def _reply(self, number: Any, reply: model_api.HttpReply) -> None:
        self._outgoing.append(
            {"reply": number, "status": reply.status, "type": reply.type, "content": reply.content}
        )
        self._changed.set()

    def end(self) -> None:
        """End the connection; the client's pending calls fail, and model calls are cancelled."""
        self._closed = True
        for task in self._requests - {asyncio.current_task()}:
            task.cancel()
        self._incoming.put_nowait(None)
        self._changed.set()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the client."""
        if "method" in message and "id" in message:
            self._awaited_by_client.add(repr(message["id"]))
        elif "id" in message:
            self._awaited_by_program.discard(repr(message["id"]))
        self._outgoing.append({"line": json.dumps(message)})
        self._changed.set()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message for the client, None at the end."""
        return await self._incoming.get()

    async def close(self) -> None:
        """End the program."""
        self.end()


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
