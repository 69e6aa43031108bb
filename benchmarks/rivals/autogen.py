"""AutoGen core: seats and a chair are routed agents of one runtime, which exchange direct messages
and use its OpenAI client.
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

from benchmarks.rivals import prompts


@dataclass
class Propose:
    """A request to a seat for its proposal."""

    seat: int


@dataclass
class Judge:
    """A request to a seat for a review."""

    candidate: str


@dataclass
class Revise:
    """A request to an author for a revision."""

    proposal: str
    review: str


@dataclass
class Begin:
    """A request to the chair for a deliberation."""


@dataclass
class Reply:
    """The response to a request."""

    text: str


class Seat(RoutedAgent):
    """An agent that calls the model."""

    def __init__(self, client: ChatCompletionClient) -> None:
        super().__init__("a seat")
        self._client = client

    async def _call_model(self, text: str) -> Reply:
        result = await self._client.create(
            [SystemMessage(content=prompts.SYSTEM), UserMessage(content=text, source="user")]
        )
        return Reply(str(result.content))

    @message_handler
    async def propose(self, message: Propose, ctx: MessageContext) -> Reply:
        """Return the proposal."""
        del ctx
        return await self._call_model(prompts.propose(message.seat))

    @message_handler
    async def judge(self, message: Judge, ctx: MessageContext) -> Reply:
        """Return the review."""
        del ctx
        return await self._call_model(prompts.review(message.candidate))

    @message_handler
    async def revise(self, message: Revise, ctx: MessageContext) -> Reply:
        """Return the revision."""
        del ctx
        return await self._call_model(prompts.revise(message.proposal, message.review))


class Chair(RoutedAgent):
    """An agent that runs the phases."""

    def __init__(self) -> None:
        super().__init__("the chair")

    @message_handler
    async def begin(self, message: Begin, ctx: MessageContext) -> Reply:
        """Run one deliberation."""
        del message, ctx
        proposals = await self._send_all({seat: Propose(seat) for seat in prompts.SEATS})
        seat_reviews = await self._send_all(
            {seat: Judge(proposals[prompts.reviewed_by(seat)]) for seat in prompts.SEATS}
        )
        reviews = {prompts.reviewed_by(seat): review for seat, review in seat_reviews.items()}
        revisions = await self._send_all(
            {seat: Revise(proposals[seat], reviews[seat]) for seat in prompts.SEATS}
        )
        return Reply(max(revisions.values()))

    async def _send_all(
        self, requests: dict[int, Propose] | dict[int, Judge] | dict[int, Revise]
    ) -> dict[int, str]:
        replies = await asyncio.gather(
            *(
                self.send_message(request, AgentId("seat", str(seat)))
                for seat, request in requests.items()
            )
        )
        return {seat: reply.text for seat, reply in zip(requests, replies, strict=True)}


@asynccontextmanager
async def open_autogen(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Run a runtime in this process; nothing is persisted."""
    client = OpenAIChatCompletionClient(
        model=prompts.MODEL,
        base_url=url,
        api_key=prompts.KEY,
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
