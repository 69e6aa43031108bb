"""Several servers as one. Of those of the same model a deliberation stays with one, because its
prompts begin alike.

Which one is found by rendezvous hashing of the deliberation's id: every host comes to the same
answer without asking,
and a server more or less moves only the deliberations that it gains or loses. Where a server stays
unreachable, the
next in the deliberation's order stands in, and for a while nobody asks the one that failed first;
then one call at a time tries it again. After the servers of a model come those of the models that
stand in for it (`llm.fallback`).
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

_REST_SECONDS = 30.0


class _CallsNoToolsError(ModelUnavailable):
    """A server that stands in answers, and its model calls no tools."""


class ReplicatedModel:
    """The port `ChatModel` over several servers; at least one. `others` are those of the models
    that stand in, model by model; `failed` is until when each server rests, which all that ask them
    share.
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
        self._failed = failed if failed is not None else {}

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Ask the deliberation's own server, then those that stand in. Raises what
        `OpenAIModel.chat` raises.
        """

        async def ask_server(server: OpenAIModel) -> ChatReply:
            mode = "" if server in self._servers else await server.reply_mode()
            if request.tools and mode not in {"", "tools"}:
                raise _CallsNoToolsError(f"{server.url} stands in, and its model calls no tools")
            free = request.schema is not None and mode == "blocks"
            return await server.chat(
                replace(request, schema=None) if free else request, on_text, ours=ours
            )

        return await self._first(request.call_id, ask_server)

    async def reply_mode(self) -> ReplyMode:
        """Return what the first server that answers says: all have the same model, and the operator
        the same flags.
        """
        return await self._first("", lambda server: server.reply_mode())

    async def describe(self) -> ModelDescription:
        """Return what the first server that answers says."""
        return await self._first("", lambda server: server.describe())

    def order(self, call_id: str) -> list[OpenAIModel]:
        """Return the servers in the order in which this call's deliberation turns to them; those
        that failed just now last.
        """
        task_id = call_id.partition("/")[0]
        now = self._clock()
        servers = [
            server
            for group in (self._servers, *self._others)
            for server in sorted(group, key=lambda server: digest(server.url, task_id))
        ]
        return sorted(servers, key=lambda server: self._failed.get(server, 0.0) > now)

    async def _first(self, call_id: str, ask: Callable[[OpenAIModel], Awaitable[T]]) -> T:
        *others, last = self.order(call_id)
        for server in others:
            if (
                server in self._failed
            ):  # its rest is over: this call tries it, and others wait for what comes of that
                self._failed[server] = self._clock() + _REST_SECONDS
            try:
                found = await ask(server)
            except _CallsNoToolsError as error:
                self._failed.pop(server, None)
                log.warning("a model server cannot stand in", call_id=call_id, why=error.message)
            except ModelUnavailable as error:
                self._failed[server] = self._clock() + _REST_SECONDS
                log.warning("the next model server stands in", call_id=call_id, why=error.message)
            else:
                self._failed.pop(server, None)
                return found
        return await ask(last)


@asynccontextmanager
async def open_models(models: Models, base_url: str) -> AsyncIterator[Mapping[str, ChatModel]]:
    """Open clients for every model, by name, and its replicas; `base_url` is the server of those
    that name none. Raises as `open_model` does.
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
