"""Several servers of the same model as one: a deliberation stays with one of them, because its prompts begin alike.

Which one is found by rendezvous hashing of the deliberation's id: every host comes to the same answer without asking,
and a server more or less moves only the deliberations that it gains or loses. Where a server stays unreachable, the
next in the deliberation's order stands in, and for a while nobody asks the one that failed first.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from moothall import telemetry
from moothall.config import Llm
from moothall.domain.chat import ChatReply, ChatRequest, ReplyMode
from moothall.domain.ids import digest
from moothall.errors import ModelUnavailable
from moothall.model.client import OpenAIModel, open_model
from moothall.ports import ChatModel

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_REST_SECONDS = 30.0


class ReplicatedModel:
    """The port `ChatModel` over several servers; at least one."""

    def __init__(self, servers: Sequence[OpenAIModel], clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = tuple(servers)
        self._clock = clock
        self._failed: dict[str, float] = {}

    async def chat(
        self, request: ChatRequest, on_text: Callable[[str], None] | None = None, *, ours: Callable[[], bool] | None = None
    ) -> ChatReply:
        """Ask the deliberation's own server, then those that stand in. Raises what `OpenAIModel.chat` raises."""
        return await self._first(request.call_id, lambda server: server.chat(request, on_text, ours=ours))

    async def reply_mode(self) -> ReplyMode:
        """Return what the first server that answers says: all have the same model, and the operator the same flags."""
        return await self._first("", lambda server: server.reply_mode())

    def order(self, call_id: str) -> list[OpenAIModel]:
        """Return the servers in the order in which this call's deliberation turns to them; those that failed just now last."""
        task_id = call_id.partition("/")[0]
        now = self._clock()
        return sorted(self._servers, key=lambda server: (self._failed.get(server.url, 0.0) > now, digest(server.url, task_id)))

    async def _first(self, call_id: str, ask: Callable[[OpenAIModel], Awaitable[T]]) -> T:
        *others, last = self.order(call_id)
        for server in others:
            try:
                return await ask(server)
            except ModelUnavailable as error:
                self._failed[server.url] = self._clock() + _REST_SECONDS
                log.warning("the next model server stands in", call_id=call_id, why=error.message)
        return await ask(last)


@asynccontextmanager
async def open_models(settings: Llm, base_url: str) -> AsyncIterator[ChatModel]:
    """Open clients for `base_url` and every replica in the settings. Raises as `open_model` does."""
    async with AsyncExitStack() as stack:
        urls = dict.fromkeys((base_url, *settings.replicas))
        servers = [await stack.enter_async_context(open_model(settings, url)) for url in urls]
        yield servers[0] if len(servers) == 1 else ReplicatedModel(servers)
