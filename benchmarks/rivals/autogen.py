"""AutoGen core: seats and a chair as routed agents of one runtime, direct messages, its OpenAI
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

from benchmarks.rivals import words


@dataclass
class Propose:
    """Ask a seat for its answer."""

    seat: int


@dataclass
class Judge:
    """Ask a seat for a review."""

    candidate: str


@dataclass
class Revise:
    """Ask an author for a revision."""

    own: str
    output_text: str


@dataclass
class Begin:
    """Ask the chair for a deliberation."""


@dataclass
class Reply:
    """An answer."""

    text: str


class Seat(RoutedAgent):
    """Calls the model."""

    def __init__(self, client: ChatCompletionClient) -> None:
        super().__init__("a seat")
        self._client = client

    async def _ask(self, text: str) -> Reply:
        done = await self._client.create(
            [SystemMessage(content=words.SYSTEM), UserMessage(content=text, source="user")]
        )
        return Reply(str(done.content))

    @message_handler
    async def propose(self, message: Propose, ctx: MessageContext) -> Reply:
        """Answer."""
        del ctx
        return await self._ask(words.propose(message.seat))

    @message_handler
    async def judge(self, message: Judge, ctx: MessageContext) -> Reply:
        """Review."""
        del ctx
        return await self._ask(words.review(message.candidate))

    @message_handler
    async def revise(self, message: Revise, ctx: MessageContext) -> Reply:
        """Revise."""
        del ctx
        return await self._ask(words.revise(message.own, message.output_text))


class Chair(RoutedAgent):
    """Leads from phase to phase."""

    def __init__(self) -> None:
        super().__init__("the chair")

    @message_handler
    async def begin(self, message: Begin, ctx: MessageContext) -> Reply:
        """Run one deliberation."""
        del message, ctx
        proposals = await self._all({seat: Propose(seat) for seat in words.SEATS})
        judged = await self._all(
            {seat: Judge(proposals[words.reviewed_by(seat)]) for seat in words.SEATS}
        )
        reviews = {words.reviewed_by(seat): output_text for seat, output_text in judged.items()}
        revised = await self._all(
            {seat: Revise(proposals[seat], reviews[seat]) for seat in words.SEATS}
        )
        return Reply(max(revised.values()))

    async def _all(
        self, requested: dict[int, Propose] | dict[int, Judge] | dict[int, Revise]
    ) -> dict[int, str]:
        output_text = await asyncio.gather(
            *(self.send_message(ask, AgentId("seat", str(seat))) for seat, ask in requested.items())
        )
        return {seat: item.text for seat, item in zip(requested, output_text, strict=True)}


@asynccontextmanager
async def open_autogen(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A runtime in this process; nothing is kept."""
    client = OpenAIChatCompletionClient(
        model=words.MODEL,
        base_url=url,
        api_key=words.KEY,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "family": "unknown",
            "structured_output": True,
        },
    )
    runtime = SingleThreadedAgentRuntime()
    await Seat.register(runtime, "seat", lambda: Seat(client))
    await Chair.register(runtime, "chair", Chair)
    runtime.start()
    try:

        async def deliberate() -> str:
            return str((await runtime.send_message(Begin(), AgentId("chair", "default"))).text)

        yield deliberate
    finally:
        await runtime.stop()
        await client.close()
