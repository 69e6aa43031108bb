"""Several servers used as one. A deliberation stays with one of the servers of its model, because
its prompts begin alike.

The server is chosen by rendezvous hashing of the deliberation's id: every host gets the same result
without communication, and adding or removing a server moves only the deliberations that it gains or
loses. If a server stays unreachable, the next one in the deliberation's order replaces it, and the
failed one is not asked for a while; then one call at a time tries it again. After the servers of a
model come those of its fallback models (`llm.fallback`).
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
    """A fallback server answers, but its model calls no tools."""


class ReplicatedModel:
    """Implements `ChatModel` over one or more servers. `others` are those of the fallback models,
    model by model. `failed` is until when each server is not asked; all that use the servers share
    it.
    """

    def __init__(
        self,
        servers: Sequence[OpenAIModel],
        clock: Callable[[], float] = time.monotonic,
        *,
        others: Sequence[Sequence[OpenAIModel]] = (),
        failed: dict[OpenAIModel, float] | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._others = tuple(map(tuple, others))
        self._clock = clock
        self._paused_until = failed if failed is not None else {}

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Ask the deliberation's own server, then the others. Raises what `OpenAIModel.chat`
        raises.
        """

        async def ask_server(server: OpenAIModel) -> ChatReply:
            mode = "" if server in self._servers else await server.reply_mode()
            if request.tools and mode not in {"", "tools"}:
                raise _CallsNoToolsError(f"{server.url} stands in, and its model calls no tools")
            drops_schema = request.schema is not None and mode == "blocks"
            return await server.chat(
                replace(request, schema=None) if drops_schema else request, on_text, ours=ours
            )

        return await self._ask_in_order(request.call_id, ask_server)

    async def reply_mode(self) -> ReplyMode:
        """Return the mode of the first server that answers: all have the same model and the same
        settings.
        """
        return await self._ask_in_order("", lambda server: server.reply_mode())

    async def describe(self) -> ModelDescription:
        """Return the description of the first server that answers."""
        return await self._ask_in_order("", lambda server: server.describe())

    def order(self, call_id: str) -> list[OpenAIModel]:
        """Return the servers in the order in which this call's deliberation asks them; those that
        failed recently come last.
        """
        task_id = call_id.partition("/")[0]
        now = self._clock()
        servers = [
            server
            for group in (self._servers, *self._others)
            for server in sorted(group, key=lambda server: digest(server.url, task_id))
        ]
        return sorted(servers, key=lambda server: self._paused_until.get(server, 0.0) > now)

    async def _ask_in_order(self, call_id: str, ask: Callable[[OpenAIModel], Awaitable[T]]) -> T:
        *others, last = self.order(call_id)
        for server in others:
            # its pause is over: this call tries it, and others wait for the result
            if server in self._paused_until:
                self._paused_until[server] = self._clock() + _PAUSE_SECONDS
            try:
                answer = await ask(server)
            except _CallsNoToolsError as error:
                self._paused_until.pop(server, None)
                log.warning("a model server cannot stand in", call_id=call_id, why=error.message)
            except ModelUnavailable as error:
                self._paused_until[server] = self._clock() + _PAUSE_SECONDS
                log.warning("the next model server stands in", call_id=call_id, why=error.message)
            else:
                self._paused_until.pop(server, None)
                return answer
        return await ask(last)


@asynccontextmanager
async def open_models(models: Models, base_url: str) -> AsyncIterator[Mapping[str, ChatModel]]:
    """Open clients for every model, by name, and its replicas; `base_url` is the server of the
    models that name none. Raises what `open_model` raises.
    """
    async with AsyncExitStack() as stack:
        servers: dict[str, list[OpenAIModel]] = {}
        for name, settings in models.items():
            urls = dict.fromkeys((settings.base_url or base_url, *settings.replicas))
            servers[name] = [
                await stack.enter_async_context(open_model(settings, url)) for url in urls
            ]
        failed: dict[OpenAIModel, float] = {}
        opened: dict[str, ChatModel] = {}
        for name, own in servers.items():
            others = [servers[other] for other in models.chain(name)[1:]]
            opened[name] = (
                own[0]
                if len(own) == 1 and not others
                else ReplicatedModel(own, others=others, failed=failed)
            )
        yield opened
