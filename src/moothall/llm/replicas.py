"""Replicas of a model server. Each deliberation uses one replica, since its prompts share a prefix.

The server is chosen by rendezvous hashing of the deliberation's id: every host gets the same result
without communication, and adding or removing a server moves only the deliberations that it gains or
loses. If a server stays unreachable, the next one in the deliberation's order replaces it. The
failed server is not used for a while; then one call at a time tries it again. The servers of a
model are followed by those of its fallback models (`llm.fallback`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from moothall import telemetry
from moothall.config import Models
from moothall.domain.chat import ChatReply, ChatRequest, ModelDescription, ReplyMode
from moothall.domain.ids import digest
from moothall.errors import ModelUnavailable
from moothall.llm.client import OpenAIModel, open_model
from moothall.ports import ChatModel

T = TypeVar("T")
log = telemetry.get_logger(__name__)

_PAUSE_SECONDS = 30.0


class _CallsNoToolsError(ModelUnavailable):
    """A fallback server answers, but its model does not call tools."""


class ReplicatedModel:
    """Implements `ChatModel` with one or more servers. `fallbacks` are the servers of the fallback
    models, one group for each model. `paused_until` holds the time until which each failed server
    is not used; models with common servers share it.
    """

    def __init__(
        self,
        servers: Sequence[OpenAIModel],
        clock: Callable[[], float] = time.monotonic,
        *,
        fallbacks: Sequence[Sequence[OpenAIModel]] = (),
        paused_until: dict[OpenAIModel, float] | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._fallbacks = tuple(map(tuple, fallbacks))
        self._clock = clock
        self._paused_until = paused_until if paused_until is not None else {}

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Call the deliberation's server, then the others. Raises the errors of
        `OpenAIModel.chat`.
        """

        async def call_server(server: OpenAIModel) -> ChatReply:
            mode = "" if server in self._servers else await server.reply_mode()
            if request.tools and mode not in {"", "tools"}:
                raise _CallsNoToolsError(
                    f"the model of fallback server {server.url} calls no tools"
                )
            drops_schema = request.schema is not None and mode == "blocks"
            return await server.chat(
                replace(request, schema=None) if drops_schema else request,
                on_text,
                owns_work=owns_work,
            )

        return await self._call_in_order(request.call_id, call_server)

    async def reply_mode(self) -> ReplyMode:
        """Return the mode of the first server that answers, since all servers have the same model
        and settings.
        """
        return await self._call_in_order("", lambda server: server.reply_mode())

    async def describe(self) -> ModelDescription:
        """Return the description of the first server that answers."""
        return await self._call_in_order("", lambda server: server.describe())

    def order(self, call_id: str) -> list[OpenAIModel]:
        """Return the servers in the order of this call's deliberation. Servers that failed recently
        come last.
        """
        task_key = call_id.partition("/")[0]
        now = self._clock()
        servers = [
            server
            for group in (self._servers, *self._fallbacks)
            for server in sorted(group, key=lambda server: digest(server.url, task_key))
        ]
        return sorted(servers, key=lambda server: self._paused_until.get(server, 0.0) > now)

    async def _call_in_order(
        self, call_id: str, call_server: Callable[[OpenAIModel], Awaitable[T]]
    ) -> T:
        *servers, last_server = self.order(call_id)
        for server in servers:
            # Its pause is over: this call tries it, and later calls wait for the result.
            if server in self._paused_until:
                self._paused_until[server] = self._clock() + _PAUSE_SECONDS
            try:
                result = await call_server(server)
            except _CallsNoToolsError as error:
                self._paused_until.pop(server, None)
                log.warning(
                    "a fallback server cannot be used", call_id=call_id, reason=error.message
                )
            except ModelUnavailable as error:
                self._paused_until[server] = self._clock() + _PAUSE_SECONDS
                log.warning(
                    "a model server failed; using the next one",
                    call_id=call_id,
                    reason=error.message,
                )
            else:
                self._paused_until.pop(server, None)
                return result
        return await call_server(last_server)


@asynccontextmanager
async def open_models(models: Models, base_url: str) -> AsyncIterator[Mapping[str, ChatModel]]:
    """Open clients for each model and its replicas, by model name. `base_url` is used for models
    without a URL of their own. Raises the errors of `open_model`.
    """
    async with AsyncExitStack() as stack:
        servers: dict[str, list[OpenAIModel]] = {}
        for name, settings in models.items():
            urls = dict.fromkeys((settings.base_url or base_url, *settings.replicas))
            servers[name] = [
                await stack.enter_async_context(open_model(settings, url)) for url in urls
            ]
        paused_until: dict[OpenAIModel, float] = {}
        clients: dict[str, ChatModel] = {}
        for name, replicas in servers.items():
            fallbacks = [servers[fallback] for fallback in models.chain(name)[1:]]
            clients[name] = (
                replicas[0]
                if len(replicas) == 1 and not fallbacks
                else ReplicatedModel(replicas, fallbacks=fallbacks, paused_until=paused_until)
            )
        yield clients
